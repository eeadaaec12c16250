"""Runs samples through self-measuring copies of a model on several threads, and merges the statistics."""

from __future__ import annotations

import dataclasses
import itertools
import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial

from ..cluster import Cluster
from ..display import notebook_line
from ..dtypes import DType
from ..errors import InvalidModel, InvalidRecipe, InvalidSample, RuntimeFailure, argument, spelled
from ..graph.model import Model, Tensor
from ..graph.query import fingerprint, tensor_keys
from ..graph.sparse import with_dense_constants
from ..ops import OPS, spec_of
from ..ops.check import check_runnable
from ..ops.states import dependent_tensors, initial_reads
from ..parallel import Threads
from ..runtime import time_limit, trusting, within
from ..sources.data import DataSource, samples_by_signature
from ..sources.models import ModelSource, load
from ..sources.ports import Row, entry, entry_graphs
from ..sources.samples import Notes, Samples, rows
from ..sources.sequence import States, sequence_of
from ..tflite import to_bytes
from .inner_tensors import unmeasurable_calls
from .instrumented_graph import MeasureMode, takes_batches
from .loud_samples import Reaches
from .observer import Chunk, Observer
from .stats import Stats, TensorStats, merge_tensors
from .task import CalibrationTask, OpTable, RunRecorder, Settings

Progress = Callable[[int], None]
"""Called with the number of runs done so far."""

Measured = tuple[Chunk, list[Mapping[str, TensorStats]]]
"""Samples, and their statistics, to be merged in order."""


def calibrate(
    model: ModelSource,
    samples: DataSource | Mapping[str, DataSource],
    settings: Settings | None = None,
    *,
    progress: Progress | None = None,
    sequence: States = False,
    ops: OpTable = OPS,
    trusted: bool = True,
) -> Stats:
    """Collect statistics of every float tensor of a model on representative samples.

    Args:
        model: The float model, as for `quantize`.
        samples: An iterable of samples (list, generator, data loader), or a function that returns one. A sample is an
            array, a tuple in input order, or a dict by input name. Or a path (.npz, .npy, a folder of images,
            file.py:function), one array of all samples, or a dict of such arrays by input name. For a model with
            several signatures, {signature: samples}.
        settings: How to calibrate: the number of runs, threads, histograms, states.
        progress: Called with the number of runs done so far.
        sequence: Whether samples are consecutive frames. Inputs that are states are then filled with the output of the
            frame before: those that match an output, or {input: output}.
        ops: The op table, if not the package's own.
        trusted: If false, the model runs in a child process, so that a damaged or hostile file cannot crash or hang
            this one.

    Returns:
        Statistics by tensor, which can be saved, merged and passed to `quantize(stats=...)`.
    """
    loaded = load(model)
    held = sequence_of(loaded, samples, sequence) if sequence else samples_by_signature(samples, loaded)
    with trusting(trusted):
        return collect_stats(loaded, held, settings or Settings(), progress=progress, ops=ops)


def collect_stats(
    model: Model,
    samples: Samples | Mapping[str, Samples],
    settings: Settings,
    *,
    progress: Progress | None = None,
    ops: OpTable = OPS,
    recorder: RunRecorder | None = None,
    reaches: Reaches | None = None,
) -> Stats:
    """Collect statistics on samples, by signature if there are several; `recorder` keeps some values of the first
    runs, `reaches` how far each sample drives each tensor."""
    notes, progress = Notes(), progress or notebook_line("calibrating, samples:")
    check_runnable(model)
    require_float(model, ops)
    given: list[tuple[str | None, Samples]] = [*samples.items()] if isinstance(samples, Mapping) else [(None, samples)]
    if not given:
        raise InvalidSample("no samples were given")
    done, stats = 0, Stats("", 0, {})

    def advance(runs: int) -> None:
        nonlocal done
        done += runs
        if progress is not None:
            progress(done)

    dense = with_dense_constants(model)
    with Threads(settings.threads) as pool, _cluster(settings.on, ops) as cluster:
        mark = pool.submit(fingerprint, model)
        for key, source in given:
            where = entry(dense, key)
            task = CalibrationTask(dense, where.graph, settings, ops, recorder=recorder, reaches=reaches)
            place = pool if cluster is None or task.in_sequence else RemoteObservers(cluster, dense, key, settings)
            stats = stats.merge(_calibrate_graph(task, rows(source, where, notes), place, notes, advance))
    return dataclasses.replace(stats, fingerprint=mark.result(), notes=tuple(notes.lines))


