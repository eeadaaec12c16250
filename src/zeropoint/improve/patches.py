"""What the weights of a layer meet: its input cut into the vectors that each output is a product with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..dtypes import Array
from ..errors import InvalidModel
from ..graph.model import Op
from ..ops.geometry import Window, transposed_windows, windows


@dataclass(frozen=True)
class Layout:
    """How a kind of layer is a product of matrices.

    `vectors(op, x)` are the inputs as [positions, inputs of all groups]; `grouped(op, weights)` the weights as
    [groups, outputs of a group, inputs of one output], and `restored(op, grouped)` the inverse. Windows are placed on
    an image of the size that the model states.
    """

    data_slot: int
    vectors: Callable[[Op, Array, int], Array]
    grouped: Callable[[Op, Array], Array]
    restored: Callable[[Op, Array], Array]
    has_windows: bool = True


def patches(op: Op, x: Array, most: int) -> Array:
    """At most `most` of the vectors, evenly spread: [groups, count, inputs of one output]."""
    layout = LAYOUTS[op.kind]
    source = op.inputs[layout.data_slot]
    if layout.has_windows and source is not None and x.shape[1:] != source.shape[1:]:
        raise InvalidModel(
            f"{op.label} '{op.name}' reads {list(x.shape)} where the model says {list(source.shape)}; "
            "choose a lower effort, or convert the model again, so that its file knows which sizes vary"
        )
    return layout.vectors(op, x, most)


def grouped_weights(op: Op, weights: Array) -> Array:
    """The layer's weights as [groups, outputs of a group, inputs of one output], to go with `patches`.

    A dense layer is one group; a convolution has its groups; of a depthwise convolution each input channel is one.
    """
    return LAYOUTS[op.kind].grouped(op, weights)


def ungrouped_weights(op: Op, grouped: Array) -> Array:
    """The inverse of `grouped_weights`."""
    return LAYOUTS[op.kind].restored(op, grouped)


def by_input(op: Op, weights: Array) -> Array | None:
    """The layer's weights as [outputs, inputs, taps]; None if the layout is not known."""
    if op.kind in ("CONV_2D", "TRANSPOSE_CONV"):
        return np.moveaxis(weights, 3, 1).reshape(weights.shape[0], weights.shape[3], -1)
    if op.kind == "DEPTHWISE_CONV_2D":
        return np.asarray(weights.reshape(-1, 1, weights.shape[3]).transpose(2, 1, 0))
    return weights[:, :, None] if op.kind == "FULLY_CONNECTED" else None


def from_inputs(op: Op, weights: Array, shape: tuple[int, ...]) -> Array:
    """The inverse of `by_input`."""
    if op.kind in ("CONV_2D", "TRANSPOSE_CONV"):
        return np.moveaxis(weights.reshape(shape[0], shape[3], shape[1], shape[2]), 1, 3)
    if op.kind == "DEPTHWISE_CONV_2D":
        return np.asarray(weights.transpose(2, 1, 0).reshape(shape))
    return weights.reshape(shape)


def _shape(op: Op) -> tuple[int, ...]:
    weights = op.inputs[1]
    assert weights is not None
    return weights.shape


