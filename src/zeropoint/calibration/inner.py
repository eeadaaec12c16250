"""Tensors inside control flow.

A called graph cannot be given more outputs, because the op that calls it decides how many there are; and what an
interpreter still holds of it after a run may be from a branch that was not taken, or of memory used again since. So
each such graph is loaded by itself and run once more, on what the op was given: the branch that was taken, every pass
of a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ..dtypes import Array
from ..graph.model import Graph, Model, Op, Tensor
from ..runtime.runner import Runner
from .instrument import Instrumented, Manner, instrument
from .scope import reachable, wanted

Observe = Callable[[str, Array, bool], None]
"""Called with a tensor's name, its values, and whether each channel counts."""

CALLS = frozenset({"IF", "WHILE", "STABLEHLO_COMPOSITE"})


def calls(graph: Graph) -> Iterator[Op]:
    """Ops that call graphs with tensors to measure, and whose inputs can be handed on."""
    return (op for op in graph.ops if _has_wanted(op) and op.kind in CALLS and not _is_opaque(op))


def hidden(graph: Graph) -> list[str]:
    """The names of ops, in `graph` or what it calls, whose inner tensors are out of sight."""
    return [op.name for g in (graph, *reachable(graph)) for op in g.ops if _has_wanted(op) and _is_opaque(op)]


def passed(graph: Graph) -> list[Tensor]:
    """What `graph` hands to the graphs it calls."""
    return [t for op in calls(graph) for t in op.inputs if t is not None and not t.is_constant]


def _callees(op: Op) -> list[Graph]:
    return [g for callee in op.graphs() for g in (callee, *reachable(callee))]


def _has_wanted(op: Op) -> bool:
    return any(any(wanted(g)) for g in _callees(op))


def _is_opaque(op: Op) -> bool:
    """Whether resources or other things that are no arrays are involved."""
    return any(t.dtype.storage is None for g in _callees(op) for t in g.tensors)


class InnerGraphs:
    """The graphs that `graph` calls, each loaded by itself."""

    def __init__(self, model: Model, graph: Graph) -> None:
        self._graph = graph
        self._loaded: dict[Graph, tuple[Instrumented, Runner]] = {}
        for callee in dict.fromkeys(g for op in calls(graph) for g in _callees(op)):
            exposed = [*callee.outputs, *passed(callee)]
            instrumented = instrument(model, callee, histograms=False, exposed=exposed, manner=Manner.OUTSIDE)
            self._loaded[callee] = instrumented, Runner(instrumented.model)

    def restart(self) -> None:
        for _, runner in self._loaded.values():
            runner.restart()

    def measure(self, values: Mapping[Tensor, Array], observe: Observe) -> None:
        """Show everything inside, given what the outer graph `passed`."""
        self._follow(self._graph, values, observe)

    def _follow(self, graph: Graph, values: Mapping[Tensor, Array], observe: Observe) -> None:
        for op in calls(graph):
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