def remeasure(
    model: Model, tensors: Iterable[Tensor], samples: Iterable[Row], settings: Settings, ops: OpTable
) -> dict[Tensor, TensorStats]:
    """Return statistics of a few tensors of an edited model; tensors that no integer kernel uses are omitted."""
    task = CalibrationTask(model, entry(model).graph, settings, ops, only=frozenset(tensors))
    with Threads(settings.threads) as pool:
        stats = _calibrate_graph(task, enumerate(samples), pool, Notes(), lambda _: None)
    return {t: stats.tensors[task.keys[t]] for t in task.tensors if task.keys[t] in stats.tensors}


def _cluster(on: str | None, ops: OpTable) -> AbstractContextManager[Cluster | None]:
    if on is None:
        return nullcontext()
    if ops is not OPS:
        raise InvalidRecipe("a custom op table cannot be sent to a cluster; omit one of the two")
    return Cluster(on)


def require_float(model: Model, ops: OpTable = OPS) -> None:
    """Raise if there is nothing to calibrate because the model is already quantized."""
    known = [op for g in model.graphs for op in g.ops if spec_of(op, ops).types]
    tensors = [t for op in known for t in (*op.inputs, *op.outputs) if t is not None and not t.is_constant]
    if tensors and not any(t.dtype is DType.FLOAT32 for t in tensors):
        what = "quantized already" if any(t.is_quantized for t in tensors) else "without float arithmetic"
        raise InvalidModel(f"the model is {what}: there is no float tensor to calibrate; use the float model instead")


def _calibrate_graph(
    task: CalibrationTask,
    numbered: Iterator[tuple[int, Row]],
    place: Threads | RemoteObservers,
    notes: Notes,
    advance: Progress,
) -> Stats:
    """Return the statistics of one graph, without a fingerprint."""
    # If runs depend on the state of the previous one, they must be sequential, and cannot be repeated.
    in_turn = task.in_sequence
    observer = _observer(task, MeasureMode.EXPOSED if in_turn else MeasureMode.BATCHED)
    for name in unmeasurable_calls(task.graph, task.ops):
        notes.say(f"'{name}' uses resources; tensors in the graphs it calls were not measured")
    samples, size = itertools.islice(numbered, task.settings.limit), 1 if in_turn else observer.graph.chunk
    chunks: Iterator[Chunk] = iter(lambda: list(itertools.islice(samples, size)), [])
    opening = next(chunks, None)
    if opening is None:
        raise InvalidSample("no samples were given; calibration needs at least one")
    if observer.graph.batch > 1 and not observer.takes([row for _, row in opening[: observer.graph.batch]]):
        observer = _observer(task, MeasureMode.SINGLE)
    found, last = dict[str, TensorStats](), -1
    for chunk, measured in _all_measured(observer, itertools.chain([opening], chunks), place):
        for part in measured:
            merge_tensors(found, part)
        last = chunk[-1][0]
        advance(len(chunk))
    if in_turn and task.settings.keep_state is None:
        notes.say(in_sequence_note())
    _drop_unseen_states(task, found, notes)
    keys = dict.fromkeys((*(task.keys[t] for t in task.tensors), *found))
    return Stats("", last + 1, {key: found[key] for key in keys if key in found})


def _all_measured(observer: Observer, chunks: Iterable[Chunk], place: Threads | RemoteObservers) -> Iterator[Measured]:
    """Yield the statistics of each chunk, in order."""
    if isinstance(place, RemoteObservers):
        return _in_order(partial(place.submit, observer.mode), chunks, 2 * place.cluster.cores)
    threads, interpreters = observer.task.settings.threads, observer.interpreters
    ahead = threads if interpreters == threads else interpreters - 1
    return _in_order(partial(place.submit, _Observers(observer).measure), chunks, ahead)


