"""A model in which every op stands alone: its inputs are fed from outside, so that no other op's error reaches it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..graph.edit import cut_model
from ..graph.model import Graph, Model, Op, Tensor
from ..graph.query import reachable_graphs


@dataclass(frozen=True)
class IsolatedOps:
    """Ops of one model side by side. `fed` are the tensors of the original whose values its inputs take, in order; its
    outputs are those of `ops`."""

    model: Model
    fed: tuple[Tensor, ...]
    ops: tuple[Op, ...]


def isolate(graph: Graph, ops: Sequence[Op], is_known: Callable[[Tensor], bool]) -> IsolatedOps:
    """Isolate those of `ops` whose inputs have known values. Whatever depends only on constants is included."""
    constant = constant_parts(graph)
    chosen = [op for op in ops if op.outputs and all(map(is_known, flowing_inputs(op, constant)))]
    fed: dict[Tensor | None, Tensor] = {}
    for tensor in (t for op in chosen for t in flowing_inputs(op, constant)):
        fed.setdefault(tensor, replace(tensor, name=f"{tensor.name}/fed", is_variable=False))
    alone = {op: replace(op, inputs=[fed.get(t, t) for t in op.inputs]) for op in chosen}
    unpacking = {op for op in graph.ops if op.outputs and constant.issuperset(op.outputs)}
    # In order: an op that dequantizes weights may itself be among those chosen.
    kept = [alone.get(op, op) for op in graph.ops if op in alone or op in unpacking]
    stand_ins = list(fed.values())
    part = Graph(graph.name, [*stand_ins, *graph.tensors], kept, stand_ins)
    cut, _ = cut_model(Model([part, *reachable_graphs(part)]), part, [t for op in chosen for t in op.outputs])
    return IsolatedOps(cut, tuple(t for t in fed if t is not None), tuple(chosen))


def flowing_inputs(op: Op, constant: set[Tensor]) -> Iterator[Tensor]:
    """Yield the inputs of an op that vary from sample to sample."""
    return (t for t in op.inputs if t is not None and t not in constant and not t.is_variable)


def constant_parts(graph: Graph) -> set[Tensor]:
    """Return constants and tensors computed only from constants, such as dequantized weights."""
    constant = {t for t in graph.tensors if t.is_constant or (not t.size and t not in graph.inputs)}
    for op in graph.ops:
        if op.inputs and all(t is None or t in constant for t in op.inputs):
            constant.update(op.outputs)
    return constant
