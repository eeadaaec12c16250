"""Rounds the weights of one layer with compensation (GPTQ), as far as its moments can be trusted. Coordinate descent
over integers and scales then improves those of few bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..affine import QuantParams
from ..dtypes import Array
from ..parallel import in_parallel
from ..plan.weights import weighted_scales, with_scales
from .clamped_fit import ClampedFit
from .coordinate_descent import best_scales, descended
from .gptq import FEW_BITS_DAMPING, Compensation, compensated, damped, lowest, output_error
from .layer_inputs import ColumnBlocks, Pair
from .refined_layers import RefinedLayer

DESCENTS = 2
"""Passes of coordinate descent over low-bit integers, and then over their scales, after compensated rounding."""

CLAMPED_DESCENTS = 4
"""The same, where a clamp behind the layer is taken into account: its residuals are taken anew before each."""

SCALE_STARTS = (1.0, 0.9, 1.1)
"""Multiples of the scales with the least error for rounding to nearest, from which low-bit integers are searched."""

ROUNDING_DAMPINGS, WHOLE_DAMPING = (0.03, 0.1, 0.3, 1.0, 3.0), 1 / 3
"""Shares of the mean diagonal that are tried as damping on halves of the samples if a layer has few input vectors, and
how much of that the moments of all samples need: they are more certain."""

TRUSTED_ROWS = 32
"""Rows of a layer's weights that this is tried on, if it has more."""

TOGETHER = 1 << 19
"""Weights that one thread rounds at once, from all scales. A fixed number, so that cores do not change the bytes."""


class Trust(NamedTuple):
    """How far to trust the moments of a layer: how much to damp them for weights of few bits, and whether integers and
    scales are searched for these moments after rounding with compensation."""

    damping: float
    searches: bool


