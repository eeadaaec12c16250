"""Calibration statistics of each tensor, which can be merged, and the file that stores them."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..display import Brief, Displayed
from ..dtypes import Array
from ..errors import InvalidStats, argument
from ..files import PathLike, read_arrays, reading, write_whole
from ..graph.model import Model
from ..graph.query import fingerprint
from ..parallel import cached_property
from .histogram import BINS, FINEST, Histogram

FORMAT = "zeropoint-stats-1"
LARGEST = 1 << 30
"""Limit on the unpacked size of a statistics file, in bytes."""

COARSEST = 128
"""The exponent of a histogram that spans the whole float32 range."""

DECAY = 0.99
"""Decay of the moving average. The average is debiased, so that a few samples have equal weight."""


def median(values: Array) -> Any:
    """Return the median along the first axis. `np.median` would import `numpy.ma`, which takes a megabyte."""
    ordered = np.sort(values, axis=0)
    return ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1].mean(axis=0)


@dataclass(frozen=True)
class Extreme:
    """The minimum or maximum, and the first sample in which it occurred."""

    value: float
    sample: int


@dataclass(frozen=True)
class MovingAverage:
    """The exponential moving average of each run's minimum and maximum, as sums and a weight so that it can be
    merged."""

    low: float = 0.0
    high: float = 0.0
    weight: float = 0.0
    decay: float = DECAY

    def then(self, other: MovingAverage, runs: int) -> MovingAverage:
        """Return the average over these runs followed by `runs` runs with the average `other`."""
        fade = self.decay**runs
        return MovingAverage(
            self.low * fade + other.low, self.high * fade + other.high, self.weight * fade + other.weight, self.decay
        )

    @property
    def range(self) -> tuple[float, float]:
        return self.low / self.weight, self.high / self.weight


@dataclass(frozen=True, repr=False)
class Channels(Brief):
    """The minimum, maximum and mean of each slice along the last axis."""

    low: Array  # float32
    high: Array  # float32
    total: Array  # float64
    count: int  # elements in each channel

    @property
    def mean(self) -> Array:
        return self.total / max(1, self.count)

    def merge(self, other: Channels) -> Channels:
        return Channels(
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            self.total + other.total,
            self.count + other.count,
        )


@dataclass(frozen=True, repr=False)
class TensorStats(Brief):
    """Statistics of one tensor over all runs. The histogram of a large tensor is built from a sample of its elements
    and each run's extremes; everything else from all elements."""

    runs: int
    count: int
    low: Extreme
    high: Extreme
    total: float
    average: MovingAverage
    histogram: Histogram
    channels: Channels | None = None
    nonfinite: int = 0

    @property
    def mean(self) -> float:
        return self.total / max(1, self.count)

    @property
    def range(self) -> tuple[float, float]:
        """The observed minimum and maximum."""
        return self.low.value, self.high.value

    @cached_property
    def ranges(self) -> dict[object, tuple[float, float]]:
        """A cache of chosen ranges by method and grid, because candidates ask for the same ones repeatedly."""
        return {}

    def merge(self, other: TensorStats) -> TensorStats:
        """Merge statistics whose samples are numbered in one sequence."""
        channels = None
        if self.channels and other.channels and self.channels.low.shape == other.channels.low.shape:
            channels = self.channels.merge(other.channels)
        return TensorStats(
            self.runs + other.runs,
            self.count + other.count,
            min(self.low, other.low, key=lambda e: (e.value, e.sample)),
            min(self.high, other.high, key=lambda e: (-e.value, e.sample)),
            self.total + other.total,
            self.average.then(other.average, other.runs),
            self.histogram.merge(other.histogram),
            channels,
            self.nonfinite + other.nonfinite,
        )

    def shifted(self, by: int) -> TensorStats:
        """Return the statistics with sample numbers that start at `by`."""
        low, high = (Extreme(e.value, e.sample + by) for e in (self.low, self.high))
        return dataclasses.replace(self, low=low, high=high)

    def alongside(self, other: TensorStats) -> TensorStats:
        """Merge statistics from the same run, such as iterations of a loop."""
        both = self.merge(other)
        once = MovingAverage(both.low.value, both.high.value, 1.0, self.average.decay)
        return dataclasses.replace(both, runs=1, average=once)


