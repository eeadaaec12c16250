"""Real multipliers as integer kernels apply them: an int32 mantissa and a power of two.

real ≈ multiplier * 2**(shift - 31),   multiplier in [2**30, 2**31)
"""

from __future__ import annotations

import math

import numpy as np

from .dtypes import Array

INT32_MAX = (1 << 31) - 1


def to_fixed_point(real: float) -> tuple[int, int]:
    """Return the int32 multiplier and the shift (positive: left) nearest to `real`; (0, 0) for anything below 2**-32.

    As in LiteRT's kernels: real = f * 2**shift with f in [0.5, 1), multiplier = round(f * 2**31).
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


# How kernels apply multipliers. Arrays hold int64; values that kernels keep in 32 bits are wrapped to 32 bits first.


def wrapped(x: Array) -> Array:
    """Wrap `x` to 32 bits, as an overflowing int32 does."""
    return np.asarray(x).astype(np.int32).astype(np.int64)


def shift_right(x: Array, bits: Array | int) -> Array:
    """Return x / 2**bits rounded to nearest, halves away from zero: gemmlowp's RoundingDivideByPOT."""
    mask = (np.int64(1) << bits) - 1
    return np.asarray((x >> bits) + ((x & mask) > (mask >> 1) + (x < 0)))


def divided(x: Array, by: Array | int) -> Array:
    """Divide integers as C does, towards zero."""
    return np.asarray(np.sign(x) * (np.abs(x) // by))


def high_product(a: Array, b: Array | int, bits: int = 31) -> Array:
    """Return a * b / 2**bits rounded to nearest, halves up, saturated: SaturatingRoundingDoublingHighMul."""
    product = (a * b + (np.int64(1) << (bits - 1))) >> bits
    return np.asarray(np.minimum(product, (1 << bits) - 1))


def multiply(x: Array, multiplier: Array | int, shift: Array | int) -> Array:
    """Return x * multiplier * 2**(shift - 31) as most integer kernels compute it, with two roundings.

    A positive shift is applied before the product, a negative one after it, each with its own rounding.
    """
    left, right = np.maximum(shift, 0), np.maximum(-np.asarray(shift), 0)
    return shift_right(high_product(wrapped(x << left), multiplier), right)


def multiply_wide(x: Array, multiplier: Array | int, shift: Array | int) -> Array:
    """Return x * multiplier * 2**(shift - 31) for the 64-bit accumulators of 16-bit activations: the multiplier is
    reduced to 16 bits, and the result is rounded once, halves up."""
    reduced = np.where(np.asarray(multiplier) < 0x7FFF0000, (np.asarray(multiplier) + (1 << 15)) >> 16, 0x7FFF)
    total = 15 - np.asarray(shift, np.int64)
    return wrapped((x * reduced + (np.int64(1) << (total - 1))) >> total)
