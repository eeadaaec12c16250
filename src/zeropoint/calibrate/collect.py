"""Running samples through self-measuring copies of a model, on several threads, and adding up what they measured."""

from __future__ import annotations

import itertools
import os
import queue
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ..dtypes import Array, DType
from ..errors import InvalidModel, InvalidSample
from ..graph.model import Model
from ..graph.query import fingerprint
from ..ops import OPS
from ..runtime import Session
from ..sources.ports import Entry, Row, entry
from ..sources.samples import Notes, Samples, rows
from ..tflite.write import to_bytes
from .histogram import Histogram
from .inner import InnerTensors
from .instrument import Instrumented, Probe, instrument
from .recurrent import Replay, replays
from .sampler import Sampler
from .stats import DECAY, Average, Channels, Extreme, Stats, TensorStats

Progress = Callable[[int], None]
"""Called with the number of runs done so far."""


@dataclass(frozen=True)
class Settings:
    """How to calibrate. `workers` None: one for each core."""

    limit: int | None = None
    workers: int | None = None
    histograms: bool = True
    keep_state: bool = False
    allow_nonfinite: bool = False


def calibrate(
    model: Model,
    samples: Samples | Mapping[str, Samples],
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Stats:
    """The statistics of every float tensor of `model` on `samples`.

    `samples`: an iterable (or a function that returns one) of arrays, of tuples in input order, or of dicts by input
    name; for a model with several signatures, `{signature: samples}`.
    """
    settings = settings or Settings()
    require_float(model)
    notes = Notes()
    parts = [
        _calibrate_entry(model, where, source, settings, notes, progress) for where, source in _entries(model, samples)
    ]
    stats = parts[0]
    for part in parts[1:]:
        stats = stats.merge(part)
    return Stats(stats.fingerprint, stats.samples, stats.tensors, tuple(notes.lines))


def require_float(model: Model) -> None:
    """Raise if nothing is left to calibrate because the model is quantized already."""
    ops = [op for g in model.graphs for op in g.ops if OPS.get(op.kind) and OPS[op.kind].types]
    tensors = [t for op in ops for t in (*op.inputs, *op.outputs) if t is not None and not t.is_constant]
    if tensors and not any(t.dtype is DType.FLOAT32 for t in tensors):
        what = "quantized already" if any(t.is_quantized for t in tensors) else "without float arithmetic"
        raise InvalidModel(f"the model is {what}: there is no float tensor to calibrate; use the float model instead")


def _entries(model: Model, samples: Samples | Mapping[str, Samples]) -> Iterator[tuple[Entry, Samples]]:
    if isinstance(samples, Mapping):
        if not samples:
            raise InvalidSample("no samples were given")
        for key, source in samples.items():
            yield entry(model, key), source
    else:
        yield entry(model), samples


def _calibrate_entry(
    model: Model, where: Entry, samples: Samples, settings: Settings, notes: Notes, progress: Progress | None
) -> Stats:
    graph = where.graph
    is_stateful = any(t.is_variable for g in model.graphs for t in g.tensors)
    workers = settings.workers or os.cpu_count() or 1
    if is_stateful and settings.keep_state:
        workers = 1  # each run goes on from where the one before it stopped
    instrumented = instrument(model, graph, histograms=settings.histograms)
    content = to_bytes(instrumented.model)
    gauges: queue.SimpleQueue[_Gauge] = queue.SimpleQueue()
    everyone = []
    inner = InnerTensors.of(model, graph)
    reset = is_stateful and not settings.keep_state
    for _ in range(workers):
        gauge = _Gauge(content, instrumented, settings, replays(model, graph), reset)
        everyone.append(gauge)
        gauges.put(gauge)
    total = _Totals(instrumented)

    def measure(chunk: Chunk) -> list[Measured]:
        gauge = gauges.get()
        try:
            return [gauge.measure(number, row) for number, row in chunk]
        finally:
            gauges.put(gauge)

    done, last = 0, -1
    chunks = _chunks(rows(samples, where, notes), settings.limit, instrumented.chunk)
    with ThreadPoolExecutor(workers) as pool:
        for chunk, measured in _in_order(pool, measure, chunks, 2 * workers):
            total.add([number for number, _ in chunk], measured)
            if inner is not None:
                for number, row in chunk:
                    inner.measure(number, row)
            done, last = done + len(chunk), chunk[-1][0]
            if progress is not None:
                progress(done)
    if last < 0:
        raise InvalidSample("no samples were given; calibration needs at least one")
    tensors = total.finish([g.extras for g in everyone], [g.sampler.finish() for g in everyone])
    if inner is not None:
        tensors |= inner.finish()
    return Stats(fingerprint(model), last + 1, tensors)


Chunk = list[tuple[int, Row]]
"""Runs that one thread does without a pause: many where a run takes less time than handing it over."""


def _chunks(numbered: Iterator[tuple[int, Row]], limit: int | None, size: int) -> Iterator[Chunk]:
    remaining = itertools.islice(numbered, limit)
    while chunk := list(itertools.islice(remaining, size)):
        yield chunk


def _in_order(
    pool: ThreadPoolExecutor, work: Callable[[Chunk], list[Measured]], chunks: Iterable[Chunk], ahead: int
) -> Iterator[tuple[Chunk, list[Measured]]]:
    """Results in the order of the chunks, with at most `ahead` of them in memory."""
    pending: deque[tuple[Chunk, Future[list[Measured]]]] = deque()
    try:
        for chunk in chunks:
            pending.append((chunk, pool.submit(work, chunk)))
            if len(pending) > ahead:
                first, future = pending.popleft()
                yield first, future.result()
        while pending:
            first, future = pending.popleft()
            yield first, future.result()
    finally:
        for _, future in pending:
            future.cancel()


@dataclass(frozen=True)
class Measured:
    """One run: each channel's greatest, least and summed value, and each tensor's number of elements."""

    high: Array
    low: Array
    total: Array
    sizes: Array
    nonfinite: Array


class _Gauge:
    """A session of the self-measuring copy, with histograms of its own. Used by one thread at a time."""

    def __init__(
        self, content: bytes, instrumented: Instrumented, settings: Settings, replayed: list[Replay], reset: bool
    ) -> None:
        self.session = Session(content, checked=True)
        self.probes = instrumented.probes
        self.settings = settings
        self.reset = reset
        self.reductions = instrumented.reductions
        self.small, self.large = instrumented.small, instrumented.large
        self.replayed = replayed
        self.sampler = Sampler(instrumented, settings.allow_nonfinite)
        self.extras: dict[str, TensorStats] = {}
        self.read = instrumented.read
        self.sizes = np.array([p.tensor.size for p in self.probes], np.int64)
        self._shapes = [tuple(d["shape"]) for d in self.session.inputs]
        self._outputs = [d["index"] for d in self.session.outputs]

    def measure(self, number: int, row: Row) -> Measured:
        session = self.session
        shapes = [a.shape for a in row]
        if shapes != self._shapes:
            session.resize(shapes)
            self._shapes = shapes
        if self.reset:
            session.reset()
        session.invoke(row)
        vectors = session.read(self._outputs[: self.reductions])
        high, low = (vectors[0], vectors[1]) if vectors else (np.zeros(0, np.float32),) * 2
        total = vectors[2] if len(vectors) > 2 else np.zeros(high.shape, np.float32)
        sizes = self.sizes
        nonfinite = np.zeros(len(self.probes), np.int64)
        if not np.isfinite(total.sum() + high.sum() + low.sum()):
            high, low, total, nonfinite = self._finite(number, high, low, total)
        if self.settings.histograms and self.probes:
            sizes = self._sample(row, low, high)
        self._measure_others(number)
        return Measured(high, low, total, sizes, nonfinite)

    def _sample(self, row: Row, low: Array, high: Array) -> Array:
        """Take a sample of each tensor's elements for its histogram; return the tensors' sizes."""
        # Which elements depends on the data, not on the sample's number: so any split of the samples adds up.
        phase = zlib.crc32(np.ascontiguousarray(row[0].reshape(-1)[::61]).tobytes()) if row else 0
        return self.sampler.take(self._values(), phase, (low, high))

    def _values(self) -> Iterator[Array]:
        """The vector of gathered tensors, if there are any, then each large tensor: views, to be let go at once."""
        first = self.reductions
        return self.session.views(self._outputs[first : first + bool(self.small) + len(self.large)])

    def _each(self) -> Iterator[tuple[Probe, Array]]:
        """Every measured tensor with its values, as copies."""
        views = self._values()
        if self.small:
            gathered = np.array(next(views))
            sizes = [p.tensor.size for p in self.small]
            yield from zip(self.small, np.split(gathered, np.cumsum(sizes)[:-1]), strict=True)
        for probe, view in zip(self.large, views, strict=True):
            yield probe, np.array(view)

    def _finite(self, number: int, high: Array, low: Array, total: Array) -> tuple[Array, Array, Array, Array]:
        """Something is NaN or infinite, or a sum overflowed: look closer, and raise or go on without those values."""
        high, low, total = high.copy(), low.copy(), total.copy()
        nonfinite = np.zeros(len(self.probes), np.int64)
        if not self.settings.histograms:
            raise InvalidSample(f"sample {number} makes values NaN or infinite; calibrate with histograms to see where")
        order = {probe: k for k, probe in enumerate(self.probes)}
        for probe, values in self._each():
            k = order[probe]
            finite = np.isfinite(values)
            nonfinite[k] = finite.size - int(finite.sum())
            if nonfinite[k] and not self.settings.allow_nonfinite:
                raise InvalidSample(
                    f"sample {number} makes {nonfinite[k]} of {finite.size} values of '{probe.key}' NaN or infinite; "
                    "leave that sample out, or go on without those values (--allow-nonfinite)"
                )
            spot = slice(probe.start, probe.start + probe.channels)
            rows_of = values.reshape(-1, probe.channels)
            where = finite.reshape(-1, probe.channels)
            high[spot] = np.max(rows_of, axis=0, where=where, initial=-np.inf)
            low[spot] = np.min(rows_of, axis=0, where=where, initial=np.inf)
            total[spot] = np.sum(rows_of, axis=0, where=where, dtype=np.float64)
        return high, low, total, nonfinite

    def _measure_others(self, number: int) -> None:
        """Tensors that the graph does not reduce, and states of recurrent layers, from outside."""
        if not self.read and not self.replayed:
            return
        if self.read:
            for probe, value in zip(self.read, self.session.read(self._outputs[-len(self.read) :]), strict=True):
                self._observe(probe.key, value, number)
        if self.replayed:
            values = {probe.key: value.reshape(probe.tensor.shape) for probe, value in self._each()}
            for replay in self.replayed:
                self._observe(replay.key, replay.states(values[replay.source]), number)

    def _observe(self, key: str, values: Array, number: int) -> None:
        if values.size == 0:
            return
        found = stats_of(values, number)
        self.extras[key] = found if key not in self.extras else self.extras[key].merge(found, 0)


def stats_of(values: Array, number: int) -> TensorStats:
    """The statistics of one tensor in one run, measured directly."""
    flat = values.reshape(-1).astype(np.float32)
    low, high = float(flat.min()), float(flat.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise InvalidSample(f"sample {number} makes an inner value NaN or infinite; leave that sample out")
    return TensorStats(
        1,
        flat.size,
        Extreme(low, number),
        Extreme(high, number),
        float(flat.sum(dtype=np.float64)),
        Average(low, high, 1.0),
        Histogram.of(flat, low, high),
    )


class _Totals:
    """Adds up runs in their order, so that the result does not depend on the number of workers."""

    def __init__(self, instrumented: Instrumented) -> None:
        self.probes = instrumented.probes
        width = sum(p.channels for p in self.probes)
        count = len(self.probes)
        self.starts = np.array([p.start for p in self.probes], np.intp)
        self.high = np.full(width, -np.inf, np.float32)
        self.low = np.full(width, np.inf, np.float32)
        self.total = np.zeros(width, np.float64)
        self.least, self.greatest = np.full(count, np.inf), np.full(count, -np.inf)
        self.least_at, self.greatest_at = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.average_low, self.average_high, self.weight = np.zeros(count), np.zeros(count), 0.0
        self.sizes, self.nonfinite = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.runs = 0

    def add(self, numbers: list[int], runs: list[Measured]) -> None:
        self.runs += len(runs)
        if not self.probes:
            return
        highs, lows = np.stack([r.high for r in runs]), np.stack([r.low for r in runs])
        np.maximum(self.high, highs.max(axis=0), out=self.high)
        np.minimum(self.low, lows.min(axis=0), out=self.low)
        least = np.minimum.reduceat(lows, self.starts, axis=1).astype(np.float64)
        greatest = np.maximum.reduceat(highs, self.starts, axis=1).astype(np.float64)
        for k, (number, run) in enumerate(zip(numbers, runs, strict=True)):
            self.total += run.total
            self.least_at[least[k] < self.least] = number
            self.greatest_at[greatest[k] > self.greatest] = number
            self.least = np.minimum(self.least, least[k])
            self.greatest = np.maximum(self.greatest, greatest[k])
            self.average_low = self.average_low * DECAY + least[k]
            self.average_high = self.average_high * DECAY + greatest[k]
            self.weight = self.weight * DECAY + 1.0
            self.sizes += run.sizes
            self.nonfinite += run.nonfinite

    def finish(
        self, extras: list[dict[str, TensorStats]], histograms: list[dict[Probe, Histogram]]
    ) -> dict[str, TensorStats]:
        found = {p.key: self._tensor(k, p, histograms) for k, p in enumerate(self.probes) if self.sizes[k] > 0}
        for part in extras:
            for key, stats in part.items():
                found[key] = stats if key not in found else found[key].merge(stats, 0)
        return found

    def _tensor(self, k: int, probe: Probe, histograms: list[dict[Probe, Histogram]]) -> TensorStats:
        spot = slice(probe.start, probe.start + probe.channels)
        count = int(self.sizes[k] - self.nonfinite[k])
        merged = Histogram.empty()
        for part in histograms:
            merged = merged.merge(part[probe])
        channels = None
        if probe.keep_channels:
            channels = Channels(
                self.low[spot].copy(), self.high[spot].copy(), self.total[spot].copy(), count // probe.channels
            )
        return TensorStats(
            self.runs,
            count,
            Extreme(float(self.least[k]), int(self.least_at[k])),
            Extreme(float(self.greatest[k]), int(self.greatest_at[k])),
            float(self.total[spot].sum()),
            Average(float(self.average_low[k]), float(self.average_high[k]), self.weight),
            merged,
            channels,
            int(self.nonfinite[k]),
        )
