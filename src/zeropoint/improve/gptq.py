"""Compensated rounding: the error of rounding one weight is made up for by the weights that are rounded after it.

An output is w . x. Rounding w to q costs E[((q - w) . x)**2] = (q - w) H (q - w)', where H = E[x x'] is the second
moment of the inputs. Rounding weight i by d leaves the best the others can do, which is to move by
-d * C[i, rest] / C[i, i], where C is the upper Cholesky factor of the inverse of H (optimal brain quantization with a
fixed order, as in GPTQ). No row comes out worse than by nearest rounding: that is checked, and the better one kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..affine import round_half_away
from ..dtypes import Array, DType

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
