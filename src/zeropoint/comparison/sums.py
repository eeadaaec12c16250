"""Sums over samples from which deviations follow, so that memory does not grow with the data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from ..affine import QuantParams
from ..dtypes import Array
from .values import Deviation, Occupancy, decibels


def dot(a: Array, b: Array) -> float:
    """The sum of products. Single precision is four times as fast and exact enough, unless it overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        quick = float(np.dot(a, b))
    return quick if math.isfinite(quick) else float(np.dot(a.astype(np.float64), b.astype(np.float64)))


@dataclass
class Sums:
    """Of one tensor, or of several that belong together."""

    power: float = 0.0
    other_power: float = 0.0
    product: float = 0.0
    error: float = 0.0
    count: int = 0
    absolute: float = 0.0
    largest: float = 0.0
    ulps: float = 0.0
    ulp_count: int = 0
    most_ulps: float = 0.0

    def add(self, wanted: Array, found: Array, scale: float | None) -> None:
        """One run's reals. `scale` is the unit of the last place, None for floats."""
        flat, other = (np.asarray(a, np.float32).reshape(-1) for a in (wanted, found))
        gap = other - flat
        self.power += dot(flat, flat)
        self.other_power += dot(other, other)
        self.product += dot(flat, other)
        self.error += dot(gap, gap)
        self.count += gap.size
        if gap.size:
            np.abs(gap, out=gap)
            total, most = float(gap.sum(dtype=np.float64)), float(gap.max())
            self.absolute += total
            self.largest = max(self.largest, most)
            if scale is not None:
                self.ulps += total / scale
                self.ulp_count += gap.size
                self.most_ulps = max(self.most_ulps, most / scale)

    @property
    def relative_error(self) -> float:
        """The power of the difference over that of the signal; where that is zero, over that of what was found."""
        if self.error == 0:
            return 0.0
        return self.error / (self.power if self.power > 0 else self.other_power)

    def deviation(self) -> Deviation:
        norm = math.sqrt(self.power) * math.sqrt(self.other_power)
        return Deviation(
            decibels(self.relative_error),
            self.product / norm if norm > 0 and math.isfinite(norm) else None,
            self.ulps / self.ulp_count if self.ulp_count else None,
            self.most_ulps if self.ulp_count else None,
        )


@dataclass
class Levels:
    """How the integers of one tensor are used."""

    params: QuantParams
    count: int = 0
    low: int = 0
    high: int = 0
    least: int | None = None
    greatest: int | None = None

    def add(self, wanted: Array, integers: Array) -> None:
        if not integers.size:
            return
        bottom, top = self.params.range()
        half = self.params.scale / 2
        self.count += wanted.size
        self.low += int(np.count_nonzero(wanted < bottom - half))
        self.high += int(np.count_nonzero(wanted > top + half))
        least, greatest = int(integers.min()), int(integers.max())
        self.least = least if self.least is None else min(self.least, least)
        self.greatest = greatest if self.greatest is None else max(self.greatest, greatest)

    def occupancy(self) -> Occupancy | None:
        if not self.count or self.least is None or self.greatest is None:
            return None
        all_levels = self.params.dtype.max - self.params.dtype.min
        used = (self.greatest - self.least) / all_levels
        return Occupancy(self.low / self.count, self.high / self.count, used)


MOST_GAIN = 1000.0
"""Equalization changes no channel by more than this. What looks like more is a channel that is lost."""

ROUNDING = 1e-2
"""The relative error that scaled channels may have at most."""

LEAST_APART = 1.2
"""The ratio of the largest factor to the smallest: what differs less is chance."""

FITTED = 32
"""Values for each factor."""

UNSCALED = 1e-3
"""Below this relative error channels are as they were."""


@dataclass
class Gains:
    """Whether the channels of a tensor were scaled on purpose: q = g f, with a factor g for each slice along an axis.

    Evening out channels before quantizing does that; what reads the tensor makes up for it.
    """

    plain: Sums = field(default_factory=Sums)
    by_axis: dict[int, list[Array]] = field(default_factory=dict)

    def add(self, wanted: Array, found: Array) -> None:
        once = Sums()
        once.add(wanted, found, None)
        self.plain.add(wanted, found, None)
        if once.relative_error < UNSCALED:
            return
        exact, other = wanted.astype(np.float64), found.astype(np.float64)
        products = exact * other, exact * exact, other * other
        for axis, size in enumerate(wanted.shape):
            if size > 1:
                rest = tuple(k for k in range(wanted.ndim) if k != axis)
                parts = [p.sum(axis=rest) for p in products]
                known = self.by_axis.get(axis)
                if known is not None and known[0].shape != parts[0].shape:  # a dimension that varies is no channel
                    continue
                self.by_axis[axis] = parts if known is None else [a + b for a, b in zip(known, parts, strict=True)]

    def found(self) -> tuple[int, Array] | None:
        """The axis and its factors; None if the channels are as they were.

        The squared error left over by the best factors is the sum of q² - (fq)² / f². It has to be a tenth of what
        it is without, and no more than rounding makes; every channel has to live on, and to be large enough that
        factors do not fit by chance.
        """
        best: tuple[float, int, Array] | None = None
        for axis, (product, power, other) in self.by_axis.items():
            if self.plain.count < FITTED * product.size:
                continue
            live = power > 0
            with np.errstate(divide="ignore", invalid="ignore"):
                gains = np.where(live, product / power, 1.0)
                left = np.where(live, other - product * gains, 0.0)
                relative = float(left.sum()) / max(float((gains**2 * power).sum()), 1e-300)
            apart = float(gains.max()) / float(gains.min()) if gains.min() > 0 else 0.0
            plausible = apart > LEAST_APART and bool(np.all((gains > 1 / MOST_GAIN) & (gains < MOST_GAIN)))
            if plausible and (best is None or relative < best[0]):
                best = relative, axis, gains
        if best is None or best[0] > min(ROUNDING, 0.1 * self.plain.relative_error):
            return None
        return best[1], best[2].astype(np.float32)


def scaled(values: Array, gains: tuple[int, Array] | None) -> Array:
    """`values` with the factors of `Gains.found` applied."""
    if gains is None:
        return values
    shape = [1] * values.ndim
    shape[gains[0]] = -1
    return np.asarray(values * gains[1].reshape(shape), np.float32)
