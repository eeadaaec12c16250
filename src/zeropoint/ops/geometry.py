"""Where a convolution's window lies on its input."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..dtypes import Array
from ..graph.model import Op

SAME, VALID = 0, 1
"""The schema's codes for padding to keep the size, and for none."""


@dataclass(frozen=True)
class Window:
    """A window along one side of an image: taps `dilation` apart, moved by `stride`, `before` and `after` padded."""

    taps: int
    stride: int
    dilation: int
    length: int
    outputs: int
    before: int
    after: int

    def coverage(self) -> Array:
        """For each tap, the share of output positions where it lies on the image, not on padding."""
        starts = np.arange(self.outputs)[:, None] * self.stride - self.before
        positions = starts + np.arange(self.taps) * self.dilation
        return np.asarray(((positions >= 0) & (positions < self.length)).mean(axis=0))


def windows(op: Op) -> tuple[Window, Window]:
    """Of a CONV_2D or DEPTHWISE_CONV_2D: along the height and along the width."""
    return _window(op, 1, "H"), _window(op, 2, "W")


def _window(op: Op, axis: int, name: str) -> Window:
    source, weights = op.inputs[0], op.inputs[1]
    assert source is not None
    assert weights is not None
    stride, dilation = int(op.option(f"stride{name}", 1)), int(op.option(f"dilation{name}Factor", 1))
    taps, length, outputs = weights.shape[axis], source.shape[axis], op.outputs[0].shape[axis]
    reach = (outputs - 1) * stride + (taps - 1) * dilation + 1
    padding = max(0, reach - length) if op.option("padding") == SAME else 0
    return Window(taps, stride, dilation, length, outputs, padding // 2, padding - padding // 2)


def transposed_windows(op: Op) -> tuple[Window, Window]:
    """Of a TRANSPOSE_CONV: windows over its input with zeros between the elements, taps in reverse order."""
    return _transposed_window(op, 1, "H"), _transposed_window(op, 2, "W")


def _transposed_window(op: Op, axis: int, name: str) -> Window:
    source, weights = op.inputs[2], op.inputs[1]
    assert source is not None
    assert weights is not None
    stride, taps, outputs = int(op.option(f"stride{name}", 1)), weights.shape[axis], op.outputs[0].shape[axis]
    length = (source.shape[axis] - 1) * stride + 1
    cropped = max(0, length - 1 + taps - outputs) if op.option("padding") == SAME else 0
    before = taps - 1 - cropped // 2
    return Window(taps, 1, 1, length, outputs, before, outputs + taps - 1 - length - before)
