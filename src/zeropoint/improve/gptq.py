"""GPTQ: rounds weights layer by layer; each rounding error is compensated by the weights that are rounded after it.

An output is w . x. Rounding w to q costs E[((q - w) . x)**2] = (q - w) H (q - w)', where H = E[x x'] is the second
moment of the inputs. After rounding weight i by d, the best compensation is to move the others by -d * C[i, rest] /
C[i, i], where C is the upper Cholesky factor of the inverse of H (optimal brain quantization with a fixed order). No
row comes out worse than by nearest rounding: that is checked, and the better one kept. Low-bit integers are then
improved by coordinate descent.

The inputs are those that the quantized layers before really produce, and part of what these have lost can be recovered:
before they are rounded, a layer's weights are fitted so that they compute from these inputs what the float weights
compute from the float model's. Biases then match the float layer's mean outputs exactly on the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ..affine import QuantParams, round_half_away
from ..bench.errors import real
from ..bench.loaded import PARTS
from ..calibration.collect import Progress
from ..dtypes import Array
from ..graph.model import Model, Op
from ..graph.query import Use, Uses, activation_bytes, called_graphs
from ..parallel import in_parallel, side_by_side
from ..plan.derive import settle
from ..plan.plan import Plan, Planned
from ..plan.request import Request
from ..plan.weights import bias_use, weighted_scales, with_scales
from ..recipe import reaches
from ..sources.ports import Row
from .clamped_fit import Affine, ClampedFit, ClampedOutputs
from .coordinate_descent import best_scales, descended
from .layer_inputs import ColumnBlocks, Frontier, Moments, Pair, Stretch
from .refined_layers import CarriedOut, RefinedLayer

DAMPINGS = (0.01, 0.1, 1.0)
"""Shares of the mean diagonal that are tried as damping, until the moments can be inverted."""

ENOUGH = 4
"""Vectors for each input of a layer that its weights are refined for, if there are so many. With fewer, they are only
rounded: refitting and coordinate descent would fit them to these vectors and to no others."""

MADE_UP_DAMPING = 0.1
"""The same share for synthetic inputs: they are less alike than real ones."""

DESCENTS = 2
"""Passes of coordinate descent over low-bit integers, and then over their scales, after that."""

CLAMPED_DESCENTS = 4
"""The same, where a clamp behind the layer is taken into account: its residuals are taken anew before each."""

FACTORED = 96
"""Number of inputs whose moments are inverted directly."""

BLOCK = 128
"""Columns whose corrections are collected and then applied to all later ones at once."""


def compensated(weights: Array, moments: Array, steps: Array, limit: int) -> Array:
    """Return integers up to `limit` for `weights` [groups, rows, inputs], given E[x x'] [groups, inputs, inputs].

    `steps` are the scales of the weights, broadcast against them: one for each row, or for each weight.
    """
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


def refitted(weights: Array, whole: Pair, halves: Sequence[Pair]) -> tuple[Array, float | None]:
    """Return weights that compute from the actual inputs what `weights` compute from the intended inputs, and the
    damping with which they do; None if they stay as they are.

    How far they may move is determined by fitting to each half of the data and validating on the other.
    """
    if len(halves) != 2:
        return weights, None
    one, other = halves
    # Single precision will do to choose, as it is about changes: they are small beside what stays the same.
    missing = [half.missing(weights).astype(np.float32) for half in halves]

    def error(damping: float) -> float:
        try:
            changes = [half.change(own, damping) for half, own in zip(halves, missing, strict=True)]
        except np.linalg.LinAlgError:
            return math.inf
        return other.error(changes[0], missing[1]) + one.error(changes[1], missing[0])

    best, least = _lowest(REFIT_DAMPINGS, error)
    if least >= 0:
        return weights, None
    return weights + whole.change(whole.missing(weights), best).transpose(0, 2, 1), best


def _lowest(values: Sequence[float], error: Callable[[float], float]) -> tuple[float, float]:
    """Return the value with the least error, and that error, searching from the middle in the direction in which it
    falls."""
    place = len(values) // 2
    least = error(values[place])
    for step in (-1, 1):
        start = place
        while 0 <= place + step < len(values) and (found := error(values[place + step])) < least:
            place, least = place + step, found
        if place != start:
            break
    return values[place], least


def output_error(difference: Array, moments: Array) -> Array:
    """Return E[(d . x)**2] of each row d of each group."""
    return np.asarray(np.einsum("gri,gri->gr", difference @ moments, difference))


def inverse_factor(moments: Array) -> Array | None:
    """Return upper Cholesky factors of the inverses of the damped moments; None if no damping makes them invertible.

    Inputs that are always zero get a moment of their own, uncorrelated with all others: their weights are rounded to
    nearest.
    """
    if not np.diagonal(moments, axis1=1, axis2=2).any():
        return None
    for share in DAMPINGS:
        certain = damped(moments, share)
        try:
            return _inverse_factor(certain)
        except np.linalg.LinAlgError:
            continue
    return None


def _inverse_factor(moments: Array) -> Array:
    """Upper U with U' U the inverse of H, by halves: H = [[A, B], [B', D]] and D = V V' with V = inv(U2) give

        U = [[U1, -U1 X U2], [0, U2]], X = B U2', U1 of A - X X'.

    Products of matrices do nearly all of it: a fourth of the work of inverting H and factoring that, and faster work.
    """
    inputs = moments.shape[-1]
    if inputs <= FACTORED:
        return np.asarray(np.linalg.cholesky(np.linalg.inv(moments)).transpose(0, 2, 1))
    half = inputs // 2
    last = _inverse_factor(moments[:, half:, half:])
    across = moments[:, :half, half:] @ last.transpose(0, 2, 1)
    first = _inverse_factor(moments[:, :half, :half] - across @ across.transpose(0, 2, 1))
    made = np.zeros_like(moments)
    made[:, :half, :half], made[:, half:, half:] = first, last
    made[:, :half, half:] = -(first @ across) @ last
    return made


def damped(moments: Array, share: float) -> Array:
    """Return the moments with this share of their mean diagonal added, in double precision."""
    made, spots = moments.astype(np.float64), np.arange(moments.shape[1])
    diagonal = made[:, spots, spots]
    alive = diagonal > 0
    level = np.where(alive, diagonal, 0.0).sum(axis=1, keepdims=True) / np.maximum(alive.sum(axis=1, keepdims=True), 1)
    level = np.where(level > 0, level, 1.0)
    made[:, spots, spots] += np.where(alive, share * level, level)
    return made


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
class Observed:
    """The moments of a layer's inputs for each part of the data, and its outputs behind a clamp, if these matter."""

    halves: Sequence[Moments]
    clamped: ClampedOutputs | None = None


