"""High effort: layer after layer, weights rounded with compensation for the inputs that the quantized part really
produces, and biases that match the float layer's mean outputs exactly on the data.

What the layers before have spoilt can partly be made good: before they are rounded, a layer's weights are fitted so
that from the quantized part's values they make what the float weights make from the float model's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import numpy as np

from ..affine import QuantParams
from ..bench.judge import PARTS, real
from ..dtypes import Array
from ..graph.edit import copy_model, cut_model
from ..graph.model import Graph, Model, Op, Tensor
from ..graph.query import Use, Uses
from ..ops import Bias, OpSpec
from ..ops.layout import Layout
from ..parallel import in_parallel
from ..plan.forms import BlockParams, Form, Packed
from ..plan.pipeline import Request, Stage, untold
from ..plan.plan import Plan
from ..plan.rewrite import rewrite
from ..plan.weights import fit_bias, with_scales
from ..runtime.runner import Runner
from ..sources.ports import Row
from .gptq import Pair, compensated, refitted, weighted_scales

VECTORS = 8192
"""About how many input vectors a layer's moments are taken from; more for layers with more inputs."""


@dataclass(frozen=True)
class Layer:
    """An op with weights of its own, and the form that the plan holds them in."""

    op: Op
    layout: Layout
    form: QuantParams | BlockParams
    bias: Use | None

    @property
    def weights(self) -> Use:
        return Use(self.op, 1)

    @property
    def data(self) -> Array:
        tensor = self.op.inputs[1]
        assert tensor is not None
        assert tensor.data is not None
        return tensor.data

    @property
    def source(self) -> Use:
        return Use(self.op, self.layout.data)


def layers(plan: Plan, ops: Mapping[str, OpSpec]) -> list[Layer]:
    """The layers that can be refined, in order of execution: with integer weights that no other op reads."""
    found = []
    uses = Uses(plan.graph)
    for op in plan.graph.ops:
        form, spec = _form(plan, Use(op, 1)), ops.get(op.kind)
        layout = None if spec is None else spec.layout
        weights = op.inputs[1] if len(op.inputs) > 1 else None
        if form is None or layout is None or weights is None or weights.data is None or not layout.applies_to(op):
            continue
        if len(uses.readers(weights)) > 1 or (isinstance(form, QuantParams) and not form.is_symmetric):
            continue
        slots = [k for k, role in enumerate(ops[op.kind].inputs) if isinstance(role, Bias)]
        has_bias = bool(slots) and slots[0] < len(op.inputs) and op.inputs[slots[0]] is not None
        found.append(Layer(op, layout, form, Use(op, slots[0]) if has_bias else None))
    return found


def _form(plan: Plan, use: Use) -> QuantParams | BlockParams | None:
    """The integers that a use reads, if it does."""
    packed = plan.packed.get(use)
    form: Form | None = plan.wanted.get(use) if packed is None else packed.form
    return form if isinstance(form, QuantParams | BlockParams) else None


@dataclass(frozen=True)
class Moments:
    """E[x] and E[x x'] of a layer's input vectors x, for each group; E[f] and E[f x'], f being x in the float model."""

    first: Array
    second: Array
    float_first: Array
    cross: Array

    def __add__(self, other: Moments) -> Moments:
        return Moments(*(a + b for a, b in zip(self._parts, other._parts, strict=True)))

    def __truediv__(self, share: float) -> Moments:
        return Moments(*(part / share for part in self._parts))

    def pair(self, has_bias: bool) -> Pair:
        """The second moments; about the means if a bias takes care of these."""
        if not has_bias:
            return Pair(self.second, self.cross)
        return Pair(
            self.second - self.first[:, :, None] * self.first[:, None, :],
            self.cross - self.float_first[:, :, None] * self.first[:, None, :],
        )

    @property
    def _parts(self) -> tuple[Array, ...]:
        return self.first, self.second, self.float_first, self.cross


