"""Exponentials, reciprocals, roots and logarithms in fixed point, as kernels without floating point compute them.

A number with m integer bits is stored as round(value * 2**(bits - m)), with `bits` 31 or, in recurrent layers, 15. A
product has the integer bits of both factors. All functions are polynomials or Newton iterations; every product is
rounded, so the order of operations matters.
"""

from __future__ import annotations

import math

import numpy as np

from ..dtypes import Array
from ..fixedpoint import INT32_MAX, high_product, shift_right, wrapped

INT32_MIN = -INT32_MAX - 1


def constant(value: float, integer_bits: int = 0, bits: int = 31) -> int:
    """Return a constant rounded to 31 bits, and from there to fewer."""
    wide = round(value * (1 << (31 - integer_bits)))
    return int(shift_right(np.asarray(wide), 31 - bits))


def shift_left(x: Array, places: Array | int, bits: int = 31) -> Array:
    """Shift left with saturation, which reduces the number of integer bits."""
    return np.asarray(np.clip(x << places, -(1 << bits), (1 << bits) - 1))


def half_sum(a: Array, b: int) -> Array:
    """Return (a + b) / 2, halves away from zero."""
    total = a + b
    return np.asarray(np.trunc((total + np.where(total >= 0, 1, -1)) / 2).astype(np.int64))


def leading_zeros(x: Array) -> Array:
    """Return the number of leading zeros of x in 32 bits; 32 for zero."""
    return np.asarray(32 - np.frexp(x.astype(np.float64))[1] * (x > 0))


# exp(x) for x from -1/4 to 0 is a Taylor polynomial around -1/8; below that, it is multiplied by exp(-2**k) for the
# bits k of the remainder.
BARREL = range(-2, 5)
VANISHING = 32
"""exp(-32) rounds to zero."""


def exp_of_negative(x: Array, integer_bits: int, bits: int = 31) -> Array:
    """Return exp(x) for x <= 0 with `integer_bits` integer bits; the result has none."""
    fraction = bits - integer_bits
    eighth, third = constant(math.exp(-1 / 8), 0, bits), constant(1 / 3, 0, bits)
    quarter = 1 << (fraction - 2)
    offset = (x & (quarter - 1)) - quarter
    near = shift_left(offset, integer_bits, bits) + constant(1 / 8, 0, bits)
    square = high_product(near, near, bits)
    cube, fourth = high_product(square, near, bits), high_product(square, square, bits)
    tail = shift_right(high_product(shift_right(fourth, 2) + cube, third, bits) + square, 1)
    result = np.minimum(eighth + high_product(near + tail, eighth, bits), (1 << bits) - 1)
    left = offset - x
    for place in BARREL:
        if integer_bits > place:
            is_set = (left & (1 << (fraction + place))) != 0
            factor = constant(math.exp(-(2.0**place)), 0, bits)
            result = np.where(is_set, high_product(result, factor, bits), result)
    result = np.where(x < -VANISHING * 2.0**fraction, 0, result)
    return np.asarray(np.where(x == 0, (1 << bits) - 1, result))


def _reciprocal(x: Array, bits: int) -> Array:
    """Return 2 / (1 + x) for x from 0 to 1, with two integer bits: three Newton iterations on (1 + x) / 2."""
    half = half_sum(x, (1 << bits) - 1)
    guess = constant(48 / 17, 2, bits) + high_product(half, constant(-32 / 17, 2, bits), bits)
    for _ in range(3):
        rest = (1 << (bits - 2)) - high_product(half, guess, bits)
        guess = guess + shift_left(high_product(guess, rest, bits), 2, bits)
    return np.asarray(guess)


def one_over_one_plus(x: Array, bits: int = 31) -> Array:
    """Return 1 / (1 + x) for x from 0 to 1."""
    return shift_left(_reciprocal(x, bits), 1, bits)


def one_minus_over_one_plus(x: Array, bits: int = 31) -> Array:
    """Return (1 - x) / (1 + x) for x from 0 to 1."""
    return shift_left(_reciprocal(x, bits) - (1 << (bits - 2)), 2, bits)


