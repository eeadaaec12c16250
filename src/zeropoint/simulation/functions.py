"""Functions of one value: by lookup table, by interpolation between table entries, or in fixed point."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from ..affine import round_half_away
from ..dtypes import Array, DType
from ..fixedpoint import high_product, multiply, shift_right
from . import transcendental
from .call import Computed, Interim, KernelCall
from .rescaling import fixed_points

RealFunction = Callable[[Array], Array]
"""Takes float32 or float64, and returns the same type."""


def exact(function: Callable[[Array], Array]) -> RealFunction:
    """Return the function computed in float64 and rounded to the type of its argument, as a good math library would."""

    def computed(x: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(function(x.astype(np.float64)).astype(x.dtype))

    return computed


exp, log, tanh, expm1 = exact(np.exp), exact(np.log), exact(np.tanh), exact(np.expm1)
erfc = exact(np.vectorize(math.erfc, otypes=[np.float64]))


def sigmoid(x: Array) -> Array:
    return np.asarray(x.dtype.type(1) / (x.dtype.type(1) + exp(-x)))


def elu(x: Array) -> Array:
    return np.where(x < 0, expm1(x), x)


def gelu(x: Array) -> Array:
    return np.asarray(np.float32(0.5) * x * erfc(x * np.float32(-math.sqrt(0.5))))


def gelu_by_tanh(x: Array) -> Array:
    inner = x + np.float32(0.044715) * x * x * x
    return np.asarray(np.float32(0.5) * x * (np.float32(1) + tanh(np.float32(math.sqrt(2 / math.pi)) * inner)))


# Lookup tables.


def table_of_bytes(call: KernelCall, function: RealFunction) -> Array:
    """Return the output for every 8-bit input integer, in order."""
    read, made = call.params(0), call.output
    inputs = np.arange(read.dtype.min, read.dtype.max + 1)
    real = np.float32(read.scale) * (inputs - read.zero_point).astype(np.float32)
    scaled = function(real) * (np.float32(1) / np.float32(made.scale))
    with np.errstate(invalid="ignore"):
        units = round_half_away(np.asarray(scaled, np.float32)) + np.float32(made.zero_point)
    return np.asarray(np.clip(np.nan_to_num(units), made.dtype.min, made.dtype.max).astype(np.int64))


POINTS = 512


def table_of_points(function: RealFunction, low: Array, high: Array, per_unit: Array) -> Array:
    """Return 513 samples of a function over an interval, each shifted by half of the interpolation error at the
    midpoint of its segment. Computed in the type of `low`."""
    real = low.dtype.type
    step = (high - low) / real(POINTS)
    places = low + np.arange(POINTS + 1, dtype=low.dtype) * step
    with np.errstate(all="ignore"):
        values = function(places) * per_unit
        middles = function(places[:-1] + step / real(2)) * per_unit
        values[-1] = function(np.asarray([high]))[0] * per_unit
        nexts = function(low + np.arange(1, POINTS + 1, dtype=low.dtype) * step) * per_unit
        rounded = round_half_away(values)
        off = round_half_away((nexts + rounded[:-1]) / real(2)) - round_half_away(middles)
        rounded[:-1] -= round_half_away(off / real(2))
    return np.asarray(np.clip(np.nan_to_num(rounded), -32768, 32767).astype(np.int64))


def interpolate(x: Array, table: Array) -> Array:
    """Interpolate 16-bit values: 9 bits select a segment, 7 bits the position within it."""
    place = 256 + (x >> 7)
    base = table[place]
    slope = (table[place + 1] - base).astype(np.int16).astype(np.int64)
    return np.asarray(base + ((slope * (x & 127) + 64) >> 7))


def looked_up(call: KernelCall, function: RealFunction) -> Computed:
    """Look up 8-bit inputs in a table of all values; interpolate 16-bit inputs between 513 points."""
    read, made, x = call.params(0), call.output, call.value(0).astype(np.int64)
    if read.dtype.bits == 8:
        return Computed((call.stored(table_of_bytes(call, function)[x - read.dtype.min]),))
    scale, own = np.float32(read.scale), np.float32(made.scale)
    low, high = (np.float32(end - read.zero_point) * scale for end in (-32768, 32767))
    span = own * np.float32(32767 - made.zero_point) - own * np.float32(-32768 - made.zero_point)
    table = table_of_points(function, np.asarray(low), np.asarray(high), np.asarray(np.float32(65536) / span))
    return Computed(
        (call.stored(interpolate(x, table)),), (Interim("segment", 256 + (x >> 7)), Interim("place", x & 127))
    )


def table(function: RealFunction) -> Callable[[KernelCall], Computed]:
    return lambda call: looked_up(call, function)


def gelu_op(call: KernelCall) -> Computed:
    return looked_up(call, gelu_by_tanh if call.option("approximate", False) else gelu)


def log_op(call: KernelCall) -> Computed:
    """Simulate LOG: inputs that are not positive give the smallest value of the output."""
    least = np.float32(call.output.dtype.min - call.output.zero_point) * np.float32(call.output.scale)
    return looked_up(call, lambda x: np.where(x <= 0, least, log(np.maximum(x, np.float32(1e-38)))))


def square_root(call: KernelCall) -> Computed:
    """Simulate SQRT: in float32, truncated rather than rounded."""
    real = np.float32(call.scale(0)) * call.centered(0).astype(np.float32)
    return call.finished(np.trunc(np.sqrt(real) / np.float32(call.output_scale)).astype(np.int64))


def reciprocal_root(call: KernelCall) -> Computed:
    """Simulate RSQRT: 8 bits in fixed point, 16 bits by lookup table; inputs that are not positive give the largest
    output."""
    greatest = np.float32(call.output.dtype.max) * np.float32(call.output.scale)
    if call.output.dtype is DType.INT16:
        one = np.float32(1)
        return looked_up(call, lambda x: np.where(x <= 0, greatest, one / np.sqrt(np.maximum(x, np.float32(1e-38)))))
    return reciprocal_root_in_fixed_point(call)


def reciprocal_root_in_fixed_point(call: KernelCall) -> Computed:
    x = call.centered(0)
    factor = 1.0 / np.float64(np.sqrt(np.float32(call.scale(0))) * np.float32(call.output_scale))
    multiplier, shift = fixed_points(np.asarray(factor))
    roots, root_shifts = transcendental.inverse_root(x)
    units = multiply(multiply(np.ones_like(x), roots, root_shifts + 20), multiplier, shift - 20)
    units = np.where(x == 0, call.output.dtype.max - call.output.zero_point, units)
    return call.finished(units, [Interim("root's multiplier", roots), Interim("root's shift", root_shifts)])


# LOGISTIC and TANH.


@cache
def sigmoid_points() -> Array:
    """Return 65536 * sigmoid(k / 24) for k from 0 to 255, each raised by half of the interpolation error at the
    midpoint."""

    def value(x: Array) -> Array:
        return np.asarray(65536 / (1 + np.exp(-x / 24)))

    k = np.arange(256.0)
    lacking = value(k + 0.5) - (value(k) + value(k + 1)) / 2
    points = np.rint(value(k) + lacking / 2).astype(np.int64)
    points[-1] = 65535
    return points


def _in_thirds(call: KernelCall, near: tuple[int, ...]) -> Array:
    """Rescale 16-bit inputs to units of 1 / (3 * 4096) with a 15-bit multiplier; exact for scales of 2**(-12 +
    `near`)."""
    x, scale = call.value(0).astype(np.int64), np.float32(call.scale(0))
    log2 = np.log2(scale)
    power = int(np.rint(log2)) + 12
    if abs(log2 - np.rint(log2)) < 1e-3 and power in near:
        return np.asarray(x * (3 << power))
    multiplier, shift = float(scale) * 4096.0 * 3.0, 0
    while multiplier <= 32767.0 / 2 and shift <= 30:
        multiplier, shift = multiplier * 2, shift + 1
    return np.asarray((x * int(multiplier) + ((1 << shift) >> 1)) >> shift)


def _between_points(size: Array, bits: int) -> tuple[Array, Array]:
    """Interpolate between table points that are 2**bits apart, with that many extra bits; also return the table
    index."""
    place, points = np.minimum(size >> bits, 255), sigmoid_points()
    base, rest = points[place], size & ((1 << bits) - 1)
    return (base << bits) + rest * (points[np.minimum(place + 1, 255)] - base), place


def sigmoid_of_thirds(x: Array) -> tuple[Array, Array]:
    """Return the sigmoid of numbers in units of 1 / (3 * 4096), in units of 1 / 32768; and the table segment of
    each."""
    between, place = _between_points(np.abs(x), 9)
    value = np.where(place >= 255, 0x7FFF << 10, between)
    return np.where(x >= 0, value + (1 << 9), (1 << 25) - value + (1 << 9) - 1) >> 10, place


def tanh_of_thirds(x: Array) -> tuple[Array, Array]:
    """Return the tanh of numbers in units of 1 / (3 * 4096), in units of 1 / 32768, as 2 sigmoid(2 x) - 1; and the
    table segment of each."""
    between, place = _between_points(np.abs(x), 8)
    value = np.where(place >= 255, 0xFFFF << 8, between)
    middle, half = 1 << 23, 1 << 7
    return np.where(x >= 0, value - middle + half, -value + middle + half - 1) >> 8, place


def logistic(call: KernelCall) -> Computed:
    if call.output.dtype is not DType.INT16:
        return call.rules.sigmoid(call, True)
    x = _in_thirds(call, (0,))
    value, place = sigmoid_of_thirds(x)
    return Computed((call.stored(value),), (Interim("rescaled input", x), Interim("segment", place)))


def hyperbolic_tangent(call: KernelCall) -> Computed:
    if call.output.dtype is not DType.INT16:
        return call.rules.sigmoid(call, False)
    x = _in_thirds(call, (0, 1))
    value, place = tanh_of_thirds(x)
    return Computed((call.stored(value),), (Interim("rescaled input", x), Interim("segment", place)))


def sigmoid_by_table(call: KernelCall, is_logistic: bool) -> Computed:
    return looked_up(call, sigmoid if is_logistic else tanh)


def sigmoid_in_fixed_point(call: KernelCall, is_logistic: bool) -> Computed:
    """Simulate 8-bit LOGISTIC or TANH: rescale to four integer bits, apply the function, round to 8 bits."""
    factor = np.float64(call.scale(0)) * (1 << 27)
    multiplier, shift = fixed_points(np.asarray(factor))
    radius = math.floor(15 * 2.0**27 / 2.0 ** int(shift))
    x = call.centered(0)
    inside = multiply(np.clip(x, -radius, radius), multiplier, shift)
    function, bits, zero = (transcendental.logistic, 23, -128) if is_logistic else (transcendental.tanh, 24, 0)
    value = np.clip(shift_right(function(inside, 4), bits) + zero, -128, 127)
    value = np.where(x <= -radius, -128, np.where(x >= radius, 127, value))
    return Computed((call.stored(value),), (Interim("rescaled input", inside),))


def hard_swish(call: KernelCall) -> Computed:
    """Simulate HARD_SWISH, x * relu6(x + 3) / 6, in 16 bits: a factor between 0 and 1 times x, both rescaled."""
    fine = np.float32(1 / 128) * np.float32(call.scale(0))
    factors = np.array(
        [fine / np.float32(call.output_scale), fine / (np.float32(3.0) / np.float32(32768.0))], np.float64
    )
    multipliers, shifts = fixed_points(factors)
    narrow = np.where(multipliers >= (1 << 31) - 1 - (1 << 15), 32767, (multipliers + (1 << 15)) >> 16)
    x = (call.centered(0) << 7).astype(np.int16).astype(np.int64)
    scaled = high_product(x, narrow[0], 15)
    gate, shift = x, int(shifts[1])
    if shift > 0:
        gate = np.clip(gate << (shift - 1), -32768, 32767)
    gate = high_product(gate, narrow[1], 15)
    if shift > 0:
        gate = np.clip(gate << 1, -32768, 32767)
    elif shift < 0:
        gate = shift_right(gate, -shift)
    gate = (gate + (1 << 15)) >> 1
    product = np.trunc(gate * scaled / (1 << 15)).astype(np.int64)
    steps = [Interim("rescaled input", scaled), Interim("gate", gate), Interim("product", product)]
    return call.finished(shift_right(product, -int(shifts[0])), steps)
