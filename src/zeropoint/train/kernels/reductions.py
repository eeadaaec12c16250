"""Averages, resized images, and softmax along the last axis: MEAN, AVERAGE_POOL_2D, RESIZE_BILINEAR, SOFTMAX."""

from __future__ import annotations

from typing import Any

import numpy as np
from keras import ops

from ...dtypes import DType
from ...ops.layout import pooling_windows, sliding
from ...simulation import normalization, pooling
from ..compute.layers import mixing_matrix
from .call import IntegerCall, IntegerKernel
from .functions import interpolate, look_up
from .rescaling import QuantizedMultiplier, half_away, half_up, power_of_two, split, toward_zero


def _counted(call: IntegerCall) -> int:
    """Return the number of elements of each mean."""
    shape = call.call.input_shape(0)
    return int(np.prod([shape[axis] for axis in dict.fromkeys(call.call.axes(1))]))


def mean(call: IntegerCall) -> Any:
    return MEANS[call.rules.mean](call)


def _total(call: IntegerCall, x: Any) -> Any:
    """Return the sum of whole numbers, from a floating-point mean with its rounding removed."""
    return ops.round(call.computed(x, call.inputs[1]) * float(_counted(call)))


def _mean_in_fixed_point(call: IntegerCall) -> Any:
    count = _counted(call)
    ratio = QuantizedMultiplier.of(call.real(call.scale(0)) / call.real(call.output.scale))
    more = ops.minimum(call.real(float(min(count.bit_length() - 1, 32))), 31.0 + ratio.shift)
    divided = ops.floor(ratio.fraction * 2.0**31 * power_of_two(more, call.wide) / float(count)) / 2.0**31
    return QuantizedMultiplier(divided, ratio.shift - more).times(_total(call, call.whole(0)))


def _mean_in_float32(call: IntegerCall) -> Any:
    count = float(_counted(call))
    factor = call.scale(0) / call.output.scale * float(np.float32(1) / np.float32(count))
    zero = ops.cast(call.zero_point(), "float32")
    offset = zero - ops.cast(count * call.zero_point(0), "float32") * factor
    return ops.round(ops.cast(_total(call, call.stored(0)), "float32") * factor + offset) - zero


MEANS: dict[Any, IntegerKernel] = {
    pooling.mean_in_fixed_point: _mean_in_fixed_point,
    pooling.mean_in_float32: _mean_in_float32,
}
"""Replacements of the simulation's functions."""


def average_pool(call: IntegerCall) -> Any:
    """Return the mean of the stored integers inside the image, halves away from zero."""
    _, height, width, _ = call.call.input_shape(0)
    _, high, wide, _ = call.call.output_shape()
    inside = sliding(pooling_windows(call.op), np.ones((1, height, width, 1))).sum(axis=1).reshape(1, high, wide, 1)
    count = ops.convert_to_tensor(inside.astype(call.wide))
    total = ops.round(call.computed(call.stored(0)) * count)
    away = ops.where(total > 0, ops.floor(count / 2.0), -ops.floor(count / 2.0))
    return call.finished(toward_zero((total + away) / count) - call.zero_point())


def resize_bilinear(call: IntegerCall) -> Any:
    in_11_bits = call.rules.bilinear is pooling.bilinear_in_11_bits
    return _bilinear_in_11_bits(call) if in_11_bits else _bilinear_in_integers(call)


def _weighted_sum(call: IntegerCall, neighbours: Any, unit: int) -> Any:
    corners, centers = bool(call.option("alignCorners")), bool(call.option("halfPixelCenters"))
    sizes = zip(call.call.input_shape(0)[1:3], call.call.output_shape()[1:3], strict=True)
    rows, columns = (
        ops.convert_to_tensor(mixing_matrix(n, neighbours(n, size, corners, centers), unit).astype(call.wide))
        for n, size in sizes
    )
    return ops.einsum("oh,nhwc,pw->nopc", rows, call.stored(0), columns)


def _bilinear_in_integers(call: IntegerCall) -> Any:
    return half_away(_weighted_sum(call, pooling.neighbours, 1024) / 2.0**20) - call.zero_point()


def _bilinear_in_11_bits(call: IntegerCall) -> Any:
    return half_up(_weighted_sum(call, pooling.weighted_neighbours, 2048) / 2.0**22) - call.zero_point()


# Rows.


def _below(call: IntegerCall) -> Any:
    """Return how far each element is below its row's maximum."""
    x = call.whole(0)
    return ops.max(x, axis=-1, keepdims=True) - x


def _exponentials(call: IntegerCall, below: Any, beta: float) -> Any:
    """Return exponentials from a table of all 256 differences, in float32."""
    factor = -call.scale(0) * beta
    places = ops.convert_to_tensor(np.arange(256, dtype=np.float32))
    return look_up(ops.cast(ops.exp(call.real(factor * places)), "float32"), below)


def softmax(call: IntegerCall) -> Any:
    beta = float(np.float32(call.option("beta", 1.0)))
    if call.inputs[0].dtype is DType.INT16:
        return _softmax_of_int16(call, beta)
    exponentials = _exponentials(call, _below(call), beta)
    total = ops.sum(exponentials, axis=-1, keepdims=True)
    return ops.round(exponentials * (1.0 / (total * call.output.scale)))


def _softmax_of_int16(call: IntegerCall, beta: float) -> Any:
    """Compute 16-bit softmax: exponentials from a table over [-10, 0], and the reciprocal of their sum from another."""
    exponential_table, reciprocal_table = (
        ops.convert_to_tensor(t.astype(call.wide)) for t in normalization.int16_tables()
    )
    factor = call.real(call.scale(0) * beta) / (10.0 / 65535.0)
    below = QuantizedMultiplier.of(factor).times(-_below(call))
    exponentials = interpolate(ops.clip(below + 32767.0, -32768.0, 32767.0), exponential_table)
    total = ops.sum(exponentials, axis=-1, keepdims=True)
    _, bits = split(total)
    shifted = half_up(total * power_of_two(31.0 - bits, call.wide) / 2.0**14)
    place = ops.clip(shifted - 2.0**15 - 2.0**16, -32768.0, 32767.0)
    scale = interpolate(place, reciprocal_table)
    return half_up(exponentials * scale * power_of_two(1.0 - bits, call.wide))


def log_softmax(call: IntegerCall) -> Any:
    below = _below(call)
    total = ops.sum(_exponentials(call, below, 1.0), axis=-1, keepdims=True)
    logarithm = ops.cast(ops.log(call.real(total)), "float32")
    scale = call.scale(0) / call.output.scale
    x = ops.cast(call.stored(0), "float32")
    offset = ops.max(x, axis=-1, keepdims=True) * scale + logarithm / call.output.scale
    return half_away(scale * x - offset)
