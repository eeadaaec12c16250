"""The squared error that quantization is expected to make, for many ranges of many tensors at once.

Sums over the first k bins of a histogram, of counts, of counts * u and of counts * u**2 (u: where the bin lies), give
the squared distance of any stretch of bins from any point p in a few operations: Q - 2 p S + p**2 N. So an error takes
a look-up for each integer of the grid rather than a sum over all bins. Everything here is measured in bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..dtypes import Array
from .histogram import Histogram


@dataclass(frozen=True)
class Grid:
    """The integers that a range will be spread over."""

    bits: int = 8
    symmetric: bool = False

    @property
    def steps(self) -> int:
        return (1 << self.bits) - (2 if self.symmetric else 1)


@dataclass(frozen=True)
class _Candidates:
    """Ranges in bins: `low` and `high`, the distance `step` of the grid, and the bins [first, end) that lie inside.

    All arrays have one shape; `row` says whose ranges they are, and is a column if each row holds one tensor's.
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
    """Answers for some histograms and one grid."""

    def __init__(self, histograms: Sequence[Histogram], grid: Grid) -> None:
        bins = max(h.counts.size for h in histograms)
        # Positions are small integers, so sums are exact, and adding up integers is several times as fast.
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
        """Mean squared error of quantizing with each range; row t holds ranges for histogram t.

        Values beyond the range are clipped. Inside, the error of a bin is that of its center where the integer grid is
        coarser than the bins, and step**2 / 12, the mean over a uniform distribution, where it is finer.
        """
        c = self._candidates(lows, highs)
        errors = self._exact(c, self._clipping(c), coarse=c.step > 2)
        return np.asarray(errors * self._width**2 / np.maximum(self._total, 1))

    def least(self, lows: Array, highs: Array) -> Array:
        """For each row, which of its ranges has the least error; the first of equals."""
        c = self._candidates(lows, highs)
        clipping = self._clipping(c)
        coarse = c.step > 2
        # Rounding adds at most a quarter of a squared step: what is clipped with more error than that cannot win.
        most = np.where(coarse, clipping + c.step**2 / 4 * self._total, np.inf)
        hopeful = coarse & (clipping <= most.min(axis=1, keepdims=True) * (1 + 1e-9))
        # Many are the first one again, which wins a tie: ends at zero, or at the last value seen, do not move.
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
        """Squared distances of the bins outside from the range's nearer end."""
        low, high = c.low - self._origin, c.high - self._origin
        n, s, q = (sums[c.row, c.first] for sums in (self._count, self._sum, self._square))
        below = q - 2 * low * s + low**2 * n
        n, s, q = (sums[:, -1:] - sums[c.row, c.end] for sums in (self._count, self._sum, self._square))
        return np.asarray(np.maximum(below + q - 2 * high * s + high**2 * n, 0.0))

    def _exact(self, c: _Candidates, clipping: Array, coarse: Array) -> Array:
        """`clipping` and the error of rounding: by the bins' centers where `coarse`, and by its mean elsewhere."""
        inside = self._count[c.row, c.end] - self._count[c.row, c.first]
        errors = np.asarray(clipping + inside * c.step**2 / 12)
        if coarse.any():
            errors[coarse] = clipping[coarse] + self._rounding(c[coarse])
        return errors

    def _rounding(self, c: _Candidates) -> Array:
        """Squared distances of the bins inside from the grid, and of the ends from the grid for all that is clipped.

        With grid points r(k) = k step, bins between borders b(k) = r(k) + step / 2 belong to k. Summed by parts, their
        squared distances are what they would be from the first and the last r, and 2 step (S - b N) for each border.
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
        """The sum of S - b N over `borders` positions b from `start` on, with S and N those of the bins before b."""
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
    """Sums over the first 0, 1, 2 ... columns."""
    sums = np.zeros((values.shape[0], values.shape[1] + 1))
    sums[:, 1:] = np.cumsum(values, axis=1)
    return sums
