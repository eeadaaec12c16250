"""Real multipliers as integer kernels apply them: an int32 mantissa and a power of two.

real ≈ multiplier * 2**(shift - 31),   multiplier in [2**30, 2**31)
"""

from __future__ import annotations

import math

import numpy as np

from .dtypes import Array

INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1


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


def from_fixed_point(multiplier: int, shift: int) -> float:
    """The real number that `multiplier` and `shift` stand for."""
    return math.ldexp(float(multiplier), shift - 31)


def saturating_rounding_doubling_high_mul(a: Array, b: Array) -> Array:
    """round(a * b / 2**31) over int32, halves towards +infinity for positive and towards zero for negative products.

    The one overflow, (-2**31) * (-2**31), saturates.
    """
    product = np.asarray(a, np.int64) * np.asarray(b, np.int64)
    nudge = np.where(product >= 0, 1 << 30, 1 - (1 << 30))
    total = product + nudge
    quotient = np.where(total >= 0, total >> 31, -((-total) >> 31))  # C++ division truncates towards zero
    return np.minimum(quotient, INT32_MAX).astype(np.int32)


def rounding_divide_by_power_of_two(x: Array, exponent: int) -> Array:
    """x / 2**exponent over int32, rounded to nearest, halves away from zero."""
    if not 0 <= exponent <= 31:
        raise ValueError(f"exponent {exponent} is outside [0, 31]")
    wide = np.asarray(x, np.int64)
    mask = (1 << exponent) - 1
    threshold = (mask >> 1) + (wide < 0)
    return ((wide >> exponent) + ((wide & mask) > threshold)).astype(np.int32)


def multiply(x: Array, multiplier: int, shift: int) -> Array:
    """x scaled by a fixed-point multiplier with the double rounding of the reference kernels."""
    shifted = np.clip(np.asarray(x, np.int64) << max(shift, 0), INT32_MIN, INT32_MAX)
    high = saturating_rounding_doubling_high_mul(shifted, np.int64(multiplier))
    return rounding_divide_by_power_of_two(high, max(-shift, 0))
