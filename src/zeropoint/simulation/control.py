"""Ops that call graphs, and variables that persist between calls; called graphs are simulated too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ..dtypes import Array
from ..errors import InvalidModel
from ..graph.model import Graph, Op
from ..graph.query import reachable_graphs
from ..ops import OpSpec
from ..ops.execution import execution_of


class GraphCalls(Protocol):
    """Executes graph calls for one sample, and holds its variables and which graphs have already run once."""

    variables: dict[str, Array]
    done: set[Graph]

    def call(self, graph: Graph, values: Sequence[Array]) -> list[Array]:
        """Return the outputs of `graph` for these inputs."""


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
    """Return the variable's name as its handle."""
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


def is_followed(op: Op, ops: Mapping[str, OpSpec]) -> bool:
    """Whether the calling op is simulated here: loops and branches without integers or variables are left to LiteRT."""
    if op.kind not in CALLERS:
        return op.kind in VARIABLES
    inside = (inner for graph in op.graphs() for called in (graph, *reachable_graphs(graph)) for inner in called.ops)
    return any(inner.kind in VARIABLES or execution_of(inner, ops) in ("integer", "hybrid") for inner in inside)


def followed_graphs(graph: Graph, ops: Mapping[str, OpSpec]) -> list[Graph]:
    """Return the graph and all graphs that are simulated because it calls them."""
    found = [graph]
    for caller in found:  # the list grows during the loop
        called = (g for op in caller.ops if is_followed(op, ops) for g in op.graphs())
        found += dict.fromkeys(g for g in called if g not in found)
    return found