@dataclass(frozen=True)
class Refiner:
    """Refines the plans of a prepared model on some samples, which may be one sequence.

    A layer's moments are taken from about this many `vectors`; more for layers with more inputs. If it `refits`,
    weights are fitted to what the quantized layers before produce. If the samples are `made_up`, biases stay unchanged:
    the means are not known. If it `heeds_clamps`, layers are fitted to what is left of their outputs behind a fused
    activation that only clamps, which takes several times as long.
    """

    model: Model
    request: Request
    samples: Sequence[Row]
    stage: Callable[[str, int], Progress]
    vectors: int
    in_sequence: bool = False
    refits: bool = True
    made_up: bool = False
    heeds_clamps: bool = False

    def refine(self, planned: Planned) -> Planned:
        called = called_graphs(planned.model)  # the samples are not its inputs
        plans = (plan if plan.graph in called else self.refined_plan(plan) for plan in planned.plans)
        return replace(planned, plans=tuple(plans))

    def may_refit(self, planned: Planned) -> bool:
        """Whether any layer may have enough vectors to refit its weights; true if input sizes are dynamic, since it is
        then unknown."""
        if any(-1 in (t.shape_signature or t.shape) for plan in planned.plans for t in plan.graph.inputs):
            return True
        layers = (layer for plan in planned.plans for layer in self._layers(plan))
        return any(layer.positions * len(self.samples) >= ENOUGH * layer.blocks.width for layer in layers)

    def refined_plan(self, plan: Plan, ops: Collection[Op] | None = None) -> Plan:
        """Return the plan with the weights of all layers refined, or of those among `ops`."""
        layers = [layer for layer in self._layers(plan) if ops is None or layer.op in ops]
        if not layers:
            return plan
        report = self.stage("compensating", len(layers))
        runs = [Frontier(plan.graph, self.samples, self.in_sequence) for _ in range(2)]
        made = CarriedOut.of(self.model, plan, self.request.ops)
        for done, layer in enumerate(layers, 1):
            refined = self._refined(plan, layer, self._observed(made, layer, runs))
            if refined is not plan and not made.exchange(refined, layer):
                made = CarriedOut.of(self.model, refined, self.request.ops)
            plan = refined
            report(done)
        return plan

    def _layers(self, plan: Plan) -> Iterator[RefinedLayer]:
        """Yield the layers that can be refined, in order of execution: with integer weights that no other op reads."""
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
            is_asked = reaches(effort, "high") or (effort == "standard" and form.levels.bits < 8)
            is_given = weights.name in self.request.ranges.entries
            if is_asked and not is_given and len(uses.readers(weights)) == 1:
                yield RefinedLayer(op, layout, form, bias_use(op, spec))

    def _refined(self, plan: Plan, layer: RefinedLayer, observed: Observed) -> Plan:
        moments, has_bias = Moments.mean(observed.halves), layer.bias is not None
        if self.made_up:
            moments = moments.without_means(damped(moments.second, MADE_UP_DAMPING))
        whole, blocks = moments.pair(has_bias), layer.blocks
        weights, damping = layer.exact.weights, None
        target, has_enough = blocks.split(weights), moments.vectors >= ENOUGH * blocks.width
        if self.refits and has_enough:
            target, damping = refitted(target, whole, [half.pair(has_bias) for half in observed.halves])
        fit = None
        if observed.clamped is not None and damping is not None:
            wanted = layer.exact.biases + np.einsum("goi,gi->go", weights, moments.float_first - moments.first)
            start = Affine(weights, wanted).with_weights(target, moments.first)
            fit = ClampedFit(observed.clamped, start, whole, damping)
            target = fit.target
        form, rounded = _rounded(layer, target, whole, fit, has_enough=has_enough)
        made = blocks.join(rounded) * _steps(form, weights)
        new = {layer.weights: layer.layout.from_matrix(layer.op, made).astype(np.float32)}
        if layer.bias is not None:
            first, wanted = (blocks.join(part[:, None])[:, 0] for part in (moments.first, moments.float_first))
            shift = np.einsum("goi,gi->go", weights, wanted) - np.einsum("goi,gi->go", made, first)
            biases = layer.exact.biases + shift if fit is None else fit.biases(made)
            new[layer.bias] = biases.reshape(-1).astype(np.float32)
        return self._with(plan, layer, form, new)

    def _with(self, plan: Plan, layer: RefinedLayer, form: QuantParams, new: dict[Use, Array]) -> Plan:
        values = {**plan.constants.values, **{plan.key(use): value for use, value in new.items()}}
        keys = {**plan.constants.keys, **{use: plan.key(use) for use in new}}
        constants = replace(plan.constants, values=values, keys=keys)
        if layer.weights in plan.packed:
            packed = replace(plan.packed[layer.weights], form=form)
            return replace(plan, constants=constants, packed={**plan.packed, layer.weights: packed})
        constants = replace(constants, grids={**constants.grids, layer.weights: form})
        made, refused = settle(replace(plan, constants=constants), self.request.ops)
        # If the bias dictates this layer's scales, or the kernel does not accept them, it stays unchanged.
        is_taken = not refused and made.groups == plan.groups and made.wanted[layer.weights] == form
        return made if is_taken else plan

    def _observed(self, made: CarriedOut, layer: RefinedLayer, runs: Sequence[Frontier]) -> Observed:
        """Return what the layer reads, as quantized so far and in the float model."""
        quantized, original = runs
        op, slot = layer.op, layer.source.slot
        stretches = (
            quantized.until(made.model, made.graph, made.twins[op], slot),
            original.until(self.model, made.source, op, slot),
        )
        least = 0 if layer.blocks.count > 1 else self.vectors  # moments of wide layers are slow enough
        most = max(1, -(-max(least, ENOUGH * layer.blocks.width) // len(self.samples)))  # from each sample
        clamp = layer.clamp if self.heeds_clamps and self.refits else None
        kept: dict[int, tuple[Array, Array]] = {}

        def pair(number: int, own: Array, exact: Array) -> tuple[Array, Array]:
            found = layer.vectors(own, most), layer.vectors(exact, most)
            if clamp is not None:
                kept[number] = found[0], np.clip(layer.exact.outputs(found[1]), *clamp)
            return found

        def observed(numbers: Sequence[int], run: tuple[Stretch, Stretch]) -> Moments:
            x, f = run
            pairs = (pair(number, real(x.run(number), x.source), f.run(number)) for number in numbers)
            return Moments.of(pairs, crossed=self.refits)

        every, count = range(len(self.samples)), min(PARTS, len(self.samples))
        parts = _halves(every, count) if self.in_sequence else [every[k::PARTS] for k in range(count)]
        if self.in_sequence or side_by_side(activation_bytes(made.source)) == 1:
            halves = [observed(part, stretches) for part in parts]
        else:
            others = [stretches, *((stretches[0].another(), stretches[1].another()) for _ in range(1, count))]
            halves = in_parallel(lambda k: observed(parts[k], others[k]), range(count))
        in_order = [kept[number] for number in every] if clamp is not None else []
        return Observed(halves, None if clamp is None else ClampedOutputs.joined(in_order, clamp))


def _rounded(
    layer: RefinedLayer, target: Array, whole: Pair, fit: ClampedFit | None, *, has_enough: bool
) -> tuple[QuantParams, Array]:
    """Return the parameters of the weights, and the integers, in blocks."""
    weights, blocks = layer.exact.weights, layer.blocks
    power = blocks.join(np.diagonal(whole.second, axis1=1, axis2=2)[:, None])[:, 0]
    form = _scaled(layer, blocks.join(target), power)
    steps = _steps(form, weights)
    rounded = compensated(target, whole.second, _in_blocks(steps, blocks), form.levels.max)
    if not _has_few_levels(form, weights) or not has_enough:
        return form, rounded
    certain = damped(whole.second, DAMPINGS[0])
    for _ in range(DESCENTS if fit is None else CLAMPED_DESCENTS):
        goal = target if fit is None else fit.goal(rounded * steps, certain)
        rounded = descended(goal, rounded, certain, _in_blocks(steps, blocks), form.levels.max)
        form = with_scales(form, best_scales(goal, rounded, certain, steps[:, :, 0]).reshape(-1))
        steps = _steps(form, weights)
    return form, rounded


def _halves(samples: Sequence[int], parts: int) -> list[Sequence[int]]:
    """Return the samples in order, split into `parts`."""
    ends = [k * len(samples) // parts for k in range(parts + 1)]
    return [samples[start:end] for start, end in pairwise(ends)]


def _scaled(layer: RefinedLayer, weights: Array, power: Array) -> QuantParams:
    """Return scales for inputs of this power with few bits; with 8, the peaks decide."""
    form = layer.form
    peaks = np.abs(weights).max(axis=2)
    if not _has_few_levels(form, weights):
        return form
    found = [weighted_scales(weights[g], power[g], form.levels, peaks[g]) for g in range(weights.shape[0])]
    return with_scales(form, np.where(peaks.reshape(-1) > 0, np.concatenate(found), np.array(form.scales)))


def _has_few_levels(form: QuantParams, weights: Array) -> bool:
    """Whether it pays to optimize the scales of these rows."""
    return form.levels.bits < 8 and form.axis is not None and len(form.scales) == weights.shape[0] * weights.shape[1]


def _in_blocks(steps: Array, blocks: ColumnBlocks) -> Array:
    return np.repeat(steps, blocks.count, axis=0) if steps.shape[2] == 1 else blocks.split(steps, fill=1.0)


def _steps(form: QuantParams, weights: Array) -> Array:
    """Return the scale of each weight, to be broadcast against [groups, outputs, inputs]."""
    scales = np.array(form.scales)
    if form.block is not None:
        return np.repeat(scales, form.block).reshape(weights.shape)
    return np.broadcast_to(scales, (weights.shape[0] * weights.shape[1],)).reshape(*weights.shape[:2], 1)
