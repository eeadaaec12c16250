"""Finds the boldest configuration on a path that stays within the budget, with few trials.

The loss is expected to grow with a power of the sum of the layers' squared errors. Each trial shows how much of the
budget is used at one error, so the power, and the point where the budget ends, follow from the trials on either side of
it. The next two trials are made there, and the forecast is updated; if it was of no use, the next two leave a third of
the path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from .trial import Configuration, Trial

Found = Generator[Sequence[Configuration], Sequence[Trial], int]
"""Yields candidates to try, in parallel if possible, and is sent their trials; finally returns a number."""

Known = tuple[float, float]
"""A squared error, and the share of the allowed drop that was used at it."""

USUAL_POWER = 0.5
"""The default power with which the drop grows with the squared error: the number of changed decisions is proportional
to the error."""

LEAST_POWER, MOST_POWER = 0.25, 2.0
MOST_SHARE = math.log(32)
"""A trial that uses more than this many times what is allowed, or less than its inverse, has no further information."""

USELESS: Known = (1.0, math.inf)
"""Outputs with as much error as signal exceed every budget."""

MOST_FAILURES = 2
"""Rounds in which the forecast may leave more than half of the path before it is ignored."""


@dataclass(frozen=True)
class Forecast:
    """What is expected along a path: the squared error at each position, and the trials so far."""

    errors: Sequence[float]
    known: tuple[Known, ...] = ()

    def end(self) -> float | None:
        """The error at which the budget is expected to be used up; None if there is no information."""
        points = [(math.log(error), _log_share(share)) for error, share in (*self.known, USELESS) if error > 0]
        below = max((p for p in points if p[1] <= 0), default=None)
        above = min(p for p in points if p[1] > 0)
        if below is None:
            return math.exp(above[0] - above[1] / USUAL_POWER) if len(points) > 1 else None
        if above[0] <= below[0]:  # one of the two is chance
            return math.exp((above[0] + below[0]) / 2)
        power = (above[1] - below[1]) / (above[0] - below[0])
        return math.exp(below[0] - below[1] / min(MOST_POWER, max(LEAST_POWER, power)))

    def last_within(self, places: Sequence[int]) -> int | None:
        """Return how many of `places`, whose errors increase, are expected to stay within the budget."""
        end = self.end()
        return None if end is None else sum(self.errors[place] <= end for place in places)


def _log_share(share: float) -> float:
    return max(-MOST_SHARE, min(MOST_SHARE, math.log(share))) if share > 0 else -MOST_SHARE


def boldest(at: Callable[[int], Configuration], places: Sequence[int], forecast: Forecast | None = None) -> Found:
    """Find the last of `places`, from careful to bold, that stays within the allowed drop, two at a time; return how
    many do."""
    low, high = 0, len(places)  # places below `low` are within the budget, places from `high` on are not
    forecast, failures = forecast or Forecast([0.0] * (max(places, default=0) + 1)), 0
    while low < high:
        expected = forecast.last_within(places) if failures < MOST_FAILURES else None
        tried = _thirds(low, high) if expected is None else _around(expected, low, high)
        found = yield [at(places[k]) for k in tried]
        left = high - low
        for k, trial in zip(tried, found, strict=True):
            forecast = Forecast(forecast.errors, (*forecast.known, (forecast.errors[places[k]], trial.used)))
            if trial.used > 1:  # a bolder place within the budget is there by chance
                high = k
                break
            low = k + 1
        failures = failures + 1 if 2 * (high - low) > left else 0
    return low


def _thirds(low: int, high: int) -> list[int]:
    third = (high - low) // 3
    return sorted({low + third, min(high - 1, low + 2 * third + (high - low) % 3 // 2)})


def _around(expected: int, low: int, high: int) -> list[int]:
    """Return the last place that is expected to be within the budget, and one that is not."""
    step = max(1, (high - low) // 6)
    last = max(low, min(high - 1, expected - 1))
    return [last, min(high - 1, last + step)] if last < high - 1 else sorted({max(low, last - step), last})
