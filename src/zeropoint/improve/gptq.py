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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..affine import QuantParams, round_half_away
from ..dtypes import Array
from ..plan.weights import weighted_scales, with_scales
from .clamped_fit import ClampedFit
from .coordinate_descent import best_scales, descended
from .layer_inputs import ColumnBlocks, Pair
from .refined_layers import RefinedLayer

DAMPINGS, FEW_BITS_DAMPING = (0.01, 0.1, 1.0), 0.03
"""Shares of the mean diagonal that are tried as damping, until the moments can be inverted; the first of them for
weights of fewer than 8 bits."""

LARGEST = 127
"""The largest integer of 8-bit weights."""

DESCENTS = 2
"""Passes of coordinate descent over low-bit integers, and then over their scales, after that."""

CLAMPED_DESCENTS = 4
"""The same, where a clamp behind the layer is taken into account: its residuals are taken anew before each."""

SCALE_STARTS = (1.0, 0.9, 1.1)
"""Multiples of the scales with the least error for rounding to nearest, from which low-bit integers are searched."""

ROUNDING_DAMPINGS, WHOLE_DAMPING = (0.03, 0.1, 0.3, 1.0, 3.0), 1 / 3
"""Shares of the mean diagonal that are tried as damping on halves of the samples if a layer has few input vectors, and
how much of that the moments of all samples need: they are more certain."""

TRUSTED_ROWS = 32
"""Rows of a layer's weights that this is tried on, if it has more."""

FACTORED = 96
"""Number of inputs whose moments are inverted directly."""

BLOCK = 128
"""Columns whose corrections are collected and then applied to all later ones at once."""


def compensated(weights: Array, moments: Array, steps: Array, limit: int) -> Array:
    """Return integers up to `limit` for `weights` [groups, rows, inputs], given E[x x'] [groups, inputs, inputs].

    `steps` are the scales of the weights, broadcast against them: one for each row, or for each weight. Few-bit
    weights of strong inputs are rounded first, while there are many others to compensate for their errors. With 8 bits
    this was worse (selfie_segmentation: 18.1 instead of 20.0 dB on samples that weights were not fitted to).
    """
    steps = np.broadcast_to(steps.astype(np.float64), (*weights.shape[:2], steps.shape[2]))
    nearest = np.clip(round_half_away(weights / steps), -limit, limit)
    has_few_bits = limit < LARGEST
    strengths = np.diagonal(moments, axis1=1, axis2=2) * has_few_bits
    order = np.argsort(-strengths, axis=1, kind="stable")[:, None]
    ordered = np.take_along_axis(np.take_along_axis(moments, order.transpose(0, 2, 1), axis=1), order, axis=2)
    factor = inverse_factor(ordered, FEW_BITS_DAMPING if has_few_bits else DAMPINGS[0])
    if factor is None:
        return nearest
    widths = steps if steps.shape[2] == 1 else np.take_along_axis(steps, order, axis=2)
    swept = _sweep(np.take_along_axis(weights, order, axis=2).astype(np.float64), factor, widths, limit)
    rounded = np.empty_like(swept)
    np.put_along_axis(rounded, np.broadcast_to(order, swept.shape), swept, axis=2)
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


def inverse_factor(moments: Array, damping: float) -> Array | None:
    """Return upper Cholesky factors of the inverses of the damped moments; None if no damping makes them invertible,
    from `damping` on.

    Inputs that are always zero get a moment of their own, uncorrelated with all others: their weights are rounded to
    nearest.
    """
    if not np.diagonal(moments, axis1=1, axis2=2).any():
        return None
    for share in (damping, *DAMPINGS[1:]):
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


# The weights of a layer.


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

    def sampled(self, most: int) -> RoundingTarget:
        """Return at most `most` of the rows, evenly chosen."""
        rows = slice(None, None, -(-self.weights.shape[1] // most))
        return RoundingTarget(self.weights[:, rows], self.scales[:, rows], self.free[:, rows], self.limit)

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
    """What is known of a layer's inputs: their moments; those of both halves of the samples, if there are samples; and
    whether there are enough vectors to trust the moments."""

    whole: Pair
    halves: Sequence[Pair]
    has_enough: bool

    def trust(self, target: RoundingTarget) -> Trust:
        """Return how far to trust the moments.

        Moments of few vectors say more about these than about others: a dense layer behind a global average has one
        vector for each sample. So with few vectors, weights are rounded for each half of the samples and judged by the
        other half. All samples together need less damping than half of them.
        """
        if self.has_enough:
            return Trust(FEW_BITS_DAMPING, True)
        if len(self.halves) != 2:
            return Trust(0.0, False)
        one, other = (half.second for half in self.halves)
        some = target.sampled(TRUSTED_ROWS)

        def error(rounded: Callable[[Array], Array], damping: float) -> float:
            pairs = (damped(one, damping), other), (damped(other, damping), one)
            return sum(float(output_error(rounded(own) - some.weights, judge).sum()) for own, judge in pairs)

        damping, least = _lowest(ROUNDING_DAMPINGS, lambda damping: error(some.compensated, damping))
        searched = error(lambda own: some.searched(own, SCALE_STARTS[:1]), damping)
        return Trust(max(FEW_BITS_DAMPING, WHOLE_DAMPING * damping), searched < least)


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
    weights, scales, limit = target.weights, target.scales, target.limit
    least, found, best = np.full(scales.shape, np.inf), np.zeros_like(weights), scales
    for start in starts:
        own = np.where(target.free, start * scales, scales)
        rounded = compensated(weights, moments, target.of_weights(own), limit)
        rounded = descended(weights, rounded, moments, target.of_weights(own), limit)
        own = np.where(target.free, best_scales(weights, rounded, moments, own), own)
        errors = output_error(rounded * target.of_weights(own) - weights, moments)
        error = errors.reshape(scales.shape[0], -1, scales.shape[1]).sum(axis=1)
        better = error < least
        least, best = np.where(better, error, least), np.where(better, own, best)
        found = np.where(target.of_weights(better), rounded, found)
    return found, best


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
