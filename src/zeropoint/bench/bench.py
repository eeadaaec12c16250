"""A float model with its samples. Every measurement on them is made once, when it is first needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

from ..calibration import Settings, Stats
from ..calibration.collect import Progress, collect_stats
from ..calibration.loud_samples import Reaches
from ..calibration.task import RunRecorder
from ..dtypes import Array
from ..graph.model import Model
from ..graph.query import activation_bytes, live_bytes
from ..ops import OPS, OpSpec
from ..ops.execution import total_macs
from ..parallel import cached_property, cores, side_by_side
from ..runtime import time_limit
from ..sources.data import samples_by_signature
from ..sources.ports import Entry, Row, entries, entry
from ..sources.samples import NotedSamples, Notes, Samples, iterate, rows
from .copies import KnownSamples, parts
from .errors import Compared, compared_outputs, real, where_measured
from .judged import JUDGED, Judged
from .judged_outputs import PLAIN, JudgedOutputs
from .loaded import Loaded, NumberedRow, measured_errors
from .loud_split import LoudSplit
from .measure import Reference, SampledError
from .op_errors import TracedSamples
from .yardsticks import Yardsticks

KEPT_SAMPLES, KEPT_BYTES, LEAST_KEPT_BYTES, LEAST_FITTED_BYTES = 256, 1 << 28, 1 << 26, 1 << 27
"""Limits on the data kept in memory to be run again; between them, as much as the activations of one run. More if
weights are to be fitted to them: 200 images of 224 x 224 instead of 111."""

FIRST_LOOKS = 8, JUDGED
"""Numbers of samples on which models are compared first."""

FEWEST_IN_ALL, MOST_HELD_BACK, HELD_BACK_FIRST, HELD_BACK_LATER = 64, 32, 4, 8
"""If there are enough samples, one in four of the first 64 and one in eight of the others, up to a maximum, is held
back from calibration; the verdict is measured on these."""

RECORDED_BYTES = 1 << 16
"""Size of a run's outputs up to which calibration records those of all samples in memory, not only of the first."""

TRACED = 2
"""Number of samples on which intermediate tensors are compared."""

STAYS_LOADED = 1 << 24
"""Maximum bytes of weights and activations of a float model that stays loaded."""

GOLDEN = (5**0.5 - 1) / 2

KnownErrors = dict[int, float]
"""The error of a version on each sample, by its place among those that judge."""


