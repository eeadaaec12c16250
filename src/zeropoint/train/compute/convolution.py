"""Convolutions and matrix products. LiteRT keeps weights as [out, height, width, in], Keras with `out` at the end."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from keras import ops

from ...errors import InvalidModel
from ...ops.layout import SAME, VALID, Window, convolution_windows, strides_of, transposed_windows
from .call import Call, Compute

PADDING = {SAME: "same", VALID: "valid"}


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
    # Backends do not combine such strides (with dilation, or unequal ones): every position, then the wanted ones.
    every = convolution(_padded(call[0], high, wide), kernel, strides=(1, 1), padding="valid", **options)
    return every[:, :: high.stride, :: wide.stride][:, : high.outputs, : wide.outputs]


def _padded(x: Any, high: Window, wide: Window) -> Any:
    sides = [(max(0, w.before), max(0, w.after)) for w in (high, wide)]
    return ops.pad(x, ((0, 0), *sides, (0, 0))) if any(map(any, sides)) else x


def _with_bias(y: Any, bias: Any) -> Any:
    return y if bias is None else y + ops.reshape(bias, (-1,))


def _convolve_transposed(call: Call) -> Any:
    """TRANSPOSE_CONV: output shape, weights, input, bias."""
    return _with_bias(_spread(call, 2, strides_of(call.op), call.option("padding") == SAME), call[3])


def _convolve_transposed_with_bias(call: Call) -> Any:
    """MediaPipe's Convolution2DTransposeBias: input, weights, bias; options as LiteRT's own struct of three numbers."""
    packed = b"" if call.op.custom_options is None else call.op.custom_options.tobytes()
    if len(packed) < 12:
        raise InvalidModel(f"{call.op.label} '{call.op.name}' has no options; is the file whole?")
    padding, stride_width, stride_height = struct.unpack("<3i", packed[:12])
    same = 1  # kTfLitePaddingSame
    return _with_bias(_spread(call, 0, (stride_height, stride_width), padding == same), call[2])


def _spread(call: Call, slot: int, strides: tuple[int, int], same: bool) -> Any:
    """A transposed convolution as a plain one: zeros between the input's pixels, and the kernel turned round."""
    image, taps, outputs = call.input_shape(slot)[1:3], call.input_shape(1)[1:3], call.output_shape()[1:3]
    high, wide = transposed_windows(image, taps, outputs, strides, same=same)
    spaced = _with_gaps(_with_gaps(call[slot], 1, strides[0]), 2, strides[1])
    turned = ops.transpose(ops.flip(call[1], axis=(1, 2)), (1, 2, 3, 0))
    padded = _padded(spaced, high, wide)
    y = ops.conv(padded, turned, strides=1, padding="valid", data_format="channels_last")
    return y[:, : outputs[0], : outputs[1]]


def _with_gaps(x: Any, axis: int, stride: int) -> Any:
    """`stride` - 1 zeros between the elements along `axis`."""
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
    left, right = call[0], call[1]
    if call.option("adjX", False):
        left = ops.swapaxes(left, -1, -2)
    if call.option("adjY", False):
        right = ops.swapaxes(right, -1, -2)
    return ops.matmul(left, right)


COMPUTE: Mapping[str, Compute] = {
    "CONV_2D": _convolve,
    "DEPTHWISE_CONV_2D": _convolve_depthwise,
    "TRANSPOSE_CONV": _convolve_transposed,
    "Convolution2DTransposeBias": _convolve_transposed_with_bias,
    "FULLY_CONNECTED": _dense,
    "BATCH_MATMUL": _multiply_matrices,
}
