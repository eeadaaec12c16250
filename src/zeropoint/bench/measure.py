"""The measure of error: how far values are from the float model's, relative to how much these vary.

It steers every search and stands behind every verdict. For one sample of one output, with the mean squared error e of
each channel and the variance v of the float model's values around the channel's usual mean,

    part = sum(e) / (sum(e) + max(sum(v), 0.1 sum(t)))

where t is how much a channel usually varies. Channels that are different quantities, such as the coordinates and the
scores of a detector, have parts of their own, of which the mean is taken. A part is between 0 and 1, so no single
sample decides, and no quantity hides another; the error of an output is the mean of its parts, and the error of a model
the mean over its outputs. Energy would flatter outputs that lie far from zero, as coordinates do.

What a sample contributes is three numbers for each channel (`ChannelMoments` and the squared error), so sums over any
split of the samples are exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..dtypes import Array
from ..parallel import cached_property

LOUD = 16.0
"""A sample's variance counts up to this multiple of the median, so that a loud one does not set what is usual."""

LEAST_USUAL, MOST_SAMPLES = 1e-3, 0.9
"""What is usual is at least the first share of the variance that the second share of the samples stays below, for
outputs that hardly ever say anything."""

CONSTANT = 0.03
"""A channel that does not vary counts as if it varied by this share of its value."""

QUIET = 0.1
"""A sample that varies less counts as if it varied by this share of what is usual."""

HALF = 0.5
"""The probability from which an answer is yes."""

SURELY, FEWEST_SURE = 10.0, 8
"""A gain counts if it is this many times what is lost on other samples, among so many."""

IN_KIND = 100.0
"""Ratio of mean squares from which channels are different quantities."""

FEWEST_ROWS, MOST_CHANNELS, FAR_LONGER = 8, 256, 8
"""Limits on the sizes of an output's axes for one of them to count as channels."""

MOST_ELEMENTS = 4096
"""Size of a vector above which it is a signal, whose elements are positions: below, each element is a channel."""


