"""Real multipliers as integer kernels apply them: an int32 mantissa and a power of two.

real ≈ multiplier * 2**(shift - 31),   multiplier in [2**30, 2**31)
"""

from __future__ import annotations

import math

import numpy as np

from .dtypes import Array

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


# How kernels apply them. Arrays hold int64; what kernels keep in 32 bits is cut to that first.


def wrapped(x: Array) -> Array:
    """What is left of `x` in 32 bits."""
    return np.asarray(x).astype(np.int32).astype(np.int64)


def shift_right(x: Array, bits: Array | int) -> Array:
    """x / 2**bits to the nearest integer, halves away from zero: gemmlowp's RoundingDivideByPOT."""
    mask = (np.int64(1) << bits) - 1
    return np.asarray((x >> bits) + ((x & mask) > (mask >> 1) + (x < 0)))


def high_product(a: Array, b: Array | int, bits: int = 31) -> Array:
    """a * b / 2**bits to the nearest integer, halves upwards, saturated: SaturatingRoundingDoublingHighMul."""
    product = (a * b + (np.int64(1) << (bits - 1))) >> bits
    return np.asarray(np.minimum(product, (1 << bits) - 1))


def multiply(x: Array, multiplier: Array | int, shift: Array | int) -> Array:
    """x * multiplier * 2**(shift - 31) as most integer kernels compute it, rounded twice.

    A positive shift comes before the product, a negative one after it, each with a rounding of its own.
    """
    left, right = np.maximum(shift, 0), np.maximum(-np.asarray(shift), 0)
    return shift_right(high_product(wrapped(x << left), multiplier), right)


def multiply_wide(x: Array, multiplier: Array | int, shift: Array | int) -> Array:
    """The same for 64-bit sums, as beside 16-bit activations: with 16 bits of the multiplier, rounded once, upwards."""
    reduced = np.where(np.asarray(multiplier) < 0x7FFF0000, (np.asarray(multiplier) + (1 << 15)) >> 16, 0x7FFF)
    total = 15 - np.asarray(shift, np.int64)
    return wrapped((x * reduced + (np.int64(1) << (total - 1))) >> total)
