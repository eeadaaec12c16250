"""How the weights of an op are laid out, and how the op is a matrix product.

Whatever its kind, a layer with weights multiplies patches of its input by a matrix, group by group:

    output[position, group, o] = sum over k of matrix[group, o, k] * patch[group, position, k]

A dense layer is one group; a convolution has its groups; in a depthwise convolution each input channel is one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..dtypes import Array
from ..errors import InvalidModel
from ..graph.model import Op, Tensor

SAME, VALID = 0, 1
"""The schema's codes for SAME and VALID padding."""


@dataclass(frozen=True)
class Window:
    """A window along one side of an image: taps `dilation` apart, moved by `stride`, with `before` and `after`
    padding."""

    taps: int
    stride: int
    dilation: int
    length: int
    outputs: int
    before: int
    after: int

    @lru_cache(1024)  # noqa: B019 - windows are plain numbers, and a model repeats a few of them
    def coverage(self) -> Array:
        """Return, for each tap, the share of output positions where it lies on the image rather than on padding."""
        starts = np.arange(self.outputs)[:, None] * self.stride - self.before
        positions = starts + np.arange(self.taps) * self.dilation
        return np.asarray(((positions >= 0) & (positions < self.length)).mean(axis=0))


def strides_of(op: Op) -> tuple[int, int]:
    return int(op.option("strideH", 1)), int(op.option("strideW", 1))


def convolution_windows(op: Op) -> tuple[Window, Window]:
    """Return the windows of a CONV_2D or DEPTHWISE_CONV_2D along height and width."""
    dilations = int(op.option("dilationHFactor", 1)), int(op.option("dilationWFactor", 1))
    return _windows(op, _operand(op, 1).shape[1:3], dilations)


def pooling_windows(op: Op) -> tuple[Window, Window]:
    """Return the windows of a pooling op along height and width."""
    return _windows(op, (int(op.option("filterHeight", 1)), int(op.option("filterWidth", 1))), (1, 1))


