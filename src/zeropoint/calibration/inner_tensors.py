"""Measures tensors inside the graphs that a graph calls.

A called graph cannot get more outputs, because the calling op fixes their number; and what an interpreter still holds
of it after a run may belong to a branch that was not taken, or to memory that has been reused. So each called graph is
loaded by itself and run again on the op's inputs: the branch that was taken, every iteration of a loop.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ..dtypes import Array
from ..errors import RuntimeFailure
from ..graph.model import Graph, Op, Tensor
from ..graph.query import reachable_graphs
from ..ops.calls import COMPOSITE
from ..runtime import Runner, time_limit
from .instrumented_graph import InstrumentedGraph, MeasureMode, instrument
from .task import CalibrationTask, OpTable, measured_tensors

Observe = Callable[[str, Array, bool], None]
"""Called with a tensor's name, its values, and whether per-channel statistics are needed."""

MEASURED = frozenset({"IF", "WHILE", COMPOSITE})
"""Kinds of ops whose called graphs are run again."""


def calls(graph: Graph, ops: OpTable) -> Iterator[Op]:
    """Yield ops that call graphs with tensors to measure, and whose inputs can be passed on."""
    return (op for op in graph.ops if op.kind in MEASURED and _has_measured(op, ops) and not _has_resources(op))


def unmeasurable_calls(graph: Graph, ops: OpTable) -> list[str]:
    """Return the names of ops, in `graph` or the graphs it calls, whose inner tensors cannot be measured."""
    callers = [op for g in (graph, *reachable_graphs(graph)) for op in g.ops]
    return [op.name for op in callers if _has_measured(op, ops) and _has_resources(op)]


def passed_tensors(graph: Graph, ops: OpTable) -> list[Tensor]:
    """Return the tensors that `graph` passes to the graphs it calls."""
    return [t for op in calls(graph, ops) for t in op.inputs if t is not None and not t.is_constant]


def _callees(op: Op) -> list[Graph]:
    return [g for callee in op.graphs() for g in (callee, *reachable_graphs(callee))]


def _has_measured(op: Op, ops: OpTable) -> bool:
    return any(measured_tensors(g, ops) for g in _callees(op))


def _has_resources(op: Op) -> bool:
    """Whether the op involves resources or other values that are not arrays."""
    return any(t.dtype.storage is None for g in _callees(op) for t in g.tensors)


class CalledGraphs:
    """The graphs that the task's graph calls, each loaded by itself."""

    def __init__(self, task: CalibrationTask) -> None:
        self._ops = task.ops
        self._loaded: dict[Graph, tuple[InstrumentedGraph, Runner]] = {}
        for callee in dict.fromkeys(g for op in calls(task.graph, task.ops) for g in _callees(op)):
            exposed = [*callee.outputs, *passed_tensors(callee, task.ops)]
            own = dataclasses.replace(task, graph=callee, recorder=None)  # that records the outputs of the task's graph
            instrumented = instrument(own, MeasureMode.EXPOSED, exposed)
            # The values passed to it may have other shapes than the file says, or the file may say none.
            self._loaded[callee] = instrumented, Runner(instrumented.model, strict=False)

    def restart(self) -> None:
        for _, runner in self._loaded.values():
            runner.restart()

    def measure(self, graph: Graph, values: Mapping[Tensor, Array], observe: Observe) -> None:
        """Observe every tensor inside the graphs that `graph` calls, given its `passed_tensors`."""
        for op in calls(graph, self._ops):
            given = [_value(t, values) for t in op.inputs if t is not None]
            if op.kind == "IF":
                branch = "thenSubgraphIndex" if given[0].item() else "elseSubgraphIndex"
                self._run(op.option(branch), given[1:], observe)
            elif op.kind == "WHILE":
                self._loop(op, given, observe)
            else:
                self._run(op.option("decompositionSubgraphIndex"), given, observe)

    def _loop(self, op: Op, given: list[Array], observe: Observe) -> None:
        """Run a loop iteration by iteration, within the time limit: an untrusted loop may never end."""
        start, seconds = time.monotonic(), time_limit()
        while self._run(op.option("condSubgraphIndex"), given, observe)[0].item():
            given = self._run(op.option("bodySubgraphIndex"), given, observe)
            if seconds is not None and time.monotonic() - start > seconds:
                raise RuntimeFailure(f"the loop of WHILE '{op.name}' did not finish within {seconds:g} s")

    def _run(self, graph: Graph, given: Sequence[Array], observe: Observe) -> list[Array]:
        instrumented, runner = self._loaded[graph]
        runner.invoke(given)
        values = dict(zip(instrumented.exposed, runner.read(instrumented.exposed), strict=True))
        for probe in instrumented.read:
            observe(probe.key, values[probe.tensor], probe.keep_channels)
        self.measure(graph, values, observe)
        return [values[t] for t in graph.outputs]


def _value(tensor: Tensor, values: Mapping[Tensor, Array]) -> Array:
    if tensor in values:
        return values[tensor]
    return np.zeros(tensor.shape, tensor.dtype.storage) if tensor.data is None else tensor.data
