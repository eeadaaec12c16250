"""Every way a graph changes. Each edit leaves a graph that passes `check`, or raises before changing anything."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ..affine import QuantParams
from ..dtypes import Array, DType
from .check import no_dangling_tensors
from .model import Buffer, Graph, Model, Op, Quantization, Record, Tensor, attached, buffer_of
from .query import Use, Uses


def insert_after(graph: Graph, source: Tensor, op: Op, uses: Sequence[Use], *, as_output: bool = False) -> None:
    """Put `op`, which reads `source`, on the edges to `uses` (and to the graph's outputs with `as_output`).

    The op runs right after the producer of `source`; `op.outputs[0]` takes the place of `source` in these uses.
    """
    result = op.outputs[0]
    if result.shape != source.shape:
        raise ValueError(f"{op.label} on the edge of '{source.name}' changes its shape to {list(result.shape)}")
    for use in uses:
        if use.op.inputs[use.slot] is not source:
            raise ValueError(f"{use.op} does not read '{source.name}' at input {use.slot}")
    position = next((k + 1 for k, other in enumerate(graph.ops) if source in other.outputs), 0)
    graph.ops.insert(position, op)
    graph.tensors.extend(t for t in op.outputs if t not in graph.tensors)
    for use in uses:
        use.op.inputs[use.slot] = result
    if as_output:
        graph.outputs = [result if t is source else t for t in graph.outputs]


def retype(tensor: Tensor, dtype: DType, params: QuantParams | None) -> None:
    """Give an activation another type and other parameters; what a file said about its range no longer holds."""
    tensor.dtype = dtype
    tensor.quantization = None if params is None else Quantization.of(params)


def set_constant(tensor: Tensor, data: Array, dtype: DType, params: QuantParams | None = None) -> None:
    """Replace a constant's data, type and parameters. Tensors that shared its buffer keep the old bytes."""
    if tensor.buffer is None and tensor.size:
        raise ValueError(f"'{tensor.name}' is no constant")
    buffer = buffer_of(data, dtype)
    if tuple(data.shape) != tensor.shape:
        tensor.shape_signature = None
    tensor.shape = tuple(data.shape)
    tensor.buffer = buffer
    tensor.sparsity = None
    retype(tensor, dtype, params)


def remove_op(graph: Graph, op: Op) -> None:
    """Take out an op whose first output equals its first input from now on: readers get the input instead."""
    source, result = op.inputs[0], op.outputs[0]
    if source is None:
        raise ValueError(f"{op} has no input to take its place")
    uses = Uses(graph)
    if any(not uses.is_unused(t) for t in op.outputs[1:]):
        raise ValueError(f"{op} has other outputs that are in use")
    for use in uses.readers(result):
        use.op.inputs[use.slot] = source
    graph.outputs = [source if t is result else t for t in graph.outputs]
    graph.ops.remove(op)
    drop_unused(graph)


def absorb(graph: Graph, op: Op, producer: Op, options: Record) -> None:
    """Take out `op`, whose only input `producer` makes for it alone; with `options` the producer does its work."""
    if op.inputs[0] is not producer.outputs[0] or len(Uses(graph).readers(producer.outputs[0])) != 1:
        raise ValueError(f"{producer} does not work for {op} alone")
    producer.options = options
    producer.outputs[0] = op.outputs[0]
    graph.ops.remove(op)


def recast(graph: Graph, op: Op, kind: str, inputs: Sequence[Tensor], options: Record) -> None:
    """Make `op` another kind of op with the same outputs."""
    op.kind, op.version, op.inputs, op.options = kind, 1, list(inputs), options
    graph.tensors.extend(t for t in inputs if t not in graph.tensors)


def fold_into_constant(graph: Graph, op: Op, constant: Tensor) -> None:
    """Take out `op`, whose only output is `constant` whatever the inputs."""
    result = op.outputs[0]
    if result in graph.outputs or constant.shape != result.shape:
        raise ValueError(f"{constant!r} cannot take the place of '{result.name}'")
    for other in graph.ops:
        other.inputs = [constant if t is result else t for t in other.inputs]
    graph.tensors[graph.tensors.index(result)] = constant
    graph.ops.remove(op)


def duplicate_constant(graph: Graph, tensor: Tensor, uses: Sequence[Use], suffix: str = "copy") -> Tensor:
    """A constant of its own for `uses`, at first with the same bytes."""
    twin = replace(tensor, name=f"{tensor.name}/{suffix}")
    graph.tensors.append(twin)
    for use in uses:
        use.op.inputs[use.slot] = twin
    return twin


@contextmanager
def signatures_follow(model: Model) -> Iterator[None]:
    """Within this, edits may put other tensors in the places of graph inputs and outputs; signatures go with them."""

    def spots(named: dict[str, Tensor], ends: list[Tensor]) -> dict[str, int]:
        return {name: ends.index(tensor) for name, tensor in named.items()}

    before = [(s, spots(s.inputs, s.graph.inputs), spots(s.outputs, s.graph.outputs)) for s in model.signatures]
    yield
    for signature, inputs, outputs in before:
        signature.inputs = {name: signature.graph.inputs[k] for name, k in inputs.items()}
        signature.outputs = {name: signature.graph.outputs[k] for name, k in outputs.items()}


def drop_unused(graph: Graph) -> None:
    """Forget tensors that nothing refers to any more."""
    if any(no_dangling_tensors(graph)):
        used = {t for op in graph.ops for t in op.tensors()} | set(graph.inputs) | set(graph.outputs)
        used |= {a for t in used for a in attached(t)}
        graph.tensors = [t for t in graph.tensors if t in used]


def copy_model(model: Model) -> Model:
    """A model that can be edited without touching `model`; constant bytes stay shared until they are replaced."""
    memo: dict[int, object] = {}
    for buffer in _buffers(model):
        memo[id(buffer)] = buffer
    return copy.deepcopy(model, memo)


def _buffers(model: Model) -> list[Buffer]:
    found = [t.buffer for g in model.graphs for t in g.tensors]
    found += [b for _, b in model.metadata]
    found += model.metadata_buffers or []
    return [b for b in found if b is not None]