def stats_of(values: Array, number: int, *, by_channel: bool = False, decay: float = DECAY) -> TensorStats | None:
    """Return the statistics of one tensor's values in run `number`; None if none of them is finite."""
    finite = np.isfinite(values)
    flat = values[finite].astype(np.float32)
    if not flat.size:
        return None
    low, high = float(flat.min()), float(flat.max())
    channels = None
    if by_channel and values.ndim:
        channels = Channels(*finite_channels(values, finite), flat.size // values.shape[-1])
    return TensorStats(
        1,
        flat.size,
        Extreme(low, number),
        Extreme(high, number),
        float(flat.sum(dtype=np.float64)),
        MovingAverage(low, high, 1.0, decay),
        Histogram.of(flat, low, high),
        channels,
        values.size - flat.size,
    )


def finite_channels(values: Array, finite: Array) -> tuple[Array, Array, Array]:
    """Return minimum, maximum and sum of each slice along the last axis, over the elements that are `finite`."""
    rows, where = (array.reshape(-1, values.shape[-1]) for array in (values, finite))
    low, high = np.min(rows, 0, where=where, initial=np.inf), np.max(rows, 0, where=where, initial=-np.inf)
    total = np.sum(rows, 0, where=where, dtype=np.float64)
    return low.astype(np.float32), high.astype(np.float32), np.asarray(total)


def merge_tensors(total: dict[str, TensorStats], more: Mapping[str, TensorStats]) -> None:
    """Merge the statistics of `more` into those of the same tensors in `total`."""
    for name, stats in more.items():
        total[name] = total[name].merge(stats) if name in total else stats


@dataclass(frozen=True, repr=False)
class Stats(Displayed):
    """Statistics of a model's tensors by name. `fingerprint` identifies the model."""

    fingerprint: str
    samples: int
    tensors: Mapping[str, TensorStats]
    notes: tuple[str, ...] = ()

    @property
    def has_histograms(self) -> bool:
        """Whether more is known than minima, maxima and their averages."""
        return any(tensor.histogram.counts.any() for tensor in self.tensors.values())

    def merge(self, other: Stats) -> Stats:
        """Return the statistics as if the samples of `other` had followed these."""
        if self.fingerprint != other.fingerprint:
            raise InvalidStats("these statistics are of two different models; calibrate one model on both data sets")
        merged = dict(self.tensors)
        merge_tensors(merged, {name: stats.shifted(self.samples) for name, stats in other.tensors.items()})
        notes = tuple(dict.fromkeys((*self.notes, *other.notes)))
        return Stats(self.fingerprint, self.samples + other.samples, merged, notes)

    def require(self, model: Model) -> None:
        """Raise unless these are statistics of `model`."""
        if self.fingerprint != fingerprint(model):
            raise InvalidStats("these statistics were collected on another model; calibrate this one")

    def save(self, path: PathLike, *, overwrite: bool = False) -> None:
        """Write the statistics to one file, completely or not at all."""
        write_whole(path, [_encode(self)], overwrite=overwrite)

    @classmethod
    def load(cls, path: PathLike) -> Stats:
        with reading(path, "a statistics file, or is damaged", InvalidStats):
            return _decode(Path(path))


PLAIN = ("runs", "count", "nonfinite", "total")
"""The scalar fields of TensorStats."""


def _encode(stats: Stats) -> bytes:
    """Encode as .npz: one JSON header, and the arrays of all tensors concatenated."""
    tensors = [
        {
            "name": name,
            **{field: getattr(t, field) for field in PLAIN},
            "low": dataclasses.astuple(t.low),
            "high": dataclasses.astuple(t.high),
            "average": dataclasses.astuple(t.average),
            "histogram": [t.histogram.exponent, t.histogram.first, t.histogram.counts.size],
            "channels": None if t.channels is None else [t.channels.low.size, t.channels.count],
        }
        for name, t in stats.tensors.items()
    ]
    channels = [t.channels for t in stats.tensors.values() if t.channels is not None]
    # In the narrowest type that holds them: compression time grows with the number of bytes.
    counts = _joined([t.histogram.counts for t in stats.tensors.values()], np.int64)
    header = {"format": FORMAT, **vars(stats), "tensors": tensors}
    file = io.BytesIO()
    np.savez_compressed(
        file,
        header=np.frombuffer(json.dumps(header).encode(), np.uint8),
        counts=counts.astype(np.min_scalar_type(int(counts.max(initial=0)))),
        low=_joined([c.low for c in channels], np.float32),
        high=_joined([c.high for c in channels], np.float32),
        total=_joined([c.total for c in channels], np.float64),
    )
    return file.getvalue()


def _joined(arrays: list[Array], dtype: Any) -> Array:
    return np.concatenate(arrays).astype(dtype) if arrays else np.zeros(0, dtype)


def _decode(path: Path) -> Stats:
    with path.open("rb") as file:
        arrays = read_arrays(file, LARGEST)
    if not arrays.keys() >= {"header", "counts"}:
        given = f"samples are given as {argument('data')}, statistics are what `zeropoint calibrate` makes of them"
        raise InvalidStats(f"{path} holds arrays, but no statistics: {given}")
    arrays["counts"] = arrays["counts"].astype(np.int64, casting="safe", copy=False)
    header = json.loads(arrays["header"].tobytes())
    if header["format"] != FORMAT:
        raise ValueError(f"its format is {header['format']!r}, this version reads {FORMAT!r}")
    at = dict.fromkeys(arrays, 0)

    def take(name: str, size: Any) -> Array:
        """Return the next `size` elements."""
        end = at[name] + _count(size)
        part: Array = arrays[name][at[name] : end]
        at[name] = end
        if part.shape != (size,):
            raise ValueError("arrays are shorter than the header says")
        return part

    tensors = {_text(t["name"]): _decoded(t, take) for t in header["tensors"]}
    if len(tensors) != len(header["tensors"]) or not tensors:
        raise ValueError("it has no tensors, or one of them twice")
    notes = tuple(map(_text, header["notes"]))
    if not header["samples"]:
        raise ValueError("it is of no samples")
    return Stats(_text(header["fingerprint"]), _count(header["samples"]), tensors, notes)


def _decoded(t: Mapping[str, Any], take: Callable[[str, Any], Array]) -> TensorStats:
    exponent, first, bins = t["histogram"]
    counts, channels = take("counts", bins), None
    if t["channels"] is not None:
        size, each = t["channels"]
        channels = Channels(take("low", size), take("high", size), take("total", size), _count(each))
    low, high = (Extreme(_finite(value), _count(sample)) for value, sample in (t["low"], t["high"]))
    found = TensorStats(
        _count(t["runs"]),
        _count(t["count"]),
        low,
        high,
        _finite(t["total"]),
        MovingAverage(*map(_finite, t["average"])),
        Histogram(_whole(exponent), _whole(first), counts),
        channels,
        _count(t["nonfinite"]),
    )
    if problem := next(_inconsistencies(found), None):
        raise ValueError(f"of '{t['name']}', {problem}")
    return found


def _inconsistencies(t: TensorStats) -> Iterator[str]:
    """Yield descriptions of values that statistics of real data cannot have."""
    if not t.runs or not t.count or t.average.weight <= 0:
        yield "nothing was seen"
    if not 0 < t.average.decay <= 1:
        yield "the decay of the moving average is out of range"
    if t.low.value > t.high.value or t.average.low > t.average.high:
        yield "the minimum is above the maximum"
    if abs(t.mean) > 2 * _furthest(t):  # sums in float32 are not exact
        yield "the mean is beyond the minimum and the maximum"
    yield from _histogram_inconsistencies(t)
    if t.channels is not None:
        yield from _channel_inconsistencies(t.channels, _furthest(t))


def _furthest(t: TensorStats) -> float:
    return max(abs(t.low.value), abs(t.high.value), float(np.finfo(np.float32).tiny))


def _channel_inconsistencies(c: Channels, furthest: float) -> Iterator[str]:
    seen = c.low <= c.high  # the range of a channel without finite values ends before it begins
    if not (c.low.size and (c.low == c.low).all() and (c.high == c.high).all()):
        yield "a channel's range is not a number"
    elif (np.maximum(-c.low, c.high)[seen] > 2 * furthest).any() or not (seen | (c.low == -c.high)).all():
        yield "a channel's range is none, or beyond that of the tensor"
    if not np.isfinite(c.total).all():
        yield "a channel's mean is not a number"


def _histogram_inconsistencies(t: TensorStats) -> Iterator[str]:
    h = t.histogram
    if not FINEST <= h.exponent <= COARSEST or abs(h.first) > 1 << 31 or h.counts.size > BINS:
        yield "the histogram does not fit float32 values"
    elif (h.counts < 0).any():
        yield "a count is negative"
    elif h.counts.size and not (h.edges()[0] <= t.low.value and t.high.value <= h.edges()[-1]):
        yield "the histogram ends before the values do"


def _whole(value: Any) -> int:
    if type(value) is not int:  # True is an int, too
        raise ValueError(f"expected an integer, not {value!r}")
    return value


def _count(value: Any) -> int:
    if _whole(value) < 0:
        raise ValueError(f"expected a count, not {value}")
    return int(value)


def _finite(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"expected a number, not {value!r}")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a string, not {value!r}")
    return value
