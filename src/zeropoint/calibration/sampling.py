"""The elements of each tensor that its histogram is made from.

Small tensors are counted whole. Of an image, the graph picks all channels at some positions: a depthwise convolution
whose kernel is one in a single place and zero elsewhere copies every stride-th position, and dilation moves that place
half a stride away from the border, so that the positions lie evenly. Picked in the graph, the tensors need not all be
in memory at the end of a run. Any other tensor is an output of the graph, of which every stride-th element is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..graph.model import Tensor

SAMPLED_SHARE, SAMPLED_LEAST, SAMPLED_MOST = 64, 256, 1024
"""Of a large tensor, one element in `SAMPLED_SHARE` is counted, within these limits."""

WHOLE = 2048
"""Tensors of so many elements, or fewer, are counted whole."""

FEWEST = 2
"""Positions along each side of an image, however many channels: the middle alone would not represent the rest."""


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


def sampling_stride(size: int) -> int:
    """A step through a tensor of `size` elements that visits all channels and positions alike: it has no factor in
    common with `size`."""
    stride = 1 if size <= WHOLE else size // _sample_size(size)
    while math.gcd(stride, size) != 1:
        stride += 1
    return stride
