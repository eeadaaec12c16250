"""Compensated rounding: the error of rounding one weight is made up for by the weights that are rounded after it.

An output is w . x. Rounding w to q costs E[((q - w) . x)**2] = (q - w) H (q - w)', where H = E[x x'] is the second
moment of the inputs. Rounding weight i by d leaves the best the others can do, which is to move by
-d * C[i, rest] / C[i, i], where C is the upper Cholesky factor of the inverse of H (optimal brain quantization with a
fixed order, as in GPTQ). No row comes out worse than by nearest rounding: that is checked, and the better one kept.
"""

from __future__ import annotations

import numpy as np

from ..affine import round_half_away
from ..dtypes import Array, DType

DAMPINGS = (0.01, 0.1, 1.0)
"""Shares of the mean diagonal that are added to it, until the moments can be inverted."""

BLOCK = 128
"""Columns whose corrections are kept back and then applied to all later ones at once."""


def compensated(weights: Array, moments: Array, scales: Array, dtype: DType) -> Array:
    """Integers for `weights` [rows, inputs] in the narrow range, given E[x x'] [inputs, inputs] and a scale a row."""
    limit = dtype.max
    steps = scales.reshape(-1, 1).astype(np.float64)
    nearest = np.clip(round_half_away(weights / steps), -limit, limit)
    factor = inverse_factor(moments)
    if factor is None:
        return nearest
    rounded = _sweep(weights.astype(np.float64), factor, steps, limit)
    better = output_error(rounded * steps - weights, moments) < output_error(nearest * steps - weights, moments)
    return np.where(better[:, None], rounded, nearest)


def output_error(difference: Array, moments: Array) -> Array:
    """E[(d . x)**2] of each row d."""
    return np.asarray(np.einsum("ri,ri->r", difference @ moments, difference))


def inverse_factor(moments: Array) -> Array | None:
    """The upper Cholesky factor of the inverse of the damped moments; None if no damping makes them invertible.

    Inputs that are always zero get a moment of their own, apart from all others: their weights are rounded to nearest.
    """
    diagonal = np.diagonal(moments)
    alive = diagonal > 0
    if not alive.any():
        return None
    level = float(diagonal[alive].mean())
    for share in DAMPINGS:
        damped = moments.astype(np.float64)
        damped[np.diag_indices_from(damped)] += np.where(alive, share * level, level)
        try:
            return np.asarray(np.linalg.cholesky(np.linalg.inv(damped)).T)
        except np.linalg.LinAlgError:
            continue
    return None


def _sweep(weights: Array, factor: Array, steps: Array, limit: int) -> Array:
    rows, inputs = weights.shape
    rounded = np.empty((rows, inputs))
    for start in range(0, inputs, BLOCK):
        stop = min(start + BLOCK, inputs)
        errors = np.empty((rows, stop - start))
        for k in range(start, stop):
            column = weights[:, k : k + 1]
            rounded[:, k : k + 1] = np.clip(round_half_away(column / steps), -limit, limit)
            error = (column - rounded[:, k : k + 1] * steps) / factor[k, k]
            weights[:, k:stop] -= error * factor[k, k:stop]
            errors[:, k - start] = error[:, 0]
        weights[:, stop:] -= errors @ factor[start:stop, stop:]
    return rounded


def weighted_scales(weights: Array, importance: Array, dtype: DType, peaks: Array) -> Array:
    """Scales that minimize the rounding error of each row, inputs weighted by their power.

    With 8 bits the peak decides; with 4 bits it pays to cut it off. Candidates are shares of the peak.
    """
    limit = dtype.max
    best = np.full(weights.shape[0], np.inf)
    chosen = peaks / limit
    for share in np.linspace(1.0, 0.4, 25 if dtype.bits < 8 else 5):
        scales = np.maximum(peaks * share / limit, np.finfo(np.float32).tiny)
        q = np.clip(round_half_away(weights / scales[:, None]), -limit, limit)
        error = ((q * scales[:, None] - weights) ** 2) @ importance
        chosen = np.where(error < best, scales, chosen)
        best = np.minimum(best, error)
    return np.asarray(chosen)
