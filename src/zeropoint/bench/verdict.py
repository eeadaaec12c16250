"""Judges whether a quantized model can be used: good, worth a look, or broken.

The judgement is based on how far it agrees with the float model on samples held back from calibration, if there were
enough: by the predicted class, if the model is a classifier, and by the signal-to-noise ratio of its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ..display import counted
from ..dtypes import Array
from ..errors import call
from ..graph.model import Model
from ..sources.ports import Row
from .bench import Bench
from .errors import (
    EXACT,
    Compared,
    ErrorSum,
    Reference,
    compared_outputs,
    decibels,
    errors_of,
    from_decibels,
    references,
    snr_text,
    total_powers,
    where_measured,
)
from .judged import JUDGED
from .loaded import Loaded

Level = Literal["good", "doubtful", "broken", "unknown"]

AGREEMENTS = 0.95, 0.8
"""Good and usable shares of equal classes, among samples on which the float model is confident."""

SURE = 0.5
"""Probability from which the float model counts as confident. Close calls may change in any other version."""

SNRS = 15.0, 8.0
"""Good and usable signal-to-noise ratios in dB, for outputs that are not classifications."""

CLEAR, PRECISE = 20.0, 35.0
"""SNRs in dB above which the mode dynamic is not compared: of classifiers, and of others. Coordinates lie far from zero
beside what they vary by: at 20 dB they are wrong by a tenth of their size, at 35 dB by a fiftieth."""

NOISE, FEW = 3.0, 2
"""Below that, it is mentioned if it is better by more than this many dB, or by more than this many samples with the
float model's class."""

ROUNDING = 1e-6
"""How far sums of errors may be off because their terms were added in another order."""

FEWEST = 4
"""Minimum number of samples for a judgement by class."""


@dataclass(frozen=True)
class Verdict:
    """How far a quantized model agrees with the float model. `agreeing` of `sure` samples have the float model's class;
    `sure` is 0 if it is not a classifier. The `snr` is measured at `where`. `dynamic` is what the mode dynamic reaches,
    if that is clearly better. Figures measured on samples that look wrong mean little, so such a model is `doubtful` at
    best."""

    level: Level
    snr: float | None = None
    agreeing: int = 0
    sure: int = 0
    samples: int = 0
    held_back: bool | None = False  # None if unknown
    where: str = ""
    dynamic: Verdict | None = None
    samples_look_wrong: bool = False

    @property
    def summary(self) -> str:
        """The measurement in one sentence."""
        if self.level == "unknown":
            return f"nothing was measured, as {'no output is in float' if self.samples else 'no samples were given'}"
        which = {True: " that calibration did not use", False: " of the calibration", None: ""}[self.held_back]
        snr = f"SNR of the outputs {snr_text(self.snr)}, measured at {self.where}"
        if self.sure:
            classes = f"the float model's class for {self.agreeing} of {counted(self.sure, 'sample')}{which}"
            return f"{classes}; {snr}{self._beside}"
        return f"{snr} on {counted(self.samples, 'sample')}{which}{self._beside}"

    @property
    def _beside(self) -> str:
        if self.dynamic is None:
            return ""
        reached = f"{self.dynamic.agreeing} of {self.sure}" if self.sure else snr_text(self.dynamic.snr)
        return f"; the mode dynamic would reach {reached}"

    def beside(self, dynamic: Verdict) -> Verdict:
        """Return the verdict with what the mode dynamic reaches, if that is better by more than chance."""
        if self.sure:
            is_better = dynamic.agreeing - self.agreeing > FEW
        else:
            is_better = dynamic.snr is not None and dynamic.snr > self.clearly_better
        return replace(self, dynamic=dynamic) if is_better else self

    @property
    def clearly_better(self) -> float:
        """The SNR in dB that is better than this one by more than chance."""
        return (self.snr or 0.0) + NOISE

    @property
    def is_close(self) -> bool:
        """Whether the outputs are so close to the float model's that no other mode has to be looked at: none could have
        its class for clearly more samples, or the SNR is high."""
        if self.sure and self.agreeing + FEW >= self.sure:
            return True
        return self.snr is None or self.snr >= (CLEAR if self.sure else PRECISE)

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
        if self.level == "unknown":
            return f"compare it with the float model: {call('compare', 'FLOAT', 'QUANTIZED', data='DATA')}"
        return f"find out why: {call('doctor', 'FLOAT', data='DATA')}"

    def __str__(self) -> str:
        words = {"good": "good", "doubtful": "look at it", "broken": "BROKEN", "unknown": "unknown"}
        return f"{words[self.level]}: {self.summary}{f'; {self.advice}' if self.advice else ''}"


