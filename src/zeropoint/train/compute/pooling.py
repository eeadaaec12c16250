"""Pooling, reductions and resizing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from keras import ops

from ...dtypes import Array
from ...ops.layout import SAME, Window
from ..backend import held_type
from .call import Call, Compute

LOWEST = float(np.finfo(np.float32).min)


def _windows(call: Call) -> tuple[Window, Window]:
    return _window(call, 1, "H", "Height"), _window(call, 2, "W", "Width")


def _window(call: Call, axis: int, side: str, name: str) -> Window:
    taps, stride = int(call.option(f"filter{name}")), int(call.option(f"stride{side}"))
    length, outputs = call.input_shape(0)[axis], call.output_shape()[axis]
    padding = max(0, (outputs - 1) * stride + taps - length) if call.option("padding") == SAME else 0
    return Window(taps, stride, 1, length, outputs, padding // 2, padding - padding // 2)


def _pooled(call: Call, pool: Callable[..., Any], filler: float) -> Any:
    high, wide = _windows(call)
    x = call[0]
    if high.before or high.after or wide.before or wide.after:
        around = ((0, 0), (high.before, high.after), (wide.before, wide.after), (0, 0))
        x = ops.pad(x, around, constant_values=filler)
    size, strides = (high.taps, wide.taps), (high.stride, wide.stride)
    return pool(x, size, strides=strides, padding="valid", data_format="channels_last")


def _average_pool(call: Call) -> Any:
    """The padding does not count: averages over fewer pixels at the border."""
    y = _pooled(call, ops.average_pool, 0.0)
    high, wide = (_seen(side) for side in _windows(call))
    share = (high[:, None] * wide)[None, :, :, None]
    return y if share.min() == 1.0 else ops.divide(y, ops.convert_to_tensor(share.astype(np.float32)))


def _seen(side: Window) -> Array:
    """For each output position, the share of the window that lies on the image."""
    starts = np.arange(side.outputs)[:, None] * side.stride - side.before
    positions = starts + np.arange(side.taps)
    return np.asarray(((positions >= 0) & (positions < side.length)).mean(axis=1))


def _max_pool(call: Call) -> Any:
    return _pooled(call, ops.max_pool, LOWEST)


def _l2_pool(call: Call) -> Any:
    squares = Call(call.op, [ops.square(call[0])], call.free)
    return ops.sqrt(_average_pool(squares))


def reduced(function: Callable[..., Any]) -> Compute:
    """A reduction along known axes."""

    def compute(call: Call) -> Any:
        axes = call.axes(1, len(call[0].shape))
        return function(call[0], axis=axes, keepdims=bool(call.option("keepDims", False)))

    return compute


def searched(function: Callable[..., Any]) -> Compute:
    def compute(call: Call) -> Any:
        (axis,) = call.axes(1, len(call[0].shape))
        return ops.cast(function(call[0], axis=axis), held_type(call.op.outputs[0].dtype))

    return compute


def _cumulated(call: Call) -> Any:
    x = call[0]
    (axis,) = call.axes(1, len(x.shape))
    x = ops.flip(x, axis) if call.option("reverse", False) else x
    total = ops.cumsum(x, axis=axis)
    total = total - x if call.option("exclusive", False) else total
    return ops.flip(total, axis) if call.option("reverse", False) else total


def _resize_bilinear(call: Call) -> Any:
    """Along each side, a product with a matrix that holds the weights of the two neighbours."""
    _, height, width, _ = call.input_shape(0)
    _, high, wide, _ = call.output_shape()
    rows, columns = _mixing(height, high, call), _mixing(width, wide, call)
    return ops.einsum("oh,nhwc,pw->nopc", rows, call[0], columns)


def _positions(length: int, outputs: int, call: Call) -> Array:
    """Where each output pixel lies on the input."""
    if call.option("alignCorners", False) and outputs > 1:
        scale = np.float32((length - 1) / np.float32(outputs - 1))
    else:
        scale = np.float32(length / np.float32(outputs))
    k = np.arange(outputs, dtype=np.float32)
    half = np.float32(0.5 if call.option("halfPixelCenters", False) else 0.0)
    return np.asarray((k + half) * scale - half)


def _mixing(length: int, outputs: int, call: Call) -> Array:
    at = _positions(length, outputs, call)
    below = np.maximum(np.floor(at), 0).astype(np.int64)
    lower, upper = np.minimum(below, length - 1), np.minimum(np.ceil(np.maximum(at, 0)).astype(np.int64), length - 1)
    share = np.clip(at - below, 0.0, None).astype(np.float32)
    matrix = np.zeros((outputs, length), np.float32)
    np.add.at(matrix, (np.arange(outputs), lower), 1 - share)
    np.add.at(matrix, (np.arange(outputs), upper), share)
    return matrix


def _resize_nearest(call: Call) -> Any:
    _, height, width, _ = call.input_shape(0)
    _, high, wide, _ = call.output_shape()
    return ops.take(ops.take(call[0], _nearest(height, high, call), axis=1), _nearest(width, wide, call), axis=2)


def _nearest(length: int, outputs: int, call: Call) -> Array:
    offset = np.float32(0.5 if call.option("halfPixelCenters", False) else 0.0)
    corners = bool(call.option("alignCorners", False)) and outputs > 1
    scale = np.float32((length - 1) / (outputs - 1)) if corners else np.float32(length / outputs)
    at = (np.arange(outputs, dtype=np.float32) + offset) * scale
    whole = np.floor(at + np.float32(0.5)) if corners else np.floor(at)
    return np.asarray(np.clip(whole, 0, length - 1), np.int32)


COMPUTE: Mapping[str, Compute] = {
    "AVERAGE_POOL_2D": _average_pool,
    "MAX_POOL_2D": _max_pool,
    "L2_POOL_2D": _l2_pool,
    "MEAN": reduced(ops.mean),
    "SUM": reduced(ops.sum),
    "REDUCE_MAX": reduced(ops.max),
    "REDUCE_MIN": reduced(ops.min),
    "REDUCE_PROD": reduced(ops.prod),
    "REDUCE_ANY": reduced(ops.any),
    "REDUCE_ALL": reduced(ops.all),
    "ARG_MAX": searched(ops.argmax),
    "ARG_MIN": searched(ops.argmin),
    "CUMSUM": _cumulated,
    "RESIZE_BILINEAR": _resize_bilinear,
    "RESIZE_NEAREST_NEIGHBOR": _resize_nearest,
}