def _windows(op: Op, taps: Sequence[int], dilations: Sequence[int]) -> tuple[Window, Window]:
    source = _operand(op, 0)

    def window(axis: int, taps: int, stride: int, dilation: int) -> Window:
        length, outputs = source.shape[axis], op.outputs[0].shape[axis]
        reach = (outputs - 1) * stride + (taps - 1) * dilation + 1
        padding = max(0, reach - length) if op.option("padding") == SAME else 0
        return Window(taps, stride, dilation, length, outputs, padding // 2, padding - padding // 2)

    high, wide = map(window, (1, 2), taps, strides_of(op), dilations)
    return high, wide


def transposed_windows(
    source: Sequence[int], taps: Sequence[int], outputs: Sequence[int], strides: Sequence[int], *, same: bool
) -> tuple[Window, Window]:
    """Return the windows of a transposed convolution, given the sizes of its image, kernel and output: windows over its
    input with stride - 1 zeros between the elements, taps in reverse order."""

    def window(size: int, taps: int, outputs: int, stride: int) -> Window:
        length = (size - 1) * stride + 1
        cropped = max(0, length - 1 + taps - outputs) if same else 0
        before = taps - 1 - cropped // 2
        return Window(taps, 1, 1, length, outputs, before, outputs + taps - 1 - length - before)

    high, wide = map(window, source, taps, outputs, strides)
    return high, wide


@dataclass(frozen=True)
class Layout:
    """A dense layer: weights [outputs, inputs]. Other kinds derive from it.

    `outputs` is the axis of the weights with one slice per output channel, `inputs` the one along which they are
    multiplied by the channels of the data; if both are the same, each output channel reads only one input channel
    (depthwise). `data` and `weights` are input slots of the op.
    """

    outputs: int = 0
    inputs: int = 1
    data: int = 0
    weights: int = 1

    def applies_to(self, op: Op) -> bool:
        """Whether this op is such a product: one matrix per group, on an input of known size."""
        weights = op.input(self.weights)
        return weights is not None and all(n == 1 for n in weights.shape[:-2])

    # Views of the weights. `values` has the shape of the op's weights.

    def by_input(self, op: Op, values: Array) -> Array:
        """Return the weights as [outputs, inputs of one output, taps]."""
        moved = np.moveaxis(values, self._axes(op), (0, 1))
        return moved.reshape(*moved.shape[:2], -1)

    def from_inputs(self, op: Op, view: Array) -> Array:
        """Invert `by_input`."""
        shape, axes = _operand(op, self.weights).shape, self._axes(op)
        moved = np.moveaxis(np.empty(shape, np.bool_), axes, (0, 1)).shape
        return np.ascontiguousarray(np.moveaxis(view.reshape(moved), (0, 1), axes))

    def matrix(self, op: Op, values: Array) -> Array:
        """Return the weights as [groups, outputs of a group, inputs of one output], matching `patches`."""
        view = self.by_input(op, values).swapaxes(1, 2)
        groups = self._groups(op)
        return np.asarray(view.reshape(groups, view.shape[0] // groups, -1))

    def from_matrix(self, op: Op, matrix: Array) -> Array:
        """Invert `matrix`."""
        outputs, inputs = (_operand(op, self.weights).shape[axis] for axis in self._axes(op))
        return self.from_inputs(op, matrix.reshape(outputs, -1, inputs).swapaxes(1, 2))

    # The data that the weights are multiplied by.

    def patches(self, op: Op, x: Array, most: int) -> Array:
        """Return at most `most` patches of the input, evenly spread: [groups, count, inputs of one output]."""
        every = self._patches(op, x)
        *places, high, wide, channels = every.shape
        count = math.prod(places)
        step = max(1, -(-count // most))
        # Only the selected ones are copied: all of them would take the size of the input times the number of taps.
        chosen = every[np.unravel_index(np.arange(step // 2, count, step), places)]
        groups = self._groups(op)
        by_group = chosen.reshape(len(chosen), high * wide, groups, channels // groups).transpose(2, 0, 1, 3)
        return np.ascontiguousarray(by_group.reshape(groups, len(chosen), -1))

    def mean_shift(self, op: Op, change: Array, means: Array) -> Array | None:
        """Return how far a change of the weights shifts the mean of each output channel, given the means of the input
        channels.

        shift = change . E[patch]. None if the means do not fit the weights.
        """
        matrix = self.matrix(op, change)
        patch = self._mean_patch(op, matrix.shape, means)
        return None if patch is None else np.asarray(np.einsum("gok,gk->go", matrix, patch).reshape(-1))

    def mean_inputs(self, op: Op, means: Array) -> Array | None:
        """Return the mean of what each weight is multiplied by, in the shape of the weights, given the means of the
        input channels: `mean_shift` is the sum of these times a change of the weights. None if the means do not fit."""
        shape = self.matrix(op, np.empty(_operand(op, self.weights).shape, np.bool_)).shape
        patch = self._mean_patch(op, shape, means)
        return None if patch is None else self.from_matrix(op, np.broadcast_to(patch[:, None], shape))

    def _mean_patch(self, op: Op, shape: Sequence[int], means: Array) -> Array | None:
        """Return E[patch] as [groups, inputs of one output], for a matrix of `shape`; padding counts as zero."""
        groups, _, length = shape
        coverage = self._coverage(op)
        channels = groups * length // coverage.size
        if channels % means.size:
            return None
        # A dense layer on an image reads its channels repeatedly.
        expected = np.tile(means.astype(np.float64), channels // means.size).reshape(groups, 1, -1)
        return np.asarray((coverage[:, None] * expected).reshape(groups, length))

    def is_depthwise(self, op: Op) -> bool:
        """Whether each output channel reads only one of several input channels, so that nothing is summed over
        channels."""
        return 1 < self._groups(op) == _operand(op, self.data).shape[-1]

    def macs(self, op: Op) -> int:
        """Return the multiply-accumulates: every output element sums over one channel's weights."""
        weights = op.inputs[self.weights]
        if weights is None or not weights.shape or not op.outputs[0].shape:  # unknown shapes have no dimensions
            return 0
        return op.outputs[0].size * weights.size // max(1, op.outputs[0].shape[-1])

    def _axes(self, op: Op) -> tuple[int, int]:  # noqa: ARG002 - the options of a product of matrices change them
        """Return the axis of the output channels, and that of the inputs that each sums over: if depthwise, one of size
        1."""
        return self.outputs, 0 if self.inputs == self.outputs else self.inputs

    def _groups(self, op: Op) -> int:  # noqa: ARG002 - convolutions have them
        return 1

    def _patches(self, op: Op, x: Array) -> Array:
        """Return all patches: [positions ..., height, width, channels]."""
        return x.reshape(-1, 1, 1, _operand(op, self.weights).shape[self.inputs])

    def _coverage(self, op: Op) -> Array:  # noqa: ARG002 - windows may lie on padding
        """Return, for each tap, the share of output positions where it reads data rather than padding."""
        return np.ones(1)


@dataclass(frozen=True)
class MatrixProduct(Layout):
    """A product with a constant matrix [..., inputs, outputs]; the options adjX and adjY transpose the operands."""

    outputs: int = -1
    inputs: int = -2

    def macs(self, op: Op) -> int:
        """Return the multiply-accumulates: every output element sums over the inner dimension."""
        left = op.inputs[self.data]
        if left is None or len(left.shape) < 2:
            return 0
        return op.outputs[0].size * left.shape[-2 if op.option("adjX") else -1]

    def _axes(self, op: Op) -> tuple[int, int]:
        return (self.inputs, self.outputs) if op.option("adjY") else (self.outputs, self.inputs)

    def _patches(self, op: Op, x: Array) -> Array:
        rows = np.swapaxes(x, -1, -2) if op.option("adjX") else x
        return rows.reshape(-1, 1, 1, rows.shape[-1])


@dataclass(frozen=True)
class Convolution(Layout):
    """Weights [outputs, height, width, inputs of a group], or [1, height, width, outputs] for depthwise.

    Windows are placed on an image of the size that the model states.
    """

    inputs: int = 3

    def applies_to(self, op: Op) -> bool:
        source = op.inputs[self.data]
        return source is not None and -1 not in source.dynamic_shape[1:]

    def _groups(self, op: Op) -> int:
        _, inputs = self._axes(op)
        return _operand(op, self.data).shape[-1] // _operand(op, self.weights).shape[inputs]

    def _patches(self, op: Op, x: Array) -> Array:
        source = _operand(op, self.data)
        if x.shape[1:] != source.shape[1:]:
            raise InvalidModel(
                f"{op.label} '{op.name}' reads {list(x.shape)} where the model says {list(source.shape)}; "
                "choose a lower effort, or convert the model again with dynamic shapes"
            )
        return self._cut(op, x)

    def _cut(self, op: Op, x: Array) -> Array:
        return _windows_on(convolution_windows(op), x)

    def _coverage(self, op: Op) -> Array:
        source = _operand(op, self.data)
        # For an image of unknown size, padding is negligible.
        sides = zip(source.dynamic_shape[1:3], convolution_windows(op), strict=True)
        high, wide = (np.ones(window.taps) if size < 0 else window.coverage() for size, window in sides)
        return np.outer(high, wide).reshape(-1)


@dataclass(frozen=True)
class TransposedConvolution(Convolution):
    """A convolution of the input with zeros between its elements, and a reversed window."""

    data: int = 2

    def macs(self, op: Op) -> int:
        """Return the multiply-accumulates: every input element is multiplied by all weights of its channel."""
        weights, source = op.inputs[self.weights], op.inputs[self.data]
        if weights is None or source is None or not weights.shape:
            return 0
        return source.size * weights.size // max(1, weights.shape[-1])

    def _cut(self, op: Op, x: Array) -> Array:
        taps, outputs = _operand(op, self.weights).shape[1:3], op.outputs[0].shape[1:3]
        strides = strides_of(op)
        high, wide = transposed_windows(x.shape[1:3], taps, outputs, strides, same=op.option("padding") == SAME)
        spaced = np.zeros((x.shape[0], high.length, wide.length, x.shape[3]), x.dtype)
        spaced[:, :: strides[0], :: strides[1]] = x
        return _windows_on((high, wide), spaced)[..., ::-1, ::-1, :]

    def _coverage(self, op: Op) -> Array:
        """Every input element meets every tap once, so an output element meets this share of them."""
        source, result = _operand(op, self.data), op.outputs[0]
        _, height, width, _ = _operand(op, self.weights).shape
        share = source.shape[1] * source.shape[2] / max(1, result.shape[1] * result.shape[2])
        return np.full(height * width, share)


def sliding(windows: tuple[Window, Window], x: Array) -> Array:
    """Return every window of a convolution or pooling op, with zeros for padding: [positions, taps, channels]."""
    high, wide = windows
    return _windows_on(windows, x).reshape(-1, high.taps * wide.taps, x.shape[3])


def _windows_on(windows: tuple[Window, Window], x: Array) -> Array:
    """Return every window as a view: [batch, rows, columns, height, width, channels]."""
    high, wide = windows
    padded = np.pad(x, [(0, 0), (high.before, high.after), (wide.before, wide.after), (0, 0)])
    batch, row, column, channel = padded.strides
    shape = (x.shape[0], high.outputs, wide.outputs, high.taps, wide.taps, x.shape[3])
    steps = (row * high.stride, column * wide.stride, row * high.dilation, column * wide.dilation)
    return np.lib.stride_tricks.as_strided(padded, shape, (batch, *steps, channel), writeable=False)


def _operand(op: Op, slot: int) -> Tensor:
    tensor = op.inputs[slot]
    assert tensor is not None
    return tensor


DENSE, MATRIX_PRODUCT = Layout(), MatrixProduct()
CONVOLUTION, DEPTHWISE, TRANSPOSED = Convolution(), Convolution(outputs=3), TransposedConvolution()
