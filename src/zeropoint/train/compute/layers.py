"""Layers: convolutions, matrix products, pooling, resizing and recurrent layers.

LiteRT keeps the weights of convolutions as [out, height, width, in], Keras with `out` at the end.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from keras import ops

from ...dtypes import Array
from ...errors import InvalidModel
from ...ops.layout import SAME, VALID, Window, convolution_windows, pooling_windows, strides_of, transposed_windows
from ...ops.recurrent import LSTM, Gate, LstmSlot
from .call import Call, Compute

PADDING = {SAME: "same", VALID: "valid"}
LOWEST = float(np.finfo(np.float32).min)


def _convolve(call: Call) -> Any:
    kernel = ops.transpose(call[1], (1, 2, 3, 0))
    return _with_bias(_apply(call, kernel, ops.conv), call[2])


def _convolve_depthwise(call: Call) -> Any:
    channels = call.input_shape(0)[-1]
    _, height, width, outputs = call.input_shape(1)
    kernel = ops.reshape(call[1], (height, width, channels, outputs // channels))
    return _with_bias(_apply(call, kernel, ops.depthwise_conv), call[2])


def _apply(call: Call, kernel: Any, convolution: Any) -> Any:
    high, wide = convolution_windows(call.op)
    strides, dilation = (high.stride, wide.stride), (high.dilation, wide.dilation)
    options = {"data_format": "channels_last", "dilation_rate": dilation}
    unequal = convolution is ops.depthwise_conv and strides[0] != strides[1]
    if not unequal and (max(dilation) == 1 or max(strides) == 1):
        return convolution(call[0], kernel, strides=strides, padding=PADDING[call.option("padding")], **options)
    # Backends do not support such strides (with dilation, or unequal): compute every position, then select.
    every = convolution(_padded(call[0], (high, wide)), kernel, strides=(1, 1), padding="valid", **options)
    return every[:, :: high.stride, :: wide.stride][:, : high.outputs, : wide.outputs]


def _padded(x: Any, windows: tuple[Window, Window], filler: float = 0.0) -> Any:
    sides = [(max(0, w.before), max(0, w.after)) for w in windows]
    return ops.pad(x, ((0, 0), *sides, (0, 0)), constant_values=filler) if any(map(any, sides)) else x


def _with_bias(y: Any, bias: Any) -> Any:
    return y if bias is None else y + ops.reshape(bias, (-1,))


def _convolve_transposed(call: Call) -> Any:
    """Compute TRANSPOSE_CONV: output shape, weights, input, bias."""
    return _with_bias(_spread(call, 2, strides_of(call.op), call.option("padding") == SAME), call[3])


def _convolve_transposed_with_bias(call: Call) -> Any:
    """Compute MediaPipe's Convolution2DTransposeBias: input, weights, bias; options as LiteRT's own struct of three
    numbers."""
    packed = b"" if call.op.custom_options is None else call.op.custom_options.tobytes()
    if len(packed) < 12:
        raise InvalidModel(f"{call.op.label} '{call.op.name}' has no options; is the file complete?")
    padding, stride_width, stride_height = struct.unpack("<3i", packed[:12])
    same = 1  # kTfLitePaddingSame
    return _with_bias(_spread(call, 0, (stride_height, stride_width), padding == same), call[2])


def _spread(call: Call, slot: int, strides: tuple[int, int], same: bool) -> Any:
    """Compute a transposed convolution as a plain one: zeros between the input's pixels, and the kernel reversed."""
    image, taps, outputs = call.input_shape(slot)[1:3], call.input_shape(1)[1:3], call.output_shape()[1:3]
    windows = transposed_windows(image, taps, outputs, strides, same=same)
    spaced = _with_gaps(_with_gaps(call[slot], 1, strides[0]), 2, strides[1])
    turned = ops.transpose(ops.flip(call[1], axis=(1, 2)), (1, 2, 3, 0))
    y = ops.conv(_padded(spaced, windows), turned, strides=1, padding="valid", data_format="channels_last")
    return y[:, : outputs[0], : outputs[1]]