def _spread(rows: Array, most: int) -> Array:
    step = max(1, -(-rows.shape[0] // most))
    return rows[step // 2 :: step]


# Dense layers, and products with a constant matrix.


def _dense_vectors(op: Op, x: Array, most: int) -> Array:
    return _spread(x.reshape(-1, _shape(op)[1]), most)[None]


def _dense_weights(op: Op, weights: Array) -> Array:  # noqa: ARG001 - one signature
    return weights[None]


def _dense_restored(op: Op, grouped: Array) -> Array:
    return np.asarray(grouped.reshape(_shape(op)))


def _matmul_vectors(op: Op, x: Array, most: int) -> Array:
    rows = np.swapaxes(x, -1, -2) if op.option("adjX") else x
    return _spread(rows.reshape(-1, rows.shape[-1]), most)[None]


def _matmul_weights(op: Op, weights: Array) -> Array:
    matrix = weights.reshape(weights.shape[-2:])
    return (matrix if op.option("adjY") else matrix.T)[None]


def _matmul_restored(op: Op, grouped: Array) -> Array:
    matrix = grouped[0] if op.option("adjY") else grouped[0].T
    return np.ascontiguousarray(matrix).reshape(_shape(op))


# Convolutions.


def _groups(op: Op, channels: int) -> int:
    return channels // _shape(op)[3]


def _convolution_vectors(op: Op, x: Array, most: int) -> Array:
    return _by_group(op, _spread(_windows(windows(op), x), most), x.shape[-1])


def _by_group(op: Op, chosen: Array, channels: int) -> Array:
    """[count, taps, channels] -> [groups, count, taps * channels of a group]."""
    groups = _groups(op, channels)
    count, taps, _ = chosen.shape
    split = chosen.reshape(count, taps, groups, channels // groups).transpose(2, 0, 1, 3)
    return np.asarray(split.reshape(groups, count, -1))


def _convolution_weights(op: Op, weights: Array) -> Array:
    source = op.inputs[0]
    assert source is not None
    groups = _groups(op, source.shape[-1])
    return np.asarray(weights.reshape(groups, weights.shape[0] // groups, -1))


def _depthwise_vectors(op: Op, x: Array, most: int) -> Array:
    return np.ascontiguousarray(_spread(_windows(windows(op), x), most).transpose(2, 0, 1))


def _depthwise_weights(op: Op, weights: Array) -> Array:
    source = op.inputs[0]
    assert source is not None
    taps = weights.shape[1] * weights.shape[2]
    return np.asarray(weights.reshape(taps, source.shape[-1], -1).transpose(1, 2, 0))


def _depthwise_restored(op: Op, grouped: Array) -> Array:
    return np.asarray(grouped.transpose(2, 0, 1).reshape(_shape(op)))


def _transposed_vectors(op: Op, x: Array, most: int) -> Array:
    """As a convolution of the input with zeros between its elements, its window turned around."""
    high, wide = transposed_windows(op)
    steps = int(op.option("strideH", 1)), int(op.option("strideW", 1))
    spaced = np.zeros((x.shape[0], high.length, wide.length, x.shape[3]), x.dtype)
    spaced[:, :: steps[0], :: steps[1]] = x
    turned = _windows((high, wide), spaced)[:, ::-1]
    return _spread(turned.reshape(turned.shape[0], -1), most)[None]


def _windows(pair: tuple[Window, Window], x: Array) -> Array:
    """Every window that the convolution looks at: [positions, taps, channels]."""
    high, wide = pair
    padded = np.pad(x, [(0, 0), (high.before, high.after), (wide.before, wide.after), (0, 0)])
    batch, row, column, channel = padded.strides
    shape = (x.shape[0], high.outputs, wide.outputs, high.taps, wide.taps, x.shape[3])
    steps = (row * high.stride, column * wide.stride, row * high.dilation, column * wide.dilation)
    seen = np.lib.stride_tricks.as_strided(padded, shape, (batch, *steps, channel), writeable=False)
    return seen.reshape(-1, high.taps * wide.taps, x.shape[3])


LAYOUTS = {
    "FULLY_CONNECTED": Layout(0, _dense_vectors, _dense_weights, _dense_restored, has_windows=False),
    "BATCH_MATMUL": Layout(0, _matmul_vectors, _matmul_weights, _matmul_restored, has_windows=False),
    "CONV_2D": Layout(0, _convolution_vectors, _convolution_weights, _dense_restored),
    "DEPTHWISE_CONV_2D": Layout(0, _depthwise_vectors, _depthwise_weights, _depthwise_restored),
    "TRANSPOSE_CONV": Layout(2, _transposed_vectors, lambda _, w: w.reshape(1, w.shape[0], -1), _dense_restored),
}


def has_layout(op: Op) -> bool:
    """Whether the layer is a product of one constant matrix for each of its groups; not if the sizes of images vary."""
    layout = LAYOUTS.get(op.kind)
    if layout is None:
        return False
    if layout.has_windows:
        source = op.inputs[layout.data_slot]
        return source is not None and -1 not in (source.shape_signature or source.shape)[1:]
    weights = op.inputs[1] if len(op.inputs) > 1 else None
    return weights is not None and all(n == 1 for n in weights.shape[:-2])
