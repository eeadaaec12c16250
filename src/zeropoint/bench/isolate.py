"""A model in which every op stands alone: its inputs are fed from outside, so that no other op's error reaches it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..graph.edit import drop_unused
from ..graph.model import Graph, Model, Op, Tensor


@dataclass(frozen=True)
class Isolated:
    """Ops of one model side by side. `fed` are the tensors of the original whose values its inputs take, in order;
    its outputs are those of `ops`, one after the other."""

    model: Model
    fed: tuple[Tensor, ...]
    ops: tuple[Op, ...]

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return tuple(t for op in self.ops for t in op.outputs)


def isolate(model: Model, graph: Graph, ops: Sequence[Op], is_known: Callable[[Tensor], bool]) -> Isolated:
    """Those of `ops` alone whose inputs `is_known` has values for. What follows from constants comes along."""
    steady = constant_parts(graph)
    chosen = [op for op in ops if op.outputs and all(is_known(t) for t in flowing_inputs(op, steady))]
    fed = list(dict.fromkeys(t for op in chosen for t in flowing_inputs(op, steady)))
    stand_in = {t: replace(t, name=f"{t.name}/fed", is_variable=False) for t in fed}
    alone = [replace(op, inputs=[t if t is None else stand_in.get(t, t) for t in op.inputs]) for op in chosen]
    needed = {t for op in alone for t in op.inputs if t is not None}
    helpers: list[Op] = []
    for op in reversed(graph.ops):
        if op not in chosen and op.outputs and all(t in steady for t in op.outputs) and needed.intersection(op.outputs):
            helpers.append(op)
            needed.update(t for t in op.inputs if t is not None)
    part = Graph(
        graph.name,
        [*stand_in.values(), *graph.tensors],
        [*helpers[::-1], *alone],
        list(stand_in.values()),
        [t for op in chosen for t in op.outputs],
    )
    drop_unused(part)
    others = [g for g in model.graphs if g is not graph]
    return Isolated(Model([part, *others]), tuple(fed), tuple(chosen))


def flowing_inputs(op: Op, steady: set[Tensor]) -> Iterator[Tensor]:
    """What an op reads that differs from sample to sample."""
    return (t for t in op.inputs if t is not None and t not in steady and not t.is_variable)


def constant_parts(graph: Graph) -> set[Tensor]:
    """Constants, and what ops make of nothing else: unpacked weights."""
    steady = {t for t in graph.tensors if t.is_constant or (not t.size and t not in graph.inputs)}
    for op in graph.ops:
        if op.inputs and all(t is None or t in steady for t in op.inputs):
            steady.update(op.outputs)
    return steady
