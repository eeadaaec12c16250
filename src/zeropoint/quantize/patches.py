"""What the weights of a layer meet: its input cut into the vectors that each output is a product with."""

from __future__ import annotations

import numpy as np

from ..dtypes import Array
from ..graph.model import Op

SAME = 0
"""The schema's code for padding to keep the size."""

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
    height, width = weights.shape[1:3]
    windows = _windows(op, x, (height, width))  # count, taps, channels
    chosen = _spread(windows, most)
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


def _windows(op: Op, x: Array, size: tuple[int, int]) -> Array:
    """Every window that the convolution looks at: [positions, taps, channels]."""
    outputs = op.outputs[0].shape
    padded, views = x, []
    pads = [(0, 0)] * 4
    for axis, name in ((1, "H"), (2, "W")):
        stride, dilation = int(op.option(f"stride{name}", 1)), int(op.option(f"dilation{name}Factor", 1))
        reach = (size[axis - 1] - 1) * dilation + 1
        total = max(0, (outputs[axis] - 1) * stride + reach - x.shape[axis]) if op.option("padding") == SAME else 0
        pads[axis] = (total // 2, total - total // 2)
        views.append((stride, dilation))
    padded = np.pad(x, pads)
    (step_y, wide_y), (step_x, wide_x) = views
    batch, row, column, channel = padded.strides
    shape = (x.shape[0], outputs[1], outputs[2], size[0], size[1], x.shape[3])
    strides = (batch, row * step_y, column * step_x, row * wide_y, column * wide_x, channel)
    windows = np.lib.stride_tricks.as_strided(padded, shape, strides, writeable=False)
    return windows.reshape(-1, size[0] * size[1], x.shape[3])
