"""GPTQ: weights rounded layer after layer, the error of each made up for by the weights that are rounded after it.

An output is w . x. Rounding w to q costs E[((q - w) . x)**2] = (q - w) H (q - w)', where H = E[x x'] is the second
moment of the inputs. Rounding weight i by d leaves the best the others can do, which is to move by
-d * C[i, rest] / C[i, i], where C is the upper Cholesky factor of the inverse of H (optimal brain quantization with a
fixed order). No row comes out worse than by nearest rounding: that is checked, and the better one kept.

The inputs are those that the quantized layers before really produce, and what these have lost can partly be regained:
before they are rounded, a layer's weights are fitted so that from these inputs they make what the float weights make
from the float model's. Biases then match the float layer's mean outputs exactly on the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from operator import add
from typing import NamedTuple

import numpy as np

from ..affine import QuantParams, round_half_away
from ..bench.bench import PARTS
from ..bench.errors import real
from ..calibration.collect import Progress
from ..dtypes import Array, DType
from ..graph.edit import copy_model
from ..graph.model import Model, Op
from ..graph.query import Use, Uses, activation_bytes
from ..ops.layout import Layout
from ..parallel import in_parallel, side_by_side
from ..plan.derive import derive
from ..plan.plan import Plan, Planned
from ..plan.request import Request
from ..plan.rewrite import rewrite
from ..plan.weights import bias_use, weighted_scales, with_scales
from ..runtime.runner import Runner
from ..sources.ports import Row

DAMPINGS = (0.01, 0.1, 1.0)
"""Shares of the mean diagonal that are added to it, until the moments can be inverted."""

BLOCK = 128
"""Columns whose corrections are kept back and then applied to all later ones at once."""


def compensated(weights: Array, moments: Array, steps: Array, dtype: DType) -> Array:
    """Integers for `weights` [groups, rows, inputs] in the narrow range, given E[x x'] [groups, inputs, inputs].

    `steps` are the scales of the weights, broadcast against them: one for each row, or for each weight.
    """
    limit = dtype.max
    steps = np.broadcast_to(steps.astype(np.float64), (*weights.shape[:2], steps.shape[2]))
    nearest = np.clip(round_half_away(weights / steps), -limit, limit)
    factor = inverse_factor(moments)
    if factor is None:
        return nearest
    rounded = _sweep(weights.astype(np.float64), factor, steps, limit)
    better = output_error(rounded * steps - weights, moments) < output_error(nearest * steps - weights, moments)
    return np.where(better[:, :, None], rounded, nearest)


REFIT_DAMPINGS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Shares of the mean diagonal that are tried; more of it keeps the weights closer to what they were."""


@dataclass(frozen=True)
class Pair:
    """E[x x'] and E[f x'] [groups, inputs, inputs] of inputs x that were to be f."""

    second: Array
    cross: Array

    def fitted(self, weights: Array, damping: float) -> Array:
        """Weights v for which v . x is close to w . f."""
        inputs = self.second.shape[1]
        level = np.trace(self.second, axis1=1, axis2=2) / inputs
        damped = self.second + (damping * np.where(level > 0, level, 1.0))[:, None, None] * np.eye(inputs)
        # What is solved for is the change: so the damping pulls towards the weights as they are, not towards zero.
        missing = (self.cross - self.second).transpose(0, 2, 1) @ weights.transpose(0, 2, 1)
        return np.asarray(weights + np.linalg.solve(damped, missing).transpose(0, 2, 1))

    def error(self, weights: Array, fitted: Array) -> float:
        """E[(w . f - v . x)**2], but for what does not depend on v."""
        return float(np.sum((fitted @ self.second) * fitted) - 2 * np.sum((weights @ self.cross) * fitted))


def refitted(weights: Array, whole: Pair, halves: Sequence[Pair]) -> Array:
    """Weights that make of the inputs as they are what `weights` make of the inputs as they were to be.

    How far they may go is found out by fitting to each half of the data and looking at the other.
    """
    if len(halves) != 2:
        return weights
    one, other = halves
    best, least = None, one.error(weights, weights) + other.error(weights, weights)
    for damping in REFIT_DAMPINGS:
        try:
            fits = one.fitted(weights, damping), other.fitted(weights, damping)
        except np.linalg.LinAlgError:
            continue
        error = other.error(weights, fits[0]) + one.error(weights, fits[1])
        if error < least:
            best, least = damping, error
    return weights if best is None else whole.fitted(weights, best)


def output_error(difference: Array, moments: Array) -> Array:
    """E[(d . x)**2] of each row d of each group."""
    return np.asarray(np.einsum("gri,gri->gr", difference @ moments, difference))


def inverse_factor(moments: Array) -> Array | None:
    """Upper Cholesky factors of the inverses of the damped moments; None if no damping makes them invertible.

    Inputs that are always zero get a moment of their own, apart from all others: their weights are rounded to nearest.
    """
    diagonal = np.diagonal(moments, axis1=1, axis2=2).astype(np.float64)
    alive = diagonal > 0
    if not alive.any():
        return None
    counts = np.maximum(alive.sum(axis=1, keepdims=True), 1)
    level = np.where(alive, diagonal, 0.0).sum(axis=1, keepdims=True) / counts
    level = np.where(level > 0, level, 1.0)
    spots = np.arange(moments.shape[1])
    for share in DAMPINGS:
        damped = moments.astype(np.float64)
        damped[:, spots, spots] += np.where(alive, share * level, level)
        try:
            return np.asarray(np.linalg.cholesky(np.linalg.inv(damped)).transpose(0, 2, 1))
        except np.linalg.LinAlgError:
            continue
    return None


def _sweep(weights: Array, factor: Array, steps: Array, limit: int) -> Array:
    groups, rows, inputs = weights.shape
    rounded = np.empty((groups, rows, inputs))
    for start in range(0, inputs, BLOCK):
        stop = min(start + BLOCK, inputs)
        errors = np.empty((groups, rows, stop - start))
        for k in range(start, stop):
            column, step = weights[:, :, k], steps[:, :, k if steps.shape[2] > 1 else 0]
            rounded[:, :, k] = np.clip(round_half_away(column / step), -limit, limit)
            error = (column - rounded[:, :, k] * step) / factor[:, None, k, k]
            weights[:, :, k:stop] -= error[:, :, None] * factor[:, None, k, k:stop]
            errors[:, :, k - start] = error
        weights[:, :, stop:] -= errors @ factor[:, start:stop, stop:]
    return rounded


# Layer after layer.


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
    def source(self) -> Use:
        return Use(self.op, self.layout.data)


class Moments(NamedTuple):
    """E[x] and E[x x'] of a layer's input vectors x, for each group; E[f] and E[f x'], f being x in the float model."""

    first: Array
    second: Array
    float_first: Array
    cross: Array

    @classmethod
    def mean(cls, several: Iterable[Moments], count: int) -> Moments:
        total = reduce(lambda sums, one: cls(*map(add, sums, one)), several)
        return cls(*(part / count for part in total))

    def pair(self, has_bias: bool) -> Pair:
        """The second moments; about the means if a bias takes care of these."""
        if not has_bias:
            return Pair(self.second, self.cross)
        means = self.first[:, None, :]
        return Pair(self.second - self.first[:, :, None] * means, self.cross - self.float_first[:, :, None] * means)


@dataclass(frozen=True)
class Refiner:
    """Refines the plans of a prepared model on some samples, which may be one sequence.

    A layer's moments are taken from about so many `vectors`; more for layers with more inputs.
    """

    model: Model
    request: Request
    samples: Sequence[Row]
    stage: Callable[[str, int], Progress]
    vectors: int
    in_sequence: bool = False

    def refine(self, planned: Planned) -> Planned:
        return replace(planned, plans=tuple(map(self._refined_plan, planned.plans)))

    def _refined_plan(self, plan: Plan) -> Plan:
        layers = list(self._layers(plan))
        if not layers:
            return plan
        report = self.stage("compensating", len(layers))
        for done, layer in enumerate(layers, 1):
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
            form, weights = plan.form(use), op.inputs[use.slot]
            if not isinstance(form, QuantParams) or not form.is_symmetric or weights is None or weights.data is None:
                continue
            effort = self.request.recipe.effort(op, self.request.effort)
            is_asked = effort == "high" or (effort == "standard" and form.dtype.bits < 8)
            if is_asked and len(uses.readers(weights)) == 1:
                yield RefinedLayer(op, layout, form, bias_use(op, spec))

    def _refined(self, plan: Plan, layer: RefinedLayer) -> Plan:
        halves = self._moments_of(plan, layer)
        moments, has_bias = Moments.mean(halves, len(halves)), layer.bias is not None
        whole = moments.pair(has_bias)
        weights = layer.layout.matrix(layer.op, layer.weights.data.astype(np.float64))
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
        values = {**plan.constants.values, **{plan.key(use): value for use, value in new.items()}}
        keys = {**plan.constants.keys, **{use: plan.key(use) for use in new}}
        constants = replace(plan.constants, values=values, keys=keys)
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
        rewrite(plan.with_float_ends().on(graph), self.request.ops)
        source, float_source = Use(twin, layer.source.slot).tensor, layer.source.tensor
        loaded = Runner.exposing(made, graph, [source]), Runner.exposing(self.model, plan.graph, [float_source])

        def observed(rows: Sequence[Row], runners: tuple[Runner, Runner]) -> Moments:
            quantized, original = (runner.keeping_state(self.in_sequence) for runner in runners)
            found = (self._moments(layer, real(quantized.run(row)[0], source), original.run(row)[0]) for row in rows)
            return Moments.mean(found, len(rows))

        parts = min(PARTS, len(self.samples))
        if side_by_side(activation_bytes(plan.graph)) == 1 and not self.in_sequence:
            return [observed(self.samples[k::PARTS], loaded) for k in range(parts)]
        if self.in_sequence:
            return [observed(rows, loaded) for rows in _halves(self.samples, parts)]
        others = [loaded, *((loaded[0].another(), loaded[1].another()) for _ in range(1, parts))]
        return in_parallel(lambda k: observed(self.samples[k::PARTS], others[k]), range(parts))

    def _moments(self, layer: RefinedLayer, x: Array, float_x: Array) -> Moments:
        """The moments of one sample."""
        inputs = layer.weights.data.size // max(1, math.prod(layer.op.outputs[0].shape[-1:]))  # the shape may be open
        most = max(1, -(-max(self.vectors, 4 * inputs) // len(self.samples)))  # vectors to take from each sample
        seen, wanted = (layer.layout.patches(layer.op, values, most) for values in (x, float_x))
        return Moments(
            seen.mean(axis=1, dtype=np.float64),
            seen.transpose(0, 2, 1) @ seen / seen.shape[1],
            wanted.mean(axis=1, dtype=np.float64),
            wanted.transpose(0, 2, 1) @ seen / seen.shape[1],
        )


def _halves(samples: Sequence[Row], parts: int) -> list[Sequence[Row]]:
    """The samples in their order, cut into `parts`."""
    ends = [k * len(samples) // parts for k in range(parts + 1)]
    return [samples[start:end] for start, end in pairwise(ends)]


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
