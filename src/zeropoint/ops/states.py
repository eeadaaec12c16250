"""State that a run leaves for the next: resource variables, and the states of recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence

from ..graph.model import Graph, Op, Tensor
from ..graph.query import reachable_graphs

INITIAL = "CALL_ONCE"
"""Calls a graph only before the first run: it assigns initial values."""


def has_state(graph: Graph) -> bool:
    """Whether a run can leave state for the next."""
    return bool(_assigned(graph)) or any(t.is_variable for g in _run_graphs(graph) for t in g.tensors)


def is_streaming(graph: Graph) -> bool:
    """Whether a run is one step of a sequence, so that samples only make sense in order.

    It is if it reads what an earlier run assigned to a variable, or if recurrent layers with a state get one step in
    each run. With more steps, a sample is taken for a whole sequence.
    """
    ops = [op for g in _run_graphs(graph) for op in g.ops]
    recurrent = [op for op in ops if any(t is not None and t.is_variable for t in op.inputs)]
    return bool(initial_reads(graph)) or (bool(recurrent) and all(_steps(op) == 1 for op in recurrent))


def initial_reads(graph: Graph) -> list[Tensor]:
    """Return tensors that hold what an earlier run assigned to a variable; in a first run, its initial value."""
    assigned, found = _assigned(graph), []
    for g in _run_graphs(graph):
        before: set[str | None] = set()
        for op in g.ops:
            name = variable_name(g.ops, op.inputs[0]) if op.inputs else None
            if op.kind == "ASSIGN_VARIABLE":
                before.add(name)
            elif op.kind == "READ_VARIABLE" and name not in before and (name in assigned or None in {*assigned, name}):
                found += op.outputs
    return found


def returned_states(graph: Graph) -> list[tuple[Tensor, Tensor]]:
    """Return inputs that a caller probably fills with what the last run returned, each with that output: one of the
    same shape and type. A model with a single input, such as an image filter, has none."""
    found, free = [], list(graph.outputs)
    for tensor in graph.inputs:
        same = next((o for o in free if o.shape == tensor.shape and o.dtype is tensor.dtype and o is not tensor), None)
        if same is not None:
            free.remove(same)
            found.append((tensor, same))
    return found if len(graph.inputs) > 1 else []


def dependent_tensors(graph: Graph, state: Tensor) -> set[Tensor]:
    """Return the tensors of a run that are computed from `state`, as far as known: in called graphs that get it,
    all."""
    found = {state}
    for g in _run_graphs(graph):
        for op in g.ops:
            if not found.isdisjoint(t for t in op.inputs if t is not None):
                found.update(op.outputs)
                found.update(t for callee in op.graphs() for c in _run_graphs(callee) for t in c.tensors)
            elif any(state in c.tensors for callee in op.graphs() for c in _run_graphs(callee)):
                found.update(op.outputs)
    return found - {state}


def variable_name(ops: Sequence[Op], handle: Tensor | None) -> str | None:
    """Return the name of the variable that a handle refers to; None if a caller passes it in."""
    maker = next((op for op in ops if op.kind == "VAR_HANDLE" and handle in op.outputs), None)
    return None if maker is None else f"{maker.option('container', '')}{maker.option('sharedName', '')}"


def _run_graphs(graph: Graph) -> list[Graph]:
    """Return the graphs that a run executes, except those that assign initial values."""
    return [graph, *reachable_graphs(graph, without=INITIAL)]


def _assigned(graph: Graph) -> set[str | None]:
    """Return the variables that a run assigns."""
    return {
        variable_name(g.ops, op.inputs[0]) for g in _run_graphs(graph) for op in g.ops if op.kind == "ASSIGN_VARIABLE"
    }


def _steps(op: Op) -> int:
    """Return how many time steps a recurrent layer computes in a run; -1 if that is dynamic."""
    source = op.inputs[0]
    shape = () if source is None else source.dynamic_shape
    return shape[0 if op.option("timeMajor", False) else 1] if len(shape) > 2 else 1
