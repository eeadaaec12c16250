"""Range methods: pure functions from one tensor's statistics to a range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from ..dtypes import Array
from ..errors import InvalidRecipe
from .histogram import Histogram, exponent_for
from .stats import TensorStats

Method = Literal["minmax", "average", "percentile", "mse", "entropy"]
METHODS: tuple[Method, ...] = get_args(Method)

Bounds = tuple[float, float]


PERCENTILE = 99.99
KEPT = 0.99
"""The minimum share of values that the entropy method leaves unclipped."""

RARE = 1e-10
"""The smallest probability that the entropy method distinguishes from zero."""


class Grid(NamedTuple):
    """The integer grid that a range is mapped to."""

    bits: int = 8
    symmetric: bool = False

    @property
    def steps(self) -> int:
        return (1 << self.bits) - (2 if self.symmetric else 1)


def choose_range(stats: TensorStats, method: Method, grid: Grid, percentile: float = PERCENTILE) -> Bounds:
    """Return the range that `method` chooses; it lies within the observed range."""
    match method:
        case "minmax":
            return stats.range
        case "average":
            return stats.average.range
        case "percentile":
            return percentile_range(stats, percentile)
        case "mse":
            return mse_ranges([stats], grid)[0]
        case "entropy":
            return entropy_range(stats, grid)
    raise InvalidRecipe(f"unknown range method {method!r}; choose from {', '.join(METHODS)}")


def choose_ranges(
    stats: Sequence[TensorStats], method: Method, grid: Grid, percentile: float = PERCENTILE
) -> list[Bounds]:
    """Return `choose_range` of each tensor; computed together, which is faster, and cached."""
    key = method, grid, percentile
    new = [s for s in stats if key not in s.ranges]
    found = mse_ranges(new, grid) if method == "mse" else [choose_range(s, method, grid, percentile) for s in new]
    for s, bounds in zip(new, found, strict=True):
        s.ranges[key] = bounds
    return [s.ranges[key] for s in stats]


def cached_range(stats: TensorStats, method: Method, grid: Grid, percentile: float = PERCENTILE) -> Bounds:
    """Return `choose_range`, which is computed once for each tensor."""
    if method == "minmax":
        return stats.range
    known = stats.ranges.get((method, grid, percentile))
    return choose_ranges([stats], method, grid, percentile)[0] if known is None else known


def require_percentile(percentile: float) -> None:
    if not 50 < percentile <= 100:
        raise InvalidRecipe(f"the percentile must be above 50 and at most 100, not {percentile}")


def percentile_range(stats: TensorStats, percentile: float = PERCENTILE) -> Bounds:
    """Clip (100 - percentile) % of the values at each end that has values beyond zero."""
    require_percentile(percentile)
    low, high = stats.range
    counts = stats.histogram.counts
    if not counts.any() or percentile == 100:
        return low, high
    below = np.concatenate([[0], np.cumsum(counts)]) / counts.sum()
    edges = stats.histogram.edges()
    share = percentile / 100
    cut_low = float(np.interp(1 - share, below, edges)) if low < 0 else low
    cut_high = float(np.interp(share, below, edges)) if high > 0 else high
    # The position of a value within its bin is unknown, so an interpolated end may lie beyond the observed range.
    cut_low = min(max(cut_low, low), high)
    return cut_low, max(min(cut_high, high), cut_low)


THRESHOLDS = np.geomspace(1 / 256, 1, 49)
REFINEMENTS = (np.geomspace(1 / 32, 1, 16), *(np.linspace(1 - width, 1 + width, 9) for width in (0.2, 0.05, 0.01)))
"""Factors applied to the ends of a range in the search for the best one, coarse then fine."""

TOGETHER = 16
"""Tensors whose ranges are searched together: their histograms fit in a core's cache."""


def mse_ranges(stats: Sequence[TensorStats], grid: Grid) -> list[Bounds]:
    """Return, for each tensor, the clipping with the least expected squared error: a common threshold first, then each
    end."""
    chosen = [s.range for s in stats]
    choice = [k for k, s in enumerate(stats) if s.histogram.counts.any() and chosen[k][0] != chosen[k][1]]
    for start in range(0, len(choice), TOGETHER):
        some = choice[start : start + TOGETHER]
        errors = ExpectedErrors([stats[k].histogram for k in some], grid)
        for k, bounds in zip(some, _least_error([chosen[k] for k in some], errors, grid), strict=True):
            chosen[k] = bounds
    return chosen


def _least_error(seen: Sequence[Bounds], errors: ExpectedErrors, grid: Grid) -> list[Bounds]:
    full = np.array(seen).T[:, :, None]
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


def _in_turns(a: Array, b: Array) -> Array:
    return np.stack([a, b], axis=1).ravel()


