"""High effort: layer after layer, weights rounded with compensation for the inputs that the quantized part really
produces, and biases that match the float layer's mean outputs exactly on the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..affine import QuantParams, dequantize
from ..dtypes import Array
from ..graph.edit import copy_model, drop_unused
from ..graph.model import Graph, Model, Op, Tensor
from ..graph.query import Use
from ..ops import Bias, OpSpec
from ..runtime import Session
from ..sources.ports import Row
from .compensate import compensated, weighted_scales
from .patches import SUPPORTED, grouped_weights, patches, ungrouped_weights
from .plan import Plan
from .rewrite import rewrite
from .weights import fit_bias, with_scales

VECTORS = 8192
"""About how many input vectors a layer's moments are taken from; more for layers with more inputs."""


@dataclass(frozen=True)
class Layer:
    """An op with weights, and what the plan wants of them."""

    op: Op
    weights: Use
    bias: Use | None
    data_slot: int


def layers(plan: Plan, ops: Mapping[str, OpSpec]) -> list[Layer]:
    """The integer layers that can be refined, in order of execution."""
    found = []
    for op in plan.graph.ops:
        if op not in plan.schemes or op.kind not in SUPPORTED:
            continue
        slots = [k for k, role in enumerate(ops[op.kind].inputs) if isinstance(role, Bias)]
        has_bias = bool(slots) and slots[0] < len(op.inputs) and op.inputs[slots[0]] is not None
        found.append(Layer(op, Use(op, 1), Use(op, slots[0]) if has_bias else None, 0))
    return found


