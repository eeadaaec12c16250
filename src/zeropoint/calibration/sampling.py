"""The elements of each tensor that its histogram is made from.

Small tensors are counted whole. Of an image, the graph picks all channels at some positions: a depthwise convolution
whose kernel is one in a single place and zero elsewhere copies every stride-th position, and dilation moves that place
half a stride away from the border, so that the positions lie evenly. Picked in the graph, the tensors need not all be
in memory at the end of a run. Any other tensor is an output of the graph, of which every stride-th element is taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..dtypes import Array, DType
from ..graph.model import Graph, Op, Tensor
from ..ops.layout import VALID
from ..tflite.schema import default_options

SAMPLED_SHARE, SAMPLED_LEAST, SAMPLED_MOST = 64, 256, 1024
"""Of a large tensor, one element in `SAMPLED_SHARE` is counted, within these limits."""

WHOLE = 2048
"""Tensors of so many elements, or fewer, are counted whole."""

FEWEST = 2
"""Positions along each side of an image, however many channels: the middle alone would not represent the rest."""

DILATED = 2
"""The version of the depthwise kernel since which it supports dilation."""


@dataclass(frozen=True)
class Positions:
    """Every `stride`-th position along one side, from `first` on, `count` in all."""

    stride: int
    first: int
    count: int

    @classmethod
    def spread(cls, size: int, share: float) -> Positions:
        """About `share` of `size` positions, evenly."""
        stride = size // min(size, max(FEWEST, round(size * share)))
        first = stride // 2
        return cls(stride, first, (size - 1 - first) // stride + 1)


@dataclass(frozen=True)
class Pick:
    """What the graph picks of a tensor: all channels at some rows and columns of an image, or everything."""

    sides: tuple[Positions, ...]
    channels: int

    @property
    def size(self) -> int:
        """Elements of one sample."""
        return math.prod(side.count for side in self.sides) * self.channels

    @classmethod
    def of(cls, tensor: Tensor) -> Pick | None:
        """None if the tensor has to be sampled outside of the graph."""
        if tensor.size <= WHOLE:
            return cls((), tensor.size)
        if len(tensor.shape) != 4 or tensor.shape[0] != 1:
            return None
        _, height, width, channels = tensor.shape
        share = math.sqrt(_sample_size(tensor.size) / tensor.size)
        return cls((Positions.spread(height, share), Positions.spread(width, share)), channels)


def _sample_size(size: int) -> int:
    return min(SAMPLED_MOST, max(SAMPLED_LEAST, size // SAMPLED_SHARE))


class Picker:
    """Adds the ops that pick elements to one graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._constants: dict[str, Tensor] = {}

    def pick(self, tensor: Tensor, pick: Pick) -> tuple[list[Op], Tensor]:
        """Ops to follow the tensor's producer, and what they make: a row for each sample."""
        ops: list[Op] = []
        if any(side.stride > 1 for side in pick.sides):
            ops.append(self._copy(tensor, *pick.sides))
            tensor = ops[-1].outputs[0]
        if len(tensor.shape) != 2 or tensor.shape[0] != 1:
            row = self._tensor("row", (1, pick.size))
            shape = self._constant(f"shape/{pick.size}", np.array([-1, pick.size], np.int32))
            options = default_options("ReshapeOptions", newShape=(-1, pick.size))
            ops.append(Op("RESHAPE", [tensor, shape], [row], options))
            tensor = row
        return ops, tensor

    def join(self, rows: Sequence[Tensor]) -> Tensor:
        """Add the op that puts everything that was picked side by side."""
        result = self._tensor("rows", (1, sum(row.shape[1] for row in rows)))
        self._graph.ops.append(Op("CONCATENATION", [*rows], [result], default_options("ConcatenationOptions", axis=1)))
        return result

    def _copy(self, tensor: Tensor, rows: Positions, columns: Positions) -> Op:
        channels = tensor.shape[3]
        one = np.zeros((1, min(2, rows.first + 1), min(2, columns.first + 1), channels), np.float32)
        one[:, -1, -1] = 1.0
        kernel = self._constant(f"kernel/{one.shape}", one)
        bias = self._constant(f"bias/{channels}", np.zeros(channels, np.float32))
        options = default_options(
            "DepthwiseConv2DOptions",
            padding=VALID,
            strideH=rows.stride,
            strideW=columns.stride,
            dilationHFactor=max(1, rows.first),
            dilationWFactor=max(1, columns.first),
            depthMultiplier=1,
        )
        picked = self._tensor("picked", (1, rows.count, columns.count, channels))
        return Op("DEPTHWISE_CONV_2D", [tensor, kernel, bias], [picked], options, DILATED)

    def _tensor(self, what: str, shape: tuple[int, ...]) -> Tensor:
        tensor = Tensor(f"zeropoint/{what}/{len(self._graph.tensors)}", shape, DType.FLOAT32)
        self._graph.tensors.append(tensor)
        return tensor

    def _constant(self, name: str, values: Array) -> Tensor:
        if name not in self._constants:
            dtype = DType.INT32 if values.dtype == np.int32 else DType.FLOAT32
            self._constants[name] = Tensor.constant(f"zeropoint/{name}", values, dtype)
            self._graph.tensors.append(self._constants[name])
        return self._constants[name]


def sampling_stride(size: int) -> int:
    """A step through a tensor of `size` elements that visits all channels and positions alike: it has no factor in
    common with `size`."""
    stride = 1 if size <= WHOLE else size // _sample_size(size)
    while math.gcd(stride, size) != 1:
        stride += 1
    return stride
