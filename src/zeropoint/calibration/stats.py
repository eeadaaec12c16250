"""What calibration saw of each tensor: values that add up, and one file to keep them in."""

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
from ..errors import InvalidStats
from ..files import PathLike, read_arrays, reading, write_whole
from ..graph.model import Model
from ..graph.query import fingerprint
from ..parallel import cached_property
from .histogram import BINS, FINEST, Histogram

FORMAT = "zeropoint-stats-1"
LARGEST = 1 << 30
"""Bytes that a statistics file may unpack to."""

COARSEST = 128
"""Exponent of a histogram that spans all of float32."""

DECAY = 0.99
"""Of the moving average. It is debiased, so that few samples count alike."""


@dataclass(frozen=True)
class Extreme:
    """The least or greatest value, and the sample that had it first."""

    value: float
    sample: int


@dataclass(frozen=True)
class MovingAverage:
    """Exponential moving average of each run's least and greatest value: sums and weight, so that it adds up."""

    low: float = 0.0
    high: float = 0.0
    weight: float = 0.0
    decay: float = DECAY

    def then(self, other: MovingAverage, runs: int) -> MovingAverage:
        """The average over this and, after it, `runs` runs that gave `other`."""
        fade = self.decay**runs
        return MovingAverage(
            self.low * fade + other.low, self.high * fade + other.high, self.weight * fade + other.weight, self.decay
        )

    @property
    def range(self) -> tuple[float, float]:
        return self.low / self.weight, self.high / self.weight


@dataclass(frozen=True, repr=False)
class Channels(Brief):
    """Least, greatest and mean value of each slice along the last axis."""

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
    """One tensor over all runs. The histogram of a large one comes from a sample of its elements, which stand for the
    others, and from each run's extremes; the rest from all of them."""

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
        """Everything that was seen."""
        return self.low.value, self.high.value

    @cached_property
    def ranges(self) -> dict[object, tuple[float, float]]:
        """Ranges that were chosen before, by method and grid: candidates ask for the same ones again and again."""
        return {}

    def merge(self, other: TensorStats) -> TensorStats:
        """Statistics of both, whose samples are numbered in one sequence."""
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
        """The same with sample numbers that start at `by`."""
        low, high = (Extreme(e.value, e.sample + by) for e in (self.low, self.high))
        return dataclasses.replace(self, low=low, high=high)

    def alongside(self, other: TensorStats) -> TensorStats:
        """Statistics of both, where both are of the same run: passes of a loop."""
        both = self.merge(other)
        once = MovingAverage(both.low.value, both.high.value, 1.0, self.average.decay)
        return dataclasses.replace(both, runs=1, average=once)


def stats_of(values: Array, number: int, *, by_channel: bool = False, decay: float = DECAY) -> TensorStats | None:
    """The statistics of one tensor in run `number`, from its values; None if none of them is finite."""
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
    """The least, the greatest and the summed value of each slice along the last axis, of those that are `finite`."""
    rows, where = (array.reshape(-1, values.shape[-1]) for array in (values, finite))
    low, high = np.min(rows, 0, where=where, initial=np.inf), np.max(rows, 0, where=where, initial=-np.inf)
    total = np.sum(rows, 0, where=where, dtype=np.float64)
    return low.astype(np.float32), high.astype(np.float32), np.asarray(total)


def merge_tensors(total: dict[str, TensorStats], more: Mapping[str, TensorStats]) -> None:
    """Merge the statistics of `more` into those of the same tensor in `total`."""
    for name, stats in more.items():
        total[name] = total[name].merge(stats) if name in total else stats


@dataclass(frozen=True, repr=False)
class Stats(Displayed):
    """Statistics of a model's tensors by name. `fingerprint` tells which model."""

    fingerprint: str
    samples: int
    tensors: Mapping[str, TensorStats]
    notes: tuple[str, ...] = ()

    def merge(self, other: Stats) -> Stats:
        """As if `other`'s samples had come after this one's."""
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
        """Write one file, whole or not at all."""
        write_whole(path, [_encode(self)], overwrite=overwrite)

    @classmethod
    def load(cls, path: PathLike) -> Stats:
        with reading(path, "a statistics file, or is damaged", InvalidStats):
            return _decode(Path(path))


PLAIN = ("runs", "count", "nonfinite", "total")
"""Fields of TensorStats that are numbers."""


def _encode(stats: Stats) -> bytes:
    """An .npz: one JSON header, and the arrays of all tensors end to end."""
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
    # In as few bytes as hold them: packing and unpacking takes time by the byte.
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
    arrays["counts"] = arrays["counts"].astype(np.int64, casting="safe", copy=False)
    header = json.loads(arrays["header"].tobytes())
    if header["format"] != FORMAT:
        raise ValueError(f"its format is {header['format']!r}, this version reads {FORMAT!r}")
    at = dict.fromkeys(arrays, 0)

    def take(name: str, size: Any) -> Array:
        """The next `size` elements."""
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
    """What cannot be in statistics of any data."""
    c = t.channels
    if not t.runs or not t.count or t.average.weight <= 0:
        yield "nothing was seen"
    if not 0 < t.average.decay <= 1:
        yield "the moving average does not fade"
    if t.low.value > t.high.value or t.average.low > t.average.high:
        yield "the least value is above the greatest"
    yield from _histogram_inconsistencies(t)
    if c is not None and not (c.low.size and (c.low == c.low).all() and (c.high == c.high).all()):
        yield "a channel's range is not a number"
    if c is not None and not np.isfinite(c.total).all():
        yield "a channel's mean is not a number"


def _histogram_inconsistencies(t: TensorStats) -> Iterator[str]:
    h = t.histogram
    if not FINEST <= h.exponent <= COARSEST or abs(h.first) > 1 << 31 or h.counts.size > BINS:
        yield "the histogram is of no float32 values"
    elif (h.counts < 0).any():
        yield "values were counted less than never"
    elif h.counts.size and not (h.edges()[0] <= t.low.value and t.high.value <= h.edges()[-1]):
        yield "the histogram ends before the values do"


def _whole(value: Any) -> int:
    if type(value) is not int:  # True is an int, too
        raise ValueError(f"{value!r} is where an integer belongs")
    return value


def _count(value: Any) -> int:
    if _whole(value) < 0:
        raise ValueError(f"{value} is where a count belongs")
    return int(value)


def _finite(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is where a number belongs")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is where a text belongs")
    return value
