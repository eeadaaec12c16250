"""Picking some elements of a tensor inside the graph, while they are in the cache.

A depthwise convolution whose kernel is one in a single place and zero elsewhere copies all channels of every
stride-th position. Dilation moves that place half a stride away from the border, so that the positions lie evenly.
LiteRT's delegate does this beside everything else: on MobileNetV2 it adds 1 % to a run, where whole tensors as outputs
add 8 %, and picking elements from them as much again.
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

FEWEST = 2
"""Places along each side, however many channels there are: the middle alone would say nothing of all the rest."""

FLAT = 2048
"""Elements of a flat tensor, or fewer, that are taken all."""

DILATED = 2
"""The version of the depthwise kernel since which it knows dilation."""


@dataclass(frozen=True)
class Axis:
    """Every `stride`-th place, from `first` on, `count` in all."""

    stride: int
    first: int
    count: int

    @classmethod
    def spread(cls, size: int, share: float) -> Axis:
        """About `share` of `size` places, evenly."""
        stride = size // min(size, max(FEWEST, round(size * share)))
        first = stride // 2
        return cls(stride, first, (size - 1 - first) // stride + 1)


@dataclass(frozen=True)
class Raster:
    """The picked positions of images of one shape, with all their channels; of a flat tensor, everything."""

    axes: tuple[Axis, ...]
    channels: int

    @property
    def size(self) -> int:
        """Elements of one sample."""
        return math.prod(axis.count for axis in self.axes) * self.channels

    @property
    def is_whole(self) -> bool:
        return all(axis.stride == 1 for axis in self.axes)


def raster_of(tensor: Tensor, elements: int) -> Raster | None:
    """A raster of about so many `elements`, or None if the tensor has to be read from outside."""
    shape = tensor.shape
    if shape[0] != 1 or -1 in (tensor.shape_signature or shape)[1:]:
        return None
    if len(shape) == 2:
        return Raster((), shape[1]) if shape[1] <= FLAT else None
    if len(shape) != 4:
        return None
    _, height, width, channels = shape
    share = math.sqrt(elements / (height * width * channels))
    return Raster((Axis.spread(height, share), Axis.spread(width, share)), channels)


class Picker:
    """Adds what picks elements to one graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._constants: dict[str, Tensor] = {}

    def pick(self, tensor: Tensor, raster: Raster) -> tuple[list[Op], Tensor]:
        """Ops to follow the tensor's producer, and what they make: a row for each sample."""
        ops: list[Op] = []
        if not raster.is_whole:
            ops.append(self._copy(tensor, raster))
            tensor = ops[-1].outputs[0]
        if len(tensor.shape) > 2:
            row = self._tensor("row", (1, raster.size))
            shape = self._constant(f"shape/{raster.size}", np.array([-1, raster.size], np.int32))
            options = default_options("ReshapeOptions", newShape=(-1, raster.size))
            ops.append(Op("RESHAPE", [tensor, shape], [row], options))
            tensor = row
        return ops, tensor

    def join(self, rows: Sequence[Tensor]) -> Tensor:
        """Add the op that puts all that was picked side by side."""
        result = self._tensor("rows", (1, sum(row.shape[1] for row in rows)))
        self._graph.ops.append(Op("CONCATENATION", [*rows], [result], default_options("ConcatenationOptions", axis=1)))
        return result

    def _copy(self, tensor: Tensor, raster: Raster) -> Op:
        high, wide = raster.axes
        taps = min(2, high.first + 1), min(2, wide.first + 1)
        one = np.zeros((1, *taps, raster.channels), np.float32)
        one[:, -1, -1] = 1.0
        kernel = self._constant(f"kernel/{one.shape}", one)
        bias = self._constant(f"bias/{raster.channels}", np.zeros(raster.channels, np.float32))
        options = default_options(
            "DepthwiseConv2DOptions",
            padding=VALID,
            strideH=high.stride,
            strideW=wide.stride,
            dilationHFactor=max(1, high.first),
            dilationWFactor=max(1, wide.first),
            depthMultiplier=1,
        )
        picked = self._tensor("picked", (1, high.count, wide.count, raster.channels))
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
