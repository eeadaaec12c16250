"""Rounding that is already good made better: one weight of each row after the other, then the scale, and so on.

The error of a row is (w - s q) H (w - s q)', H being the second moment of the inputs. With all other integers held, the
best value of one is that of a parabola: s q[i] + ((w - s q) H)[i] / H[i, i], rounded. Going through all of them never
raises the error, and neither does the best scale for the integers as they are, s = (w H q') / (q H q').
"""

from __future__ import annotations

import numpy as np

from ..affine import round_half_away
from ..dtypes import Array

BLOCK = 64
"""Columns whose changes are kept back and then applied to all others at once."""

SWEEPS = 4
"""How often all weights are gone through, at most; it ends when none changes."""


def descended(weights: Array, rounded: Array, moments: Array, steps: Array, limit: int) -> Array:
    """Better integers than `rounded`, up to `limit`, for `weights` [groups, rows, inputs] and E[x x'] of these inputs.

    `steps` are the scales, broadcast against the weights.
    """
    rounded, steps = rounded.copy(), np.broadcast_to(steps, weights.shape)
    gradient = (weights - rounded * steps) @ moments
    for _ in range(SWEEPS):
        is_changed = False
        for start in range(0, weights.shape[2], BLOCK):
            part = slice(start, start + BLOCK)
            own, slopes, widths = (values[:, :, part] for values in (rounded, gradient, steps))
            changes = _block(own, slopes, widths, moments[:, part, part], limit)
            if changes.any():
                is_changed = True
                gradient -= changes @ moments[:, part]
        if not is_changed:
            break
    return rounded


def _block(rounded: Array, gradient: Array, steps: Array, moments: Array, limit: int) -> Array:
    """Changes of a block's weights, which `rounded` has afterwards; `gradient` is that before them."""
    own, changes = gradient.copy(), np.zeros_like(rounded)
    for k in range(rounded.shape[2]):
        power = moments[:, k, k][:, None]
        # Inputs that are always zero leave their weights as they are.
        wanted = own[:, :, k] / np.where(power > 0, power, 1.0) / steps[:, :, k]
        new = np.clip(round_half_away(rounded[:, :, k] + wanted), -limit, limit)
        moved = (new - rounded[:, :, k]) * steps[:, :, k]
        rounded[:, :, k], changes[:, :, k] = new, moved
        own -= moved[:, :, None] * moments[:, None, k]
    return changes


def best_scales(weights: Array, rounded: Array, moments: Array, before: Array) -> Array:
    """The scale of each row with the least error for its integers, or the one `before` [groups, rows] if there is none.

    Where there are fewer groups of scales, so many groups of weights after each other are parts of the same rows.
    """
    weighted = rounded @ moments

    def of_rows(values: Array) -> Array:
        sums = np.einsum("gri,gri->gr", weighted, values)
        return np.asarray(sums.reshape(before.shape[0], -1, before.shape[1]).sum(axis=1))

    wanted, power = of_rows(weights), of_rows(rounded)
    found = wanted / np.where(power > 0, power, 1.0)
    return np.where((power > 0) & (found > 0), found, before)
