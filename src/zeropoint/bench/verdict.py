"""Judges whether a quantized model can be used: good, worth a look, or broken; or that this cannot be known.

The judgement is about each output in its own words (`output_kinds`), on samples held back from calibration if there
were enough. Copies of samples count once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ..display import counted
from ..dtypes import Array
from ..errors import call
from ..graph.model import Model
from ..parallel import cached_property
from ..sources.ports import Row
from .bench import Bench
from .copies import KnownSamples
from .errors import Compared, decibels, snr_text, where_measured
from .judged import JUDGED
from .judged_outputs import OutputKind
from .kind_recognition import OutputSeen, kind_of
from .loaded import Loaded
from .measure import Reference, SampledError, error_of_sample, ratio_of
from .output_kinds import ROWS, Figures, KindRow, least_text
from .yardsticks import Yardsticks

Level = Literal["good", "doubtful", "broken", "unknown"]

LEAST_LIKELY = 0.75
"""The share of equal answers that must be likely for other samples: 12 equal answers of 12 show that much."""

FEWEST = 8
"""Minimum number of samples for anything good to be said of an output with one answer for each sample."""

FEW_CLASSES, SHOWN = 8, 3
"""A class that occurs in no sample is mentioned if there are this many samples for each class; and how many are."""

BETTER, NOISE = 2.0, 3.0
"""The mode dynamic is mentioned if its error is smaller by this many standard errors of the difference, and its SNR
higher by this many dB."""

FIRST_LOOK = 8
"""The number of samples on which another version has to be better to be run on all."""

MENTIONED = 2
"""How many outputs the summary describes, the worst first."""


@dataclass(frozen=True)
class OutputVerdict:
    """What is said of one output: its kind, how good it is, its error by `measure`, and that in its own words. `share`
    is that of equal answers, `least` what is likely for other samples, if it gives answers."""

    name: str
    kind: OutputKind
    level: Level
    error: float
    text: str
    share: float | None = None
    least: float | None = None
    weight: float = 1.0

    def __str__(self) -> str:
        likely = (
            "" if self.least is None or self.least >= 1 else f" (likely at least {least_text(self.least)} of others)"
        )
        return f"{self.text}{likely}"

    @property
    def severity(self) -> float:
        """Its error relative to what is usable for its kind."""
        return self.error / ROWS[self.kind].limits[1]


@dataclass(frozen=True)
class Verdict:
    """How far a quantized model agrees with the float model: the level of all outputs together, and each of them.

    `error` is by `measure`, `noise` its standard error over samples, `snr` the same in dB. The samples are `held_back`
    from calibration or not; `copies` were left out. `dynamic` is what the mode dynamic reaches, if that is clearly
    better; `unseen` are classes that the float model found in no sample. Figures measured on samples that look wrong
    mean little, so such a model is `doubtful` at best.
    """

    level: Level
    error: float | None = None
    noise: float = 0.0
    snr: float | None = None
    outputs: tuple[OutputVerdict, ...] = ()
    samples: int = 0
    copies: int = 0
    held_back: bool | None = False  # None if unknown
    where: str = ""
    dynamic: Verdict | None = None
    unseen: tuple[int, ...] = ()
    samples_look_wrong: bool = False

    @property
    def worst_first(self) -> tuple[OutputVerdict, ...]:
        return tuple(sorted(self.outputs, key=lambda one: (one.level == "good", -one.severity)))

    @property
    def words(self) -> str:
        """What is said of the outputs."""
        if len(self.outputs) == 1:
            return f"{self.outputs[0].kind}: {self.outputs[0]}"
        first = self.worst_first
        text = "; ".join(f"{one.kind} '{one.name}': {one}" for one in first[:MENTIONED])
        rest = len(first) - MENTIONED
        return f"{text}; and {counted(rest, 'other output')}" if rest > 0 else text

    @property
    def summary(self) -> str:
        """The measurement in one sentence."""
        if self.error is None:
            return f"nothing was measured, as {'no output is in float' if self.samples else 'no samples were given'}"
        which = {True: " that calibration did not use", False: " of the calibration", None: ""}[self.held_back]
        copies = f" ({self.copies} that are copies left out)" if self.copies else ""
        error = f"error {share_of(self.error, self.noise)} of what it varies by (SNR {snr_text(self.snr)})"
        sampled = f"{error} on {counted(self.samples, 'sample')}{which}{copies}"
        return f"{self.words}; {sampled}{self._unseen}{self._beside}"

    @property
    def _unseen(self) -> str:
        if not self.unseen:
            return ""
        listed = ", ".join(map(str, self.unseen[:SHOWN])) + (" ..." if len(self.unseen) > SHOWN else "")
        return f"; class {listed} occurs in no sample"

    @property
    def _beside(self) -> str:
        return "" if self.dynamic is None else f"; the mode dynamic would reach {self.dynamic.reached}"

    @property
    def reached(self) -> str:
        """What is said of the outputs, as far as it fits beside another verdict."""
        return f"{self.words if len(self.outputs) == 1 else self.worst_first[0]} (SNR {snr_text(self.snr)})"

    def beside(self, dynamic: Verdict, is_better: bool) -> Verdict:
        """Return the verdict with what the mode dynamic reaches, if that is better by more than chance, unless both
        give the same good answers."""
        pairs = zip(self.outputs, dynamic.outputs, strict=True)
        same = self.level == "good" and all(one.share is not None and one.share == other.share for one, other in pairs)
        is_clear = is_better and (dynamic.snr or 0.0) - (self.snr or 0.0) > NOISE
        return replace(self, dynamic=dynamic) if is_clear and not same else self

    def on_wrong_samples(self) -> Verdict:
        """Return the verdict marked as measured on samples that look wrong."""
        return replace(self, level="doubtful" if self.level == "good" else self.level, samples_look_wrong=True)

    @property
    def advice(self) -> str:
        """What to do next."""
        if self.level == "good":
            return ""
        if self.samples_look_wrong:
            return "the samples look wrong, and so may the model be: do first what the warning about them says"
        if self.error is None:
            return f"compare it with the float model: {call('compare', 'FLOAT', 'QUANTIZED', data='DATA')}"
        if self.level == "unknown":
            return f"too few different samples to say more: give at least {2 * FEWEST} (64 if some are to be held back)"
        if self.unseen and all(one.level == "good" for one in self.outputs):
            return "what it answers where that class is right is not known: give samples of it"
        return f"find out why: {call('doctor', 'FLOAT', data='DATA')}"

    def __str__(self) -> str:
        words = {"good": "good", "doubtful": "look at it", "broken": "BROKEN", "unknown": "unknown"}
        return f"{words[self.level]}: {self.summary}{f'; {self.advice}' if self.advice else ''}"


UNKNOWN = Verdict("unknown")


def share_of(error: float, noise: float = 0.0) -> str:
    """Format an error of `measure`, with its standard error."""
    return f"{error:.2g}" + (f" ± {noise:.1g}" if noise >= 1e-5 else "")


Look = tuple[float, Array | None]
"""The error of an output for a sample, and what was looked at in it; None where it says nothing."""


def _look(reference: Reference, row: KindRow, judged: Array, wanted: Array, found: Array) -> Look:
    seen = row.look(reference.counted(wanted), reference.counted(found)) if reference.says_something else None
    return reference.part(judged), seen


@dataclass(frozen=True)
class Judgement:
    """The samples to judge by, and what the float model makes of them, for verdicts on several versions."""

    bench: Bench
    rows: Sequence[Row]
    values_of: Callable[[Sequence[Compared]], list[list[Array]]]
    copies: int = 0
    held_back: bool = False

    @classmethod
    def of(cls, bench: Bench, on_all: bool = False) -> Judgement:
        """Return the samples held back, or else of the calibration, without copies; or `on_all` of these."""
        places = [] if on_all else _places(bench.unseen_rows, KnownSamples(bench.rows))
        if held_back := bool(places):
            given, values = bench.unseen_rows, bench.unseen_values
        else:
            given, values = bench.rows, bench.held_values
            places = [*range(len(given))] if given and bench.in_sequence else _places(given, KnownSamples())
        copies = len(given) - len(places) + (bench.copies_apart if held_back else 0)
        places = places if on_all or held_back else places[:JUDGED]
        rows = [given[k] for k in places]
        if on_all or held_back:
            return cls(bench, rows, lambda asked: _picked(values(asked), places), copies, held_back)
        return cls(bench, rows, lambda asked: bench.float_model(asked).values(rows), copies)

    @cached_property
    def compared(self) -> tuple[Compared, ...]:
        return self.bench.outputs_that_count if self.rows else ()

    @cached_property
    def _asked(self) -> tuple[Compared, ...]:
        """What is compared, followed by the outputs as they are."""
        return (*self.compared, *(Compared(one.place) for one in self.compared))

    @cached_property
    def _wanted(self) -> list[list[Array]]:
        return self.values_of(self._asked)

    @cached_property
    def _references(self) -> list[list[Reference]]:
        """What the compared values of each sample are measured by: by how much they vary over all samples known."""
        exact = [values[: len(self.compared)] for values in self._wanted]
        known = [self.bench.answers(one) if self.held_back else [] for one in self.compared]
        if min(map(len, known)) <= len(exact):
            known = [[*values] for values in zip(*exact, strict=True)]
        sticks = Yardsticks.of(
            self.compared,
            known,
            [row.alone is not None and seen.size > 1 for row, seen in zip(self._rows, self._seen, strict=True)],
        )
        return [sticks.references(values) for values in exact]

    @cached_property
    def _seen(self) -> list[OutputSeen]:
        graph, ops = self.bench.entry.graph, self.bench.ops
        plain = zip(*(values[len(self.compared) :] for values in self._wanted), strict=True)
        return [OutputSeen(one, graph, ops, values) for one, values in zip(self.compared, plain, strict=True)]

    @cached_property
    def _rows(self) -> list[KindRow]:
        """What each output is."""
        names = [self.bench.entry.graph.outputs[one.place].name for one in self.compared]
        given = map(self.bench.judged_outputs.kind, names)
        return [ROWS[kind or kind_of(seen)] for kind, seen in zip(given, self._seen, strict=True)]

    def verdict(self, made: Model) -> tuple[Verdict, SampledError]:
        """Return how far `made` agrees with the float model, with the error of each sample."""
        bench, compared, count = self.bench, self.compared, len(self.compared)
        if not compared:
            return replace(UNKNOWN, samples=len(self.rows)), SampledError()
        _ = self._references, self._rows  # before the other version is loaded

        def look(place: int, found: list[Array]) -> list[Look]:
            references, plain = self._references[place], self._wanted[place][count:]
            each = zip(references, self._rows, found[:count], plain, found[count:], strict=True)
            return [_look(reference, row, own, *both) for reference, row, own, *both in each]

        runs = Loaded(bench, made, self._asked).each(self.rows, look)
        outputs = tuple(self._output(k, looks) for k, looks in enumerate(zip(*runs, strict=True)))
        weights = np.array([one.weight for one in compared])
        parts = np.array([[part for part, _ in run] for run in runs]) @ weights / weights.sum()
        error = float(np.average([one.error for one in outputs], weights=weights))
        total, unseen, level = SampledError(tuple(map(float, parts))), self._unseen_classes(), _together(outputs)
        found = Verdict(
            "doubtful" if unseen and level == "good" else level,
            error,
            float(np.std(parts, ddof=1)) / math.sqrt(len(parts)) if len(parts) > 1 else 0.0,
            decibels(ratio_of(error)),
            outputs,
            len(self.rows),
            self.copies,
            self.held_back,
            where_measured(compared, bench.entry.graph),
            unseen=unseen,
        )
        return found, total

    def may_be_better(self, made: Model, error: SampledError) -> bool:
        """Whether the first samples leave open that `made` is better than a version with this `error`."""
        if len(self.rows) <= FIRST_LOOK or self.bench.in_sequence:
            return True
        references, weights = self._references, [one.weight for one in self.compared]

        def part(place: int, found: list[Array]) -> float:
            return error_of_sample(references[place], found, weights)

        parts = Loaded(self.bench, made, self.compared).each(self.rows[:FIRST_LOOK], part)
        return SampledError(tuple(parts)).share < SampledError(error.parts[:FIRST_LOOK]).share

    def _output(self, k: int, looks: Sequence[Look]) -> OutputVerdict:
        """Return what is said of the output that is compared as number `k`."""
        one, row, name = self.compared[k], self._rows[k], self.bench.entry.output_names[self.compared[k].place]
        said = [(part, seen) for part, seen in looks if seen is not None]
        if not said:
            return OutputVerdict(name, row.kind, "unknown", 0.0, "nothing is above the threshold", weight=one.weight)
        error, figures = SampledError(tuple(part for part, _ in said)).share, row.say([seen for _, seen in said])
        level = self._level(row, error, figures, self._seen[k])
        where = ", where something is above the threshold" if self._references[0][k].rows is not None else ""
        return OutputVerdict(
            name, row.kind, level, error, figures.text + where, figures.share, figures.least, one.weight
        )

    def _level(self, row: KindRow, error: float, figures: Figures, seen: OutputSeen) -> Level:
        """Return the level of one output."""
        good, usable = row.limits_of(seen.size)
        level: Level = "good" if error <= good else "doubtful" if error <= usable else "broken"
        enough, few = row.shares
        if figures.share is not None and figures.share < few:
            level = "broken"
        elif figures.share is not None and figures.share < enough and level == "good":
            level = "doubtful"
        is_known = len(self.rows) >= FEWEST or seen.positions > 1
        if figures.least is not None and figures.share is not None and figures.share >= enough:
            is_known = figures.least >= LEAST_LIKELY
        return "unknown" if level == "good" and not is_known else level

    def _unseen_classes(self) -> tuple[int, ...]:
        """Return the classes that the float model finds in none of the samples, if these are many for each class."""
        pairs = zip(self.compared, self._rows, strict=True)
        place = next((one.place for one, row in pairs if row.kind == "classes"), None)
        if place is None:
            return ()
        answers = self.bench.answers(Compared(place))
        size = answers[0].shape[-1] if answers else 0  # the graph may not say
        if len(answers) < max(1, FEW_CLASSES * size):
            return ()
        found = {int(values.argmax()) % size for values in answers}
        return tuple(k for k in range(size) if k not in found)


def verdict(bench: Bench, made: Model, *, on_all: bool = False) -> Verdict:
    """Return how far `made` agrees with the float model of `bench`, on the samples held back, or `on_all` others."""
    return Judgement.of(bench, on_all).verdict(made)[0]


def _together(outputs: Sequence[OutputVerdict]) -> Level:
    """Return the level of all outputs: that of the worst, but broken only if half of them are."""
    weights = {level: sum(one.weight for one in outputs if one.level == level) for level in ("broken", "doubtful")}
    if 2 * weights["broken"] >= sum(one.weight for one in outputs):
        return "broken"
    if any(weights.values()):
        return "doubtful"
    return "unknown" if any(one.level == "unknown" for one in outputs) else "good"


def _picked(values: Sequence[list[Array]], places: Sequence[int]) -> list[list[Array]]:
    return [values[k] for k in places]


def _places(rows: Sequence[Row], known: KnownSamples) -> list[int]:
    """Return the places of rows that are neither `known` already nor copies of earlier ones."""
    places = []
    for place, row in enumerate(rows):
        if row not in known:
            known.add(row)
            places.append(place)
    return places
