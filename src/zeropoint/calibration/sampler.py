"""A sample of every tensor's elements, on its way into histograms.

A histogram counts each sampled element as often as it stands for others, and the least and the greatest element of
each run once: without these, a sample would hide how far the rare values reach, and a range chosen by it would clip
them. Samples of several runs wait side by side until there are enough of them, because small tensors would otherwise
cost more in calls than in counting.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..dtypes import Array
from ..sources.ports import Row
from .histogram import Histogram
from .instrument import BLOCK, Instrumented, Misfit, Probe, stride_for

WAITING = 1 << 21
"""Elements that are counted at once, 8 MB, or those of 64 runs."""

PHASES = 32
"""In how many ways the sampled blocks are shifted from run to run."""

_LINE = np.dtype((np.void, 4 * BLOCK))
"""A block as if it were one value: much quicker to copy than one element after the other."""


@dataclass(frozen=True)
class Place:
    """A stack's part of a run's sample: each `stride`-th block of `count` tensors of `size` elements.

    With a stride of 1 that is all of them. `first`: where in the sample the part begins, in blocks.
    """

    probes: tuple[Probe, ...]
    size: int
    stride: int
    first: int

    @property
    def count(self) -> int:
        return len(self.probes)

    @cached_property
    def blocks(self) -> int:
        """Whole blocks of a tensor; a rest of less than one is never sampled, unless everything is."""
        return self.size // BLOCK

    @cached_property
    def taken(self) -> int:
        """How many of them are. It must not depend on the phase, so that runs fit side by side."""
        return self.blocks // self.stride

    @cached_property
    def starts(self) -> int:
        """In how many places sampling may begin."""
        return self.blocks - (self.taken - 1) * self.stride

    @cached_property
    def room(self) -> int:
        """Elements of a run's sample."""
        return self.count * (self.size if self.stride == 1 else self.taken * BLOCK)

    @cached_property
    def spot(self) -> slice:
        """Where in the sample it is, in elements."""
        return slice(self.first * BLOCK, self.first * BLOCK + self.room)

    @cached_property
    def lines(self) -> slice:
        """The same in blocks."""
        return slice(self.first, self.first + -(-self.room // BLOCK))

    @cached_property
    def has_whole_lines(self) -> bool:
        """Whether a single tensor is sampled, and its blocks fill it."""
        return self.count == 1 and self.stride > 1 and self.size % BLOCK == 0

    def spots(self) -> dict[Probe, slice]:
        """Where in the sample each probe is."""
        each = self.room // self.count
        starts = range(self.spot.start, self.spot.stop, each) if each else [self.spot.start] * self.count
        return {p: slice(start, start + each) for p, start in zip(self.probes, starts, strict=True)}

    def steps(self, phase: int) -> slice:
        """Which blocks to take."""
        start = phase % PHASES % self.starts
        return slice(start, start + self.taken * self.stride, self.stride)

    def pick(self, tensors: Array, phases: Sequence[int]) -> Array:
        """The sample of some runs; `tensors` are by run, tensor and element."""
        if self.stride == 1:
            return tensors.reshape(len(phases), -1)
        cut = tensors[:, :, : self.blocks * BLOCK].reshape(len(phases), self.count, self.blocks, BLOCK)
        return np.stack([run[:, self.steps(phase)].reshape(-1) for run, phase in zip(cut, phases, strict=True)])


class Sampler:
    """Histograms of the probes' tensors. Used by one thread at a time."""

    def __init__(self, instrumented: Instrumented) -> None:
        self.probes = instrumented.probes
        self.order = {p: k for k, p in enumerate(self.probes)}
        self.histograms = {p: Histogram.empty() for p in self.probes}
        self.sizes = np.array([p.tensor.size for p in self.probes], np.int64)
        self.spots: dict[Probe, slice] = {}  # where in a run's sample each probe is
        self.picked = 0  # elements that the graph picked: they come first
        for probe, raster in instrumented.picked.rasters.items() if instrumented.picked else ():
            self.spots[probe] = slice(self.picked, self.picked + raster.size)
            self.picked += raster.size
        self.places: list[Place] = []
        width = -(-self.picked // BLOCK)
        for stack in instrumented.stacks:
            place = Place(stack.probes, stack.size, stack.stride, width)
            self.places.append(place)
            self.spots |= place.spots()
            width = place.lines.stop
        self.enough = max(8, min(64, WAITING // max(1, width * BLOCK)))
        self.waiting = np.empty((self.enough + instrumented.chunk, width * BLOCK), np.float32)
        self.lines = self.waiting.view(_LINE)
        self.extremes = np.empty((len(self.waiting), len(self.probes), 2), np.float32)
        self.filled = self.settled = 0
        self.apart: list[tuple[int, int]] = []  # runs and probes that were counted at once, extremes included

    def take(self, picked: Array | None, values: Sequence[Array], rows: Sequence[Row]) -> Array:
        """Sample a run of some `rows` from what the graph `picked` and from the stacks' `values`.

        Returns how many elements each tensor had.
        """
        runs = len(rows)
        pairs = list(zip(values, self.places, strict=True))
        if any(place.count * runs > 1 and found.size != runs * place.count * place.size for found, place in pairs):
            raise Misfit
        new = slice(self.filled, self.filled + runs)
        if picked is not None:
            if picked.size != runs * self.picked:
                raise Misfit
            self.waiting[new, : self.picked] = picked.reshape(runs, -1)
        sizes = runs * self.sizes
        phases = [_phase(row) for row in rows] if pairs else []
        for found, place in pairs:
            if found.size != runs * place.count * place.size:  # a dynamic shape
                (probe,) = place.probes
                sizes[self.order[probe]] = found.size
                self.apart.append((self.filled, self.order[probe]))
                actual = Place(place.probes, found.size, min(place.stride, stride_for(found.size)), 0)
                some = actual.pick(found.reshape(1, 1, -1), phases).reshape(-1)
                self._count(probe, some, _extremes(found), found.size)
                self.waiting[new, place.spot] = np.nan
            elif place.has_whole_lines:
                lines = found.reshape(runs, -1).view(_LINE)
                for k, phase in enumerate(phases):
                    self.lines[self.filled + k, place.lines] = lines[k, place.steps(phase)]
            else:
                self.waiting[new, place.spot] = place.pick(found.reshape(runs, place.count, -1), phases)
        self.filled += runs
        return sizes

    def settle(self, least: Array, greatest: Array) -> None:
        """Tell the extremes, by run and probe, of the runs that were sampled since the last call."""
        runs = slice(self.settled, self.filled)
        self.extremes[runs, :, 0], self.extremes[runs, :, 1] = least, greatest
        for run, k in self.apart:
            self.extremes[run, k] = np.nan
        self.apart.clear()
        self.settled = self.filled
        if self.filled >= self.enough:
            self._flush()

    def finish(self) -> dict[Probe, Histogram]:
        self._flush()
        return self.histograms

    def _flush(self) -> None:
        runs = self.filled
        for k, probe in enumerate(self.probes if runs else ()):
            values = self.waiting[:runs, self.spots[probe]].reshape(-1)
            self._count(probe, values, self.extremes[:runs, k].reshape(-1), runs * probe.tensor.size)
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


def _extremes(values: Array) -> Array:
    """The least and the greatest of those that are finite, if there are any."""
    finite = values[np.isfinite(values)]
    return np.array([finite.min(), finite.max()]) if finite.size else finite


def _phase(row: Row) -> int:
    """Where sampling starts. It depends on the data, not on the sample's number: so any split adds up."""
    return zlib.crc32(np.ascontiguousarray(row[0].reshape(-1)[::61]).tobytes()) if row else 0
