"""What the weights of a layer meet: its input cut into the vectors that each output is a product with."""

from __future__ import annotations

import numpy as np

from ..dtypes import Array
from ..graph.model import Op
from ..ops.geometry import windows

SUPPORTED = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")


def patches(op: Op, x: Array, most: int) -> Array:
    """At most `most` of them, evenly spread: [groups, count, inputs of one output].

    A dense layer is one group; a convolution has its groups; of a depthwise convolution each channel is one.
    """
    weights = op.inputs[1]
    assert weights is not None
    if op.kind == "FULLY_CONNECTED":
        flat = x.reshape(-1, weights.shape[1])
        return _spread(flat, most)[None]
    chosen = _spread(_windows(op, x), most)  # count, taps, channels
    if op.kind == "DEPTHWISE_CONV_2D":
        return np.ascontiguousarray(chosen.transpose(2, 0, 1))
    groups = x.shape[-1] // weights.shape[3]
    count, taps, _ = chosen.shape
    split = chosen.reshape(count, taps, groups, weights.shape[3]).transpose(2, 0, 1, 3)
    return np.asarray(split.reshape(groups, count, taps * weights.shape[3]))


def grouped_weights(op: Op, weights: Array, groups: int) -> Array:
    """The layer's weights as [groups, outputs of a group, inputs of one output], to go with `patches`."""
    if op.kind == "DEPTHWISE_CONV_2D":
        taps = weights.shape[1] * weights.shape[2]
        return np.asarray(weights.reshape(taps, groups, -1).transpose(1, 2, 0))
    return np.asarray(weights.reshape(groups, weights.shape[0] // groups, -1))


def ungrouped_weights(op: Op, grouped: Array, shape: tuple[int, ...]) -> Array:
    """The inverse of `grouped_weights`."""
    if op.kind == "DEPTHWISE_CONV_2D":
        grouped = grouped.transpose(2, 0, 1)
    return np.asarray(grouped.reshape(shape))


def _spread(rows: Array, most: int) -> Array:
    step = max(1, -(-rows.shape[0] // most))
    return rows[step // 2 :: step]


def _windows(op: Op, x: Array) -> Array:
    """Every window that the convolution looks at: [positions, taps, channels]."""
    high, wide = windows(op)
    padded = np.pad(x, [(0, 0), (high.before, high.after), (wide.before, wide.after), (0, 0)])
    batch, row, column, channel = padded.strides
    shape = (x.shape[0], high.outputs, wide.outputs, high.taps, wide.taps, x.shape[3])
    steps = (row * high.stride, column * wide.stride, row * high.dilation, column * wide.dilation)
    seen = np.lib.stride_tricks.as_strided(padded, shape, (batch, *steps, channel), writeable=False)
    return seen.reshape(-1, high.taps * wide.taps, x.shape[3])
