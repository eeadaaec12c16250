"""GPTQ: rounds weights layer by layer; each rounding error is compensated by the weights that are rounded after it.

An output is w . x. Rounding w to q costs E[((q - w) . x)**2] = (q - w) H (q - w)', where H = E[x x'] is the second
moment of the inputs. After rounding weight i by d, the best compensation is to move the others by -d * C[i, rest] /
C[i, i], where C is the upper Cholesky factor of the inverse of H (optimal brain quantization with a fixed order). No
row comes out worse than by nearest rounding: that is checked, and the better one kept.

The inputs are those that the quantized layers before really produce, and part of what these have lost can be recovered:
before they are rounded, a layer's weights are fitted so that they compute from these inputs what the float weights
compute from the float model's. Biases then match the float layer's mean outputs exactly on the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..affine import round_half_away
from ..dtypes import Array
from .layer_inputs import Pair

DAMPINGS, FEW_BITS_DAMPING = (0.01, 0.1, 1.0), 0.03
"""Shares of the mean diagonal that are tried as damping, until the moments can be inverted; the first of them for
weights of fewer than 8 bits."""

LARGEST = 127
"""The largest integer of 8-bit weights."""

FACTORED = 96
"""Number of inputs whose moments are inverted directly."""

BLOCK = 32
"""Columns whose corrections are collected and then applied to all later ones at once."""


@dataclass(frozen=True)
class Compensation:
    """How weights make up for the rounding errors of others, given the moments of their inputs.

    `order` is the one in which they are rounded, `factor` the Cholesky factor in that order; None if there is none.
    Few-bit weights of strong inputs are rounded first, while there are many others to compensate for their errors. With
    8 bits this was worse (selfie_segmentation: 18.1 instead of 20.0 dB on samples that weights were not fitted to).
    """

    moments: Array
    limit: int
    order: Array
    factor: Array | None

    @classmethod
    def of(cls, moments: Array, limit: int) -> Compensation:
        """Return it for integers up to `limit`, and E[x x'] [groups, inputs, inputs]."""
        has_few_bits = limit < LARGEST
        strengths = np.diagonal(moments, axis1=1, axis2=2) * has_few_bits
        order = np.argsort(-strengths, axis=1, kind="stable")[:, None]
        ordered = np.take_along_axis(np.take_along_axis(moments, order.transpose(0, 2, 1), axis=1), order, axis=2)
        factor = inverse_factor(ordered, FEW_BITS_DAMPING if has_few_bits else DAMPINGS[0])
        return cls(moments, limit, order, factor)

    def rounded(self, weights: Array, steps: Array) -> Array:
        """Return integers for `weights` [groups, rows, inputs].

        `steps` are the scales of the weights, broadcast against them: one for each row, or for each weight.
        """
        steps = np.broadcast_to(steps.astype(np.float64), (*weights.shape[:2], steps.shape[2]))
        nearest = np.clip(round_half_away(weights / steps), -self.limit, self.limit)
        if self.factor is None:
            return nearest
        order, moments = self.order, self.moments
        widths = steps if steps.shape[2] == 1 else np.take_along_axis(steps, order, axis=2)
        ordered = np.take_along_axis(weights, order, axis=2).astype(np.float64)
        swept, rounded = _sweep(ordered, self.factor, widths, self.limit), np.empty(weights.shape)
        np.put_along_axis(rounded, np.broadcast_to(order, swept.shape), swept, axis=2)
        better = output_error(rounded * steps - weights, moments) < output_error(nearest * steps - weights, moments)
        return np.where(better[:, :, None], rounded, nearest)


def compensated(weights: Array, moments: Array, steps: Array, limit: int) -> Array:
    """Return integers up to `limit` for `weights`, given E[x x'] of the inputs; see `Compensation`."""
    return Compensation.of(moments, limit).rounded(weights, steps)


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

    best, least = lowest(REFIT_DAMPINGS, error)
    if least >= 0:
        return weights, None
    return weights + whole.change(whole.missing(weights), best).transpose(0, 2, 1), best


def lowest(values: Sequence[float], error: Callable[[float], float]) -> tuple[float, float]:
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
    """Round one column after the other. In each block, columns are contiguous in memory, as all rows of one change
    at a time."""
    rounded, inputs = np.empty(weights.shape), weights.shape[2]
    widths = np.ascontiguousarray(steps.transpose(2, 0, 1))
    for start in range(0, inputs, BLOCK):
        stop = min(start + BLOCK, inputs)
        columns = weights[:, :, start:stop].transpose(2, 0, 1).copy()
        own = np.ascontiguousarray(factor[:, start:stop, start:stop].transpose(1, 2, 0))[..., None]
        integers, errors = np.empty_like(columns), np.empty_like(columns)
        for k, column in enumerate(columns):
            step = widths[start + k if len(widths) > 1 else 0]
            integers[k] = np.minimum(np.maximum(round_half_away(column / step), -limit), limit)
            np.divide(column - integers[k] * step, own[k, k], out=errors[k])
            columns[k + 1 :] -= errors[k] * own[k, k + 1 :]
        rounded[:, :, start:stop] = integers.transpose(1, 2, 0)
        weights[:, :, stop:] -= np.ascontiguousarray(errors.transpose(1, 2, 0)) @ factor[:, start:stop, stop:]
    return rounded
