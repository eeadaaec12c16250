"""Ops that call other graphs: which, and what they pass to them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from ..graph.model import Op


class Passed(Enum):
    """What is passed to a graph that an op calls, or returned from it."""

    NOTHING = auto()
    ALL = auto()  # all inputs or outputs of the op
    ALL_BUT_FIRST = auto()
    CONDITION = auto()  # a boolean


@dataclass(frozen=True)
class CalledGraph:
    """The graph in an option of an op: what is passed to it and returned."""

    option: str
    takes: Passed = Passed.ALL
    gives: Passed = Passed.ALL


COMPOSITE = "STABLEHLO_COMPOSITE"
LOOP = (CalledGraph("condSubgraphIndex", gives=Passed.CONDITION), CalledGraph("bodySubgraphIndex"))
CALLS: dict[str, tuple[CalledGraph, ...]] = {
    "IF": tuple(CalledGraph(f"{branch}SubgraphIndex", takes=Passed.ALL_BUT_FIRST) for branch in ("then", "else")),
    "WHILE": LOOP,
    "STABLEHLO_WHILE": LOOP,
    COMPOSITE: (CalledGraph("decompositionSubgraphIndex"),),
    "CALL_ONCE": (CalledGraph("initSubgraphIndex", Passed.NOTHING, Passed.NOTHING),),
}

LOOPS = frozenset(kind for kind, called in CALLS.items() if called is LOOP)


def first_passed(op: Op) -> int:
    """Return the first input that an op passes to the graphs it calls; any input before it is the condition."""
    return int(CALLS[op.kind][0].takes is Passed.ALL_BUT_FIRST)