def _with_gaps(x: Any, axis: int, stride: int) -> Any:
    """Insert `stride` - 1 zeros between the elements along `axis`."""
    if stride == 1:
        return x
    gaps = [(0, 0)] * 5
    gaps[axis + 1] = (0, stride - 1)
    shape = [-1, *x.shape[1:]]
    shape[axis] *= stride
    spaced = ops.reshape(ops.pad(ops.expand_dims(x, axis + 1), gaps), shape)
    length = shape[axis] - stride + 1
    return spaced[:, :length] if axis == 1 else spaced[:, :, :length]


def _dense(call: Call) -> Any:
    rows = ops.reshape(call[0], (-1, call.input_shape(1)[1]))
    y = _with_bias(ops.matmul(rows, ops.transpose(call[1])), call[2])
    return ops.reshape(y, call.output_shape())


def _multiply_matrices(call: Call) -> Any:
    left = ops.swapaxes(call[0], -1, -2) if call.option("adjX", False) else call[0]
    right = ops.swapaxes(call[1], -1, -2) if call.option("adjY", False) else call[1]
    return ops.matmul(left, right)


def _pooled(call: Call, pool: Callable[..., Any], filler: float) -> Any:
    high, wide = windows = pooling_windows(call.op)
    size, strides = (high.taps, wide.taps), (high.stride, wide.stride)
    return pool(_padded(call[0], windows, filler), size, strides=strides, padding="valid", data_format="channels_last")


def _average_pool(call: Call) -> Any:
    """Average without the padding: over fewer pixels at the border."""
    y = _pooled(call, ops.average_pool, 0.0)
    high, wide = (_seen(side) for side in pooling_windows(call.op))
    share = (high[:, None] * wide)[None, :, :, None]
    return y if share.min() == 1.0 else ops.divide(y, ops.convert_to_tensor(share.astype(np.float32)))


def _seen(side: Window) -> Array:
    """Return, for each output position, the share of the window that lies on the image."""
    starts = np.arange(side.outputs)[:, None] * side.stride - side.before
    positions = starts + np.arange(side.taps)
    return np.asarray(((positions >= 0) & (positions < side.length)).mean(axis=1))


def _l2_pool(call: Call) -> Any:
    squares = Call(call.op, [ops.square(call[0])], call.free)
    return ops.sqrt(_average_pool(squares))


def _resize_bilinear(call: Call) -> Any:
    """Multiply along each side by a matrix with the weights of the two neighbours."""
    _, height, width, _ = call.input_shape(0)
    _, high, wide, _ = call.output_shape()
    rows, columns = _mixing(height, high, call), _mixing(width, wide, call)
    return ops.einsum("oh,nhwc,pw->nopc", rows, call[0], columns)


def _mixing(length: int, outputs: int, call: Call) -> Array:
    at = _positions(length, outputs, call) - _half_pixel(call)
    below = np.maximum(np.floor(at), 0).astype(np.int64)
    lower, upper = np.minimum(below, length - 1), np.minimum(np.ceil(np.maximum(at, 0)).astype(np.int64), length - 1)
    share = np.clip(at - below, 0.0, None).astype(np.float32)
    return mixing_matrix(length, (lower, upper, share)).astype(np.float32)


def mixing_matrix(length: int, neighbours: tuple[Array, Array, Array], unit: int = 1) -> Array:
    """Return the weights of `length` pixels in each output: its two neighbours, and the weight of the second in
    1 / unit."""
    before, after, weight = neighbours
    matrix, rows = np.zeros((len(before), length)), np.arange(len(before))
    np.add.at(matrix, (rows, before), unit - weight)
    np.add.at(matrix, (rows, after), weight)
    return matrix


def _positions(length: int, outputs: int, call: Call) -> Array:
    """Return where each output pixel lies on the input; with half-pixel centers, counted from the edge of the first
    pixel."""
    corners = call.option("alignCorners", False) and outputs > 1
    scale = np.float32((length - 1) / (outputs - 1) if corners else length / outputs)
    return np.asarray((np.arange(outputs, dtype=np.float32) + _half_pixel(call)) * scale)


def _half_pixel(call: Call) -> float:
    return 0.5 if call.option("halfPixelCenters", False) else 0.0


def _resize_nearest(call: Call) -> Any:
    _, height, width, _ = call.input_shape(0)
    _, high, wide, _ = call.output_shape()
    return ops.take(ops.take(call[0], _nearest(height, high, call), axis=1), _nearest(width, wide, call), axis=2)