def entropy_range(stats: TensorStats, grid: Grid) -> Bounds:
    """Return the symmetric clipping whose quantized distribution has the smallest Kullback-Leibler divergence."""
    low, high = stats.range
    limit = max(-low, high)
    one_sided = low >= 0 or high <= 0
    levels = 2**grid.bits if one_sided and not grid.symmetric else 2 ** (grid.bits - 1)
    # Bins are counted from zero, where the integers start; for values far from it, they may be coarser.
    exponent = exponent_for(min(low, 0.0), max(high, 0.0))
    histogram = stats.histogram.coarsened(max(stats.histogram.exponent, exponent))
    bins = histogram.first + np.arange(histogram.counts.size)
    folded = np.bincount(np.where(bins >= 0, bins, -1 - bins), weights=histogram.counts)  # by distance from zero
    if folded.size <= levels or not folded.any():
        return low, high
    # Divergence alone might clip a spike at the end of the range: keep at least a share of KEPT unclipped.
    inside = np.cumsum(folded) >= KEPT * folded.sum()
    fewest = max(levels, int(np.argmax(inside)) + 1)
    steps = range(fewest, folded.size, max(1, (folded.size - fewest) // 128))
    candidates = np.array([*steps, folded.size])
    best = int(candidates[np.argmin(_divergences(folded, candidates, levels))])
    threshold = min(limit, best * histogram.width)
    return max(low, -threshold), min(high, threshold)


def _divergences(folded: Array, bins: Array, levels: int) -> Array:
    """Return KL divergences between the first k bins, with all beyond added to the last, and their quantized forms.

    A quantized form spreads the mass of each level over its occupied bins. With prefix sums of counts, of occupied bins
    and of count * log(count), this takes one lookup per level.
    """
    counts = folded.astype(np.float64)
    summed = (counts, counts > 0, _times_log(counts))
    held, filled, entropy = (np.concatenate([[0.0], np.cumsum(values)]) for values in summed)
    kept = held[bins]
    beyond, last = held[-1] - kept, counts[bins - 1]
    borders = -(-np.arange(levels + 1) * bins[:, None] // levels)
    level, share = np.diff(held[borders], axis=1), np.maximum(np.diff(filled[borders], axis=1), 1)
    logs = np.log(np.maximum(level / (share * np.maximum(kept, 1.0)[:, None]), RARE))
    # A value clipped into an otherwise empty bin has no counterpart: count it as a very rare one.
    at_end = np.where(last > 0, logs[:, -1], np.log(RARE))
    ends = last + beyond
    own = entropy[bins] - _times_log(last) + _times_log(ends)
    total = np.maximum(held[-1], 1.0)
    divergences = (own - (level * logs).sum(axis=1) - beyond * at_end) / total - np.log(total)
    return np.where(kept > 0, divergences, np.inf)


def _times_log(counts: Array) -> Array:
    return np.asarray(counts * np.log(np.maximum(counts, 1.0)))


# The expected error of quantization.


@dataclass(frozen=True)
class _Candidates:
    """Candidate ranges in units of bins: `low`, `high`, the grid's `step`, and the bins [first, end) that lie inside.

    All arrays have one shape; `row` says which tensor's ranges they are, and is a column if each row holds one
    tensor's.
    """

    row: Array
    low: Array
    high: Array
    step: Array
    first: Array
    end: Array

    def __getitem__(self, chosen: Array) -> _Candidates:
        row = np.broadcast_to(self.row, self.low.shape)
        return _Candidates(*(a[chosen] for a in (row, self.low, self.high, self.step, self.first, self.end)))


class ExpectedErrors:
    """The expected squared error of quantization, for many ranges of several histograms and one grid.

    Prefix sums over the bins of a histogram, N of counts, S of counts * u and Q of counts * u**2 (u: the position of
    the bin), give the squared distance of any interval of bins from any point p in a few operations: Q - 2 p S + p**2
    N. So an error takes one lookup per integer of the grid rather than a sum over all bins. All positions are in units
    of bins.
    """

    def __init__(self, histograms: Sequence[Histogram], grid: Grid) -> None:
        bins = max(h.counts.size for h in histograms)
        # Positions are small integers, so sums are exact, and summing integers is several times as fast.
        exact = max(h.total for h in histograms) * bins**2 < 2**63
        counts = np.zeros((len(histograms), bins), np.int64 if exact else np.float64)
        for row, histogram in zip(counts, histograms, strict=True):
            row[: histogram.counts.size] = histogram.counts
        self._steps, self._symmetric = grid.steps, grid.symmetric
        self._bins = bins
        self._width = np.array([[h.width] for h in histograms])
        # The center of bin i lies at first + i + 0.5; positions are counted from that of the first one.
        self._origin = np.array([[h.first + 0.5] for h in histograms])
        self._last = self._origin + np.array([[h.counts.size - 1] for h in histograms])
        position = np.arange(bins)
        self._count = _sums(counts)
        self._sum = _sums(counts * position)
        self._square = _sums(counts * position**2)
        self._total = self._count[:, -1:]

    def __call__(self, lows: Array, highs: Array) -> Array:
        """Return the mean squared error of quantizing with each range; row t holds ranges for histogram t.

        Values beyond the range are clipped. Inside, the error of a bin is that of its center where the integer grid is
        coarser than the bins, and step**2 / 12, the mean over a uniform distribution, where it is finer.
        """
        c = self._candidates(lows, highs)
        errors = self._exact(c, self._clipping(c), coarse=c.step > 2)
        return np.asarray(errors * self._width**2 / np.maximum(self._total, 1))

    def least(self, lows: Array, highs: Array) -> Array:
        """Return, for each row, the index of the range with the smallest error; the first among equals."""
        c = self._candidates(lows, highs)
        clipping = self._clipping(c)
        coarse = c.step > 2
        # Rounding adds at most a quarter of a squared step: a range whose clipping error exceeds that cannot win.
        most = np.where(coarse, clipping + c.step**2 / 4 * self._total, np.inf)
        hopeful = coarse & (clipping <= most.min(axis=1, keepdims=True) * (1 + 1e-9))
        # Many equal the first range, which wins ties: ends at zero, or at the last observed value, do not move.
        hopeful[:, 1:] &= (c.low[:, 1:] != c.low[:, :1]) | (c.high[:, 1:] != c.high[:, :1])
        errors = self._exact(c, clipping, hopeful)
        errors[coarse & ~hopeful] = np.inf
        return np.asarray(np.argmin(errors, axis=1))

    def _candidates(self, lows: Array, highs: Array) -> _Candidates:
        low, high = np.minimum(lows, 0.0) / self._width, np.maximum(highs, 0.0) / self._width
        if self._symmetric:
            high = np.maximum(-low, high)
            low = -high
        first = np.clip(np.ceil(low - self._origin), 0, self._bins).astype(np.intp)
        end = np.clip(np.floor(high - self._origin) + 1, 0, self._bins).astype(np.intp)
        return _Candidates(np.arange(len(low))[:, None], low, high, (high - low) / self._steps, first, end)

    def _clipping(self, c: _Candidates) -> Array:
        """Return squared distances of the bins outside the range from its nearer end."""
        low, high = c.low - self._origin, c.high - self._origin
        n, s, q = (sums[c.row, c.first] for sums in (self._count, self._sum, self._square))
        below = q - 2 * low * s + low**2 * n
        n, s, q = (sums[:, -1:] - sums[c.row, c.end] for sums in (self._count, self._sum, self._square))
        return np.asarray(np.maximum(below + q - 2 * high * s + high**2 * n, 0.0))

    def _exact(self, c: _Candidates, clipping: Array, coarse: Array) -> Array:
        """Return the clipping error plus the rounding error: by the bins' centers where `coarse`, by its mean
        elsewhere."""
        inside = self._count[c.row, c.end] - self._count[c.row, c.first]
        errors = np.asarray(clipping + inside * c.step**2 / 12)
        if coarse.any():
            errors[coarse] = clipping[coarse] + self._rounding(c[coarse])
        return errors

    def _rounding(self, c: _Candidates) -> Array:
        """Return squared distances of the bins inside from the grid, and of the ends from the grid for all clipped
        values.

        With grid points r(k) = k step, bins between borders b(k) = r(k) + step / 2 belong to k. Summed by parts, their
        squared distances are those from the first and the last r, plus 2 step (S - b N) for each border.
        """
        row, step, origin = c.row, c.step, self._origin[c.row, 0]
        nearest = [np.rint(end / step) * step - end for end in (c.low, c.high)]
        count_first, count_end = self._count[row, c.first], self._count[row, c.end]
        clipped = count_first * nearest[0] ** 2 + (self._total[row, 0] - count_end) * nearest[1] ** 2
        k = np.rint(np.maximum(c.low, origin) / step)
        borders = np.maximum(np.rint(np.minimum(c.high, self._last[row, 0]) / step) - k, 0.0)
        first, last = k * step - origin, (k + borders) * step - origin
        inside = self._square[row, c.end] - self._square[row, c.first]
        inside -= 2 * (last * self._sum[row, c.end] - first * self._sum[row, c.first])
        inside += last**2 * count_end - first**2 * count_first
        return np.asarray(clipped + inside + 2 * step * self._at_borders(c, first + step / 2, borders))

    def _at_borders(self, c: _Candidates, start: Array, borders: Array) -> Array:
        """Return the sum of S - b N over `borders` positions b from `start` on, where S and N are those of the bins
        before b."""
        k = np.arange(float(borders.max()))
        position = k * c.step[:, None]
        position += start[:, None]
        before = np.ceil(position).astype(np.intp)
        np.minimum(np.maximum(before, c.first[:, None], out=before), c.end[:, None], out=before)
        before += (c.row * (self._bins + 1))[:, None]
        terms = self._count.ravel()[before]
        terms *= position
        np.subtract(self._sum.ravel()[before], terms, out=terms)
        terms[k >= borders[:, None]] = 0.0
        return np.asarray(terms.sum(axis=1))


def _sums(values: Array) -> Array:
    """Return prefix sums over the columns, starting with 0."""
    sums = np.zeros((values.shape[0], values.shape[1] + 1))
    sums[:, 1:] = np.cumsum(values, axis=1)
    return sums
