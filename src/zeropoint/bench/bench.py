"""A float model with its samples. Every measurement on them is made once, when it is first needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

from ..calibration import Settings, Stats, calibrate
from ..calibration.collect import Progress
from ..dtypes import Array
from ..graph.model import Model, Tensor
from ..graph.query import activation_bytes
from ..ops import OPS, OpSpec
from ..ops.execution import macs_of
from ..parallel import cached_property, in_parallel, side_by_side
from ..runtime import time_limit
from ..runtime.runner import Runner
from ..sources.ports import Entry, Row, entries, entry
from ..sources.samples import NotedSamples, Notes, Samples, iterate, rows
from .alignment import input_order
from .errors import (
    Compared,
    ErrorSum,
    JudgedError,
    Reference,
    TracedSamples,
    compared_outputs,
    encoded,
    real,
    references,
    where_measured,
)

KEPT_SAMPLES, KEPT_BYTES, LEAST_KEPT_BYTES = 256, 1 << 28, 1 << 26
"""Limits on the data kept in memory to be run again; between them, as much as the activations of one run."""

JUDGED = 24
"""Number of samples on which models are compared."""

HELD_BACK_EVERY, MOST_HELD_BACK, FEWEST_IN_ALL = 8, 32, 64
"""One in this many samples, up to a maximum, is held back from calibration if there are enough; the verdict is measured
on these."""

TRACED = 2
"""Number of samples on which intermediate tensors are compared."""

SHORT = 4e8
"""Multiply-accumulates below which starting threads takes longer than computing."""

STAYS_LOADED = 1 << 24
"""Maximum bytes of weights and activations of a float model that stays loaded."""

PARTS = 2
"""Number of parts the samples are split into, independent of the number of cores, so that sums are reproducible."""

NumberedRow = tuple[int, Row]
Found = TypeVar("Found")


class Bench:
    """Runs a float model, and other versions of it, on samples.

    `samples` may be anything that calibration accepts, and are read once; the first of them are kept in memory, at most
    `kept`, and only a few if none are `judged`. If it `holds_back` samples, some take no part in calibration. For
    models with several signatures, only statistics are available.
    """

    def __init__(
        self,
        model: Model,
        samples: Samples | Mapping[str, Samples],
        settings: Settings | None = None,
        *,
        judged: int = JUDGED,
        holds_back: bool = False,
        kept: int = KEPT_SAMPLES,
        ops: Mapping[str, OpSpec] = OPS,
        progress: Progress | None = None,
    ) -> None:
        self.model, self.ops, self.settings = model, ops, settings or Settings()
        self._samples, self._judged, self._progress = samples, judged, progress
        self._holds_back, self._kept = holds_back, kept
        self._held: list[Any] = []
        self._unseen: list[Any] = []

    def judging(self, judged: int) -> Bench:
        """Return a bench with the same samples and statistics that compares models on the first `judged` samples."""
        _ = self.stats, self.numbered_rows  # measured once for both benches
        other = copy(self)
        other._judged = judged
        for name in ("compared", "wanted", "references"):
            other.__dict__.pop(name, None)
        if "wanted" in self.__dict__ and judged <= self._judged:
            other.__dict__["wanted"] = self.wanted[:judged]
        return other

    def on(self, rows: Sequence[Row]) -> Bench:
        """Return a bench for the same model that compares versions of it on these samples."""
        other = copy(self)
        for name in ("compared", "wanted", "references", "float_outputs"):
            other.__dict__.pop(name, None)
        other.__dict__["numbered_rows"] = list(enumerate(rows))
        other._judged = len(rows)
        return other

    @cached_property
    def stats(self) -> Stats:
        """The statistics of every tensor on all samples except those held back."""
        samples = self._holding(self._samples) if self.is_single else self._samples
        found = calibrate(self.model, samples, self.settings, progress=self._progress, ops=self.ops)
        own = self._samples.notes.lines if isinstance(self._samples, NotedSamples) else ()
        return replace(found, notes=tuple(dict.fromkeys((*own, *found.notes))))

    @property
    def is_single(self) -> bool:
        """Whether there is only one graph to run."""
        return not isinstance(self._samples, Mapping) and len({e.graph for e in entries(self.model)}) == 1

    def _holding(self, samples: Any) -> Iterator[Any]:
        """Yield the samples for calibration, and keep those that will be run again."""
        room = min(KEPT_BYTES, max(LEAST_KEPT_BYTES, activation_bytes(self.entry.graph)))
        count, holds_back = 0, self._holds_back and not self.in_sequence
        most = self._kept if self._judged else JUDGED
        for count, sample in enumerate(iterate(samples), 1):
            room -= _size(sample)
            is_apart = holds_back and not count % HELD_BACK_EVERY and len(self._unseen) < MOST_HELD_BACK
            if is_apart and room >= 0:
                self._unseen.append(sample)
                continue
            if len(self._held) < most and room >= 0:
                self._held.append(sample)
            yield sample
        if count < FEWEST_IN_ALL:
            late, self._unseen = self._unseen, []
            self._held += late
            yield from late

    @cached_property
    def entry(self) -> Entry:
        return entry(self.model)

    @cached_property
    def in_sequence(self) -> bool:
        """Whether each run starts from the state that the previous one left, in calibration as in comparison."""
        return self.settings.in_sequence(self.entry.graph)

    @cached_property
    def numbered_rows(self) -> list[NumberedRow]:
        """The samples in memory as inputs of single runs, each with its sample number."""
        if not self.is_single:
            return []
        _ = self.stats  # reads the samples
        most = min(self._kept, self.settings.limit or self._kept)
        return list(islice(rows(self._held, self.entry, Notes()), most))

    @property
    def rows(self) -> list[Row]:
        return [row for _, row in self.numbered_rows]

    @cached_property
    def unseen_rows(self) -> list[Row]:
        """The samples that were held back from calibration."""
        if not self.is_single:
            return []
        _ = self.stats  # reads the samples
        return [row for _, row in rows(self._unseen, self.entry, Notes())]

    @property
    def judged_rows(self) -> list[Row]:
        return self.rows[: self._judged]

    @property
    def judged_count(self) -> int:
        """The number of samples on which models are compared."""
        return self._judged

    @cached_property
    def compared(self) -> tuple[Compared, ...]:
        """The outputs by which versions of the model are judged; empty if there is nothing to compare."""
        return tuple(compared_outputs(self.entry.graph, self.ops)) if self.judged_rows else ()

    @property
    def where(self) -> str:
        """Where the error of other versions is measured, as text."""
        return where_measured(self.compared, self.entry.graph)

    @cached_property
    def wanted(self) -> list[list[Array]]:
        """The float model's values of `compared`, by sample."""
        return self.float_model(self.compared).values(self.judged_rows)

    @cached_property
    def references(self) -> list[list[Reference]]:
        """The float model's values of `compared`, prepared for comparison, by sample."""
        return references(self.wanted)

    def float_model(self, compared: Sequence[Compared]) -> Loaded:
        """Return the float model, loaded to compute `compared`. A small one stays loaded."""
        return self._loaded.asking(compared) if self._is_small else Loaded(self, self.model, compared)

    @cached_property
    def _is_small(self) -> bool:
        graphs = self.model.graphs
        weights = sum(t.buffer.raw.nbytes for graph in graphs for t in graph.tensors if t.buffer is not None)
        return weights + activation_bytes(self.entry.graph) <= STAYS_LOADED

    @cached_property
    def _all_outputs(self) -> tuple[Compared, ...]:
        """The outputs, and the tensors that probabilities among them are computed from."""
        graph = self.entry.graph
        return tuple(dict.fromkeys((*compared_outputs(graph, self.ops), *self._plain_outputs)))

    @cached_property
    def _loaded(self) -> Loaded:
        return Loaded(self, self.model, self._all_outputs)

    @cached_property
    def float_outputs(self) -> list[list[Array]]:
        return self.float_model(self._plain_outputs).values(self.rows)

    def outputs(self, model: Model) -> list[list[Array]]:
        """Return the outputs of another version of the model as real numbers, for each sample in memory."""
        return Loaded(self, model, self._plain_outputs).values(self.rows)

    @property
    def _plain_outputs(self) -> tuple[Compared, ...]:
        return tuple(Compared(place) for place in range(len(self.entry.graph.outputs)))

    def error(self, model: Model, without: frozenset[int] = frozenset()) -> float:
        """Return the relative squared error of another version, averaged over outputs, without the samples in
        `without`."""
        return self.judged(model, without).value

    def judged(self, model: Model, without: frozenset[int] = frozenset()) -> JudgedError:
        """Return the relative squared error of another version, with each sample's contribution."""
        _ = self.references  # before the other version is loaded: one at a time needs half the memory
        return Loaded(self, model).judged(without=without)

    @property
    def traced(self) -> TracedSamples:
        """The samples on which intermediate tensors are compared."""
        return TracedSamples(tuple(self.judged_rows[:TRACED]), self.in_sequence, time_limit())


