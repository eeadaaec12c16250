"""Ops that call graphs, and variables that outlive a call: what is computed inside is simulated too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ..dtypes import Array
from ..errors import InvalidModel
from ..graph.model import Graph, Op
from ..graph.query import reachable_graphs
from ..ops.execution import execution_of


class GraphCalls(Protocol):
    """One sample on its way: calls a graph, and holds the variables and which graphs ran once already."""

    variables: dict[str, Array]
    done: set[Graph]

    def call(self, graph: Graph, values: Sequence[Array]) -> list[Array]:
        """What the graph makes of its inputs."""


Control = Callable[[GraphCalls, Op, Sequence[Array]], list[Array]]


def branch(calls: GraphCalls, op: Op, values: Sequence[Array]) -> list[Array]:
    return calls.call(_graph(op, "thenSubgraphIndex" if values[0].item() else "elseSubgraphIndex"), values[1:])


def loop(calls: GraphCalls, op: Op, values: Sequence[Array]) -> list[Array]:
    condition, body, state = _graph(op, "condSubgraphIndex"), _graph(op, "bodySubgraphIndex"), list(values)
    while calls.call(condition, state)[0].item():
        state = calls.call(body, state)
    return state


def once(calls: GraphCalls, op: Op, _: Sequence[Array]) -> list[Array]:
    graph = _graph(op, "initSubgraphIndex")
    if graph not in calls.done:
        calls.done.add(graph)
        calls.call(graph, [])
    return []


def variable(_: GraphCalls, op: Op, __: Sequence[Array]) -> list[Array]:
    """Its name stands for it."""
    return [np.asarray(f"{op.option('container', '')}/{op.option('sharedName', '')}")]


def assign(calls: GraphCalls, _: Op, values: Sequence[Array]) -> list[Array]:
    calls.variables[str(values[0])] = values[1]
    return []


def read(calls: GraphCalls, op: Op, values: Sequence[Array]) -> list[Array]:
    found = calls.variables.get(str(values[0]))
    if found is None:
        raise InvalidModel(f"{op.label} '{op.name}' reads a variable before anything has assigned it")
    return [found]


def _graph(op: Op, option: str) -> Graph:
    found: Any = op.option(option)
    if not isinstance(found, Graph):
        raise InvalidModel(f"{op.label} '{op.name}' does not say which graph it calls ({option})")
    return found


CALLERS: Mapping[str, Control] = {"CALL_ONCE": once, "IF": branch, "STABLEHLO_WHILE": loop, "WHILE": loop}
VARIABLES: Mapping[str, Control] = {"ASSIGN_VARIABLE": assign, "READ_VARIABLE": read, "VAR_HANDLE": variable}
CONTROL = {**CALLERS, **VARIABLES}


def is_followed(op: Op) -> bool:
    """Whether what the op does is done here: loops and branches without integers or variables are left to LiteRT."""
    if op.kind not in CALLERS:
        return op.kind in VARIABLES
    inside = (inner for graph in op.graphs() for called in (graph, *reachable_graphs(graph)) for inner in called.ops)
    return any(inner.kind in VARIABLES or execution_of(inner) in ("integer", "hybrid") for inner in inside)


def followed_graphs(graph: Graph) -> list[Graph]:
    """The graph, and those that are computed here because it calls them."""
    found = [graph]
    for caller in found:  # which grows meanwhile
        called = (g for op in caller.ops if is_followed(op) for g in op.graphs())
        found += dict.fromkeys(g for g in called if g not in found)
    return found