@dataclass(frozen=True)
class Refiner:
    """Refines one plan of a prepared model on some samples."""

    model: Model
    ops: Mapping[str, OpSpec]
    samples: Sequence[Row]
    progress: Callable[[int], None] | None = None

    def refine(self, plan: Plan) -> Plan:
        todo = layers(plan, self.ops)
        means = self._float_means(plan, todo)
        for done, layer in enumerate(todo, 1):
            plan = self._refined(plan, layer, means[layer.op])
            if self.progress is not None:
                self.progress(done)
        return plan

    def _most(self, layer: Layer) -> int:
        """How many vectors to take from each sample."""
        weights = layer.op.inputs[1]
        assert weights is not None
        inputs = weights.size // max(1, layer.op.outputs[0].shape[-1])
        return max(1, -(-max(VECTORS, 4 * inputs) // len(self.samples)))

    def _float_means(self, plan: Plan, todo: list[Layer]) -> dict[Op, Array]:
        """The mean input vector of each layer in the float model."""
        sources = list(dict.fromkeys(self._source(layer.op) for layer in todo))
        values = self._observed(self.model, self._index(plan.graph), sources)
        totals: dict[Op, Array] = {}
        for row in values:
            for layer in todo:
                vectors = patches(layer.op, row[self._source(layer.op)], self._most(layer))
                mean = vectors.mean(axis=1, dtype=np.float64) / len(self.samples)
                totals[layer.op] = totals[layer.op] + mean if layer.op in totals else mean
        return totals

    def _refined(self, plan: Plan, layer: Layer, float_mean: Array) -> Plan:
        moments, mean = self._quantized_moments(plan, layer)
        tensor = layer.op.inputs[1]
        assert tensor is not None
        assert tensor.data is not None
        groups = moments.shape[0]
        weights = grouped_weights(layer.op, tensor.data.astype(np.float64), groups)
        params = _scales(plan.wanted[layer.weights], weights, moments)
        scales = np.broadcast_to(np.array(params.scales), (weights.shape[0] * weights.shape[1],))
        by_group = scales.reshape(weights.shape[:2])
        q = np.stack([compensated(weights[g], moments[g], by_group[g], params.dtype) for g in range(groups)])
        made = q * by_group[:, :, None]
        wanted, values = dict(plan.wanted), dict(plan.values)
        if layer.bias is not None:
            shift = np.einsum("goi,gi->go", weights, float_mean) - np.einsum("goi,gi->go", made, mean)
            bias = self._bias(layer) + shift.reshape(-1).astype(np.float32)
            activations = plan.schemes[layer.op].activations
            assert activations is not None
            fitted = fit_bias(params, bias, plan.wanted[Use(layer.op, layer.data_slot)].scale, activations)
            if fitted.raised:
                return plan  # the bias rules this layer's scales; leave it as it is
            wanted[layer.bias], values[layer.bias] = fitted.bias, bias
        wanted[layer.weights] = params
        values[layer.weights] = ungrouped_weights(layer.op, made, tensor.shape).astype(np.float32)
        return replace(plan, wanted=wanted, values=values)

    def _bias(self, layer: Layer) -> Array:
        assert layer.bias is not None
        tensor = layer.op.inputs[layer.bias.slot]
        assert tensor is not None
        assert tensor.data is not None
        return tensor.data.reshape(-1)

    def _quantized_moments(self, plan: Plan, layer: Layer) -> tuple[Array, Array]:
        """E[x x'] and E[x] of the layer's input vectors in the model as quantized so far."""
        made = copy_model(self.model)
        index = self._index(plan.graph)
        twin_plan = plan.on(made.graphs[index])
        twin = made.graphs[index].ops[plan.graph.ops.index(layer.op)]
        rewrite(twin_plan, self.ops)
        source = twin.inputs[layer.data_slot]
        assert source is not None
        moments: Array | None = None
        mean: Array | None = None
        for row in self._observed(made, index, [source]):
            vectors = patches(layer.op, row[source], self._most(layer))
            second = vectors.transpose(0, 2, 1) @ vectors / (vectors.shape[1] * len(self.samples))
            first = vectors.mean(axis=1, dtype=np.float64) / len(self.samples)
            moments = second if moments is None else moments + second
            mean = first if mean is None else mean + first
        assert moments is not None
        assert mean is not None
        return moments, mean

    def _observed(self, model: Model, index: int, tensors: list[Tensor]) -> list[dict[Tensor, Array]]:
        """The real values of some tensors for each sample."""
        graph = model.graphs[index]
        cut, kept = cut_model(model, graph, tensors)
        session = Session(cut)
        found = []
        for row in self.samples:
            inputs = [a for a, t in zip(row, graph.inputs, strict=True) if t in kept]
            session.reset()
            outputs = session.run(inputs)
            found.append({t: _real(v, t.params) for t, v in zip(tensors, outputs, strict=True)})
        return found

    def _source(self, op: Op) -> Tensor:
        source = op.inputs[0]
        assert source is not None
        return source

    def _index(self, graph: Graph) -> int:
        return self.model.graphs.index(graph)


def _scales(params: QuantParams, weights: Array, moments: Array) -> QuantParams:
    """With few bits, scales for the inputs as they are; with 8, the peaks decide."""
    if params.dtype.bits >= 8 or params.axis is None:
        return params
    peaks = np.abs(weights).max(axis=2)
    power = [np.diagonal(m) for m in moments]
    found = [weighted_scales(weights[g], power[g], params.dtype, peaks[g]) for g in range(weights.shape[0])]
    return with_scales(params, np.where(peaks.reshape(-1) > 0, np.concatenate(found), np.array(params.scales)))


def _real(values: Array, params: QuantParams | None) -> Array:
    return values if params is None else dequantize(values, params)


def cut_model(model: Model, graph: Graph, tensors: list[Tensor]) -> tuple[Model, set[Tensor]]:
    """A model that computes only `tensors`, and the inputs it still needs. Objects are shared with `model`."""
    needed = set(tensors)
    kept_ops = []
    for op in reversed(graph.ops):
        if needed.intersection(op.outputs):
            kept_ops.append(op)
            needed.update(t for t in op.inputs if t is not None)
    inputs = [t for t in graph.inputs if t in needed]
    part = Graph(graph.name, list(graph.tensors), kept_ops[::-1], inputs, list(tensors))
    drop_unused(part)
    others = [g for g in model.graphs if g is not graph]
    return Model([part, *others]), set(inputs)