UNKNOWN = Verdict("unknown")


def verdict_beside(found: Verdict, bench: Bench, dynamic: Model) -> Verdict:
    """Return the verdict with what the mode dynamic reaches on the same samples, if that is clearly better. If the SNR
    decides, it is only run until that is certain not to be the case."""
    return found.beside(verdict(bench, dynamic, least=-EXACT if found.sure else found.clearly_better))


def verdict(bench: Bench, made: Model, *, on_all: bool = False, least: float = -EXACT) -> Verdict:
    """Return how far `made` agrees with the float model of `bench`, on the samples held back, or `on_all` others.

    Runs stop as soon as the SNR is certain to be below `least`, and the verdict is then unknown.
    """
    rows, values_of = _judged_on(bench, on_all)
    compared = tuple(compared_outputs(bench.entry.graph, bench.ops)) if rows else ()
    if not compared:
        return replace(UNKNOWN, samples=len(rows))
    classes = [Compared(one.place) for one in compared if one.probabilities == "row"][:1]
    asked = (*compared, *classes)
    wanted = values_of(asked)
    exact = references([values[: len(compared)] for values in wanted])

    def agreement(place: int, found: list[Array]) -> _Agreement:
        chosen = [(wanted[place][-1], found[-1])] if classes else []
        return _Agreement.of(exact[place], found[: len(compared)], *chosen)

    powers, most = total_powers(exact), (1 + ROUNDING) * from_decibels(least) * len(compared)

    def is_hopeless(runs: Sequence[_Agreement]) -> bool:
        return sum(own.error / power for run in runs for own, power in zip(run.errors, powers, strict=True)) > most

    runs = Loaded(bench, made, asked).each(rows, agreement, is_hopeless if least > -EXACT else None)
    if len(runs) < len(rows):
        return replace(UNKNOWN, samples=len(rows))
    where = where_measured(compared, bench.entry.graph)
    return replace(_summed(runs), samples=len(rows), held_back=bool(bench.unseen_rows), where=where)


def _summed(runs: Sequence[_Agreement]) -> Verdict:
    """Return the verdict on these runs."""
    totals = [sum(sums, ErrorSum()) for sums in zip(*(run.errors for run in runs), strict=True)]
    snr = decibels(float(np.mean([total.relative for total in totals])))
    sure, agreeing = sum(run.sure for run in runs), sum(run.agreeing for run in runs)
    if sure < FEWEST:
        agreeing = sure = 0
    return Verdict(_level(agreeing / sure, AGREEMENTS) if sure else _level(snr, SNRS), snr, agreeing, sure)


def _judged_on(bench: Bench, on_all: bool) -> tuple[Sequence[Row], Callable[[Sequence[Compared]], list[list[Array]]]]:
    """Return the samples to judge by, and what gives the float model's values for them."""
    if on_all:
        return bench.rows, bench.held_values
    if bench.unseen_rows:
        return bench.unseen_rows, bench.unseen_values
    rows = bench.rows[:JUDGED]
    return rows, lambda asked: bench.float_model(asked).values(rows)


def _level(measured: float, limits: tuple[float, float]) -> Level:
    """Return the level of a figure; `limits` are the least that is good and the least that is usable."""
    good, usable = limits
    if measured >= good:
        return "good"
    return "doubtful" if measured >= usable else "broken"


@dataclass(frozen=True)
class _Agreement:
    """The result of one sample: the error of each output, how many classifications agree, and on how many the float
    model is confident."""

    errors: tuple[ErrorSum, ...]
    agreeing: int = 0
    sure: int = 0

    @classmethod
    def of(cls, exact: Sequence[Reference], found: Sequence[Array], *classes: tuple[Array, Array]) -> _Agreement:
        agreeing = sure = 0
        for wanted_classes, own in classes:
            is_sure = _probabilities(wanted_classes).max(axis=-1) >= SURE
            same = wanted_classes.argmax(axis=-1) == own.argmax(axis=-1)
            agreeing, sure = agreeing + int((same & is_sure).sum()), sure + int(is_sure.sum())
        return cls(tuple(errors_of(exact, found)), agreeing, sure)


def _probabilities(values: Array) -> Array:
    """Return probabilities, also from log-probabilities."""
    return np.exp(values) if values.max() <= 0 else values
