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

_LINE = np.dtype((np.void, 4 * BLOCK))


@dataclass(frozen=True)
class Place:
    """A stack's part of a run's sample: each `stride`-th block of `count` tensors of `size` elements."""

    probes: tuple[Probe, ...]
    count: int
    size: int
    stride: int
    spot: slice

    @property
    def has_whole_lines(self) -> bool:
        """Whether a single tensor is sampled, and its blocks fill it."""
        return self.count == 1 and self.stride > 1 and self.size % BLOCK == 0


class Sampler:
    """Histograms of the probes' tensors. Used by one thread at a time."""

    def __init__(self, instrumented: Instrumented) -> None:
        self.probes = instrumented.probes
        self.order = {probe: k for k, probe in enumerate(self.probes)}
        self.histograms = {p: Histogram.empty() for p in self.probes}
        self.sizes = np.array([p.tensor.size for p in self.probes], np.int64)
        self.places: list[Place] = []
        width = 0
        for stack in instrumented.stacks:
            count, size, stride = len(stack.probes), stack.size, stack.stride
            room = sampled(np.empty((1, count, size), np.bool_), stride, np.zeros(1, np.int64)).size
            self.places.append(Place(stack.probes, count, size, stride, slice(width, width + room)))
            width += room
        self.enough = max(8, min(256, WAITING // max(1, width)))
        self.waiting = np.empty((self.enough + instrumented.chunk, width), np.float32)
        self.extremes = np.empty((len(self.waiting), len(self.probes), 2), np.float32)
        self.filled = self.settled = 0

    def take(self, values: Sequence[Array], phases: Array, reductions: Array) -> Array:
        """Sample a run of `len(phases)` samples from the stacks' values, of which `reductions` are known.

        Returns how many elements each tensor had.
        """
        runs = len(phases)
        pairs = list(zip(values, self.places, strict=True))
        if any(place.count * runs > 1 and found.size != runs * place.count * place.size for found, place in pairs):
            raise Misfit
        sizes = runs * self.sizes
        target = self.waiting[self.filled : self.filled + runs]
        lines: dict[tuple[int, int], Array] = {}
        for found, place in pairs:
            if runs > 1 and place.has_whole_lines:
                kind = place.size, place.stride
                if kind not in lines:
                    lines[kind] = _lines(*kind, phases)
                # Whole cache lines, as if each were one value: much quicker than one by one.
                target[:, place.spot] = found.reshape(-1).view(_LINE)[lines[kind]].view(np.float32)
            elif found.size == runs * place.count * place.size:
                picked = sampled(found.reshape(runs, place.count, place.size), place.stride, phases)
                target[:, place.spot] = picked.reshape(runs, -1)
            else:  # a dynamic shape
                (probe,) = place.probes
                sizes = np.where([p is probe for p in self.probes], found.size, sizes)
                picked = sampled(found.reshape(1, 1, -1), place.stride, phases)
                extremes = np.array([reductions[0, 1, probe.spot].min(), reductions[0, 0, probe.spot].max()])
                self._count(probe, picked.reshape(-1), extremes, found.size)
                target[:, place.spot] = np.nan
        self.filled += runs
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
        finite = np.isfinite(values)
        if not finite.all():
            values = values[finite]
        low, high = float(extremes.min()), float(extremes.max())
        found = Histogram.of(values, low, high)
        if weight > 1:
            both = found.counts * weight + Histogram.of(extremes, low, high).counts
            found = Histogram(found.exponent, found.first, both)
        self.histograms[probe] = self.histograms[probe].merge(found)


def sampled(tensors: Array, stride: int, phases: Array) -> Array:
    """Every `stride`-th block of `tensors`, which are by run, place and element; all of it if that is one.

    Each run's phase says where to start.
    """
    if stride == 1:
        return tensors
    runs, count, size = tensors.shape
    blocks = size // BLOCK
    taken = blocks // stride
    cut = tensors[:, :, : blocks * BLOCK].reshape(runs, count, blocks, BLOCK)
    if runs == 1:
        first = int(_starts(size, stride, phases)[0])
        return cut[:, :, first : first + taken * stride : stride]
    steps = _starts(size, stride, phases)[:, None] + stride * np.arange(taken)
    picked: Array = cut[np.arange(runs)[:, None], :, steps].swapaxes(1, 2)
    return picked


def _starts(size: int, stride: int, phases: Array) -> Array:
    """The first block of each run. The number taken must not depend on it, so that runs fit side by side."""
    blocks = size // BLOCK
    starts: Array = phases % PHASES % (blocks - (blocks // stride - 1) * stride)
    return starts


def _lines(size: int, stride: int, phases: Array) -> Array:
    """Which blocks to take of runs that follow each other in memory."""
    blocks = size // BLOCK
    firsts = _starts(size, stride, phases) + blocks * np.arange(len(phases))
    lines: Array = firsts[:, None] + stride * np.arange(blocks // stride)
    return lines
