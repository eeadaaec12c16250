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
class Reduced:
    """What several runs in a row showed of the probes.

    By run and probe: the least and the greatest value. Over all runs, by channel: the least, the greatest and the
    summed values; by probe: the number of elements, and of those that are NaN or infinite.
    """

    numbers: Array
    least: Array
    greatest: Array
    low: Array
    high: Array
    total: Array
    sizes: Array
    nonfinite: Array


@dataclass(frozen=True)
class Measured:
    """Runs in a row, the last of them of sample `last`. `others`: what was measured from outside, run by run."""

    runs: int
    last: int
    reduced: Reduced | None
    others: Sequence[Mapping[str, TensorStats]]


class Totals:
    """Adds up runs in their order, so that the result does not depend on the number of workers."""

    def __init__(self, instrumented: Instrumented) -> None:
        self.keys = instrumented.keys
        self.probes = probes = instrumented.probes
        width, count = sum(p.channels for p in probes), len(probes)
        self.high, self.low = np.full(width, -np.inf, np.float32), np.full(width, np.inf, np.float32)
        self.total = np.zeros(width, np.float64)
        self.least, self.greatest = np.full(count, np.inf), np.full(count, -np.inf)
        self.least_at, self.greatest_at = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.average_low, self.average_high, self.weight = np.zeros(count), np.zeros(count), np.zeros(count)
        self.sizes, self.nonfinite = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.runs = 0
        self.others: dict[str, TensorStats] = {}

    def add(self, measured: Measured) -> None:
        for run in measured.others:
            for key, found in run.items():
                self.others[key] = found if key not in self.others else self.others[key].merge(found, 0)
        if measured.reduced is not None:
            self._add(measured.reduced)

    def _add(self, runs: Reduced) -> None:
        np.maximum(self.high, runs.high, out=self.high)
        np.minimum(self.low, runs.low, out=self.low)
        least, greatest = runs.least.min(axis=0), runs.greatest.max(axis=0)
        self.least_at = np.where(least < self.least, runs.numbers[runs.least.argmin(axis=0)], self.least_at)
        self.greatest_at = np.where(
            greatest > self.greatest, runs.numbers[runs.greatest.argmax(axis=0)], self.greatest_at
        )
        self.least, self.greatest = np.minimum(self.least, least), np.maximum(self.greatest, greatest)
        seen = runs.least <= runs.greatest  # unless every value of that run was NaN or infinite
        count = len(runs.numbers)
        fade, weights = DECAY**count, np.where(seen, DECAY ** np.arange(count - 1, -1, -1.0)[:, None], 0.0)
        self.average_low = self.average_low * fade + (weights * np.where(seen, runs.least, 0.0)).sum(axis=0)
        self.average_high = self.average_high * fade + (weights * np.where(seen, runs.greatest, 0.0)).sum(axis=0)
        self.weight = self.weight * fade + weights.sum(axis=0)
        self.runs += count
        self.total += runs.total
        self.sizes += runs.sizes
        self.nonfinite += runs.nonfinite

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
