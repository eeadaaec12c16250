"""Graphs that ops call: bodies of loops, branches, and what composite ops consist of."""

from __future__ import annotations

from collections.abc import Iterator

from ..graph.edit import inline
from ..graph.model import Graph, Model, Op, Tensor
from ..graph.query import reachable_graphs
from ..ops.states import INITIAL
from ..recipe import Recipe
from ..sources.ports import entry_graphs

COMPOSITE = "STABLEHLO_COMPOSITE"


def computing_graphs(model: Model) -> list[Graph]:
    """Graphs that are run from outside, then those that they call; what only sets initial values is none of them."""
    entries = entry_graphs(model)
    return list(dict.fromkeys((*entries, *(g for graph in entries for g in reachable_graphs(graph, without=INITIAL)))))


def inline_composites(model: Model, recipe: Recipe) -> dict[Tensor, Tensor]:
    """Put the ops that composite ones consist of in their places, where these are to compute in integers.

    LiteRT itself runs a composite op so, unless a delegate knows it by name. Returns the new tensors, with those that
    they are copies of.
    """
    made, inlined = dict[Tensor, Tensor](), False
    for graph in model.graphs:
        while (found := next(_composites(graph, recipe), None)) is not None:  # which may consist of others
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
    """Whether each of its outputs is made by an op of its own, and nothing is kept for the next run."""
    results = [t for op in callee.ops for t in op.outputs]
    distinct = len(set(callee.outputs)) == len(callee.outputs)
    return distinct and all(t in results for t in callee.outputs) and not any(t.is_variable for t in callee.tensors)
