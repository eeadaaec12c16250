"""Graphs that ops call: bodies of loops, branches, and the decompositions of composite ops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..graph.edit import drop_unused, inline
from ..graph.model import Graph, Model, Op, Tensor
from ..graph.query import Uses, reachable_graphs
from ..ops.calls import COMPOSITE, first_passed
from ..ops.states import INITIAL
from ..recipe import Recipe
from ..sources.ports import entry_graphs


def computing_graphs(model: Model) -> list[Graph]:
    """Return the graphs that are run from outside, then those they call, except graphs that only set initial values."""
    entries = entry_graphs(model)
    return list(dict.fromkeys((*entries, *(g for graph in entries for g in reachable_graphs(graph, without=INITIAL)))))


def inline_composites(model: Model, recipe: Recipe) -> dict[Tensor, Tensor]:
    """Replace composite ops that are to compute in integers by the ops of their decomposition.

    LiteRT itself runs a composite op that way, unless a delegate knows it by name. Returns the new tensors, mapped to
    their originals.
    """
    made, inlined = dict[Tensor, Tensor](), False
    for graph in model.graphs:
        while (found := next(_composites(graph, recipe), None)) is not None:  # these may contain further composites
            inlined = True
            made |= {tensor: made.get(old, old) for tensor, old in inline(graph, *found).items()}
    if inlined:
        kept = [*entry_graphs(model), *(g for graph in entry_graphs(model) for g in reachable_graphs(graph))]
        model.graphs = [graph for graph in model.graphs if graph in kept]
    return made


def _composites(graph: Graph, recipe: Recipe) -> Iterator[tuple[Op, Graph]]:
    for op in graph.ops:
        callee = op.option("decompositionSubgraphIndex") if op.kind == COMPOSITE else None
        if isinstance(callee, Graph) and recipe.scheme(op).activations is not None and _can_be_inlined(callee):
            yield op, callee


def _can_be_inlined(callee: Graph) -> bool:
    """Whether each output is produced by a different op, and no state is kept for the next run."""
    results = [t for op in callee.ops for t in op.outputs]
    distinct = len(set(callee.outputs)) == len(callee.outputs)
    return distinct and all(t in results for t in callee.outputs) and not any(t.is_variable for t in callee.tensors)


def bind_constants(model: Model) -> None:
    """Move constants that an op passes to the graphs it calls into these graphs, where they can be weights.

    Some converters pass all weights of a branch to it. A loop must pass such a constant on unchanged.
    """
    callers = Counter(callee for graph in model.graphs for op in graph.ops for callee in op.graphs())
    callers.update(entry_graphs(model))  # graphs that are run from outside keep their inputs
    for graph in model.graphs:
        for op in (op for op in graph.ops if op.kind in ("IF", "WHILE")):
            if all(callers[callee] == 1 for callee in op.graphs()):
                _bind_inputs(graph, op)


def _bind_inputs(graph: Graph, op: Op) -> None:
    first = first_passed(op)
    for slot in reversed(range(first, len(op.inputs))):
        tensor, place = op.inputs[slot], slot - first
        if tensor is None or tensor.data is None or not _can_be_bound(graph, op, tensor, place):
            continue
        del op.inputs[slot]
        for callee in op.graphs():
            inner = callee.inputs.pop(place)
            callee.outputs[:] = [t for t in callee.outputs if t is not inner]
            inner.buffer, inner.quantization = tensor.buffer, tensor.quantization
        if op.kind == "WHILE":
            _read_instead(graph, op.outputs.pop(place), tensor)
    drop_unused(graph)


def _can_be_bound(graph: Graph, op: Op, tensor: Tensor, place: int) -> bool:
    """Whether the graphs only read the constant; or, in a loop, pass it on, and the caller does not return it."""
    inside = [callee.inputs[place] for callee in op.graphs()]
    if any(t.shape != tensor.shape or t.dtype is not tensor.dtype or t.is_constant for t in inside):
        return False
    handed_on = [t for callee in op.graphs() for t in callee.outputs if t in inside]
    if op.kind == "IF":
        return not handed_on
    body = op.option("bodySubgraphIndex")
    is_kept = isinstance(body, Graph) and body.outputs[place] is body.inputs[place] and len(handed_on) == 1
    return is_kept and op.outputs[place] not in graph.outputs


def _read_instead(graph: Graph, before: Tensor, constant: Tensor) -> None:
    for use in Uses(graph).readers(before):
        use.op.inputs[use.slot] = constant