def _drop_unseen_states(task: CalibrationTask, found: dict[str, TensorStats], notes: Notes) -> None:
    """Remove statistics that depend on states for which only the initial value was seen."""
    for state in _unseen_states(task, found):
        notes.say(never_used(task.keys[state]))
        for tensor in (state, *dependent_tensors(task.graph, state)):
            found.pop(task.keys[tensor], None)


def in_sequence_note() -> str:
    how = spelled("settings=zeropoint.Settings(keep_state=False)", argument("keep_state", False))
    return (
        "the model keeps its state from run to run, so the samples were run as one sequence, in their order; if "
        f"each of them is independent, say so ({how})"
    )


def never_used(state: str) -> str:
    return (
        f"the state '{state}' had its initial value in every run, so its range is unknown, and what depends on it "
        "stays float; give samples in the order of a sequence, and do not reset the state"
    )


def _unseen_states(task: CalibrationTask, found: Mapping[str, TensorStats]) -> list[Tensor]:
    """Return the states for which only the initial value was seen."""
    stats = {t: found[task.keys[t]] for t in initial_reads(task.graph) if task.keys[t] in found}
    return [t for t, one in stats.items() if not task.in_sequence or one.low.value == one.high.value]


def unknown_states(model: Model, stats: Stats) -> list[str]:
    """Return the states whose range the statistics do not contain."""
    keys, read = tensor_keys(model), (t for graph in entry_graphs(model) for t in initial_reads(graph))
    return [keys[t] for t in read if t.dtype is DType.FLOAT32 and keys[t] not in stats.tensors]


def _observer(task: CalibrationTask, mode: MeasureMode) -> Observer:
    """Return an observer for the task, in a simpler mode if LiteRT rejects the requested one."""
    if mode is MeasureMode.BATCHED and not takes_batches(task.graph, task.ops):
        mode = MeasureMode.SINGLE
    try:
        return Observer(task, mode)
    except RuntimeFailure:
        # If LiteRT only rejects the added ops, the model runs without them. Otherwise this raises the model's error.
        return Observer(task, MeasureMode.EXPOSED)


class _Observers:
    """A pool of observers for one task, each used by one thread at a time; another is created if all are in use."""

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


@dataclasses.dataclass(frozen=True)
class RemoteTask:
    """What a cluster node needs to measure chunks of samples."""

    model: bytes
    signature: str | None
    settings: Settings
    time_limit: float | None


class RemoteObservers:
    """Observers on the nodes of a cluster. They measure the same chunks as local ones, and their results are merged
    here in sample order, so the statistics do not depend on where they ran."""

    def __init__(self, cluster: Cluster, model: Model, signature: str | None, settings: Settings) -> None:
        self.cluster = cluster
        settings = dataclasses.replace(settings, on=None)
        self._task = cluster.put(RemoteTask(to_bytes(model), signature, settings, time_limit()))

    def submit(self, mode: MeasureMode, chunk: Chunk) -> Future[Measured]:
        return self.cluster.submit(_measure, self._task, mode, chunk)


@lru_cache(maxsize=1)
def _observers(task: RemoteTask, mode: MeasureMode) -> _Observers:
    """Load the observers, once in each process of a cluster."""
    model = load(task.model)
    return _Observers(Observer(CalibrationTask(model, entry(model, task.signature).graph, task.settings, OPS), mode))


def _measure(task: RemoteTask, mode: MeasureMode, chunk: Chunk) -> Measured:
    with within(task.time_limit):
        return _observers(task, mode).measure(chunk)


def _in_order(submit: Callable[[Chunk], Future[Measured]], chunks: Iterable[Chunk], ahead: int) -> Iterator[Measured]:
    """Yield results in chunk order, with at most `ahead` further chunks in memory."""
    pending: deque[Future[Measured]] = deque()
    try:
        for chunk in chunks:
            pending.append(submit(chunk))
            if len(pending) > ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()