def channel_axis(shape: tuple[int, ...]) -> int | None:
    """Return the axis of an output that holds channels, each a quantity of its own; None if it is one quantity.

    That is the last axis, or the one after the batch if the last is far longer: 84 channels of 8,400 boxes. Elements of
    a short vector are channels.
    """
    if not shape or math.prod(shape) == shape[-1]:
        return len(shape) - 1 if shape and 1 < shape[-1] <= MOST_ELEMENTS else None
    if len(shape) < 3:
        return len(shape) - 1 if 2 <= shape[-1] <= MOST_CHANNELS else None
    if 2 <= shape[1] <= min(MOST_CHANNELS, shape[-1] // FAR_LONGER):
        return 1
    return len(shape) - 1 if shape[-1] > 1 else None


def channels_last(values: Array, axis: int | None) -> Array:
    """Return the values as [positions, channels] in double precision. What LiteRT leaves uninitialized may be a
    signalling NaN: no warning."""
    with np.errstate(invalid="ignore"):
        doubles = np.asarray(values, np.float64)
    return doubles.reshape(-1, 1) if axis is None else np.moveaxis(doubles, axis, -1).reshape(-1, values.shape[axis])


@dataclass(frozen=True)
class ChannelMoments:
    """The mean and mean square of each channel of an output, for one sample. Values that are not finite are left
    out."""

    mean: Array
    power: Array

    @classmethod
    def of(cls, values: Array, axis: int | None) -> ChannelMoments:
        rows = channels_last(values, axis)
        if len(rows) and np.isfinite(rows).all():
            return cls(rows.mean(axis=0), np.einsum("pc,pc->c", rows, rows) / max(1, len(rows)))
        if not len(rows):
            return cls(np.zeros(rows.shape[1]), np.zeros(rows.shape[1]))
        finite = np.isfinite(rows)
        count, kept = np.maximum(1, finite.sum(axis=0)), np.where(finite, rows, 0.0)
        return cls(kept.sum(axis=0) / count, (kept**2).sum(axis=0) / count)


@dataclass(frozen=True)
class Yardstick:
    """What the errors of one output are measured by: the usual mean and variance of each channel, and the number of the
    quantity that it belongs to, from 0."""

    axis: int | None
    centre: Array
    usual: Array
    quantity: Array

    @classmethod
    def of(cls, samples: Sequence[ChannelMoments], axis: int | None, least: float = 0.0) -> Yardstick:
        """Return the yardstick that follows from the float model's values of some samples; channels count as if they
        varied by `least`, for quantities whose unit says what matters."""
        means, powers = np.array([one.mean for one in samples]), np.array([one.power for one in samples])
        centre = quantile(means, 0.5)
        spread = _variances(means, powers, centre)
        capped = np.minimum(spread, LOUD * quantile(spread, 0.5)).mean(axis=0)
        usual = np.maximum(capped, LEAST_USUAL * quantile(spread, MOST_SAMPLES))
        power = quantile(powers, 0.5)
        usual = np.where(usual > ROUNDING * power, usual, CONSTANT**2 / QUIET * power)
        usual = np.maximum(usual if usual.any() else np.ones_like(usual), least)
        return cls(axis, centre, usual, _quantities(power))

    @classmethod
    def of_values(cls, samples: Sequence[Array], least: float = 0.0) -> Yardstick:
        """Return the yardstick that follows from these values of an output."""
        axis = channel_axis(samples[0].shape)
        if axis is not None and len({values.shape[axis] for values in samples}) > 1:
            axis = None  # an axis that varies holds no channels
        return cls.of([ChannelMoments.of(values, axis) for values in samples], axis, least)

    def room(self, sample: ChannelMoments) -> Array:
        """Return how much each quantity of a sample varies: an error of that size is half of what can be said."""
        spread = _variances(sample.mean, sample.power, self.centre)
        return np.maximum(self.summed(spread), QUIET * self.summed(self.usual))

    def summed(self, by_channel: Array) -> Array:
        """Return the sum over the channels of each quantity."""
        return np.bincount(self.quantity, by_channel)

    def part(self, errors: Array, room: Array) -> float:
        """Return the error of a sample from the summed squared errors of each quantity."""
        with np.errstate(invalid="ignore", over="ignore"):
            shares = np.where(errors == 0, 0.0, errors / (errors + room))
        return float(np.where(np.isfinite(errors), shares, 1.0) @ self._counts) / self.centre.size

    @cached_property
    def _counts(self) -> Array:
        """The number of channels of each quantity."""
        return np.bincount(self.quantity)

    def reference(self, values: Array, rows: Array | None = None, *, decides: bool = False) -> Reference:
        """Return the float model's values of a sample, for comparison with those of other versions: all, or the `rows`
        of [positions, channels] that count. If each of them `decides`, so do answers that flip."""
        if rows is not None:
            values = values.reshape(-1, values.shape[-1])[rows]
        elif self.axis is not None and values.shape[self.axis] != self.centre.size:  # not seen before
            return Yardstick.of([ChannelMoments.of(values, None)], None).reference(values)
        return Reference(values, self, self.room(ChannelMoments.of(values, self.axis)), rows, decides)


ROUNDING = 1e-9
"""Variance relative to power below which a channel is constant: what float32 rounds is no variation."""


def quantile(values: Array, share: float) -> Array:
    """Return what this share of the values stays below, along the first axis: a value, or the mean of the two in the
    middle. (NumPy's own functions load a module that nothing else needs.)"""
    ordered, place = np.sort(values, axis=0), (len(values) - 1) * share
    low = ordered[math.floor(place)]
    return np.asarray(0.5 * (low + ordered[math.ceil(place)]) if share == 0.5 else low)


def _variances(mean: Array, power: Array, centre: Array) -> Array:
    """Return the mean squared distance from `centre`; at least 0, which rounding may miss."""
    return np.asarray(np.maximum(power - 2 * centre * mean + centre**2, 0.0))


def _quantities(power: Array) -> Array:
    """Return the number of each channel's quantity: from the largest channel, all that are up to IN_KIND times weaker
    belong to the same one, then those after the next largest; channels of nothing but zeros belong to the last.

    By how much channels vary would not do: those that are saturated hardly vary, and still have the unit of the others.
    """
    order = np.argsort(-power, kind="stable")
    found, number, most = np.zeros(power.size, np.intp), -1, math.inf
    for place in order:
        if power[place] * IN_KIND < most and (power[place] > 0 or number < 0):
            number, most = number + 1, float(power[place])
        found[place] = number
    return found


@dataclass(frozen=True)
class Reference:
    """The float model's value of an output for one sample, and how much its quantities vary (`room`); of an output of
    which only some positions count, these `rows`. If each probability `decides`, answers that flip count as well."""

    values: Array
    yardstick: Yardstick
    room: Array
    rows: Array | None = None
    decides: bool = False

    @property
    def says_something(self) -> bool:
        return self.rows is None or bool(self.rows.any())

    def counted(self, values: Array) -> Array:
        """Return those values that count."""
        return values if self.rows is None else values.reshape(-1, values.shape[-1])[self.rows]

    @cached_property
    def _is_finite(self) -> bool:
        return bool(np.isfinite(self.values).all())

    def part(self, found: Array) -> float:
        """Return the error of another version's values: 0 if they are equal, 1 if they are not numbers."""
        found = self.counted(found)
        with np.errstate(invalid="ignore", over="ignore"):
            gap = np.asarray(found - self.values)
            if not self._is_finite:  # equal infinities are no error
                gap = np.where(np.equal(found, self.values) | (np.isnan(found) & np.isnan(self.values)), 0, gap)
            positions = max(1, gap.size // self.yardstick.centre.size)
            if self.room.size == 1:
                errors = np.array([dot(gap.reshape(-1), gap.reshape(-1)) / positions])
            else:
                rows = channels_last(gap, self.yardstick.axis)
                errors = self.yardstick.summed(np.einsum("pc,pc->c", rows, rows) / positions)
            part = self.yardstick.part(errors, self.room)
            return max(part, flipped(self.values, found)) if self.decides else part


def flipped(wanted: Array, found: Array) -> float:
    """Return the share of answers that are another one, of those that are yes in one of both: probabilities that all
    fall a little below one half are close, and find nothing."""
    first, second = wanted > HALF, found > HALF
    either = np.count_nonzero(first | second)
    return float(np.count_nonzero(first != second) / either) if either else 0.0


def squared_errors(wanted: Array, found: Array, axis: int | None) -> Array:
    """Return the mean squared error of each channel; equal infinities are no error."""
    rows, own = (channels_last(values, axis) for values in (wanted, found))
    with np.errstate(invalid="ignore", over="ignore"):
        gaps = np.where((own == rows) | (np.isnan(own) & np.isnan(rows)), 0.0, own - rows)
        return np.asarray(np.einsum("pc,pc->c", gaps, gaps) / max(1, len(gaps)))


@dataclass
class ErrorTable:
    """Errors of one output of another version, sample by sample, where the yardstick follows from the same samples: the
    float model's moments and the mean squared errors, by channel."""

    moments: list[ChannelMoments] = field(default_factory=list)
    errors: list[Array] = field(default_factory=list)
    axis: int | None = None
    least: float = 0.0

    def add(self, wanted: Array, found: Array) -> None:
        """Add one sample."""
        if not self.moments:
            self.axis = channel_axis(wanted.shape)
        elif self.axis is not None and self.moments[0].mean.size != wanted.shape[self.axis]:
            self._forget_channels()
        self.moments.append(ChannelMoments.of(wanted, self.axis))
        self.errors.append(squared_errors(wanted, found, self.axis))

    def _forget_channels(self) -> None:
        """An axis whose length varies holds no channels."""
        self.axis = None
        pairs = ((one.mean.mean(keepdims=True), one.power.mean(keepdims=True)) for one in self.moments)
        self.moments = [ChannelMoments(*pair) for pair in pairs]
        self.errors = [one.mean(keepdims=True) for one in self.errors]

    @property
    def error(self) -> SampledError:
        if not self.moments:
            return SampledError()
        yardstick = Yardstick.of(self.moments, self.axis, self.least)
        pairs = zip(self.errors, self.moments, strict=True)
        return SampledError(tuple(yardstick.part(yardstick.summed(error), yardstick.room(one)) for error, one in pairs))


def error_of_sample(wanted: Sequence[Reference], found: Sequence[Array], weights: Sequence[float]) -> float:
    """Return the error of another version's outputs for one sample: the weighted mean over outputs."""
    parts = (w * one.part(values) for one, values, w in zip(wanted, found, weights, strict=True))
    return sum(parts) / sum(weights)


def dot(a: Array, b: Array) -> float:
    """Return the sum of products. Single precision is four times as fast and accurate enough, unless it overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        quick = float(np.dot(a, b))
        return quick if math.isfinite(quick) else float(np.dot(np.asarray(a, np.float64), np.asarray(b, np.float64)))


def ratio_of(error: float) -> float:
    """Return an error between 0 and 1 relative to what is left of the values."""
    return error / (1 - error) if error < 1 else math.inf


@dataclass(frozen=True)
class SampledError:
    """The error of a version of a model on some samples: the mean of its `parts`, one for each sample."""

    parts: tuple[float, ...] = ()

    @property
    def share(self) -> float:
        """The mean part: between 0 and 1."""
        return math.fsum(self.parts) / len(self.parts) if self.parts else 0.0

    @property
    def value(self) -> float:
        """The error relative to what the outputs vary by, share / (1 - share): errors of different parts of a model
        nearly add up, and its negative in dB is a signal-to-noise ratio."""
        return ratio_of(self.share)

    def __add__(self, other: SampledError) -> SampledError:
        """Return the error on the samples of both."""
        return SampledError((*self.parts, *other.parts))

    def beats(self, other: SampledError, by: float = 1.0) -> bool:
        """Whether this error is smaller than `other`, on the same samples, by more than `by` standard errors of the
        difference: a gain that chance explains does not count.

        With differences d over n samples, the sum of d has to exceed by * sqrt(n) * std(d). Where few samples are bad
        and these are mended, d varies much; then it is enough that all samples but the one that gains most gain
        SURELY times what others lose.
        """
        gaps = np.subtract(other.parts, self.parts)
        gain = math.fsum(gaps)
        if not gain > 0 or gaps.size < 2:
            return gain > 0
        if gain > by * math.sqrt(gaps.size) * float(np.std(gaps, ddof=1)):
            return True
        gained, lost = float(gaps[gaps > 0].sum() - gaps.max()), -float(gaps[gaps < 0].sum())
        return gaps.size >= FEWEST_SURE and gained > SURELY * by * lost
