"""Running samples through self-measuring copies of a model, on several threads, and merging what they measured."""

from __future__ import annotations

import dataclasses
import itertools
import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future

from ..dtypes import DType
from ..errors import InvalidModel, InvalidSample, RuntimeFailure
from ..graph.model import Model
from ..graph.query import fingerprint
from ..graph.sparse import with_dense_constants
from ..ops import OPS
from ..ops.check import check_runnable
from ..parallel import Threads
from ..runtime import trusting
from ..sources.models import ModelSource, load
from ..sources.ports import Row, entry
from ..sources.samples import Notes, Samples, rows
from .inner_tensors import unmeasurable_calls
from .instrumented_graph import MeasureMode, takes_batches
from .observer import Chunk, Observer
from .stats import Stats, TensorStats, merge_tensors
from .task import CalibrationTask, OpTable, Settings, measured_tensors

Progress = Callable[[int], None]
"""Called with the number of runs done so far."""

Measured = tuple[Chunk, list[Mapping[str, TensorStats]]]
"""Samples, and statistics of them to be merged in order."""


def calibrate(
    model: ModelSource,
    samples: Samples | Mapping[str, Samples],
    settings: Settings | None = None,
    *,
    progress: Progress | None = None,
    ops: OpTable = OPS,
    trusted: bool = True,
) -> Stats:
    """The statistics of every float tensor of `model` on `samples`.

    `samples`: an iterable (list, generator, data loader), or a function that returns one, of samples; each an array,
    a tuple in input order, or a dict by input name. For a model with several signatures: `{signature: samples}`.
    `progress` is called with the number of runs done so far. `ops`: the op table, if it is to be another than the
    package's own. A model that is not `trusted` runs in a child process, which it cannot escape from.
    """
    loaded, settings, notes = load(model), settings or Settings(), Notes()
    check_runnable(loaded)
    require_float(loaded, ops)
    given: list[tuple[str | None, Samples]] = [*samples.items()] if isinstance(samples, Mapping) else [(None, samples)]
    if not given:
        raise InvalidSample("no samples were given")
    done, stats = 0, Stats("", 0, {})

    def advance(runs: int) -> None:
        nonlocal done
        done += runs
        if progress is not None:
            progress(done)

    dense = with_dense_constants(loaded)
    with trusting(trusted), Threads(settings.threads) as pool:
        mark = pool.submit(fingerprint, loaded)
        for key, source in given:
            where = entry(dense, key)
            task = CalibrationTask(dense, where.graph, settings, ops)
            stats = stats.merge(_calibrate_graph(task, rows(source, where, notes), pool, notes, advance))
    return dataclasses.replace(stats, fingerprint=mark.result(), notes=tuple(notes.lines))


def require_float(model: Model, ops: OpTable = OPS) -> None:
    """Raise if there is nothing to calibrate because the model is quantized already."""
    known = [op for g in model.graphs for op in g.ops if (spec := ops.get(op.kind)) is not None and spec.types]
    tensors = [t for op in known for t in (*op.inputs, *op.outputs) if t is not None and not t.is_constant]
    if tensors and not any(t.dtype is DType.FLOAT32 for t in tensors):
        what = "quantized already" if any(t.is_quantized for t in tensors) else "without float arithmetic"
        raise InvalidModel(f"the model is {what}: there is no float tensor to calibrate; use the float model instead")


def _calibrate_graph(
    task: CalibrationTask,
    numbered: Iterator[tuple[int, Row]],
    pool: Threads,
    notes: Notes,
    advance: Progress,
) -> Stats:
    """The statistics of one graph, still without a fingerprint."""
    # If each run goes on from where the last one stopped, there can be one at a time only, and no second look at it.
    in_turn = task.settings.keep_state and _is_stateful(task.model)
    observer = _observer(task, MeasureMode.EXPOSED if in_turn else MeasureMode.BATCHED)
    for name in unmeasurable_calls(task.graph, task.ops):
        notes.say(f"'{name}' works on resources; tensors of the graphs it calls were not measured")
    samples, size = itertools.islice(numbered, task.settings.limit), 1 if in_turn else observer.graph.chunk
    chunks: Iterator[Chunk] = iter(lambda: list(itertools.islice(samples, size)), [])
    opening = next(chunks, None)
    if opening is None:
        raise InvalidSample("no samples were given; calibration needs at least one")
    if observer.graph.batch > 1 and not observer.takes([row for _, row in opening[: observer.graph.batch]]):
        observer = _observer(task, MeasureMode.SINGLE)
    found, last = dict[str, TensorStats](), -1
    ahead = 0 if in_turn else task.settings.threads
    for chunk, measured in _in_order(pool, _Observers(observer).measure, itertools.chain([opening], chunks), ahead):
        for part in measured:
            merge_tensors(found, part)
        last = chunk[-1][0]
        advance(len(chunk))
    in_order = dict.fromkeys((*(task.keys[t] for t in measured_tensors(task.graph, task.ops)), *found))
    return Stats("", last + 1, {key: found[key] for key in in_order if key in found})


def _is_stateful(model: Model) -> bool:
    """Whether a run can leave something behind for the next."""
    return any(t.is_variable or t.dtype is DType.RESOURCE for g in model.graphs for t in g.tensors)


def _observer(task: CalibrationTask, mode: MeasureMode) -> Observer:
    """An observer of the task, if need be in a simpler mode."""
    if mode is MeasureMode.BATCHED and not takes_batches(task.graph, task.ops):
        mode = MeasureMode.SINGLE
    try:
        return Observer(task, mode)
    except RuntimeFailure:
        # If LiteRT only rejects what was added, it runs without. Otherwise this says what is wrong with the model.
        return Observer(task, MeasureMode.EXPOSED)


class _Observers:
    """Observers of one task, each used by one thread at a time; another is made where all are in use."""

    def __init__(self, first: Observer) -> None:
        self._first = first
        self._idle = queue.SimpleQueue[Observer]()
        self._idle.put(first)

    def measure(self, chunk: Chunk) -> Measured:
        try:
            observer = self._idle.get_nowait()
        except queue.Empty:
            observer = self._first.another()
        try:
            return chunk, observer.measure(chunk)
        finally:
            self._idle.put(observer)


def _in_order(
    pool: Threads, work: Callable[[Chunk], Measured], chunks: Iterable[Chunk], ahead: int
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
