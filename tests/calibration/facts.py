"""Statistics as plain values, for comparing them: what must be equal, and what is equal up to rounding."""

from __future__ import annotations

from typing import Any

import numpy as np

from zeropoint.calibration import Grid
from zeropoint.calibration.histogram import Histogram
from zeropoint.calibration.stats import Stats


def bins(histogram: Histogram) -> tuple[int, int, list[int]]:
    return histogram.exponent, histogram.first, histogram.counts.tolist()


def exact(stats: Stats, *, numbers: bool = True) -> dict[str, Any]:
    """What any split of the samples adds up to. `numbers`: which sample had the extremes, too."""
    found = {}
    for name, t in stats.tensors.items():
        extremes = (t.low, t.high) if numbers else (t.low.value, t.high.value)
        c = t.channels
        channels = None if c is None else (c.low.tolist(), c.high.tolist(), c.count)
        found[name] = (t.runs, t.count, t.nonfinite, extremes, bins(t.histogram), channels)
    return found


def sums(stats: Stats) -> list[float]:
    return [v for t in stats.tensors.values() for v in (t.total, *([] if t.channels is None else t.channels.total))]


def averages(stats: Stats) -> list[float]:
    return [v for t in stats.tensors.values() for v in t.average.range]


def close(a: list[float], b: list[float]) -> bool:
    return bool(np.allclose(a, b, rtol=1e-9, atol=1e-6))


def variance(histogram: Histogram) -> float:
    return float(np.cov(histogram.centers(), fweights=histogram.counts, ddof=0))


def expected_error(histogram: Histogram, bounds: tuple[float, float], grid: Grid) -> float:
    """Mean squared error of quantizing the histogram's values with this range, summed over its bins."""
    low, high = min(bounds[0], 0.0), max(bounds[1], 0.0)
    if grid.symmetric:
        low, high = -max(-low, high), max(-low, high)
    x, scale = histogram.centers(), (high - low) / grid.steps
    clipped = np.clip(x, low, high)
    if histogram.width < scale / 2:
        rounding = (np.round(clipped / scale) * scale - clipped) ** 2
    else:
        rounding = np.where(clipped == x, scale**2 / 12, 0.0)
    return float(histogram.counts @ ((x - clipped) ** 2 + rounding)) / max(1, histogram.total)
