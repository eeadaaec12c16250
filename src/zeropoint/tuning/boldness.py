"""Along a path from careful to bold: the last place that keeps the budget, found with few trials.

What a place loses is expected to grow with a power of the squared error that the layers add up to there. Each trial
says how much of the budget is used at one error, so the power, and the place where the budget ends, follow from those
on either side of it. The next two trials are made there, and the forecast is made again; where it was of no use, the
next two leave a third of the path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from .trial import Configuration, Trial

Found = Generator[Sequence[Configuration], Sequence[Trial], int]
"""Candidates to be tried, side by side if there is room, whose trials are sent back; in the end a number."""

Known = tuple[float, float]
"""A squared error, and the share of the allowed drop that was used there."""

USUAL_POWER = 0.5
"""With which the drop grows with the squared error if nothing says otherwise: decisions that change are as many as the
error is large."""

LEAST_POWER, MOST_POWER = 0.25, 2.0
MOST_SHARE = math.log(32)
"""A trial that uses so many times as much as is allowed, or as little, only says so."""

USELESS: Known = (1.0, math.inf)
"""Outputs with as much error as signal are beyond every budget."""

MOST_FAILURES = 2
"""Rounds in which the forecast may leave more than half of the path before it is not asked."""


@dataclass(frozen=True)
class Forecast:
    """What is expected along a path: the squared error at each of its places, and what trials found so far."""

    errors: Sequence[float]
    known: tuple[Known, ...] = ()

    def end(self) -> float | None:
        """The error at which the budget is expected to be used up; None if there is nothing to tell it from."""
        points = [(math.log(error), _log_share(share)) for error, share in (*self.known, USELESS) if error > 0]
        below = max((p for p in points if p[1] <= 0), default=None)
        above = min(p for p in points if p[1] > 0)
        if below is None:
            return math.exp(above[0] - above[1] / USUAL_POWER) if len(points) > 1 else None
        if above[0] <= below[0]:  # one of the two is luck
            return math.exp((above[0] + below[0]) / 2)
        power = (above[1] - below[1]) / (above[0] - below[0])
        return math.exp(below[0] - below[1] / min(MOST_POWER, max(LEAST_POWER, power)))

    def last_within(self, places: Sequence[int]) -> int | None:
        """How many of `places`, whose errors rise, are expected to keep the budget."""
        end = self.end()
        return None if end is None else sum(self.errors[place] <= end for place in places)


def _log_share(share: float) -> float:
    return max(-MOST_SHARE, min(MOST_SHARE, math.log(share))) if share > 0 else -MOST_SHARE


def boldest(at: Callable[[int], Configuration], places: Sequence[int], forecast: Forecast | None = None) -> Found:
    """Find the last of `places`, from careful to bold, that keeps the drop, two at a time; give how many keep it."""
    low, high = 0, len(places)  # what is below `low` keeps the budget, what is from `high` on does not
    forecast, failures = forecast or Forecast([0.0] * (max(places, default=0) + 1)), 0
    while low < high:
        expected = forecast.last_within(places) if failures < MOST_FAILURES else None
        tried = _thirds(low, high) if expected is None else _around(expected, low, high)
        found = yield [at(places[k]) for k in tried]
        left = high - low
        for k, trial in zip(tried, found, strict=True):
            forecast = Forecast(forecast.errors, (*forecast.known, (forecast.errors[places[k]], trial.used)))
            if trial.used > 1:  # what is bolder and keeps the budget does so by luck
                high = k
                break
            low = k + 1
        failures = failures + 1 if 2 * (high - low) > left else 0
    return low


def _thirds(low: int, high: int) -> list[int]:
    third = (high - low) // 3
    return sorted({low + third, min(high - 1, low + 2 * third + (high - low) % 3 // 2)})


def _around(expected: int, low: int, high: int) -> list[int]:
    """The last place that is expected to keep the budget, and one that is not."""
    step = max(1, (high - low) // 6)
    last = max(low, min(high - 1, expected - 1))
    return [last, min(high - 1, last + step)] if last < high - 1 else sorted({max(low, last - step), last})
