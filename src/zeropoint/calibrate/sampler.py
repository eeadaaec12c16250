"""A sample of every tensor's elements, on its way into histograms.

Samples of several runs wait side by side until there are enough of them, because small tensors would otherwise cost
more in calls than in counting.
"""

from __future__ import annotations

from collections.abc import Iterator

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
        self.probes = instrumented.probes
        self.small, self.large = instrumented.small, instrumented.large
        self.allow_nonfinite = allow_nonfinite
        self.histograms = {p: Histogram.empty() for p in self.probes}
        self.starts = np.array([p.start for p in self.probes], np.intp)
        # A run's sample, end to end: of the gathered tensors, then of the large ones.
        self.spots: dict[Probe, slice] = {}
        width = 0
        for probe in (*self.small, *self.large):
            room = sampled(np.empty(probe.tensor.size, np.bool_), probe.stride, 0).size
            self.spots[probe] = slice(width, width + room)
            width += room
        self.gathered = sum(p.tensor.size for p in self.small)
        self.gathered_width = sum(self.spots[p].stop - self.spots[p].start for p in self.small)
        self.picks: dict[int, Array] = {}
        self.runs = max(8, min(256, WAITING // max(1, width)))
        self.waiting = np.empty((self.runs, width), np.float32)
        self.lows = np.empty((self.runs, len(self.probes)), np.float32)
        self.highs = np.empty((self.runs, len(self.probes)), np.float32)
        self.filled = 0
        self.sizes = np.array([p.tensor.size for p in self.probes], np.int64)

    def take(self, values: Iterator[Array], phase: int, bounds: tuple[Array, Array]) -> Array:
        """Sample one run from the gathered vector and the large tensors; return the tensors' sizes.

        `bounds`: each channel's least and greatest values.
        """
        phase %= PHASES
        target = self.waiting[self.filled]
        lows = np.minimum.reduceat(bounds[0], self.starts)
        highs = np.maximum.reduceat(bounds[1], self.starts)
        sizes = self.sizes
        if self.small:
            gathered = next(values)
            if gathered.size != self.gathered:
                raise Misfit
            np.take(gathered, self._picked(phase), out=target[: self.gathered_width])
            del gathered
        for probe, view in zip(self.large, values, strict=True):
            picked = sampled(view.reshape(-1), probe.stride, phase)
            spot = self.spots[probe]
            if view.size == probe.tensor.size:
                target[spot] = picked
            else:  # a dynamic shape
                k = self.probes.index(probe)
                sizes = sizes.copy()
                sizes[k] = view.size
                self._count(probe, picked, float(lows[k]), float(highs[k]))
                target[spot] = np.nan
            del view, picked
        self.lows[self.filled], self.highs[self.filled] = lows, highs
        self.filled += 1
        if self.filled == self.runs:
            self._flush()
        return sizes

    def _picked(self, phase: int) -> Array:
        """Where in the gathered vector the sampled elements are."""
        if phase not in self.picks:
            parts, start = [], 0
            for probe in self.small:
                parts.append(start + sampled(np.arange(probe.tensor.size), probe.stride, phase))
                start += probe.tensor.size
            self.picks[phase] = np.concatenate(parts)
        return self.picks[phase]

    def finish(self) -> dict[Probe, Histogram]:
        self._flush()
        return self.histograms

    def _flush(self) -> None:
        if not self.filled:
            return
        lows, highs = self.lows[: self.filled].min(axis=0), self.highs[: self.filled].max(axis=0)
        for k, probe in enumerate(self.probes):
            values = self.waiting[: self.filled, self.spots[probe]].reshape(-1)
            self._count(probe, values, float(lows[k]), float(highs[k]))
        self.filled = 0

    def _count(self, probe: Probe, values: Array, low: float, high: float) -> None:
        if not (np.isfinite(low) and np.isfinite(high)):
            return  # every value was NaN or infinite
        if self.allow_nonfinite or np.isnan(values).any():
            values = values[np.isfinite(values)]
        self.histograms[probe] = self.histograms[probe].merge(Histogram.of(values, low, high))


def sampled(flat: Array, stride: int, phase: int) -> Array:
    """Every `stride`-th block of `flat`; all of it if that is one."""
    if stride == 1:
        return flat
    blocks = flat.size // BLOCK
    count = blocks // stride
    # The number taken must not depend on the phase, so that runs fit side by side.
    return (
        flat[: blocks * BLOCK]
        .reshape(blocks, BLOCK)[phase % (blocks - (count - 1) * stride) :: stride][:count]
        .reshape(-1)
    )
