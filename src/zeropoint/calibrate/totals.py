"""Adding up runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..dtypes import Array
from .histogram import Histogram
from .instrument import Instrumented, Probe
from .stats import DECAY, Average, Channels, Extreme, TensorStats


@dataclass(frozen=True)
class Vectors:
    """Of one run: each channel's greatest, least and summed value, each tensor's number of elements, and of those
    that are NaN or infinite."""

    high: Array
    low: Array
    total: Array
    sizes: Array
    nonfinite: Array


@dataclass(frozen=True)
class Measured:
    """One run of sample `number`: vectors of the probes, and the statistics of what was measured from outside."""

    number: int
    vectors: Vectors | None
    others: Mapping[str, TensorStats]


class Totals:
    """Adds up runs in their order, so that the result does not depend on the number of workers."""

    def __init__(self, instrumented: Instrumented) -> None:
        self.keys = instrumented.keys
        self.probes = probes = instrumented.probes
        width, count = sum(p.channels for p in probes), len(probes)
        self.starts = np.array([p.start for p in probes], np.intp)
        self.high = np.full(width, -np.inf, np.float32)
        self.low = np.full(width, np.inf, np.float32)
        self.total = np.zeros(width, np.float64)
        self.least, self.greatest = np.full(count, np.inf), np.full(count, -np.inf)
        self.least_at, self.greatest_at = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.average_low, self.average_high, self.weight = np.zeros(count), np.zeros(count), np.zeros(count)
        self.sizes, self.nonfinite = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.runs = 0
        self.others: dict[str, TensorStats] = {}

    def add(self, runs: Sequence[Measured]) -> None:
        for run in runs:
            for key, found in run.others.items():
                self.others[key] = found if key not in self.others else self.others[key].merge(found, 0)
        measured = [(run.number, run.vectors) for run in runs if run.vectors is not None]
        if measured:
            self._add_vectors(np.array([number for number, _ in measured]), [vectors for _, vectors in measured])

    def _add_vectors(self, numbers: Array, runs: Sequence[Vectors]) -> None:
        highs, lows = np.stack([r.high for r in runs]), np.stack([r.low for r in runs])
        np.maximum(self.high, highs.max(axis=0), out=self.high)
        np.minimum(self.low, lows.min(axis=0), out=self.low)
        least = np.minimum.reduceat(lows, self.starts, axis=1).astype(np.float64)
        greatest = np.maximum.reduceat(highs, self.starts, axis=1).astype(np.float64)
        self.least_at = np.where(least.min(axis=0) < self.least, numbers[least.argmin(axis=0)], self.least_at)
        self.greatest_at = np.where(
            greatest.max(axis=0) > self.greatest, numbers[greatest.argmax(axis=0)], self.greatest_at
        )
        self.least = np.minimum(self.least, least.min(axis=0))
        self.greatest = np.maximum(self.greatest, greatest.max(axis=0))
        seen = least <= greatest  # unless every value of that run was NaN or infinite
        fade = DECAY ** len(runs)
        weights = np.where(seen, DECAY ** np.arange(len(runs) - 1, -1, -1.0)[:, None], 0.0)
        self.average_low = self.average_low * fade + (weights * np.where(seen, least, 0.0)).sum(axis=0)
        self.average_high = self.average_high * fade + (weights * np.where(seen, greatest, 0.0)).sum(axis=0)
        self.weight = self.weight * fade + weights.sum(axis=0)
        self.runs += len(runs)
        self.total += np.sum([r.total for r in runs], axis=0, dtype=np.float64)
        self.sizes += np.sum([r.sizes for r in runs], axis=0)
        self.nonfinite += np.sum([r.nonfinite for r in runs], axis=0)

    def finish(self, histograms: Sequence[Mapping[Probe, Histogram]]) -> dict[str, TensorStats]:
        """Statistics by tensor, in order of execution, with the sum of `histograms`.

        A tensor without any finite value has none.
        """
        found = {}
        for k, probe in enumerate(self.probes):
            if self.sizes[k] > self.nonfinite[k]:
                found[probe.key] = self._tensor(k, probe, [part[probe] for part in histograms])
        for key, stats in self.others.items():
            found[key] = stats if key not in found else found[key].merge(stats, 0)
        return {key: found[key] for key in (*self.keys, *found) if key in found}

    def _tensor(self, k: int, probe: Probe, histograms: Sequence[Histogram]) -> TensorStats:
        spot = probe.spot
        count = int(self.sizes[k] - self.nonfinite[k])
        merged = Histogram.empty()
        for part in histograms:
            merged = merged.merge(part)
        channels = None
        if probe.keep_channels:
            each = count // probe.channels
            channels = Channels(self.low[spot].copy(), self.high[spot].copy(), self.total[spot].copy(), each)
        return TensorStats(
            self.runs,
            count,
            Extreme(float(self.least[k]), int(self.least_at[k])),
            Extreme(float(self.greatest[k]), int(self.greatest_at[k])),
            float(self.total[spot].sum()),
            Average(float(self.average_low[k]), float(self.average_high[k]), float(self.weight[k])),
            merged,
            channels,
            int(self.nonfinite[k]),
        )
