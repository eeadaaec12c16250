"""Bias correction: rounding the weights shifts the mean of every output channel; the bias takes the shift back.

With weights W rounded to W + dW, an output channel's mean moves by sum(dW * E[x]) over the weights of that channel,
E[x] being the mean of the input channel that each weight meets. Calibration recorded these means.
"""

from __future__ import annotations

import numpy as np

from ..affine import QuantParams, dequantize, quantize
from ..dtypes import Array
from ..graph.model import Op, Tensor
from ..ops import Bias, OpSpec

SAME = 0
"""The schema's code for padding to keep the size."""


def bias_slot(spec: OpSpec) -> int | None:
    """Where the op takes its bias, if it is one of those that this module corrects."""
    found = [k for k, role in enumerate(spec.inputs) if isinstance(role, Bias)]
    return found[0] if len(found) == 1 and len(spec.weight_slots) == 1 else None


def mean_shift(op: Op, rounding: Array, means: Array) -> Array | None:
    """How far the rounding of the weights (dW) moves each output channel; None if the layout is not known."""
    compute = _SHIFTS.get(op.kind)
    return None if compute is None else compute(op, rounding.astype(np.float64), means.astype(np.float64))


def rounding_error(data: Array, params: QuantParams) -> Array:
    """dW: what the weights become, less what they were."""
    return dequantize(quantize(data, params), params).astype(np.float64) - data


def _dense_shift(op: Op, rounding: Array, means: Array) -> Array | None:  # noqa: ARG001 - one signature
    inputs = rounding.shape[1]
    # A dense layer on an image reads its channels over and over.
    return rounding @ np.tile(means, inputs // means.size) if inputs % means.size == 0 else None


def _convolution_shift(op: Op, rounding: Array, means: Array) -> Array | None:
    outputs, height, width, channels = rounding.shape
    if means.size % channels:
        return None
    groups = means.size // channels
    if outputs % groups:
        return None
    seen = _coverage(op, (height, width))
    by_channel = np.einsum("ohwc,hw->oc", rounding, seen)
    of_group = np.repeat(means.reshape(groups, channels), outputs // groups, axis=0)
    return np.asarray((by_channel * of_group).sum(axis=1))


def _depthwise_shift(op: Op, rounding: Array, means: Array) -> Array | None:
    _, height, width, channels = rounding.shape
    if channels % means.size:
        return None
    seen = _coverage(op, (height, width))
    return np.asarray(np.einsum("hwc,hw->c", rounding[0], seen) * np.repeat(means, channels // means.size))


def _transposed_shift(op: Op, rounding: Array, means: Array) -> Array | None:
    source, result = op.inputs[2], op.outputs[0]
    if source is None or rounding.shape[3] != means.size:
        return None
    # Every input element meets every tap once, so an output element meets this share of them.
    share = source.shape[1] * source.shape[2] / max(1, result.shape[1] * result.shape[2])
    return np.asarray(np.einsum("ohwc,c->o", rounding, means) * share)


_SHIFTS = {
    "CONV_2D": _convolution_shift,
    "DEPTHWISE_CONV_2D": _depthwise_shift,
    "FULLY_CONNECTED": _dense_shift,
    "TRANSPOSE_CONV": _transposed_shift,
}


def _coverage(op: Op, window: tuple[int, int]) -> Array:
    """For each tap of the window, the share of output positions where it lies on the image, not on padding."""
    source, result = op.inputs[0], op.outputs[0]
    assert source is not None
    sides = []
    for axis, size, name in ((1, window[0], "H"), (2, window[1], "W")):
        stride, dilation = int(op.option(f"stride{name}", 1)), int(op.option(f"dilation{name}Factor", 1))
        sides.append(_covered(source.shape[axis], result.shape[axis], (size, stride, dilation, op.option("padding"))))
    return np.outer(*sides)


def _covered(length: int, outputs: int, window: tuple[int, int, int, int]) -> Array:
    size, stride, dilation, padding = window
    if padding != SAME:
        return np.ones(size)
    reach = (size - 1) * dilation + 1
    before = max(0, (outputs - 1) * stride + reach - length) // 2
    positions = np.arange(outputs)[:, None] * stride - before + np.arange(size) * dilation
    return np.asarray(((positions >= 0) & (positions < length)).mean(axis=0))


def zero_bias(op: Op, weights: Tensor) -> Array:
    """A bias of zeros, for an op that takes one and has none."""
    channels = weights.shape[3] if op.kind == "DEPTHWISE_CONV_2D" else weights.shape[0]
    return np.zeros(channels, np.float32)
