"""What the errors of all outputs of a model are measured by, together: scores say where the outputs beside them count.

A detector computes a box for each of many positions, and a score that says whether there is anything. Boxes where there
is nothing are arbitrary, and most are of that kind; so an output beside scores is compared only where the float model
scores above the threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..dtypes import Array
from .errors import Compared
from .measure import HALF, Reference, Yardstick


@dataclass(frozen=True)
class Yardsticks:
    """The yardstick of each compared output, the number of the one whose scores say where it counts, if any, and
    whether its answers count."""

    each: tuple[Yardstick, ...]
    scores: tuple[int | None, ...]
    decides: tuple[bool, ...]

    @classmethod
    def of(
        cls, compared: Sequence[Compared], values: Sequence[Sequence[Array]], decides: Sequence[bool] = ()
    ) -> Yardsticks:
        """Return the yardsticks that follow from the float model's values of some samples, by output; of those that
        `decides` names, answers count."""
        numbers = {one.place: k for k, one in enumerate(compared)}
        each, scores = list[Yardstick](), list[int | None]()
        for one, own in zip(compared, values, strict=True):
            beside = None if one.scored_by is None else numbers.get(one.scored_by)
            counted = [] if beside is None else [at(*pair) for pair in zip(own, values[beside], strict=True)]
            counted = [rows for rows in counted if len(rows)]
            each.append(Yardstick.of_values(counted or own, one.least))
            scores.append(beside if counted else None)
        return cls(tuple(each), tuple(scores), tuple(decides) or (False,) * len(each))

    def references(self, values: Sequence[Array]) -> list[Reference]:
        """Return what the values of a sample in other versions are compared with, by output."""
        rows = [None if beside is None else counting(values[beside]) for beside in self.scores]
        pairs = zip(self.each, values, rows, self.decides, strict=True)
        return [stick.reference(own, counted, decides=decides) for stick, own, counted, decides in pairs]


def counting(scores: Array) -> Array:
    """Return at which positions something is there."""
    return scores.reshape(-1) > HALF


def at(values: Array, scores: Array) -> Array:
    """Return the values at the positions that count, as [positions, channels]."""
    return values.reshape(-1, values.shape[-1])[counting(scores)]
