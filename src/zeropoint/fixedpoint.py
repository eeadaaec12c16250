"""Real multipliers as integer kernels apply them: an int32 mantissa and a power of two.

real ≈ multiplier * 2**(shift - 31),   multiplier in [2**30, 2**31)
"""

from __future__ import annotations

import math

INT32_MAX = (1 << 31) - 1


def to_fixed_point(real: float) -> tuple[int, int]:
    """The int32 multiplier and the shift (positive: left) nearest to `real`; (0, 0) for anything below 2**-32.

    As LiteRT's kernels do: real = f * 2**shift with f in [0.5, 1), multiplier = round(f * 2**31).
    """
    if not (math.isfinite(real) and real >= 0):
        raise ValueError(f"a multiplier must be finite and not negative, not {real}")
    fraction, shift = math.frexp(real)
    multiplier = math.floor(fraction * (1 << 31) + 0.5)  # exact: float64 holds 53 bits
    if multiplier == 1 << 31:
        multiplier //= 2
        shift += 1
    if shift < -31:
        return 0, 0
    if shift > 30:
        return INT32_MAX, 30
    return multiplier, shift
