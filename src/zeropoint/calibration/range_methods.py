"""From statistics to ranges: pure functions of one tensor's statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, get_args

import numpy as np

from ..dtypes import Array
from ..errors import InvalidRecipe
from .expected_error import ExpectedErrors, Grid
from .histogram import Histogram, exponent_for
from .stats import TensorStats

Method = Literal["minmax", "average", "percentile", "mse", "entropy"]
METHODS: tuple[Method, ...] = get_args(Method)

Bounds = tuple[float, float]


PERCENTILE = 99.99
KEPT = 0.99
"""The least share of values that the entropy method leaves unclipped."""

RARE = 1e-10
"""The least probability that it tells apart from zero."""


def choose_range(stats: TensorStats, method: Method, grid: Grid, percentile: float = PERCENTILE) -> Bounds:
    """The range that `method` picks; it lies within the observed one."""
    if method == "percentile":
        return percentile_range(stats, percentile)
    try:
        chosen = _CHOICES[method]
    except KeyError:
        raise InvalidRecipe(f"unknown range method {method!r}; choose from {', '.join(METHODS)}") from None
    return chosen(stats, grid)


def choose_ranges(stats: Sequence[TensorStats], method: Method, grid: Grid) -> list[Bounds]:
    """`choose_range` of each, which takes less time together, and none when asked again."""
    new = [s for s in stats if (method, grid) not in s.ranges]
    found = mse_ranges(new, grid) if method == "mse" else [choose_range(s, method, grid) for s in new]
    for s, bounds in zip(new, found, strict=True):
        s.ranges[method, grid] = bounds
    return [s.ranges[method, grid] for s in stats]


def minmax_range(stats: TensorStats, grid: Grid) -> Bounds:  # noqa: ARG001 - one signature for all methods
    """Everything that was seen."""
    return stats.low.value, stats.high.value


def average_range(stats: TensorStats, grid: Grid) -> Bounds:  # noqa: ARG001 - one signature for all methods
    """The moving average of each run's extremes."""
    return stats.average.range


def percentile_range(stats: TensorStats, percentile: float = PERCENTILE) -> Bounds:
    """Cut (100 - percentile) % of the values at each end that has any beyond zero."""
    if not 50 < percentile <= 100:
        raise InvalidRecipe(f"a percentile lies above 50 and up to 100, not {percentile}")
    low, high = stats.low.value, stats.high.value
    counts = stats.histogram.counts
    if not counts.any() or percentile == 100:
        return low, high
    below = np.concatenate([[0], np.cumsum(counts)]) / counts.sum()
    edges = stats.histogram.edges()
    share = percentile / 100
    cut_low = float(np.interp(1 - share, below, edges)) if low < 0 else low
    cut_high = float(np.interp(share, below, edges)) if high > 0 else high
    # Where in its bin a value lies is not known, so an interpolated end may lie beyond what was seen.
    return _within(cut_low, cut_high, (low, high))


THRESHOLDS = np.geomspace(1 / 256, 1, 49)
REFINEMENTS = (np.geomspace(1 / 32, 1, 16), *(np.linspace(1 - width, 1 + width, 9) for width in (0.2, 0.05, 0.01)))
"""What the ends of a range are multiplied with on the way to the best one, coarse then fine."""

TOGETHER = 16
"""Tensors whose ranges are searched at the same time: their histograms fit in a core's cache."""


def mse_ranges(stats: Sequence[TensorStats], grid: Grid) -> list[Bounds]:
    """The clipping of each with the least expected squared error: a common threshold first, then each end by itself."""
    chosen = [minmax_range(s, grid) for s in stats]
    choice = [k for k, s in enumerate(stats) if s.histogram.counts.any() and chosen[k][0] != chosen[k][1]]
    for start in range(0, len(choice), TOGETHER):
        some = choice[start : start + TOGETHER]
        errors = ExpectedErrors([stats[k].histogram for k in some], grid)
        for k, bounds in zip(some, _least_error([chosen[k] for k in some], errors, grid), strict=True):
            chosen[k] = bounds
    return chosen


