"""Selects the elements of each tensor that its histogram is built from.

Small tensors are counted whole. For an image, the graph picks all channels at some positions: a depthwise convolution
whose kernel is one in a single place and zero elsewhere copies every stride-th position, and dilation moves that place
half a stride away from the border, so that the positions are evenly spaced. Because they are picked in the graph, the
tensors need not all be in memory at the end of a run. Any other tensor is an output of the graph, of which every
stride-th element is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..graph.model import Tensor

SAMPLED_SHARE, SAMPLED_LEAST, SAMPLED_MOST = 64, 256, 1024
"""One element in `SAMPLED_SHARE` of a large tensor is counted, within these limits."""

WHOLE = 2048
"""Tensors of up to this many elements are counted whole."""

FEWEST = 2
"""Minimum positions along each side of an image, however many channels: the middle alone is not representative."""


@dataclass(frozen=True)
class Positions:
    """Every `stride`-th position along one side, starting at `first`, `count` in total."""

    stride: int
    first: int
    count: int

    @classmethod
    def spread(cls, size: int, share: float) -> Positions:
        """Return about `share` of `size` positions, evenly spaced."""
        stride = size // min(size, max(FEWEST, round(size * share)))
        first = stride // 2
        return cls(stride, first, (size - 1 - first) // stride + 1)


@dataclass(frozen=True)
class Pick:
    """What the graph picks from a tensor: all channels at some rows and columns of an image, or everything."""

    sides: tuple[Positions, ...]
    channels: int

    @property
    def size(self) -> int:
        """The number of elements per sample."""
        return math.prod(side.count for side in self.sides) * self.channels

    @property
    def copies(self) -> bool:
        """Whether some positions are left out, so that the others have to be copied."""
        return any(side.stride > 1 for side in self.sides)

    @classmethod
    def of(cls, tensor: Tensor) -> Pick | None:
        """Return what to pick from a tensor; None if it has to be sampled outside the graph."""
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
    """Return a stride through a tensor of `size` elements that visits all channels and positions equally: it is coprime
    to `size`."""
    stride = 1 if size <= WHOLE else size // _sample_size(size)
    while math.gcd(stride, size) != 1:
        stride += 1
    return stride
