"""High effort: layer after layer, weights rounded with compensation for the inputs that the quantized part really
produces, and biases that match the float layer's mean outputs exactly on the data.

What the layers before have lost can partly be regained: before they are rounded, a layer's weights are fitted so that
from the quantized part's values they make what the float weights make from the float model's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import numpy as np

from ..affine import QuantParams
from ..bench.bench import PARTS
from ..bench.errors import real
from ..calibration.collect import Progress
from ..dtypes import Array
from ..graph.edit import copy_model
from ..graph.model import Model, Op
from ..graph.query import Use, Uses
from ..ops.layout import Layout
from ..parallel import in_parallel
from ..plan.derive import derive
from ..plan.plan import Plan, Planned
from ..plan.request import Request
from ..plan.rewrite import rewrite
from ..plan.weights import weighted_scales, with_scales
from ..runtime.runner import Runner
from ..sources.ports import Row
from .gptq import Pair, compensated, refitted

VECTORS = 8192
"""About how many input vectors a layer's moments are taken from; more for layers with more inputs."""


@dataclass(frozen=True)
class RefinedLayer:
    """An op with weights of its own, the parameters that the plan holds them in, and its bias."""

    op: Op
    layout: Layout
    form: QuantParams
    bias: Use | None

    @property
    def weights(self) -> Use:
        return Use(self.op, self.layout.weights)

    @property
    def data(self) -> Array:
        return self.weights.data

    @property
    def source(self) -> Use:
        return Use(self.op, self.layout.data)


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
    """Refines the plans of a prepared model on some samples."""

    model: Model
    request: Request
    samples: Sequence[Row]
    stage: Callable[[str, int], Progress]

    def refine(self, planned: Planned) -> Planned:
        return replace(planned, plans=tuple(map(self._refined_plan, planned.plans)))

    def _refined_plan(self, plan: Plan) -> Plan:
        todo = list(self._layers(plan))
        if not todo:
            return plan
        report = self.stage("compensating", len(todo))
        for done, layer in enumerate(todo, 1):
            plan = self._refined(plan, layer)
            report(done)
        return plan

    def _layers(self, plan: Plan) -> Iterator[RefinedLayer]:
        """The layers that can be refined, in order of execution: with integer weights that no other op reads."""
        uses = Uses(plan.graph)
        for op in plan.graph.ops:
            spec = self.request.ops.get(op.kind)
            layout = None if spec is None else spec.layout
            if spec is None or layout is None or not layout.applies_to(op):
                continue
            use = Use(op, layout.weights)
            packed, weights = plan.packed.get(use), op.inputs[use.slot]
            form = plan.wanted.get(use) if packed is None else packed.form
            if not isinstance(form, QuantParams) or not form.is_symmetric or weights is None or weights.data is None:
                continue
            is_asked = self.request.recipe.effort(op, self.request.effort) == "high"
            if is_asked and len(uses.readers(weights)) == 1:
                slot = spec.bias_slot
                has_bias = slot is not None and slot < len(op.inputs) and op.inputs[slot] is not None
                yield RefinedLayer(op, layout, form, Use(op, slot) if has_bias and slot is not None else None)

    def _most(self, layer: RefinedLayer) -> int:
        """How many vectors to take from each sample."""
        inputs = layer.data.size // max(1, layer.op.outputs[0].shape[-1])
        return max(1, -(-max(VECTORS, 4 * inputs) // len(self.samples)))

    def _refined(self, plan: Plan, layer: RefinedLayer) -> Plan:
        halves = self._moments_of(plan, layer)
        moments, has_bias = reduce(add, halves) / len(halves), layer.bias is not None
        whole = moments.pair(has_bias)
        weights = layer.layout.matrix(layer.op, layer.data.astype(np.float64))
        target = refitted(weights, whole, [half.pair(has_bias) for half in halves])
        form = _scaled(layer, target, whole.second)
        steps = _steps(form, weights)
        made = compensated(target, whole.second, steps, form.dtype) * steps
        new = {layer.weights: layer.layout.from_matrix(layer.op, made).astype(np.float32)}
        if layer.bias is not None:
            shift = np.einsum("goi,gi->go", weights, moments.float_first) - np.einsum("goi,gi->go", made, moments.first)
            new[layer.bias] = layer.bias.data.reshape(-1) + shift.reshape(-1).astype(np.float32)
        return self._with(plan, layer, form, new)

    def _with(self, plan: Plan, layer: RefinedLayer, form: QuantParams, new: dict[Use, Array]) -> Plan:
        keys = {use: plan.key(use) for use in new}
        constants = replace(
            plan.constants,
            values={**plan.constants.values, **{keys[use]: value for use, value in new.items()}},
            keys={**plan.constants.keys, **keys},
        )
        if layer.weights in plan.packed:
            packed = replace(plan.packed[layer.weights], form=form)
            return replace(plan, constants=constants, packed={**plan.packed, layer.weights: packed})
        constants = replace(constants, grids={**constants.grids, layer.weights: form})
        made = derive(replace(plan, constants=constants), self.request.ops)
        # Where the bias rules this layer's scales, it is left as it is.
        return made if made.wanted[layer.weights] == form else plan

    def _moments_of(self, plan: Plan, layer: RefinedLayer) -> list[Moments]:
        """For each part of the data, those of the layer's input: as quantized so far, and in the float model."""
        made = copy_model(self.model)
        graph = made.graphs[plan.index]
        twin = graph.ops[plan.graph.ops.index(layer.op)]
        rewrite(plan.on(graph), self.request.ops)
        source, float_source = Use(twin, layer.source.slot).tensor, layer.source.tensor
        loaded = Runner.exposing(made, graph, [source]), Runner.exposing(self.model, plan.graph, [float_source])

        def observed(rows: Sequence[Row]) -> Moments:
            quantized, original = (runner.another() for runner in loaded)
            found = (self._moments(layer, real(quantized.run(row)[0], source), original.run(row)[0]) for row in rows)
            return reduce(add, found) / len(rows)

        return in_parallel(observed, [self.samples[k::PARTS] for k in range(min(PARTS, len(self.samples)))])

    def _moments(self, layer: RefinedLayer, x: Array, float_x: Array) -> Moments:
        """The moments of one sample."""
        seen, wanted = (layer.layout.patches(layer.op, values, self._most(layer)) for values in (x, float_x))
        return Moments(
            seen.mean(axis=1, dtype=np.float64),
            seen.transpose(0, 2, 1) @ seen / seen.shape[1],
            wanted.mean(axis=1, dtype=np.float64),
            wanted.transpose(0, 2, 1) @ seen / seen.shape[1],
        )


def _scaled(layer: RefinedLayer, weights: Array, moments: Array) -> QuantParams:
    """With few bits, scales for the inputs as they are; with 8, the peaks decide."""
    form = layer.form
    peaks = np.abs(weights).max(axis=2)
    if form.dtype.bits >= 8 or form.axis is None or peaks.size != len(form.scales):
        return form
    power = [np.diagonal(m) for m in moments]
    found = [weighted_scales(weights[g], power[g], form.dtype, peaks[g]) for g in range(weights.shape[0])]
    return with_scales(form, np.where(peaks.reshape(-1) > 0, np.concatenate(found), np.array(form.scales)))


def _steps(form: QuantParams, weights: Array) -> Array:
    """The scale of each weight, to be broadcast against [groups, outputs, inputs]."""
    scales = np.array(form.scales)
    if form.block is not None:
        return np.repeat(scales, form.block).reshape(weights.shape)
    return np.broadcast_to(scales, (weights.shape[0] * weights.shape[1],)).reshape(*weights.shape[:2], 1)
