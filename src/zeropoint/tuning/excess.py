"""Which limits of the budget a trial exceeds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from .budget import Budget
from .trial import Trial

Limit = Literal["drop", "size", "latency", "ram", "cycles", "refusal"]

MARGIN, PATH_MARGIN = 0.5, 1.0
"""Standard errors by which the drop on the samples that guide the search must stay below what is allowed: the best of
many trials is partly lucky, and would otherwise often miss the budget on other samples. More on a path, where the
boldest of many is selected."""


@dataclass(frozen=True)
class Excess:
    """A limit that is exceeded, its description, and by which factor."""

    limit: Limit
    text: str
    ratio: float = math.inf


def used_drop(trial: Trial, allowed: float) -> float:
    """Return the share of the allowed drop that a trial uses, including its margin: at most 1 if it is within the
    limit.

    On a path, a gain counts as no change: fewer bits do not make models better, so it is chance.
    """
    drop = trial.drop
    if drop is None:
        return math.inf
    margin = PATH_MARGIN if trial.candidate.path else MARGIN
    known = replace(drop, value=max(0.0, drop.value)) if trial.candidate.path else drop
    worst = known.worst(margin)
    if known.within(allowed, margin):
        return 0.0 if math.isinf(allowed) or not allowed else min(1.0, worst / allowed)
    return worst / allowed if allowed else math.inf


def excesses(trial: Trial, budget: Budget, allowed: float, point: float) -> Iterator[Excess]:
    """Yield the limits that a trial exceeds; `allowed` is how much worse the score may be, `point` the size of a
    point."""
    drop, tool = trial.drop, trial.tool
    if drop is None:
        yield Excess("refusal", trial.refusal)
        return
    if used_drop(trial, allowed) > 1:
        text = f"the drop{' or its standard error' if drop.within(allowed) else ''}"
        yield Excess("drop", text, 1 + max(0.0, drop.value - allowed) / (allowed or point))
    ram, cycles = (None, None) if tool is None else (tool.ram, tool.cycles)
    milliseconds = None if trial.latency is None else 1e3 * trial.latency
    longest = None if budget.seconds is None else 1e3 * budget.seconds
    limits: tuple[tuple[Limit, float | None, float | None, str, str], ...] = (
        ("size", trial.size, budget.size, ",", "bytes"),
        ("latency", milliseconds, longest, ".3g", "ms"),
        ("ram", ram, budget.ram, ",", "bytes of RAM"),
        ("cycles", cycles, budget.max_cycles, ",", "cycles"),
    )
    for name, value, limit, form, unit in limits:
        if limit is not None and (value is None or value > limit):
            known = value is not None
            yield Excess(name, f"{value:{form}} {unit}" if known else f"{unit} not known", (value or math.inf) / limit)