def _least_error(seen: Sequence[Bounds], errors: ExpectedErrors, grid: Grid) -> list[Bounds]:
    full = _column(low for low, _ in seen), _column(high for _, high in seen)
    limits = np.maximum(-full[0], full[1])

    def least(lows: Array, highs: Array) -> tuple[Array, Array]:
        low = np.minimum(np.maximum(lows, full[0]), full[1])
        high = np.maximum(np.minimum(highs, full[1]), low)
        best = errors.least(low, high)[:, None]
        return np.take_along_axis(low, best, axis=1), np.take_along_axis(high, best, axis=1)

    low, high = least(np.hstack([full[0], -limits * THRESHOLDS]), np.hstack([full[1], limits * THRESHOLDS]))
    for factors in REFINEMENTS:
        one = np.ones_like(factors)
        pairs = (factors, factors) if grid.symmetric else (_in_turns(factors, one), _in_turns(one, factors))
        low, high = least(np.hstack([low, low * pairs[0]]), np.hstack([high, high * pairs[1]]))
    return list(zip(low.ravel().tolist(), high.ravel().tolist(), strict=True))


def _column(values: Iterable[float]) -> Array:
    return np.array(list(values))[:, None]


def _in_turns(a: Array, b: Array) -> Array:
    return np.stack([a, b], axis=1).ravel()


def _within(low: float, high: float, full: Bounds) -> Bounds:
    """The part of [low, high] that was seen; never empty."""
    low = min(max(low, full[0]), full[1])
    return low, max(min(high, full[1]), low)


def entropy_range(stats: TensorStats, grid: Grid) -> Bounds:
    """The symmetric clipping whose quantized distribution diverges least (Kullback-Leibler) from the clipped one."""
    low, high = stats.low.value, stats.high.value
    limit = max(-low, high)
    one_sided = low >= 0 or high <= 0
    levels = 2**grid.bits if one_sided and not grid.symmetric else 2 ** (grid.bits - 1)
    # Bins are counted from zero, where the integers start: far away from it, they need not be as fine as they are.
    exponent = exponent_for(min(low, 0.0), max(high, 0.0))
    histogram = stats.histogram.coarsened(max(stats.histogram.exponent, exponent))
    folded = _folded(histogram)
    if folded.size <= levels or not folded.any():
        return low, high
    # Divergence alone would clip a spike at the end of the range away with all else: keep all but KEPT of the values.
    inside = np.cumsum(folded) >= KEPT * folded.sum()
    fewest = max(levels, int(np.argmax(inside)) + 1)
    candidates = np.unique([*range(fewest, folded.size, max(1, (folded.size - fewest) // 128)), folded.size])
    best = int(candidates[np.argmin(_divergences(folded, candidates, levels))])
    threshold = min(limit, best * histogram.width)
    return max(low, -threshold), min(high, threshold)


def _folded(histogram: Histogram) -> Array:
    """Counts by distance from zero."""
    if not histogram.counts.size:
        return histogram.counts
    bins = histogram.first + np.arange(histogram.counts.size)
    return np.bincount(np.where(bins >= 0, bins, -1 - bins), weights=histogram.counts)


def _divergences(folded: Array, bins: Array, levels: int) -> Array:
    """KL divergences between the first so many bins, with all beyond added to the last, and their quantized forms.

    A quantized form spreads what each level holds over those of its bins that hold anything. With sums over the first
    k bins of counts, of occupied bins and of count * log(count), that takes a look-up for each level.
    """
    counts = folded.astype(np.float64)
    held, filled, entropy = (
        np.concatenate([[0.0], np.cumsum(v)]) for v in (counts, counts > 0, counts * np.log(np.maximum(counts, 1.0)))
    )
    kept = held[bins]
    beyond, last = held[-1] - kept, counts[bins - 1]
    borders = -(-np.arange(levels + 1) * bins[:, None] // levels)
    level, share = np.diff(held[borders], axis=1), np.maximum(np.diff(filled[borders], axis=1), 1)
    logs = np.log(np.maximum(level / (share * np.maximum(kept, 1.0)[:, None]), RARE))
    # A value that was clipped into an otherwise empty bin has no counterpart: charge it as a very rare one.
    at_end = np.where(last > 0, logs[:, -1], np.log(RARE))
    ends = last + beyond
    own = entropy[bins] - _times_log(last) + _times_log(ends)
    total = np.maximum(held[-1], 1.0)
    divergences = (own - (level * logs).sum(axis=1) - beyond * at_end) / total - np.log(total)
    return np.where(kept > 0, divergences, np.inf)


def _times_log(counts: Array) -> Array:
    return np.asarray(counts * np.log(np.maximum(counts, 1.0)))


_CHOICES: Mapping[str, Callable[[TensorStats, Grid], Bounds]] = {
    "minmax": minmax_range,
    "average": average_range,
    "mse": lambda stats, grid: mse_ranges([stats], grid)[0],
    "entropy": entropy_range,
}
