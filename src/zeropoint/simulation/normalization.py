"""SOFTMAX, LOG_SOFTMAX and L2_NORMALIZATION over rows along the last axis."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from ..affine import round_half_away
from ..dtypes import Array, DType
from ..fixedpoint import high_product, multiply, shift_right, to_fixed_point
from . import transcendental
from .call import Computed, Interim, KernelCall
from .functions import exact, interpolate, table_of_points

INTEGER_BITS, SUM_BITS = 5, 12
"""Integer bits of the differences to a row's maximum, and of the sum of their exponentials."""


def _differences(call: KernelCall, beta: float) -> tuple[Array, Array, int, int]:
    """Return the integer differences to the row's maximum, which of them count, and the multiplier and shift to fixed
    point."""
    factor = min(beta * float(call.scale(0)) * (1 << (31 - INTEGER_BITS)), 2.0**31 - 1)
    multiplier, shift = to_fixed_point(factor)
    least = -math.floor(31 * 2.0 ** (31 - INTEGER_BITS) / 2.0**shift)
    x = call.value(0).astype(np.int64)
    below = x - x.max(axis=-1, keepdims=True)
    counts = below >= least
    return below, counts, multiplier, shift


def softmax(call: KernelCall) -> Computed:
    if call.params(0).dtype is DType.INT16:
        return _softmax_of_int16(call)
    return call.rules.softmax(call)


def softmax_in_fixed_point(call: KernelCall) -> Computed:
    """Compute exp(x - max), their sum, its reciprocal and the products, all as 32-bit integers."""
    below, counts, multiplier, shift = _differences(call, float(np.float32(call.option("beta", 1.0))))
    exponentials = transcendental.exp_of_negative(multiply(np.where(counts, below, 0), multiplier, shift), INTEGER_BITS)
    exponentials = np.where(counts, exponentials, 0)
    total = shift_right(exponentials, SUM_BITS).sum(axis=-1, keepdims=True)
    scale, over = transcendental.reciprocal(total, SUM_BITS)
    made = call.output.dtype
    units = shift_right(high_product(scale, exponentials), over + 31 - made.bits)
    value = np.where(counts, np.clip(units + made.min, made.min, made.max), made.min)
    steps = (
        Interim("below the greatest", below),
        Interim("multiplier", np.asarray(multiplier)),
        Interim("shift", np.asarray(shift)),
        Interim("exponential", exponentials),
        Interim("sum of exponentials", total),
        Interim("reciprocal", scale),
    )
    return Computed((call.stored(value),), steps)


def softmax_in_float(call: KernelCall) -> Computed:
    """Compute softmax with a float32 table of exponentials and float32 sums."""
    x = call.value(0).astype(np.int64)
    table = _float_exponentials(np.float32(call.scale(0)), np.float32(call.option("beta", 1.0)))
    exponentials = table[x.max(axis=-1, keepdims=True) - x]
    total = np.cumsum(exponentials, axis=-1, dtype=np.float32)[..., -1:]
    inverse = np.float32(1) / (total * np.float32(call.output_scale))
    made = call.output
    units = np.rint(exponentials * inverse).astype(np.int64) + made.zero_point
    steps = (Interim("exponential", exponentials), Interim("sum of exponentials", total))
    return Computed((call.stored(np.clip(units, made.dtype.min, made.dtype.max)),), steps)


def _float_exponentials(scale: np.float32, beta: np.float32) -> Array:
    factor = -scale * beta
    return exact(np.exp)(factor * np.arange(256, dtype=np.float32))


@cache
def int16_tables() -> tuple[Array, Array]:
    """Return tables of exp(x) from -10 to 0 and of 1 / (1 + x) from 0 to 1, in units of about 1 / 32768."""
    unit = np.float64(65536 / (2.0 / 65535 * 65535))
    step = 10.0 / 65535
    low, high = np.float64(step * -65535), np.float64(step * 0)
    exponentials = table_of_points(np.exp, np.asarray(low), np.asarray(high), np.asarray(unit))
    end = np.float64(1.0 / 65535 * 65535)
    reciprocals = table_of_points(
        lambda x: 1.0 / (1.0 + x), np.asarray(np.float64(0)), np.asarray(end), np.asarray(unit)
    )
    return exponentials, reciprocals


