"""A sample of every tensor's elements, on its way into histograms.

Samples of several runs wait side by side until there are enough of them, because small tensors would otherwise cost
more in calls than in counting.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..dtypes import Array
from .histogram import Histogram
from .instrument import BLOCK, Instrumented, Misfit, Probe

WAITING = 1 << 18
"""Elements that are counted at once: 1 MB, which stays in the cache."""

PHASES = 32
"""In how many ways the sampled blocks are shifted from run to run."""


class Sampler:
    """Histograms of the probes' tensors. Used by one thread at a time."""

    def __init__(self, instrumented: Instrumented, allow_nonfinite: bool) -> None:
        self.probes, self.stacks = instrumented.probes, instrumented.stacks
        self.allow_nonfinite = allow_nonfinite
        self.histograms = {p: Histogram.empty() for p in self.probes}
        self.sizes = np.array([p.tensor.size for p in self.probes], np.int64)
        # Of each stack: how many tensors of which size, the stride, and where in a run's sample it is.
        self.layout: list[tuple[int, int, int, slice]] = []
        width = 0
        for stack in self.stacks:
            count, size, stride = len(stack.probes), stack.size, stack.stride
            room = sampled(np.empty((count, size), np.bool_), stride, 0).size
            self.layout.append((count, size, stride, slice(width, width + room)))
            width += room
        capacity = max(8, min(256, WAITING // max(1, width)))
        self.waiting = np.empty((capacity + instrumented.chunk, width), np.float32)
        self.filled, self.enough = 0, capacity
        channels = sum(p.channels for p in self.probes)
        self.low, self.high = np.full(channels, np.inf, np.float32), np.full(channels, -np.inf, np.float32)

    def take(self, values: Sequence[Array], phase: int, reductions: Array) -> Array:
        """Sample one run from the stacks' values, of which `reductions` are known; return the tensors' sizes."""
        if any(
            count > 1 and v.size != count * size for v, (count, size, _, _) in zip(values, self.layout, strict=True)
        ):
            raise Misfit
        sizes = self.sizes
        target = self.waiting[self.filled]
        for stack, (count, size, stride, spot), found in zip(self.stacks, self.layout, values, strict=True):
            if found.size == count * size:
                picked = sampled(found.reshape(count, size), stride, phase % PHASES)
                target[spot].reshape(picked.shape)[...] = picked
            else:  # a dynamic shape
                (probe,) = stack.probes
                sizes = np.where([p is probe for p in self.probes], found.size, sizes)
                picked = sampled(found.reshape(1, -1), stride, phase % PHASES)
                self._count(probe, picked.reshape(-1), (reductions[1, probe.spot], reductions[0, probe.spot]))
                target[spot] = np.nan
        self.filled += 1
        return sizes

    def settle(self, low: Array, high: Array) -> None:
        """Say between which values, by channel, the samples lie that were taken since the last call."""
        np.minimum(self.low, low, out=self.low)
        np.maximum(self.high, high, out=self.high)
        if self.filled >= self.enough:
            self._flush()

    def finish(self) -> dict[Probe, Histogram]:
        self._flush()
        return self.histograms

    def _flush(self) -> None:
        if not self.filled:
            return
        for stack, (count, _, _, spot) in zip(self.stacks, self.layout, strict=True):
            values = self.waiting[: self.filled, spot].reshape(self.filled, count, -1)
            for k, probe in enumerate(stack.probes):
                self._count(probe, values[:, k].reshape(-1), (self.low[probe.spot], self.high[probe.spot]))
        self.filled = 0
        self.low.fill(np.inf)
        self.high.fill(-np.inf)

    def _count(self, probe: Probe, values: Array, bounds: tuple[Array, Array]) -> None:
        low, high = float(bounds[0].min()), float(bounds[1].max())
        if low > high:
            return  # every value was NaN or infinite
        if self.allow_nonfinite or np.isnan(values).any():
            values = values[np.isfinite(values)]
        self.histograms[probe] = self.histograms[probe].merge(Histogram.of(values, low, high))


def sampled(tensors: Array, stride: int, phase: int) -> Array:
    """Every `stride`-th block of each row of `tensors`; all of it if that is one."""
    if stride == 1:
        return tensors
    count, size = tensors.shape
    blocks = size // BLOCK
    taken = blocks // stride
    # The number taken must not depend on the phase, so that runs fit side by side.
    first = phase % (blocks - (taken - 1) * stride)
    return tensors[:, : blocks * BLOCK].reshape(count, blocks, BLOCK)[:, first::stride][:, :taken]
