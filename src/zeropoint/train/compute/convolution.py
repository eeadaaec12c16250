"""Convolutions and matrix products. LiteRT keeps weights as [out, height, width, in], Keras with `out` at the end."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from keras import ops

from ...errors import InvalidModel
from ...ops.geometry import SAME, Window, windows
from .call import Call, Compute

PADDING = ("same", "valid")


def _convolve(call: Call) -> Any:
    kernel = ops.transpose(call[1], (1, 2, 3, 0))
    return _with_bias(_apply(call, kernel, ops.conv), call[2])


def _convolve_depthwise(call: Call) -> Any:
    channels = call.input_shape(0)[-1]
    _, height, width, outputs = call.op.inputs[1].shape  # type: ignore[union-attr]  # checked when the file was read
    kernel = ops.reshape(call[1], (height, width, channels, outputs // channels))
    return _with_bias(_apply(call, kernel, ops.depthwise_conv), call[2])


def _apply(call: Call, kernel: Any, convolution: Any) -> Any:
    x = call[0]
    high, wide = windows(call.op)
    strides, dilation = (high.stride, wide.stride), (high.dilation, wide.dilation)
    same = call.option("padding") == SAME
    if max(dilation) == 1 or max(strides) == 1:
        if convolution is ops.depthwise_conv and strides[0] != strides[1]:
            return _skipping(_padded(x, high, wide), kernel, convolution, (high, wide))
        return convolution(
            x,
            kernel,
            strides=strides,
            padding=PADDING[0 if same else 1],
            data_format="channels_last",
            dilation_rate=dilation,
        )
    return _skipping(_padded(x, high, wide), kernel, convolution, (high, wide))


def _padded(x: Any, high: Window, wide: Window) -> Any:
    if not (high.before or high.after or wide.before or wide.after):
        return x
    return ops.pad(x, ((0, 0), (high.before, high.after), (wide.before, wide.after), (0, 0)))


def _skipping(x: Any, kernel: Any, convolution: Any, sides: tuple[Window, Window]) -> Any:
    """Strides that backends do not combine (with dilation, or unequal ones): every position, then the wanted ones."""
    high, wide = sides
    every = convolution(
        x,
        kernel,
        strides=(1, 1),
        padding="valid",
        data_format="channels_last",
        dilation_rate=(high.dilation, wide.dilation),
    )
    return every[:, :: high.stride, :: wide.stride][:, : high.outputs, : wide.outputs]


def _with_bias(y: Any, bias: Any) -> Any:
    return y if bias is None else y + ops.reshape(bias, (-1,))


def _convolve_transposed(call: Call) -> Any:
    """TRANSPOSE_CONV: output shape, weights, input, bias."""
    strides = (int(call.option("strideH", 1)), int(call.option("strideW", 1)))
    return _with_bias(_spread(call, 2, strides, call.option("padding") == SAME), call[3])


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
    x, output = call[slot], call.op.outputs[0].shape
    _, height, width, channels = call.input_shape(slot)
    kernel = call.op.inputs[1]
    assert kernel is not None
    paddings = []
    for length, stride, taps, wanted in zip((height, width), strides, kernel.shape[1:3], output[1:3], strict=True):
        cut = max(0, (length - 1) * stride + taps - wanted) // 2 if same else 0
        before = taps - 1 - cut
        paddings.append((before, wanted + taps - 1 - before - ((length - 1) * stride + 1)))
    for axis, stride in ((1, strides[0]), (2, strides[1])):
        x = _with_gaps(x, axis, stride, (height, width, channels))
        height, width = ((height - 1) * stride + 1, width) if axis == 1 else (height, (width - 1) * stride + 1)
    x = ops.pad(x, ((0, 0), *((max(0, a), max(0, b)) for a, b in paddings), (0, 0)))
    turned = ops.transpose(ops.flip(call[1], axis=(1, 2)), (1, 2, 3, 0))
    y = ops.conv(x, turned, strides=1, padding="valid", data_format="channels_last")
    return y[:, : output[1], : output[2]]


def _with_gaps(x: Any, axis: int, stride: int, size: tuple[int, int, int]) -> Any:
    if stride == 1:
        return x
    height, width, channels = size
    gaps = [(0, 0)] * 5
    gaps[axis + 1] = (0, stride - 1)
    wide = ops.pad(ops.expand_dims(x, axis + 1), gaps)
    length = size[axis - 1] * stride
    shape = (-1, length, width, channels) if axis == 1 else (-1, height, length, channels)
    spaced = ops.reshape(wide, shape)
    return spaced[:, : length - stride + 1] if axis == 1 else spaced[:, :, : length - stride + 1]


def _dense(call: Call) -> Any:
    x, weights, bias = call[0], call[1], call[2]
    kernel = call.op.inputs[1]
    assert kernel is not None
    rows = ops.reshape(x, (-1, kernel.shape[1]))
    y = _with_bias(ops.matmul(rows, ops.transpose(weights)), bias)
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