def _softmax_of_int16(call: KernelCall) -> Computed:
    """Compute 16-bit softmax: exponentials from a table over [-10, 0], and the reciprocal of their sum from another."""
    exponential_table, reciprocal_table = int16_tables()
    beta = np.float32(call.option("beta", 1.0))
    factor = np.float64(np.float32(call.scale(0)) * beta) / (10.0 / 65535.0)
    multiplier, shift = to_fixed_point(float(factor))
    x = call.value(0).astype(np.int64)
    below = multiply(x - x.max(axis=-1, keepdims=True), multiplier, shift)
    exponentials = interpolate(np.clip(below + 32767, -32768, 32767), exponential_table)
    total = exponentials.sum(axis=-1, keepdims=True)
    headroom = transcendental.leading_zeros(total)
    shifted = ((total << (headroom - 1)) + (1 << 13)) >> 14
    scale = interpolate(np.clip(shifted - (1 << 15) - (1 << 16), -32768, 32767), reciprocal_table)
    right = 31 - headroom
    value = np.clip((exponentials * scale + (np.int64(1) << (right - 1))) >> right, 0, 32767)
    steps = (Interim("exponential", exponentials), Interim("sum of exponentials", total), Interim("reciprocal", scale))
    return Computed((call.stored(value),), steps)


def log_softmax(call: KernelCall) -> Computed:
    return call.rules.log_softmax(call)


def log_softmax_in_fixed_point(call: KernelCall) -> Computed:
    """Compute x - max - log(sum of exponentials)."""
    below, counts, multiplier, shift = _differences(call, 1.0)
    rescaled = multiply(np.where(counts, below, 0), multiplier, shift)
    exponentials = np.where(counts, transcendental.exp_of_negative(rescaled, INTEGER_BITS), 0)
    total = shift_right(exponentials, SUM_BITS).sum(axis=-1, keepdims=True)
    log = transcendental.logarithm(total, SUM_BITS, INTEGER_BITS)
    reverse, reverse_shift = to_fixed_point((1 << (31 - shift)) / multiplier)
    floor = multiply(log + transcendental.INT32_MIN, reverse, reverse_shift)
    least = np.maximum(-math.floor(31 * 2.0 ** (31 - INTEGER_BITS) / 2.0**shift) - 1, floor)
    made = call.output.dtype
    rescaled = multiply(np.maximum(below, least), multiplier, shift)
    units = shift_right(rescaled - log, 31 - INTEGER_BITS - 4) + made.max
    value = np.where(below > least, np.clip(units, made.min, made.max), made.min)
    steps = (Interim("below the greatest", below), Interim("sum of exponentials", total), Interim("logarithm", log))
    return Computed((call.stored(value),), steps)


def log_softmax_in_float(call: KernelCall) -> Computed:
    x = call.value(0).astype(np.int64)
    table = _float_exponentials(np.float32(call.scale(0)), np.float32(1))
    greatest = x.max(axis=-1, keepdims=True)
    total = np.cumsum(table[greatest - x], axis=-1, dtype=np.float32)[..., -1:]
    log = exact(np.log)(total)
    made = call.output
    scale = np.float32(call.scale(0)) / np.float32(call.output_scale)
    offset = greatest.astype(np.float32) * scale + log / np.float32(call.output_scale)
    units = round_half_away((scale * x.astype(np.float32) - offset).astype(np.float32)).astype(np.int64)
    value = np.clip(units + made.zero_point, made.dtype.min, made.dtype.max)
    return Computed((call.stored(value),), (Interim("sum of exponentials", total), Interim("logarithm", log)))


def l2_normalization(call: KernelCall) -> Computed:
    """Compute x / sqrt(sum of squares), with 7 fractional bits: of the product or, for uint8, of x."""
    x = call.centered(0)
    total = (x * x).sum(axis=-1, keepdims=True)
    multiplier, shift = transcendental.inverse_root(total)
    made = call.output
    early, late = (7, 0) if made.dtype is DType.UINT8 else (0, 7)
    units = multiply(x << early, multiplier, shift + late)
    value = np.clip(units + made.zero_point, made.dtype.min, made.dtype.max)
    steps = (Interim("sum of squares", total), Interim("multiplier", multiplier), Interim("shift", shift + late))
    return Computed((call.stored(value),), steps)
