"""Coordinate descent on rounded weights: optimizes one weight of each row after the other, then the scale, and repeats.

The error of a row is (w - s q) H (w - s q)', where H is the second moment of the inputs. With all other integers fixed,
the best value of one is the minimum of a parabola: s q[i] + ((w - s q) H)[i] / H[i, i], rounded. A pass over all of
them never increases the error, and neither does the best scale for the current integers, s = (w H q') / (q H q').
"""

from __future__ import annotations

import numpy as np

from ..affine import round_half_away
from ..dtypes import Array

BLOCK = 32
"""Columns whose changes are collected and then applied to all others at once."""

SWEEPS = 4
"""Maximum number of passes over all weights; it ends when none changes."""


def descended(weights: Array, rounded: Array, moments: Array, steps: Array, limit: int) -> Array:
    """Return better integers than `rounded`, up to `limit`, for `weights` [groups, rows, inputs] and E[x x'] of the
    inputs.

    `steps` are the scales, broadcast against the weights.
    """
    rounded, steps = rounded.copy(), np.broadcast_to(steps, weights.shape)
    gradient = (weights - rounded * steps) @ moments
    for _ in range(SWEEPS):
        is_changed = False
        for start in range(0, weights.shape[2], BLOCK):
            part = slice(start, start + BLOCK)
            changes = _block(
                rounded[:, :, part], gradient[:, :, part], steps[:, :, part], moments[:, part, part], limit
            )
            if changes.any():
                is_changed = True
                gradient -= changes @ moments[:, part]
        if not is_changed:
            break
    return rounded


def _block(rounded: Array, gradient: Array, steps: Array, moments: Array, limit: int) -> Array:
    """Update `rounded` for one block of weights and return the changes; `gradient` is the gradient before them.

    What changes at each step is contiguous in memory: the weights of one input, in all rows.
    """
    integers, slopes, widths = (values.transpose(2, 0, 1).copy() for values in (rounded, gradient, steps))
    coupled, changes = np.ascontiguousarray(moments.transpose(1, 2, 0))[..., None], np.empty_like(integers)
    for k, own in enumerate(integers):
        power = coupled[k, k]
        # Weights of inputs that are always zero stay unchanged.
        wanted = slopes[k] / np.where(power > 0, power, 1.0) / widths[k]
        new = np.minimum(np.maximum(round_half_away(own + wanted), -limit), limit)
        np.multiply(new - own, widths[k], out=changes[k])
        integers[k] = new
        slopes[k + 1 :] -= changes[k] * coupled[k, k + 1 :]
    rounded[...] = integers.transpose(1, 2, 0)
    return np.ascontiguousarray(changes.transpose(1, 2, 0))


def best_scales(weights: Array, rounded: Array, moments: Array, before: Array) -> Array:
    """Return the scale of each row with the least error for its integers, or the one `before` [groups, rows] if there
    is none.

    If there are fewer groups of scales, consecutive groups of weights are parts of the same rows.
    """
    weighted = rounded @ moments

    def of_rows(values: Array) -> Array:
        sums = np.einsum("gri,gri->gr", weighted, values)
        return np.asarray(sums.reshape(before.shape[0], -1, before.shape[1]).sum(axis=1))

    wanted, power = of_rows(weights), of_rows(rounded)
    found = wanted / np.where(power > 0, power, 1.0)
    return np.where((power > 0) & (found > 0), found, before)
