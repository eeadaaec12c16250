"""A sample of every tensor's elements, on its way into histograms.

A histogram counts each sampled element as often as it stands for others, and the least and the greatest element of
each run once: without these, a sample would hide how far the rare values reach, and a range chosen by it would clip
them. Samples of several runs wait side by side until there are enough of them, because small tensors would otherwise
cost more in calls than in counting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..dtypes import Array
from .histogram import Histogram
from .instrument import BLOCK, Instrumented, Misfit, Probe

WAITING = 1 << 18
"""Elements that are counted at once: 1 MB, which stays in the cache."""

PHASES = 32
"""In how many ways the sampled blocks are shifted from run to run."""


@dataclass(frozen=True)
class Place:
    """A stack's part of a run's sample: each `stride`-th block of `count` tensors of `size` elements."""

    probes: tuple[Probe, ...]
    count: int
    size: int
    stride: int
    spot: slice


class Sampler:
    """Histograms of the probes' tensors. Used by one thread at a time."""

    def __init__(self, instrumented: Instrumented, allow_nonfinite: bool) -> None:
        self.probes = instrumented.probes
        self.order = {probe: k for k, probe in enumerate(self.probes)}
        self.allow_nonfinite = allow_nonfinite
        self.histograms = {p: Histogram.empty() for p in self.probes}
        self.sizes = np.array([p.tensor.size for p in self.probes], np.int64)
        self.places: list[Place] = []
        width = 0
        for stack in instrumented.stacks:
            count, size, stride = len(stack.probes), stack.size, stack.stride
            room = sampled(np.empty((count, size), np.bool_), stride, 0).size
            self.places.append(Place(stack.probes, count, size, stride, slice(width, width + room)))
            width += room
        self.enough = max(8, min(256, WAITING // max(1, width)))
        self.waiting = np.empty((self.enough + instrumented.chunk, width), np.float32)
        self.extremes = np.empty((len(self.waiting), len(self.probes), 2), np.float32)
        self.filled = self.settled = 0

    def take(self, values: Sequence[Array], phase: int, reductions: Array) -> Array:
        """Sample one run from the stacks' values, of which `reductions` are known; return the tensors' sizes."""
        pairs = list(zip(values, self.places, strict=True))
        if any(place.count > 1 and found.size != place.count * place.size for found, place in pairs):
            raise Misfit
        sizes = self.sizes
        target = self.waiting[self.filled]
        for found, place in pairs:
            if found.size == place.count * place.size:
                picked = sampled(found.reshape(place.count, place.size), place.stride, phase % PHASES)
                target[place.spot].reshape(picked.shape)[...] = picked
            else:  # a dynamic shape
                (probe,) = place.probes
                sizes = np.where([p is probe for p in self.probes], found.size, sizes)
                picked = sampled(found.reshape(1, -1), place.stride, phase % PHASES)
                extremes = np.array([reductions[1, probe.spot].min(), reductions[0, probe.spot].max()])
                self._count(probe, picked.reshape(-1), extremes, found.size)
                target[place.spot] = np.nan
        self.filled += 1
        return sizes

    def settle(self, least: Array, greatest: Array) -> None:
        """Tell the extremes, by run and probe, of the runs that were sampled since the last call."""
        runs = slice(self.settled, self.filled)
        self.extremes[runs, :, 0], self.extremes[runs, :, 1] = least, greatest
        self.settled = self.filled
        if self.filled >= self.enough:
            self._flush()

    def finish(self) -> dict[Probe, Histogram]:
        self._flush()
        return self.histograms

    def _flush(self) -> None:
        runs = self.filled
        if not runs:
            return
        for place in self.places:
            values = self.waiting[:runs, place.spot].reshape(runs, place.count, -1)
            for k, probe in enumerate(place.probes):
                extremes = self.extremes[:runs, self.order[probe]].reshape(-1)
                self._count(probe, values[:, k].reshape(-1), extremes, runs * place.size)
        self.filled = self.settled = 0

    def _count(self, probe: Probe, values: Array, extremes: Array, size: int) -> None:
        """Count `values`, a sample of `size` elements, and the runs' `extremes`."""
        weight = max(1, size // max(1, values.size))
        extremes = extremes[np.isfinite(extremes)]
        if not extremes.size:
            return  # every value was NaN or infinite
        if self.allow_nonfinite or np.isnan(values).any():
            values = values[np.isfinite(values)]
        low, high = float(extremes.min()), float(extremes.max())
        found = Histogram.of(values, low, high)
        if weight > 1:
            both = found.counts * weight + Histogram.of(extremes, low, high).counts
            found = Histogram(found.exponent, found.first, both)
        self.histograms[probe] = self.histograms[probe].merge(found)


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