def _nearest(length: int, outputs: int, call: Call) -> Array:
    at = _positions(length, outputs, call)
    corners = call.option("alignCorners", False) and outputs > 1
    whole = np.floor(at + 0.5) if corners else np.floor(at)
    return np.asarray(np.clip(whole, 0, length - 1), np.int32)


def _lstm(call: Call) -> Any:
    """Compute UNIDIRECTIONAL_SEQUENCE_LSTM from a state of zeros.

    gate = act(W x + R h + P c + b),  c' = f c + i g,  h' = o tanh(c'); without an input gate, i = 1 - f.
    """
    x, time = call[0], 0 if call.option("timeMajor", False) else 1
    steps = call.input_shape(0)[time]
    hidden_state, cell_state = call[LstmSlot.OUTPUT_STATE], call[LstmSlot.CELL_STATE]
    first = x[0] if time == 0 else x[:, 0]
    hidden = ops.zeros_like(first[:, :1]) * ops.zeros((1, hidden_state.value.shape[-1]))
    cell = ops.zeros_like(first[:, :1]) * ops.zeros((1, cell_state.value.shape[-1]))
    outputs = []
    for k in range(steps):
        now = x[k] if time == 0 else x[:, k]
        cell = cell_state.keep(_next_cell(call, now, hidden, cell))
        hidden = hidden_state.keep(_next_hidden(call, now, hidden, cell))
        outputs.append(hidden)
    return ops.stack(outputs, axis=time)


def _next_cell(call: Call, x: Any, hidden: Any, cell: Any) -> Any:
    forget = ops.sigmoid(_gate(call, Gate.FORGET, x, hidden, cell))
    let_in = 1.0 - forget if call[Gate.INPUT.weights] is None else ops.sigmoid(_gate(call, Gate.INPUT, x, hidden, cell))
    new = forget * cell + let_in * ops.tanh(_gate(call, Gate.CELL, x, hidden, cell))
    clip = float(call.option("cellClip", 0.0))
    return ops.clip(new, -clip, clip) if clip > 0 else new


def _next_hidden(call: Call, x: Any, hidden: Any, cell: Any) -> Any:
    new = ops.sigmoid(_gate(call, Gate.OUTPUT, x, hidden, cell)) * ops.tanh(cell)
    projection, bias = call[LstmSlot.PROJECTION], call[LstmSlot.PROJECTION_BIAS]
    if projection is None:
        return new
    projected = ops.matmul(new, ops.transpose(projection))
    projected = projected if bias is None else projected + bias
    clip = float(call.option("projClip", 0.0))
    return ops.clip(projected, -clip, clip) if clip > 0 else projected


def _gate(call: Call, gate: Gate, x: Any, hidden: Any, cell: Any) -> Any:
    weights, recurrent = call[gate.weights], call[gate.recurrent_weights]
    total = ops.matmul(x, ops.transpose(weights)) + ops.matmul(hidden, ops.transpose(recurrent))
    peephole = None if gate.peephole is None else call[gate.peephole]
    if peephole is not None:
        total = total + cell * peephole
    scale, bias = call[gate.normalization], call[gate.bias]
    if scale is not None:  # layer normalization
        centred = total - ops.mean(total, axis=-1, keepdims=True)
        total = centred * ops.rsqrt(ops.mean(ops.square(centred), axis=-1, keepdims=True) + 1e-8) * scale
    return total if bias is None else total + bias


COMPUTE: Mapping[str, Compute] = {
    "CONV_2D": _convolve,
    "DEPTHWISE_CONV_2D": _convolve_depthwise,
    "TRANSPOSE_CONV": _convolve_transposed,
    "Convolution2DTransposeBias": _convolve_transposed_with_bias,
    "FULLY_CONNECTED": _dense,
    "BATCH_MATMUL": _multiply_matrices,
    "AVERAGE_POOL_2D": _average_pool,
    "MAX_POOL_2D": lambda call: _pooled(call, ops.max_pool, LOWEST),
    "L2_POOL_2D": _l2_pool,
    "RESIZE_BILINEAR": _resize_bilinear,
    "RESIZE_NEAREST_NEIGHBOR": _resize_nearest,
    LSTM: _lstm,
}
