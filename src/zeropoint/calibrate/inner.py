"""Tensors inside control flow. Their graphs have outputs of their own, so they cannot be exposed; they are read the
slow way, from an interpreter that keeps every tensor, and only these. Of a loop, the last pass is seen."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..graph.model import Graph, Model
from ..graph.query import tensor_keys
from ..runtime import Session
from ..sources.ports import Row
from .instrument import wanted
from .stats import TensorStats


@dataclass
class InnerTensors:
    session: Session
    tensors: list[tuple[str, int, int]]  # name, index of the tensor, index of its graph
    found: dict[str, TensorStats] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Model, graph: Graph) -> InnerTensors | None:
        """A reader of the graphs that `graph` calls, or None if it calls none that have float tensors."""
        called = _called(graph)
        keys = tensor_keys(model)
        reordered = Model([graph, *(g for g in model.graphs if g is not graph)], description=model.description)
        tensors = [(keys[t], g.tensors.index(t), reordered.graphs.index(g)) for g in called for t in wanted(g)]
        return cls(Session(reordered, kernels="optimized", preserve=True), tensors) if tensors else None

    def measure(self, number: int, row: Row) -> None:
        from .collect import stats_of

        self.session.reset()
        self.session.invoke(row)
        for key, index, graph in self.tensors:
            values = self.session.inner(index, graph)
            if values is None or values.size == 0:
                continue  # a branch that was not taken
            seen = stats_of(np.asarray(values), number)
            self.found[key] = seen if key not in self.found else self.found[key].merge(seen, 0)

    def finish(self) -> dict[str, TensorStats]:
        return self.found


def _called(graph: Graph) -> list[Graph]:
    """Graphs reachable through ops, nearest first."""
    found: dict[Graph, None] = {}
    waiting = [graph]
    while waiting:
        for op in waiting.pop(0).ops:
            for callee in op.graphs():
                if callee not in found:
                    found[callee] = None
                    waiting.append(callee)
    return list(found)
