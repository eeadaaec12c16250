"""Integers that are known before anything is computed: constants, shapes, and loop counters.

A loop that counts up to a constant can be unrolled: the number of iterations, and what its body indexes in each, follow
from such integers alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dtypes import Array
from ..errors import UnsupportedOp
from ..graph.model import Graph, Op, Tensor
from ..ops import OpSpec, spec_of
from ..ops.batching import Free
from ..ops.calls import CALLS, LOOPS, Passed
from .backend import array_of
from .compute import COMPUTE, Call, compute

Known = dict[Tensor, Array]

MOST_ITERATIONS = 1000
"""Maximum number of iterations: a graph with this many copies of a loop's body takes minutes to build."""


def known_integers(
    ops: Sequence[Op],
    specs: Mapping[str, OpSpec],
    free: Free = frozenset(),
    given: Mapping[Tensor, Array] | None = None,
) -> Known:
    """Return integers that do not depend on the inputs, except for those that are `given`."""
    read = {tensor for op in ops for tensor in op.inputs if tensor is not None and not tensor.dtype.is_float}
    known: Known = {t: np.asarray(t.data) for t in read if t.data is not None}
    known |= given or {}
    for op in ops:
        if op.kind in LOOPS:
            known |= unrolled(op, known, specs).result(op)
        elif _is_computable(op, known, specs):
            results = compute(Call(op, [None if t is None else known.get(t) for t in op.inputs], free))
            known.update(zip(op.outputs, map(array_of, results), strict=True))
    return known


def _is_computable(op: Op, known: Known, specs: Mapping[str, OpSpec]) -> bool:
    """Whether the op's result follows from known integers, or from shapes alone."""
    if spec_of(op, specs).reads_shapes_only:
        return True
    return op.label in COMPUTE and all(t is None or t in known for t in op.inputs)


@dataclass(frozen=True, eq=False)
class UnrolledLoop:
    """What is known in each iteration of a loop, and of its results."""

    iterations: tuple[Known, ...]
    state: tuple[Array | None, ...]

    def result(self, op: Op) -> Known:
        return {t: value for t, value in zip(op.outputs, self.state, strict=True) if value is not None}


def loop_graphs(op: Op) -> tuple[Graph, Graph]:
    """Return the condition and the body of a loop."""
    called = {row.gives: op.option(row.option) for row in CALLS[op.kind]}
    condition, body = called[Passed.CONDITION], called[Passed.ALL]
    assert isinstance(condition, Graph)
    assert isinstance(body, Graph)
    return condition, body


def unrolled(op: Op, known: Mapping[Tensor, Array], specs: Mapping[str, OpSpec]) -> UnrolledLoop:
    """Return the iterations of a loop whose end is known in advance; raises for others."""
    condition, body = loop_graphs(op)
    if any(inner.kind in LOOPS for graph in (condition, body) for inner in graph.ops):
        raise UnsupportedOp(f"{op.label} '{op.name}' has a loop inside it, and only simple loops can be trained")
    state = [None if t is None else known.get(t) for t in op.inputs]
    iterations = list[Known]()
    while _goes_on(op, condition, state, specs):
        if len(iterations) == MOST_ITERATIONS:
            raise UnsupportedOp(
                f"{op.label} '{op.name}' runs more than {MOST_ITERATIONS} iterations, and the trainable graph has a "
                "copy of its body for each; train with shorter sequences"
            )
        iterations.append(known_integers(body.ops, specs, given=_taken(body, state)))
        state = [iterations[-1].get(t) for t in body.outputs]
    return UnrolledLoop(tuple(iterations), tuple(state))


def _taken(graph: Graph, state: Sequence[Array | None]) -> Known:
    return {t: value for t, value in zip(graph.inputs, state, strict=True) if value is not None}


def _goes_on(op: Op, condition: Graph, state: Sequence[Array | None], specs: Mapping[str, OpSpec]) -> bool:
    answer: Any = known_integers(condition.ops, specs, given=_taken(condition, state)).get(condition.outputs[0])
    if answer is None:
        raise UnsupportedOp(
            f"{op.label} '{op.name}' runs until a computed condition stops it; only loops that count up "
            "to a constant can be trained"
        )
    return bool(answer.item())