class Bench:
    """Runs a float model, and other versions of it, on samples.

    `samples` may be anything that calibration accepts, and are read once; the first of them are kept in memory, at most
    `kept`, and only a few if none are `judged`. If it `holds_back` samples, some take no part in calibration. If it
    `fits` weights to samples, more are kept, and those that judge them are spread over all. For models with several
    signatures, only statistics are available.
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
        fits: bool = False,
        ops: Mapping[str, OpSpec] = OPS,
        outputs: JudgedOutputs = PLAIN,
        progress: Progress | None = None,
    ) -> None:
        self.model, self.ops, self.settings, self._outputs_as_said = model, ops, settings or Settings(), outputs
        self._samples, self._judged, self._progress = samples, judged, progress
        self._holds_back, self._kept, self._fits = holds_back, kept, fits
        self._held: list[Any] = []
        self._unseen: list[Any] = []
        self._places: list[int] = []  # of the samples in calibration, among all
        self._wanted: list[list[Array]] = []
        self._references: list[list[Reference]] = []
        self._known: WeakKeyDictionary[Model, KnownErrors] = WeakKeyDictionary()
        self._latest: WeakKeyDictionary[Model, Loaded] = WeakKeyDictionary()  # one at most, of all copies of this bench
        self._recorder: RunRecorder | None = None
        self._reaches = Reaches()
        self._held_in_order = self.copies_apart = 0  # copies of samples held back take no part in calibration either
        self.resumes = False

    def judging(self, judged: int) -> Bench:
        """Return a bench with the same samples and statistics that compares models on the first `judged` samples."""
        _ = self.stats, self.numbered_rows, self.loud, self.is_small and self._loaded  # once for both benches
        return self._comparing(judged)

    def on(self, rows: Sequence[Row]) -> Bench:
        """Return a bench for the same model that compares versions of it on these samples, by the same measure."""
        if "stats" in self.__dict__ and self.judged_rows:  # there are samples, not only made-up inputs
            _ = self.yardsticks
        other = self._comparing(len(rows))
        other.__dict__.pop("_held_values", None)
        other.__dict__["numbered_rows"] = list(enumerate(rows))
        other._wanted, other._references, other._known, other._recorder = [], [], WeakKeyDictionary(), None
        return other

    def resuming(self, rows: Sequence[Row]) -> Bench:
        """Return a bench for versions of the model that begin at a later op; `rows` are their inputs for each sample
        that judges, in order."""
        _ = self.references(len(self.judged_rows))
        other = copy(self)
        numbers = [number for number, _ in self.numbered_rows]
        other.__dict__["numbered_rows"] = list(zip(numbers, rows, strict=False))
        other._known, other.resumes = WeakKeyDictionary(), True
        return other

    def in_given_order(self) -> Bench:
        """Return a bench with the samples in memory in the order in which they were given, which compares models on the
        first of them: as if no weights were fitted."""
        if not self._fits or not self._unseen:
            return self
        in_order = sorted(self.numbered_rows, key=lambda numbered: numbered[0])
        other = self.on([])
        other.__dict__["numbered_rows"] = in_order
        other.__dict__.pop("yardsticks", None)  # they follow from the first of these samples
        other._judged, other._recorder = self._judged, self._recorder
        return other

    def _comparing(self, judged: int) -> Bench:
        other = copy(self)
        other._judged = judged
        other.__dict__.pop("compared", None)
        return other

    @cached_property
    def stats(self) -> Stats:
        """The statistics of every tensor on all samples except those held back."""
        samples = samples_by_signature(self._holding(self._samples) if self.is_single else self._samples, self.model)
        if self.is_single and self._judged:
            tensors = [one.tensor(self.entry.graph) for one in self._all_outputs]
            most = JUDGED if sum(4 * t.size for t in tensors) > RECORDED_BYTES else self._kept
            self._recorder = RunRecorder(most, lambda graph: [one.tensor(graph) for one in self._all_outputs])
        found = collect_stats(
            self.model,
            samples,
            self.settings,
            progress=None if self._progress is None else self._counted,
            ops=self.ops,
            recorder=self._recorder,
            reaches=self._reaches if self._has_independent_samples else None,
        )
        own = self._samples.notes.lines if isinstance(self._samples, NotedSamples) else ()
        return replace(found, notes=tuple(dict.fromkeys((*own, *found.notes))))

    @property
    def _has_independent_samples(self) -> bool:
        return self.is_single and not self.in_sequence

    @cached_property
    def loud(self) -> LoudSplit | None:
        """The samples in calibration that are far beyond all others; None if there are none."""
        if not self._has_independent_samples:
            return None
        _ = self.stats  # reads the samples
        return LoudSplit.of(self, self._reaches, self._held, self._places)

    def _counted(self, runs: int) -> None:
        """Report how many samples calibration has dealt with: those that were run, and those that are held back."""
        if self._progress is not None:
            self._progress(runs + len(self._unseen) + self.copies_apart)

    @property
    def is_single(self) -> bool:
        """Whether there is only one graph to run."""
        return not isinstance(self._samples, Mapping) and len({e.graph for e in entries(self.model)}) == 1

    def _holding(self, samples: Any) -> Iterator[Any]:
        """Yield the samples for calibration, and keep those that will be run again."""
        least = LEAST_FITTED_BYTES if self._fits else LEAST_KEPT_BYTES
        room = min(KEPT_BYTES, max(least, activation_bytes(self.entry.graph)))
        count, holds_back = 0, self._holds_back and not self.in_sequence
        apart, copies, late_places = KnownSamples(), list[tuple[int, Any]](), list[int]()
        most = self._kept if self._judged else JUDGED
        for count, sample in enumerate(islice(iterate(samples), self.settings.limit), 1):
            room -= _size(sample)
            every = HELD_BACK_FIRST if count <= FEWEST_IN_ALL else HELD_BACK_LATER
            is_apart = holds_back and not count % every and len(self._unseen) < MOST_HELD_BACK
            if self._unseen and sample in apart:
                self.copies_apart += 1
                copies += [(count - 1, sample)] * (count < FEWEST_IN_ALL)
                continue
            if is_apart and room >= 0:
                apart.add(sample)
                self._unseen.append(sample)
                late_places.append(count - 1)
                continue
            if len(self._held) < most and room >= 0:
                self._held.append(sample)
                self._held_in_order += 1  # calibration gives them the same numbers
            self._places.append(count - 1)
            yield sample
        if count < FEWEST_IN_ALL:
            late, self._unseen, self.copies_apart = [*self._unseen, *(sample for _, sample in copies)], [], 0
            late_places += [place for place, _ in copies]
            self._held_in_order += len(late) if self._held_in_order == count - len(late) else 0
            self._held += late
            self._places += late_places
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
        """The samples in memory as inputs of single runs, each with its sample number. If weights are
        fitted to them, and there are so many that some are held back, in an order in which the first few stand for all:
        files are often sorted by class."""
        if not self.is_single:
            return []
        _ = self.stats  # reads the samples
        most = min(self._kept, self.settings.limit or self._kept)
        found = list(islice(rows(self._held, self.entry, Notes()), most))
        return [found[k] for k in spread(len(found))] if self._fits and self._unseen else found

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

    def unseen_values(self, compared: Sequence[Compared]) -> list[list[Array]]:
        """Return the float model's values of `compared` for each sample held back from calibration."""
        return self._picked(self._unseen_values, compared)

    def held_values(self, compared: Sequence[Compared]) -> list[list[Array]]:
        """Return the float model's values of `compared` for each sample in memory."""
        return self._picked(self._held_values, compared)

    def _picked(self, values: Sequence[Sequence[Array]], compared: Sequence[Compared]) -> list[list[Array]]:
        places = [self._all_outputs.index(one) for one in compared]
        return [[own[place] for place in places] for own in values]

    @cached_property
    def _unseen_values(self) -> list[list[Array]]:
        return self.float_model(self._all_outputs).values(self.unseen_rows)

    @cached_property
    def _held_values(self) -> list[list[Array]]:
        return self.float_model(self._all_outputs).values(self.rows)

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
        return self.outputs_that_count if self.judged_rows else ()

    @cached_property
    def judged_outputs(self) -> JudgedOutputs:
        """What users say about outputs, by the names of these in the file."""
        return self._outputs_as_said.of(self.entry)

    @cached_property
    def outputs_that_count(self) -> tuple[Compared, ...]:
        return tuple(compared_outputs(self.entry.graph, self.ops, self.judged_outputs))

    @property
    def weights(self) -> tuple[float, ...]:
        """How much each compared output counts."""
        return tuple(one.weight for one in self.compared)

    @property
    def where(self) -> str:
        """Where the error of other versions is measured, as text."""
        return where_measured(self.compared, self.entry.graph)

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of samples on which models are compared: a few first, and all if these do not decide."""
        count = len(self.judged_rows)
        return (*(() if self.in_sequence else (few for few in FIRST_LOOKS if few < count)), count)

    def wanted(self, count: int) -> list[list[Array]]:
        """Return the float model's values of `compared`, by sample, for the first `count` samples."""
        known = self._wanted
        if len(known) < count:
            start = 0 if self.in_sequence else len(known)
            found = {k: own for k in range(start, count) if (own := self._recorded(k)) is not None}
            if missing := [k for k in range(start, count) if k not in found]:
                values = self.float_model(self.compared).values([self.rows[k] for k in missing])
                found.update(zip(missing, values, strict=True))
            known[start:] = [found[k] for k in range(start, count)]
        return known[:count]

    def _recorded(self, place: int) -> list[Array] | None:
        """Return the float model's values of `compared` for the sample at `place`, if calibration has recorded them."""
        number = self.numbered_rows[place][0]
        values = None if self._recorder is None else self._recorder.values(number)
        if values is None or number >= self._held_in_order:
            return None
        found = ((one, one.tensor(self.entry.graph), values[self._all_outputs.index(one)]) for one in self.compared)
        return [one.judged(real(value, tensor)) for one, tensor, value in found]  # a file may compute it in integers

    def answers(self, one: Compared) -> list[Array]:
        """Return the float model's values of an output for the samples held back, and those that calibration has
        recorded."""
        return [*self._all_recorded(one), *(values[0] for values in self.unseen_values([one]))]

    def _all_recorded(self, one: Compared) -> list[Array]:
        """Return the float model's values of an output for all samples in memory that calibration has recorded."""
        place, tensor = self._all_outputs.index(one), one.tensor(self.entry.graph)
        runs = (self._recorder.values(number) for number, _ in self.numbered_rows) if self._recorder else ()
        return [one.judged(real(values[place], tensor)) for values in runs if values is not None]

    def references(self, count: int) -> list[list[Reference]]:
        """Return the float model's values of `compared`, prepared for comparison, by sample."""
        known = self._references
        for values in self.wanted(count)[len(known) :]:
            known.append(self.yardsticks.references(values))
        return known[:count]

    @cached_property
    def yardsticks(self) -> Yardsticks:
        """What errors of each compared output are measured by: all samples that calibration has recorded, or the first
        in memory. Of outputs beside scores all positions count, because versions are compared on few samples, and what
        is found in these says little."""
        known = [self._all_recorded(one) for one in self.compared]
        if min(map(len, known), default=0) < min(JUDGED, len(self.rows)):
            known = [[*values] for values in zip(*self.wanted(min(JUDGED, len(self.rows))), strict=True)]
        return Yardsticks.of([replace(one, scored_by=None) for one in self.compared], known)

    def float_model(self, compared: Sequence[Compared]) -> Loaded:
        """Return the float model, loaded to compute `compared`. A small one stays loaded."""
        return self._loaded.asking(compared) if self.is_small else Loaded(self, self.model, compared)

    @cached_property
    def is_small(self) -> bool:
        """Whether the model is small enough for several versions of it to stay loaded. LiteRT keeps as much memory for
        activations as they take at any one time."""
        graphs = self.model.graphs
        weights = sum(t.buffer.raw.nbytes for graph in graphs for t in graph.tensors if t.buffer is not None)
        return weights + live_bytes(self.entry.graph) <= STAYS_LOADED

    @cached_property
    def has_room(self) -> bool:
        """Whether there is memory for several interpreters that run in parallel."""
        return cores() > 1 and side_by_side(live_bytes(self.entry.graph)) > 1

    @cached_property
    def macs(self) -> int:
        """The multiply-accumulates of a run."""
        return total_macs(self.entry.graph.ops, self.ops)

    @cached_property
    def _all_outputs(self) -> tuple[Compared, ...]:
        """The outputs, and the tensors that probabilities among them are computed from."""
        return tuple(dict.fromkeys((*self.outputs_that_count, *self._plain_outputs)))

    @cached_property
    def _loaded(self) -> Loaded:
        return Loaded(self, self.model, self._all_outputs)

    @property
    def float_outputs(self) -> list[list[Array]]:
        return self.held_values(self._plain_outputs)

    def outputs(self, model: Model) -> list[list[Array]]:
        """Return the outputs of another version of the model as real numbers, for each sample in memory."""
        return Loaded(self, model, self._plain_outputs).values(self.rows)

    @property
    def _plain_outputs(self) -> tuple[Compared, ...]:
        return tuple(Compared(place) for place in range(len(self.entry.graph.outputs)))

    def error(self, model: Model, without: frozenset[int] = frozenset()) -> float:
        """Return the error of another version relative to what the outputs vary by, without the samples in `without`;
        see `SampledError.value`."""
        numbers = [number for number, _ in self.numbered_rows[: len(self.judged_rows)]]
        return self.errors(model, [k for k, n in enumerate(numbers) if n not in without]).value

    def errors(self, model: Model, places: Sequence[int]) -> SampledError:
        """Return the error of another version on the samples at these places among those that judge."""
        known = self.known_errors(model)
        if missing := [place for place in places if place not in known]:
            _ = self.references(len(self.judged_rows))  # before the other version is loaded: that needs half the memory
            known.update(zip(missing, measured_errors(lambda: self.loaded(model), missing), strict=True))
        return SampledError(tuple(known[place] for place in places))

    def loaded(self, model: Model) -> Loaded:
        """Return another version, loaded for comparison. The last one of a small model stays loaded until the next."""
        latest = self._latest
        if latest.get(model) is None:
            latest.clear()
            latest[model] = Loaded(self, model)
        found = latest[model]
        if not self.is_small:
            latest.clear()
        return found.on(self)

    def known_errors(self, model: Model) -> KnownErrors:
        """Return the errors of another version that were measured already."""
        return self._known.setdefault(model, {})

    def judged(self, model: Model, at_once: bool = False) -> Judged:
        """Return the error of another version, on as many samples as comparisons need, or on all of them `at_once`."""
        looks = self.looks[-1:] if at_once else self.looks
        _ = self.references(looks[0] if self.is_small else looks[-1])  # before the other version is loaded
        return Judged(self, model, looks)

    @property
    def traced(self) -> TracedSamples:
        """The samples on which intermediate tensors are compared."""
        return TracedSamples(tuple(self.judged_rows[:TRACED]), self.in_sequence, time_limit())


def spread(count: int) -> list[int]:
    """Return the numbers below `count` in an order of which every beginning is spread evenly over all of them: by the
    fractional parts of their multiples of the golden ratio."""
    return sorted(range(count), key=lambda k: k * GOLDEN % 1.0)


def _size(sample: Any) -> int:
    return sum(part.nbytes for part in parts(sample))