class Loaded:
    """A version of the model, loaded for comparison with the float model.

    Its inputs may be integers, in another order, or more than those of the float model. A file from elsewhere must be
    checked first.
    """

    def __init__(self, bench: Bench, model: Model, compared: Sequence[Compared] | None = None) -> None:
        where = entry(model)
        self._bench, self._compared = bench, tuple(bench.compared if compared is None else compared)
        self._inputs = where.graph.inputs
        self._order = input_order(bench.entry, where)
        self._tensors: list[Tensor] = [c.tensor(where.graph) for c in self._compared]
        runner = Runner.exposing(model, where.graph, self._tensors, checked=True)
        self._runners = [runner.keeping_state(bench.in_sequence)]
        self._macs = sum(macs_of(op, bench.ops) for op in where.graph.ops)
        self._has_room = side_by_side(activation_bytes(bench.entry.graph)) > 1

    def asking(self, compared: Sequence[Compared]) -> Loaded:
        """Return the same version, computing only some of its values."""
        other = copy(self)
        other._tensors = [self._tensors[self._compared.index(one)] for one in compared]
        other._compared = tuple(compared)
        return other

    def values(self, given: Sequence[Row]) -> list[list[Array]]:
        """Return the compared values of each sample."""
        return self.each(given, lambda _, values: values)

    def each(self, given: Sequence[Row], job: Callable[[int, list[Array]], Found]) -> list[Found]:
        """Return the results of `job` for each sample, called with its position and its compared values."""

        def part(runner: Runner, own: Sequence[NumberedRow]) -> list[Found]:
            return [job(place, values) for place, values in self._runs(runner, own)]

        return [found for one in self._in_parts(part, list(enumerate(given))) for found in one]

    def error(
        self, count: int | None = None, extra: Sequence[Array] = (), without: frozenset[int] = frozenset()
    ) -> float:
        """Return the relative squared error on the first `count` samples; `extra` is fed to additional inputs."""
        return self.judged(count, extra, without).value

    def judged(
        self, count: int | None = None, extra: Sequence[Array] = (), without: frozenset[int] = frozenset()
    ) -> JudgedError:
        """Return the relative squared error on the first `count` samples, with each sample's contribution."""
        bench = self._bench

        def part(runner: Runner, own: Sequence[NumberedRow]) -> list[list[ErrorSum]]:
            found = []
            for place, values in self._runs(runner, own, extra):
                if numbers[place] in without:
                    continue
                sums = [ErrorSum() for _ in self._compared]
                for total, wanted, value in zip(sums, exact[place], values, strict=True):
                    wanted.compare(value, total)
                found.append(sums)
            return found

        exact = bench.references  # computed before several threads need it
        numbers = [number for number, _ in bench.numbered_rows]
        judged = list(enumerate(bench.judged_rows[:count]))
        if not bench.in_sequence:  # otherwise later samples would start from their state
            judged = [(k, row) for k, row in judged if numbers[k] not in without]
        return JudgedError.of([sums for found in self._in_parts(part, judged) for sums in found])

    def _in_parts(
        self, job: Callable[[Runner, Sequence[NumberedRow]], Found], given: Sequence[NumberedRow]
    ) -> list[Found]:
        """Return the results of `job` on parts of the samples, each with its own runner if memory allows; a sequence is
        not split."""
        parts = [given]
        if len(given) * self._macs >= SHORT and not self._bench.in_sequence:
            half = -(-len(given) // PARTS)
            parts = [given[k : k + half] for k in range(0, len(given), half)]
        if not self._has_room:
            return [job(self._runners[0], part) for part in parts]
        if len(parts) > len(self._runners):
            self._runners += [self._runners[0].another() for _ in parts[len(self._runners) :]]
        return in_parallel(lambda k: job(self._runners[k], parts[k]), range(len(parts)))

    def _runs(
        self, runner: Runner, own: Sequence[NumberedRow], extra: Sequence[Array] = ()
    ) -> Iterator[tuple[int, list[Array]]]:
        """Yield the position of each sample, with its compared values."""
        runner.restart()
        for place, row in own:
            ordered = (*(row[k] for k in self._order), *extra)
            runner.begin()
            runner.invoke([encoded(values, tensor) for values, tensor in zip(ordered, self._inputs, strict=True)])
            found = zip(self._compared, self._tensors, runner.read(self._tensors), strict=True)
            yield place, [compared.judged(real(values, tensor)) for compared, tensor, values in found]


def _size(sample: Any) -> int:
    parts = sample.values() if isinstance(sample, Mapping) else sample if isinstance(sample, tuple | list) else [sample]
    return sum(int(getattr(part, "nbytes", 8)) for part in parts)
