"""A histogram whose range grows without losing counts, and whose merge is exact.

Bin i holds the values in [i * width, (i + 1) * width), where width = 2**exponent. Growing doubles the width: bins 2i
and 2i + 1 become bin i, and floor(floor(x / w) / 2) = floor(x / 2w), so it does not matter when that happens. The
final width depends only on the minimum and maximum. Hence any split and any order of the data give the same histogram,
count for count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..dtypes import Array

BINS = 4096
"""Maximum number of bins; at least half as many span the range. Sixteen for each step of an 8-bit grid."""

FINEST = -126
"""The exponent of the smallest normal float32."""


@dataclass(frozen=True)
class Histogram:
    """Counts of bins `first`, `first + 1` ... of width 2**exponent."""

    exponent: int
    first: int
    counts: Array  # int64

    @classmethod
    def empty(cls) -> Histogram:
        return cls(FINEST, 0, np.zeros(0, np.int64))

    @classmethod
    def of(cls, values: Array, low: float, high: float) -> Histogram:
        """Return the histogram of finite float32 `values`, all in [low, high]."""
        exponent = exponent_for(low, high)
        first = bin_of(low, exponent)
        bins = _bins(values.reshape(-1), exponent)
        bins -= first
        np.maximum(bins, 0, out=bins)  # the extremes may come from kernels that flush subnormal numbers to zero
        return cls(exponent, first, np.bincount(bins, minlength=bin_of(high, exponent) - first + 1))

    @classmethod
    def sampled(cls, values: Array, extremes: Array, weight: int) -> Histogram:
        """Return the histogram of a tensor from a sample of its `values`, each representing `weight` elements.

        The minimum and maximum of each run, the `extremes`, are counted once: otherwise a sample would hide how far
        rare values reach, and a range chosen from it would clip them. All values are finite.
        """
        found = cls.of(values, float(extremes.min()), float(extremes.max()))
        if weight == 1:
            return found
        counts = found.counts * weight
        np.add.at(counts, _bins(extremes, found.exponent) - found.first, 1)
        return cls(found.exponent, found.first, counts)

    @property
    def width(self) -> float:
        return math.ldexp(1.0, self.exponent)

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def edges(self) -> Array:
        """The bin edges, one more than there are bins."""
        return (self.first + np.arange(self.counts.size + 1)) * self.width

    def centers(self) -> Array:
        return (self.first + 0.5 + np.arange(self.counts.size)) * self.width

    def merge(self, other: Histogram) -> Histogram:
        """Return the histogram of both data sets."""
        if not self.counts.size or not other.counts.size:
            return self if self.counts.size else other
        exponent = max(self.exponent, other.exponent)
        a, b = self.coarsened(exponent), other.coarsened(exponent)
        while max(a.last, b.last) - min(a.first, b.first) >= BINS:
            exponent += 1
            a, b = a.coarsened(exponent), b.coarsened(exponent)
        first, last = min(a.first, b.first), max(a.last, b.last)
        counts = np.zeros(last - first + 1, np.int64)
        counts[a.first - first : a.last - first + 1] += a.counts
        counts[b.first - first : b.last - first + 1] += b.counts
        return Histogram(exponent, first, counts)

    @property
    def last(self) -> int:
        return self.first + self.counts.size - 1

    def mirrored(self) -> Histogram:
        """Return the histogram of the negated values."""
        return Histogram(self.exponent, -1 - self.last, self.counts[::-1])

    def coarsened(self, exponent: int) -> Histogram:
        """Return the same counts in wider bins."""
        by = exponent - self.exponent
        if by == 0:
            return self
        first = self.first >> by
        target = ((self.first + np.arange(self.counts.size)) >> min(by, 62)) - first
        counts = np.bincount(target, weights=self.counts, minlength=(self.last >> by) - first + 1)
        return Histogram(exponent, first, counts.astype(np.int64))


def _bins(values: Array, exponent: int) -> Array:
    # Multiplying by a power of two and floor are exact, so binning is too; but if the width is above one,
    # float32 may round a small negative product to zero, which is in another bin.
    exact = values if exponent <= 0 else values.astype(np.float64)
    scaled = exact * exact.dtype.type(math.ldexp(1.0, -exponent))
    return np.asarray(np.floor(scaled, out=scaled), np.int32)  # no bin is as far out as 2**24; see `exponent_for`


def bin_of(value: float, exponent: int) -> int:
    return math.floor(math.ldexp(value, -exponent))


def exponent_for(low: float, high: float) -> int:
    """Return the finest bin width that spans [low, high] in BINS bins, but not finer than float32 resolves."""
    largest = max(abs(low), abs(high))
    resolution = math.frexp(largest)[1] - 24 if largest else FINEST
    span = math.frexp(high - low)[1] - BINS.bit_length() if high > low else FINEST
    exponent = max(FINEST, resolution, span)
    while bin_of(high, exponent) - bin_of(low, exponent) >= BINS:
        exponent += 1
    return exponent
