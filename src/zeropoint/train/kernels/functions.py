"""Functions of one value by lookup table: of all 8-bit values, or interpolated between points, as kernels do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from ...dtypes import DType
from ...simulation.functions import POINTS, sigmoid_points
from .call import IntegerCall, IntegerKernel
from .rescaling import QuantizedMultiplier, half_away, half_up, power_of_two, split, toward_zero

Function = Callable[[Any], Any]
RealFunction = Callable[[Any, Callable[[Function], Function]], Any]
"""Takes float32, and a converter for a function that is computed more precisely and then rounded to float32."""

LEAST = 1e-38


def plain(function: Function) -> RealFunction:
    return lambda x, precise: precise(function)(x)


def elu(x: Any, precise: Any) -> Any:
    return ops.where(x < 0, precise(ops.expm1)(ops.minimum(x, 0.0)), x)


def gelu(x: Any, precise: Any) -> Any:
    return 0.5 * x * precise(lambda z: 1.0 - ops.erf(z))(x * -math.sqrt(0.5))


def gelu_by_tanh(x: Any, precise: Any) -> Any:
    return 0.5 * x * (1.0 + precise(ops.tanh)(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def sigmoid(x: Any, precise: Any) -> Any:
    return 1.0 / (1.0 + precise(ops.exp)(-x))


def look_up(table: Any, place: Any) -> Any:
    return ops.take(table, ops.cast(place, "int32"), axis=0)


def of_every_byte(call: IntegerCall, function: Function) -> Any:
    """Compute a function of whole steps for every 8-bit input, and look it up."""
    dtype = call.inputs[0].dtype
    every = ops.convert_to_tensor(np.arange(dtype.min, dtype.max + 1).astype(call.wide)) - call.zero_point(0)
    return look_up(function(every), call.stored(0) - dtype.min)


def looked_up(call: IntegerCall, function: RealFunction) -> Any:
    """Look up 8-bit inputs in a table of all values; interpolate 16-bit inputs between 513 points."""
    inverse = 1.0 / call.output.scale

    def precise(inner: Function) -> Function:
        return lambda x: ops.cast(inner(call.real(x)), "float32")

    def of_real(x: Any) -> Any:
        return function(x, precise)

    if call.inputs[0].dtype.bits == 8:
        scale = call.scale(0)
        return of_every_byte(call, lambda k: half_away(of_real(scale * ops.cast(k, "float32")) * inverse))
    low, high = (call.scale(0) * float(end) for end in (-32768, 32767))
    span = call.output.scale * 32767.0 - call.output.scale * -32768.0
    return interpolate(call.whole(0), _points(of_real, low, high, 65536.0 / span))


def _points(function: Function, low: Any, high: Any, per_unit: Any) -> Any:
    """Return 513 samples over an interval, each shifted by half of the interpolation error at the midpoint of its
    segment."""
    step = (high - low) / float(POINTS)
    places = low + ops.convert_to_tensor(np.arange(POINTS + 1, dtype=np.float32)) * step
    middles = function(places[:-1] + step / 2.0) * per_unit
    values = function(ops.concatenate([places[:-1], ops.reshape(high, (1,))])) * per_unit
    nexts = function(places[1:]) * per_unit
    rounded = half_away(values)
    off = half_away((nexts + rounded[:-1]) / 2.0) - half_away(middles)
    return ops.clip(ops.concatenate([rounded[:-1] - half_away(off / 2.0), rounded[-1:]]), -32768.0, 32767.0)


def interpolate(x: Any, table: Any) -> Any:
    """Interpolate 16-bit values: 9 bits select a segment, 7 bits the position within it."""
    segment = ops.floor(x / 128.0)
    base = ops.cast(look_up(table, segment + 256.0), x.dtype)
    slope = ops.cast(look_up(table, segment + 257.0), x.dtype) - base
    slope = slope - 65536.0 * ops.floor((slope + 32768.0) / 65536.0)
    return base + ops.floor((slope * (x - 128.0 * segment) + 64.0) / 128.0)


def table(function: RealFunction) -> IntegerKernel:
    return lambda call: looked_up(call, function)


def gelu_op(call: IntegerCall) -> Any:
    return looked_up(call, gelu_by_tanh if call.option("approximate", False) else gelu)


def log(call: IntegerCall) -> Any:
    least = call.output.scale * (float(call.output.dtype.min) - ops.cast(call.zero_point(), "float32"))
    return looked_up(call, lambda x, precise: ops.where(x <= 0, least, precise(ops.log)(ops.maximum(x, LEAST))))


def square_root(call: IntegerCall) -> Any:
    real = call.scale(0) * ops.cast(call.whole(0), "float32")
    return toward_zero(ops.sqrt(ops.maximum(real, 0.0)) / call.output.scale)


def reciprocal_root(call: IntegerCall) -> Any:
    """Compute RSQRT; inputs that are not positive give the largest output."""
    if call.output.dtype is DType.INT16:
        greatest = call.output.scale * float(call.output.dtype.max)
        return looked_up(call, lambda x, _: ops.where(x <= 0, greatest, 1.0 / ops.sqrt(ops.maximum(x, LEAST))))
    top = float(call.output.dtype.max) - call.zero_point()
    factor = call.real(1.0) / call.real(ops.sqrt(call.scale(0)) * call.output.scale)
    multiplier = QuantizedMultiplier.of(factor)
    shifted = QuantizedMultiplier(multiplier.fraction, multiplier.shift - 20.0)

    def root(x: Any) -> Any:
        inverse = half_away(2.0**20 / ops.sqrt(ops.maximum(x, 1.0)))
        return ops.where(x <= 0, top, shifted.times(inverse))

    return of_every_byte(call, root)


def hard_swish(call: IntegerCall) -> Any:
    """Compute x * relu6(x + 3) / 6 in 16 bits: a factor between 0 and 1 times x, both rescaled."""
    fine = (1 / 128) * call.scale(0)
    scaling = QuantizedMultiplier.of(call.real(fine / call.output.scale))
    gating = QuantizedMultiplier.of(call.real(fine / float(np.float32(3.0) / np.float32(32768.0))))

    def function(k: Any) -> Any:
        x = k * 128.0
        scaled = half_up(x * scaling.narrow)
        is_left = gating.shift > 0
        early = power_of_two(ops.maximum(gating.shift - 1.0, 0.0), call.wide)
        gate = half_up(ops.clip(x * early, -32768.0, 32767.0) * gating.narrow)
        left = ops.clip(gate * 2.0, -32768.0, 32767.0)
        gate = ops.where(is_left, left, half_away(gate * power_of_two(ops.minimum(gating.shift, 0.0), call.wide)))
        gate = ops.floor((gate + 32768.0) / 2.0)
        return half_away(toward_zero(gate * scaled / 32768.0) * power_of_two(scaling.shift, call.wide))

    return of_every_byte(call, function)


# LOGISTIC and TANH.


def _in_thirds(call: IntegerCall, near: tuple[int, ...]) -> Any:
    """Rescale 16-bit inputs to units of 1 / (3 * 4096)."""
    x, scale = call.whole(0), call.real(call.scale(0))
    fraction, exponent = split(scale * (4096.0 * 3.0))
    shift = 15.0 - exponent - ops.cast(fraction * 2.0**14 > 32767.0 / 2, call.wide)
    shift = ops.clip(shift, 0.0, 31.0)
    multiplier = ops.floor(scale * (4096.0 * 3.0) * power_of_two(shift, call.wide))
    half = ops.cast(shift > 0, call.wide) * 0.5
    thirds = ops.floor(x * multiplier * power_of_two(-shift, call.wide) + half)
    log2 = ops.log2(scale)
    for power in near:
        thirds = ops.where(ops.abs(log2 + 12.0 - float(power)) < 1e-3, x * float(3 << power), thirds)
    return thirds


def _between_points(size: Any, bits: int) -> tuple[Any, Any]:
    points = ops.convert_to_tensor(sigmoid_points().astype("float32"))
    place = ops.minimum(ops.floor(size / 2.0**bits), 255.0)
    base, after = (ops.cast(look_up(points, ops.minimum(place + k, 255.0)), size.dtype) for k in (0.0, 1.0))
    rest = size - 2.0**bits * ops.floor(size / 2.0**bits)
    return base * 2.0**bits + rest * (after - base), place >= 255.0


def logistic(call: IntegerCall) -> Any:
    if call.output.dtype is not DType.INT16:
        return looked_up(call, sigmoid)
    x = _in_thirds(call, (0,))
    between, is_last = _between_points(ops.abs(x), 9)
    value = ops.where(is_last, float(0x7FFF << 10), between)
    return ops.floor(ops.where(x >= 0, value + 512.0, 2.0**25 - value + 511.0) / 1024.0)


def hyperbolic_tangent(call: IntegerCall) -> Any:
    if call.output.dtype is not DType.INT16:
        return looked_up(call, plain(ops.tanh))
    x = _in_thirds(call, (0, 1))
    between, is_last = _between_points(ops.abs(x), 8)
    value = ops.where(is_last, float(0xFFFF << 8), between)
    return ops.floor(ops.where(x >= 0, value - 2.0**23 + 128.0, 2.0**23 - value + 127.0) / 256.0)
