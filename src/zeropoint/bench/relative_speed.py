"""How fast models are compared with another one: roughly, in as few runs as tell."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial

from ..errors import ZeropointError
from ..graph.model import Model
from ..runtime import Runner
from .latency import sample_for

FEWEST_TURNS, MOST_TURNS = 3, 15

BUDGET = 0.15
"""Seconds of processor time after which no further turn begins, once there are FEWEST_TURNS."""

AS_FAST, MUCH_SLOWER = 0.97, 0.67
"""Relative speeds at which FEWEST_TURNS are enough, if all turns agree. Only what lies between needs more of them."""

FAR_SLOWER = 0.4
"""Relative speed at which one turn is enough if the budget is spent: noise does not explain it."""

SHORTEST = 5e-5
"""Seconds below which a run of the first model is mostly the call itself, in which models do not differ."""


def relative_speeds(models: Sequence[Model]) -> tuple[float, ...] | None:
    """Return the speed of each model but the first, relative to that one, on one thread of this machine.

    Models run in turns, in processor time, so that other load on the machine affects none of them. The inputs are those
    of `sample_for`. None if a model does not run on them, or if the first one takes less than SHORTEST.
    """
    try:
        runners = [Runner(model, checked=True) for model in models]
        for runner in runners:
            runner.invoke(sample_for(runner.model))
    except ZeropointError:
        return None
    return compared([partial(runner.session.seconds, 1, "cpu") for runner in runners])


def compared(timers: Sequence[Callable[[], float]]) -> tuple[float, ...] | None:
    """Return the median over the turns of how much faster each timer but the first is than that one; None if the first
    takes less than SHORTEST."""
    turns = list[tuple[float, ...]]()
    spent = 0.0
    while len(turns) < MOST_TURNS:
        first, *others = (timer() for timer in timers)
        if first < SHORTEST:
            return None
        spent += first + sum(others)
        turns.append(tuple(first / max(other, 1e-9) for other in others))
        is_clear = len(turns) >= FEWEST_TURNS and _agree(turns, MUCH_SLOWER)
        is_spent = spent > BUDGET and (len(turns) >= FEWEST_TURNS or _agree(turns, FAR_SLOWER))
        if is_clear or is_spent:
            break
    return tuple(statistics.median(column) for column in zip(*turns, strict=True))


def _agree(turns: Sequence[Sequence[float]], slower: float) -> bool:
    """Whether each model was AS_FAST as the first in every turn, or below `slower` in every turn."""
    return all(min(column) >= AS_FAST or max(column) < slower for column in zip(*turns, strict=True))