@dataclass(frozen=True)
class RoundingTarget:
    """The weights to round, the scales of their rows, which of these may be chosen, and the largest integer.

    If there are fewer groups of scales, consecutive groups of weights are parts of the same rows.
    """

    weights: Array
    scales: Array
    free: Array
    limit: int

    def of_weights(self, values: Array) -> Array:
        """Return values of rows, to be broadcast against the weights."""
        return np.repeat(values, self.weights.shape[0] // self.scales.shape[0], axis=0)[:, :, None]

    def of_rows(self, rows: slice) -> RoundingTarget:
        return RoundingTarget(self.weights[:, rows], self.scales[:, rows], self.free[:, rows], self.limit)

    def sampled(self, most: int) -> RoundingTarget:
        """Return at most `most` of the rows, evenly chosen."""
        return self.of_rows(slice(None, None, -(-self.weights.shape[1] // most)))

    def started_from(self, starts: Sequence[float]) -> RoundingTarget:
        """Return the rows once for each of these multiples of their scales, as far as scales are free."""
        scales = [np.where(self.free, start * self.scales, self.scales) for start in starts]
        count = 1, len(starts)
        return RoundingTarget(
            np.tile(self.weights, (*count, 1)), np.concatenate(scales, axis=1), np.tile(self.free, count), self.limit
        )

    def compensated(self, moments: Array) -> Array:
        """Return the weights rounded with compensation, as real numbers."""
        steps = self.of_weights(self.scales)
        return compensated(self.weights, moments, steps, self.limit) * steps

    def searched(self, moments: Array, starts: Sequence[float]) -> Array:
        """Return the best rounded weights that searches from these multiples of the scales find."""
        rounded, scales = best_start(self, moments, starts)
        return rounded * self.of_weights(scales)


@dataclass(frozen=True)
class RoundingData:
    """What is known of a layer's inputs: their moments; those of both halves of the samples, if there are samples;
    whether there are enough vectors to trust the moments, and whether the layer `is_small` enough for a search."""

    whole: Pair
    halves: Sequence[Pair]
    has_enough: bool
    is_small: bool = True

    def trust(self, target: RoundingTarget) -> Trust:
        """Return how far to trust the moments.

        Moments of few vectors say more about these than about others: a dense layer behind a global average has one
        vector for each sample. So with few vectors, weights are rounded for each half of the samples and judged by the
        other half. All samples together need less damping than half of them.
        """
        if self.has_enough:
            return Trust(FEW_BITS_DAMPING, self.is_small)
        if len(self.halves) != 2:
            return Trust(0.0, False)
        one, other = (half.second for half in self.halves)
        some = target.sampled(TRUSTED_ROWS)

        def error(rounded: Callable[[Array], Array], damping: float) -> float:
            pairs = (damped(one, damping), other), (damped(other, damping), one)
            return sum(float(output_error(rounded(own) - some.weights, judge).sum()) for own, judge in pairs)

        damping, least = lowest(ROUNDING_DAMPINGS, lambda damping: error(some.compensated, damping))
        searches = self.is_small and error(lambda own: some.searched(own, SCALE_STARTS[:1]), damping) < least
        return Trust(max(FEW_BITS_DAMPING, WHOLE_DAMPING * damping), searches)


def rounded_layer(
    layer: RefinedLayer, target: Array, known: RoundingData, fit: ClampedFit | None
) -> tuple[QuantParams, Array]:
    """Return the parameters of the weights, and the integers, in blocks."""
    weights, blocks, whole = layer.exact.weights, layer.blocks, known.whole
    power = blocks.join(np.diagonal(whole.second, axis1=1, axis2=2)[:, None])[:, 0]
    form = _scaled(layer, blocks.join(target), power)
    steps, limit = weight_steps(form, weights), form.levels.max
    if not _has_few_levels(form, weights):
        return form, compensated(target, whole.second, _in_blocks(steps, blocks), limit)
    free = layer.has_free_scale
    start = RoundingTarget(target, steps[:, :, 0], free, limit)
    damping, searches = known.trust(start)
    certain = damped(whole.second, damping)
    if not searches:
        return form, compensated(target, certain, _in_blocks(steps, blocks), limit)
    rounded, scales = best_start(start, certain)
    form = with_scales(form, scales.reshape(-1))
    steps = weight_steps(form, weights)
    for _ in range(DESCENTS if fit is None else CLAMPED_DESCENTS):
        goal = target if fit is None else fit.goal(rounded * steps, certain)
        rounded = descended(goal, rounded, certain, _in_blocks(steps, blocks), limit)
        scales = np.where(free, best_scales(goal, rounded, certain, steps[:, :, 0]), steps[:, :, 0])
        form = with_scales(form, scales.reshape(-1))
        steps = weight_steps(form, weights)
    return form, rounded


def best_start(target: RoundingTarget, moments: Array, starts: Sequence[float] = SCALE_STARTS) -> tuple[Array, Array]:
    """Return the integers of each row, and its scale, with the least error of several that start from different scales:
    coordinate descent ends at a local minimum. Scales that are not free stay as they are."""
    compensation, (groups, rows, inputs) = Compensation.of(moments, target.limit), target.weights.shape
    count = max(1, TOGETHER // (len(starts) * groups * inputs))
    parts = [target.of_rows(slice(start, start + count)) for start in range(0, rows, count)]
    found = in_parallel(lambda part: _best_start(part, compensation, starts), parts)
    integers, scales = (np.concatenate(values, axis=1) for values in zip(*found, strict=True))
    return integers, scales


def _best_start(target: RoundingTarget, compensation: Compensation, starts: Sequence[float]) -> tuple[Array, Array]:
    """The versions of a row that start from different scales are rows of one matrix meanwhile."""
    many, moments = target.started_from(starts), compensation.moments
    steps = many.of_weights(many.scales)
    rounded = compensation.rounded(many.weights, steps)
    rounded = descended(many.weights, rounded, moments, steps, many.limit)
    scales = np.where(many.free, best_scales(many.weights, rounded, moments, many.scales), many.scales)
    errors = output_error(rounded * many.of_weights(scales) - many.weights, moments)
    errors = errors.reshape(len(scales), -1, len(starts), target.scales.shape[1]).sum(axis=1)
    best = errors.argmin(axis=1)[:, None]
    scales = np.take_along_axis(scales.reshape(errors.shape), best, axis=1)[:, 0]
    rounded = rounded.reshape(len(rounded), len(starts), *target.weights.shape[1:])
    chosen = np.repeat(best, len(rounded) // len(best), axis=0)[..., None]
    return np.take_along_axis(rounded, chosen, axis=1)[:, 0], scales


def _scaled(layer: RefinedLayer, weights: Array, power: Array) -> QuantParams:
    """Return scales for inputs of this power with few bits; with 8, the peaks decide."""
    form = layer.form
    peaks = np.abs(weights).max(axis=2)
    if not _has_few_levels(form, weights):
        return form
    found = [weighted_scales(weights[g], power[g], form.levels, peaks[g]) for g in range(weights.shape[0])]
    is_chosen = layer.has_free_scale & (peaks > 0)
    return with_scales(form, np.where(is_chosen.reshape(-1), np.concatenate(found), np.array(form.scales)))


def _has_few_levels(form: QuantParams, weights: Array) -> bool:
    """Whether it pays to optimize the scales of these rows."""
    return form.levels.bits < 8 and form.axis is not None and len(form.scales) == weights.shape[0] * weights.shape[1]


def _in_blocks(steps: Array, blocks: ColumnBlocks) -> Array:
    return np.repeat(steps, blocks.count, axis=0) if steps.shape[2] == 1 else blocks.split(steps, fill=1.0)


def weight_steps(form: QuantParams, weights: Array) -> Array:
    """Return the scale of each weight, to be broadcast against [groups, outputs, inputs]."""
    scales = np.array(form.scales)
    if form.block is not None:
        return np.repeat(scales, form.block).reshape(weights.shape)
    return np.broadcast_to(scales, (weights.shape[0] * weights.shape[1],)).reshape(*weights.shape[:2], 1)