@dataclass(frozen=True)
class Refiner:
    """Refines one plan of a prepared model on some samples."""

    model: Model
    request: Request
    samples: Sequence[Row]
    stage: Stage = untold

    def refine(self, plan: Plan) -> Plan:
        efforts = {op: self.request.recipe.effort(op, self.request.effort) for op in plan.graph.ops}
        todo = [layer for layer in layers(plan, self.request.ops) if efforts[layer.op] == "high"]
        if not todo:
            return plan
        report = self.stage("compensating", len(todo))
        for done, layer in enumerate(todo, 1):
            plan = self._refined(plan, layer)
            report(done)
        return plan

    def _most(self, layer: Layer) -> int:
        """How many vectors to take from each sample."""
        inputs = layer.data.size // max(1, layer.op.outputs[0].shape[-1])
        return max(1, -(-max(VECTORS, 4 * inputs) // len(self.samples)))

    def _refined(self, plan: Plan, layer: Layer) -> Plan:
        halves = self._moments_of(plan, layer)
        moments, has_bias = reduce(add, halves) / len(halves), layer.bias is not None
        whole = moments.pair(has_bias)
        weights = layer.layout.matrix(layer.op, layer.data.astype(np.float64))
        target = refitted(weights, whole, [half.pair(has_bias) for half in halves])
        form = _scaled(layer.form, layer.op, target, whole.second)
        steps = _steps(form, weights)
        made = compensated(target, whole.second, steps, form.dtype) * steps
        wanted, packed, values = dict(plan.wanted), dict(plan.packed), dict(plan.values)
        if layer.bias is not None:
            shift = np.einsum("goi,gi->go", weights, moments.float_first) - np.einsum("goi,gi->go", made, moments.first)
            bias = _data(layer.bias).reshape(-1) + shift.reshape(-1).astype(np.float32)
            if layer.weights not in packed:
                assert isinstance(form, QuantParams)
                activations = plan.schemes[layer.op].activations
                assert activations is not None
                fitted = fit_bias(form, bias, plan.wanted[layer.source].scale, activations)
                if fitted.raised:
                    return plan  # the bias rules this layer's scales; leave it as it is
                wanted[layer.bias] = fitted.bias
            values[layer.bias] = bias
        if layer.weights in packed:
            packed[layer.weights] = Packed(form, packed[layer.weights].unpacked)
        else:
            assert isinstance(form, QuantParams)
            wanted[layer.weights] = form
        values[layer.weights] = layer.layout.from_matrix(layer.op, made).astype(np.float32)
        return replace(plan, wanted=wanted, packed=packed, values=values)

    def _moments_of(self, plan: Plan, layer: Layer) -> list[Moments]:
        """For each part of the data, those of the layer's input: as quantized so far, and in the float model."""
        made = copy_model(self.model)
        index = self._index(plan.graph)
        twin_plan = plan.on(made.graphs[index])
        twin = made.graphs[index].ops[plan.graph.ops.index(layer.op)]
        rewrite(twin_plan, self.request.ops)
        source = _tensor(Use(twin, layer.source.slot))
        quantized = Watched.of(made, made.graphs[index], source)
        original = Watched.of(self.model, plan.graph, _tensor(layer.source))

        def observed(rows: Sequence[Row]) -> Moments:
            seen, float_seen = quantized.start(), original.start()
            found = (self._moments(layer, seen(row), float_seen(row)) for row in rows)
            return reduce(add, found) / len(rows)

        return in_parallel(observed, [self.samples[k::PARTS] for k in range(min(PARTS, len(self.samples)))])

    def _moments(self, layer: Layer, x: Array, float_x: Array) -> Moments:
        """The moments of one sample."""
        seen, wanted = (layer.layout.patches(layer.op, values, self._most(layer)) for values in (x, float_x))
        return Moments(
            seen.mean(axis=1, dtype=np.float64),
            seen.transpose(0, 2, 1) @ seen / seen.shape[1],
            wanted.mean(axis=1, dtype=np.float64),
            wanted.transpose(0, 2, 1) @ seen / seen.shape[1],
        )

    def _index(self, graph: Graph) -> int:
        return self.model.graphs.index(graph)


@dataclass(frozen=True)
class Watched:
    """A model that computes nothing but one tensor, from those of the inputs that it needs."""

    model: Model
    tensor: Tensor
    fed: tuple[int, ...]

    @classmethod
    def of(cls, model: Model, graph: Graph, tensor: Tensor) -> Watched:
        cut, kept = cut_model(model, graph, [tensor])
        return cls(cut, tensor, tuple(k for k, t in enumerate(graph.inputs) if t in kept))

    def start(self) -> Callable[[Row], Array]:
        """What gives the tensor's real values for a sample; used by one thread."""
        runner = Runner(self.model)

        def values(row: Row) -> Array:
            (found,) = runner.run([row[k] for k in self.fed])
            return real(found, self.tensor)

        return values


def _tensor(use: Use) -> Tensor:
    tensor = use.op.inputs[use.slot]
    assert tensor is not None
    return tensor


def _data(use: Use) -> Array:
    data = _tensor(use).data
    assert data is not None
    return data


def _scaled(form: QuantParams | BlockParams, op: Op, weights: Array, moments: Array) -> QuantParams | BlockParams:
    """With few bits, scales for the inputs as they are; with 8, the peaks decide."""
    if isinstance(form, BlockParams) or form.dtype.bits >= 8 or form.axis is None or op.kind == "BATCH_MATMUL":
        return form
    peaks = np.abs(weights).max(axis=2)
    power = [np.diagonal(m) for m in moments]
    found = [weighted_scales(weights[g], power[g], form.dtype, peaks[g]) for g in range(weights.shape[0])]
    return with_scales(form, np.where(peaks.reshape(-1) > 0, np.concatenate(found), np.array(form.scales)))


def _steps(form: QuantParams | BlockParams, weights: Array) -> Array:
    """The scale of each weight, to be broadcast against [groups, outputs, inputs]."""
    if isinstance(form, BlockParams):
        return np.repeat(form.scales.astype(np.float64), form.block, axis=1).reshape(weights.shape)
    scales = np.array(form.scales)
    return np.broadcast_to(scales, (weights.shape[0] * weights.shape[1],)).reshape(*weights.shape[:2], 1)