def logistic(x: Array, integer_bits: int, bits: int = 31) -> Array:
    """Return 1 / (1 + exp(-x))."""
    positive = one_over_one_plus(exp_of_negative(-np.abs(x), integer_bits, bits), bits)
    result = np.where(x > 0, positive, (1 << bits) - 1 - positive)
    return np.asarray(np.where(x == 0, 1 << (bits - 1), result))


def tanh(x: Array, integer_bits: int, bits: int = 31) -> Array:
    """Return tanh(x), computed from exp(-2 |x|), whose argument has one more integer bit."""
    positive = one_minus_over_one_plus(exp_of_negative(-np.abs(x), integer_bits + 1, bits), bits)
    return np.asarray(np.where(x < 0, -positive, np.where(x == 0, 0, positive)))


def reciprocal(x: Array, integer_bits: int) -> tuple[Array, Array]:
    """Return 1 / x for x >= 1 as a number below one, and the number of bits by which it is too large."""
    headroom = leading_zeros(x)
    return one_over_one_plus((x << headroom) - (1 << 31)), integer_bits - headroom


def inverse_root(x: Array) -> tuple[Array, Array]:
    """Return 1 / sqrt(x) of an integer as a multiplier and a shift (positive: left): five Newton iterations."""
    is_small = x <= 1
    x = np.where(is_small, 2, x)
    shift = np.full(x.shape, 11, np.int64)
    while (large := x >= 1 << 29).any():
        x, shift = np.where(large, x // 4, x), shift + large
    pairs = (leading_zeros(x) - 1) // 2 - 1
    x, shift = x << (2 * pairs), shift - pairs
    source = x >> 1
    half, half_three = shift_right(source, 1), (1 << 28) + (1 << 27)
    root = np.full(x.shape, 1 << 28, np.int64)
    for _ in range(5):
        cube = shift_left(high_product(high_product(root, root), root), 6)
        root = shift_left(high_product(root, half_three) - high_product(half, cube), 3)
    multiplier = high_product(root, constant(math.sqrt(2) / 2))
    multiplier = multiplier << np.maximum(-shift, 0)
    shift = np.maximum(shift, 0)
    return np.where(is_small, INT32_MAX, multiplier), np.where(is_small, 0, -shift)


FOURTH_ROOT = math.sqrt(math.sqrt(2))


def logarithm(x: Array, integer_bits: int, result_bits: int) -> Array:
    """Return log(x) for x >= 1, by a rational function near a power of the square root of two."""
    kept = result_bits + 1
    quarter = shift_right(np.asarray(1 << 29), kept)
    headroom = leading_zeros(x)
    first = shift_left(high_product(_saturated_left(x, headroom - 1), constant(math.sqrt(0.5))), 1)
    first_power = np.minimum(_saturated_left(integer_bits - headroom, 31 - kept) + quarter, INT32_MAX)
    other_headroom = leading_zeros(high_product(x, constant(math.sqrt(0.5)))) - 1
    second = _saturated_left(x, other_headroom)
    second_power = np.maximum(_saturated_left(integer_bits - other_headroom, 31 - kept) - quarter, INT32_MIN)
    r, power = np.minimum(first, second), np.maximum(first_power, second_power)
    p, q = half_sum(r, constant(1 / FOURTH_ROOT)), 2 * (r - constant(1 / FOURTH_ROOT))
    square = high_product(q, q)
    above = high_product(q, r) + high_product(high_product(q, square), constant(11 / 240 * FOURTH_ROOT))
    inner = constant(2 / FOURTH_ROOT - FOURTH_ROOT) + q + high_product(square, constant(FOURTH_ROOT / 20))
    below = high_product(p, inner) + high_product(q, constant(FOURTH_ROOT / 4))
    quotient = high_product(shift_right(above, kept), one_over_one_plus(wrapped(below)))
    return shift_left(high_product(power, constant(math.log(2))) + quotient, 1)


def _saturated_left(x: Array, bits: Array | int) -> Array:
    """Shift left, saturating slightly before the limits of 32 bits."""
    limit = (np.int64(1) << (31 - np.asarray(bits))) - 1
    shifted = wrapped(np.asarray(x) << bits)
    result = np.where(x > limit, INT32_MAX, np.where(x < -limit, INT32_MIN, shifted))
    return np.asarray(np.where(np.asarray(bits) == 0, x, result))
