"""Running samples through self-measuring copies of a model, on several threads, and adding up what they measured."""

from __future__ import annotations

import dataclasses
import itertools
import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from ..dtypes import DType
from ..errors import InvalidModel, InvalidSample, RuntimeFailure
from ..graph.model import Model
from ..graph.query import fingerprint
from ..ops import OPS
from ..sources.ports import Entry, Row, entry
from ..sources.samples import Notes, Samples, rows
from .gauge import Chunk, Gauge, Subject
from .inner import hidden
from .instrument import Manner
from .scope import takes_batches
from .settings import Settings
from .stats import Stats
from .totals import Measured, Totals

Progress = Callable[[int], None]
"""Called with the number of runs done so far."""


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
    done, mark = 0, ""

    def advance(runs: int) -> None:
        nonlocal done, mark
        done += runs
        mark = mark or fingerprint(model)  # while the threads are busy with what comes next
        if progress is not None:
            progress(done)

    with ThreadPoolExecutor(settings.threads) as pool:
        parts = [
            _calibrate_entry(_subject(model, where, settings), rows(source, where, notes), pool, notes, advance)
            for where, source in _entries(model, samples)
        ]
    stats = Stats(mark, 0, {})
    for part in parts:
        stats = stats.merge(dataclasses.replace(part, fingerprint=stats.fingerprint))
    return dataclasses.replace(stats, notes=tuple(notes.lines))


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
    subject: Subject, numbered: Iterator[tuple[int, Row]], pool: ThreadPoolExecutor, notes: Notes, advance: Progress
) -> Stats:
    """The statistics of one graph, still without a fingerprint."""
    settings, in_turn = subject.settings, goes_on(subject.model, subject.settings)
    subject.prepare()
    second = None if in_turn or settings.threads < 2 else pool.submit(Gauge, subject)
    first = _gauge(subject)
    for name in hidden(subject.graph):
        notes.say(f"'{name}' works on resources; tensors of the graphs it calls were not measured")
    chunks = _chunks(numbered, settings.limit, 1 if in_turn else first.instrumented.chunk)
    opening = next(chunks, None)
    if opening is None:
        raise InvalidSample("no samples were given; calibration needs at least one")
    if first.instrumented.batch > 1 and len(opening) > 1 and first.mixes([row for _, row in opening]):
        first = _gauge(dataclasses.replace(subject, manner=Manner.SINGLE))
    gauges = _Gauges(first)
    if second is not None and first.subject is subject:
        second.add_done_callback(gauges.adopt)
    total, last = Totals(first.instrumented), -1
    ahead = 0 if in_turn else 2 * settings.threads
    for measured in _in_order(pool, gauges.measure, itertools.chain([opening], chunks), ahead):
        total.add(measured)
        last = measured.last
        advance(measured.runs)
    return Stats("", last + 1, total.finish([gauge.sampler.finish() for gauge in gauges.all]))


class _Gauges:
    """Gauges of one subject, each used by one thread at a time; another is made where all are in use."""

    def __init__(self, first: Gauge) -> None:
        self.all: list[Gauge] = [first]
        self._subject = first.subject
        self._spare = queue.SimpleQueue[Gauge]()
        self._spare.put(first)

    def adopt(self, made: Future[Gauge]) -> None:
        """Take one more, if making it worked out."""
        if made.exception() is None:
            self.all.append(made.result())
            self._spare.put(made.result())

    def measure(self, chunk: Chunk) -> Measured:
        try:
            gauge = self._spare.get_nowait()
        except queue.Empty:
            gauge = Gauge(self._subject)
            self.all.append(gauge)
        try:
            return gauge.measure(chunk)
        finally:
            self._spare.put(gauge)


def _subject(model: Model, where: Entry, settings: Settings) -> Subject:
    manner = Manner.BATCHED if takes_batches(where.graph) else Manner.SINGLE
    if goes_on(model, settings):
        manner = Manner.OUTSIDE  # the others look closer by a second run, which would start from another state
    return Subject(model, where.graph, settings, manner)


def goes_on(model: Model, settings: Settings) -> bool:
    """Whether each run starts from where the one before it stopped, so that there can be one at a time only."""
    return settings.keep_state and is_stateful(model)


def _gauge(subject: Subject) -> Gauge:
    """A gauge of the subject, if need be in a humbler manner."""
    try:
        return Gauge(subject)
    except RuntimeFailure:
        # If LiteRT only minds what was added, it runs without. Otherwise this says what is wrong with the model.
        return Gauge(dataclasses.replace(subject, manner=Manner.OUTSIDE))


def is_stateful(model: Model) -> bool:
    """Whether a run can leave something behind for the next."""
    return any(t.is_variable or t.dtype is DType.RESOURCE for g in model.graphs for t in g.tensors)


def _chunks(numbered: Iterator[tuple[int, Row]], limit: int | None, size: int) -> Iterator[Chunk]:
    remaining = itertools.islice(numbered, limit)
    while chunk := list(itertools.islice(remaining, size)):
        yield chunk


def _in_order(
    pool: ThreadPoolExecutor, work: Callable[[Chunk], Measured], chunks: Iterable[Chunk], ahead: int
) -> Iterator[Measured]:
    """Results in the order of the chunks, with at most `ahead` more of them in memory."""
    pending: deque[Future[Measured]] = deque()
    try:
        for chunk in chunks:
            pending.append(pool.submit(work, chunk))
            if len(pending) > ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()
