"""Tensors inside control flow.

A called graph cannot be given more outputs, because the op that calls it decides how many there are; and what an
interpreter still holds of it after a run may be from a branch that was not taken, or memory that was reused since. So
each such graph is loaded by itself and run once more, on what the op was given: the branch that was taken, every pass
of a loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ..dtypes import Array
from ..graph.model import Graph, Op, Tensor
from ..runtime.runner import Runner
from .instrumented_graph import InstrumentedGraph, MeasureMode, instrument
from .measured_tensors import CalibrationTask, OpTable, measured_tensors, reachable_graphs

Observe = Callable[[str, Array, bool], None]
"""Called with a tensor's name, its values, and whether each channel counts."""

CALLS = frozenset({"IF", "WHILE", "STABLEHLO_COMPOSITE"})


def calls(graph: Graph, ops: OpTable) -> Iterator[Op]:
    """Ops that call graphs with tensors to measure, and whose inputs can be passed on."""
    return (op for op in graph.ops if op.kind in CALLS and _has_measured(op, ops) and not _has_resources(op))


def unmeasurable_calls(graph: Graph, ops: OpTable) -> list[str]:
    """The names of ops, in `graph` or what it calls, whose inner tensors cannot be measured."""
    callers = [op for g in (graph, *reachable_graphs(graph)) for op in g.ops]
    return [op.name for op in callers if _has_measured(op, ops) and _has_resources(op)]


def passed_tensors(graph: Graph, ops: OpTable) -> list[Tensor]:
    """What `graph` passes to the graphs it calls."""
    return [t for op in calls(graph, ops) for t in op.inputs if t is not None and not t.is_constant]


def _callees(op: Op) -> list[Graph]:
    return [g for callee in op.graphs() for g in (callee, *reachable_graphs(callee))]


def _has_measured(op: Op, ops: OpTable) -> bool:
    return any(any(measured_tensors(g, ops)) for g in _callees(op))


def _has_resources(op: Op) -> bool:
    """Whether resources or other things that are not arrays are involved."""
    return any(t.dtype.storage is None for g in _callees(op) for t in g.tensors)


class CalledGraphs:
    """The graphs that the task's graph calls, each loaded by itself."""

    def __init__(self, task: CalibrationTask) -> None:
        self._graph, self._ops = task.graph, task.ops
        self._loaded: dict[Graph, tuple[InstrumentedGraph, Runner]] = {}
        for callee in dict.fromkeys(g for op in calls(task.graph, task.ops) for g in _callees(op)):
            exposed = [*callee.outputs, *passed_tensors(callee, task.ops)]
            instrumented = instrument(dataclasses.replace(task, graph=callee), MeasureMode.EXPOSED, exposed)
            self._loaded[callee] = instrumented, Runner(instrumented.model)

    def restart(self) -> None:
        for _, runner in self._loaded.values():
            runner.restart()

    def measure(self, values: Mapping[Tensor, Array], observe: Observe) -> None:
        """Observe every tensor inside, given the outer graph's `passed_tensors`."""
        self._follow(self._graph, values, observe)

    def _follow(self, graph: Graph, values: Mapping[Tensor, Array], observe: Observe) -> None:
        for op in calls(graph, self._ops):
            given = [_value(t, values) for t in op.inputs if t is not None]
            if op.kind == "IF":
                branch = "thenSubgraphIndex" if given[0].item() else "elseSubgraphIndex"
                self._run(op.option(branch), given[1:], observe)
            elif op.kind == "WHILE":
                condition, body = op.option("condSubgraphIndex"), op.option("bodySubgraphIndex")
                while self._run(condition, given, observe)[0].item():
                    given = self._run(body, given, observe)
            else:
                self._run(op.option("decompositionSubgraphIndex"), given, observe)

    def _run(self, graph: Graph, given: Sequence[Array], observe: Observe) -> list[Array]:
        instrumented, runner = self._loaded[graph]
        runner.invoke(given)
        values = dict(zip(instrumented.exposed, runner.read(instrumented.exposed), strict=True))
        for probe in instrumented.read:
            observe(probe.key, values[probe.tensor], probe.keep_channels)
        self._follow(graph, values, observe)
        return [values[t] for t in graph.outputs]


def _value(tensor: Tensor, values: Mapping[Tensor, Array]) -> Array:
    if tensor in values:
        return values[tensor]
    return np.zeros(tensor.shape, tensor.dtype.storage) if tensor.data is None else tensor.data
