"""The result of a search: the best model, the Pareto front, all trials, and a description in sentences."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidRecipe
from ..files import PathLike, write_whole
from ..graph.model import Model
from ..json_values import json_values
from ..recipe_files import toml_text
from .budget import Budget, Objective
from .evaluation import Drop
from .trial import Trial

TRUE_MINUS = str.maketrans("-", "−")


@dataclass(frozen=True)
class Scale:
    """How differences of a metric are written: `point` is the size of one point in its own unit."""

    metric: str
    point: float
    higher_is_better: bool

    def change(self, drop: Drop) -> str:
        """Return the change of the score in points, with its standard error: −0.1 ± 0.2."""
        spread = "" if math.isnan(drop.error) else f" ± {self.number(drop.error)}"
        return f"{self.number(-drop.value, sign=True)}{spread}"

    def points(self, drop: Drop) -> str:
        """Return the change of the score with the metric's name: top-1 −0.1 ± 0.2 points."""
        return f"{self.metric} {self.change(drop)}{'' if self.point == 1 else ' points'}"

    def amount(self, value: float) -> str:
        return f"{self.number(value)}{'' if self.point == 1 else ' points'}"

    def number(self, value: float, sign: bool = False) -> str:
        text = format(value / self.point, ".2f" if self.point != 1 else ".4g")
        text = text.removeprefix("-") if not float(text) else text
        return f"{'+' if sign and float(text) > 0 else ''}{text}".translate(TRUE_MINUS)


@dataclass(frozen=True)
class Baseline:
    """The float model: its size, its score on the samples that guide the search and, if measured, its latency."""

    size: int
    score: float
    latency: float | None = None


@dataclass(frozen=True)
class Final:
    """The best model on the samples that did not guide the search, evaluated once."""

    drop: Drop
    allowed: float

    @property
    def holds(self) -> bool:
        return self.drop.within(self.allowed)

    @property
    def holds_within_error(self) -> bool:
        return self.drop.within(self.allowed, margin=-1.0)


@dataclass(frozen=True)
class Tuned:
    """The result of `zeropoint.tune`.

    `best` is the chosen trial, None if none meets the budget; `closest` is then the one nearest to it. `final` is its
    score on the samples that did not guide the search; `lines` are all decisions, as sentences. `limit` is the number
    of calibration samples, if not all were used.
    """

    budget: Budget
    objective: Objective
    scale: Scale
    allowed: float
    baseline: Baseline
    trials: tuple[Trial, ...]
    chosen: Trial | None
    final: Final | None
    lines: tuple[str, ...]
    limit: int | None = None
    interrupted: bool = False

    @property
    def met(self) -> bool:
        """Whether the budget is met on the samples that did not guide the search, within their standard error."""
        return self.chosen is not None and self.chosen.within and (self.final is None or self.final.holds_within_error)

    @property
    def best(self) -> Trial | None:
        return self.chosen if self.met else None

    @property
    def closest(self) -> Trial | None:
        """The chosen trial, or else the one nearest to the budget."""
        return self.chosen

    @property
    def model(self) -> Model:
        """The best model."""
        return self._required().model

    def _required(self) -> Trial:
        if self.best is None:
            raise InvalidRecipe(f"no model keeps the budget: {self.lines[-1]}; `closest` is the nearest to it")
        return self.best

    @property
    def front(self) -> tuple[Trial, ...]:
        """The Pareto front: trials of which no other is both smaller (and, if measured, faster) and better; smallest
        first."""
        made = [t for t in self.trials if t.drop is not None]
        kept = [t for t in made if not any(_beats(other, t) for other in made)]
        return tuple(sorted(kept, key=lambda t: t.size))

    @property
    def recipe_text(self) -> str:
        """The recipe of the chosen model, as TOML."""
        return "" if self.chosen is None else toml_text(self.chosen.candidate.rules)

    def save(self, path: PathLike, *, overwrite: bool = False) -> int:
        """Write the best model, completely or not at all; return the file's size."""
        return write_whole(path, [self._required().content], overwrite=overwrite)

    def to_json(self) -> dict[str, Any]:
        """Return the log of all trials as JSON values."""
        return {
            "schema": 1,
            "objective": self.objective,
            "budget": json_values(self.budget),
            "metric": json_values(self.scale),
            "allowed_drop": json_values(self.allowed),
            "float": json_values(self.baseline),
            "met": self.met,
            "interrupted": self.interrupted,
            "chosen": None if self.chosen is None else self.chosen.label,
            "final": json_values(None if self.final is None else self.final.drop),
            "front": [t.label for t in self.front],
            "trials": [_trial_json(t) for t in self.trials],
            "lines": list(self.lines),
        }

    def _repr_html_(self) -> str:
        """Return a table, for notebooks."""
        cells = "".join(
            f"<tr><td>{'<b>' if t is self.chosen else ''}{html.escape(t.label)}</td><td>{t.size:,}</td>"
            f"<td>{html.escape(self.outcome(t))}</td></tr>"
            for t in self.trials
        )
        head = f"<tr><th>recipe</th><th>bytes</th><th>{html.escape(self.scale.metric)}</th></tr>"
        return f"<table>{head}{cells}</table><p>{html.escape(self.lines[-1])}</p>"

    def outcome(self, trial: Trial) -> str:
        """Return the outcome of a trial as text: the change of its score, or why there is none."""
        if trial.drop is None:
            return f"refused: {trial.refusal}".partition("\n")[0]
        return f"{self.scale.change(trial.drop)}: {'within budget' if trial.within else 'over budget'}"


def _beats(one: Trial, other: Trial) -> bool:
    assert one.drop is not None
    assert other.drop is not None
    mine, its = [one.size, one.drop.value], [other.size, other.drop.value]
    if one.latency is not None and other.latency is not None:
        mine, its = [*mine, one.latency], [*its, other.latency]
    return mine != its and all(a <= b for a, b in zip(mine, its, strict=True))


def _trial_json(trial: Trial) -> dict[str, Any]:
    return {
        "label": trial.label,
        "note": trial.candidate.note,
        "effort": trial.candidate.effort,
        "training_steps": trial.candidate.steps,
        "recipe": trial.candidate.rules,
        "size": trial.size,
        "drop": json_values(trial.drop),
        "latency": trial.latency,
        "tool": json_values(trial.tool),
        "within": trial.within,
        "refusal": trial.refusal,
        "seconds": trial.seconds,
    }


def trial_line(trial: Trial, baseline: Baseline, scale: Scale, excess: Sequence[str]) -> str:
    """Return a line about a trial: dynamic: 4.0 × smaller, −0.1 ± 0.2: within budget."""
    if trial.drop is None:
        return f"{trial.label}: refused: {trial.refusal}".partition("\n")[0]
    note = f" ({trial.candidate.note})" if trial.candidate.note else ""
    text = f"{trial.label}{note}: {baseline.size / trial.size:.1f} × smaller"
    if trial.latency is not None and baseline.latency is not None:
        text += f", {baseline.latency / trial.latency:.2f} × as fast"
    verdict = "within budget" if trial.within else f"over budget: {', '.join(excess)}"
    return f"{text}, {scale.metric} {scale.change(trial.drop)}: {verdict}"
