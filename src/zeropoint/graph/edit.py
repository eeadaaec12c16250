"""All edits of a graph. Each leaves a graph that passes `check`, or raises before changing anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, count
from typing import Any, TypeVar

from ..affine import QuantParams
from ..dtypes import Array, DType
from .model import BlockScales, Buffer, Graph, Model, Op, Quantization, Record, Signature, Tensor, buffer_of
from .query import Use, Uses, reachable_graphs

Part = TypeVar("Part", Tensor, Op, Graph)


def insert_after(graph: Graph, source: Tensor, op: Op, uses: Sequence[Use], *, as_output: bool = False) -> None:
    """Insert `op`, which reads `source`, on the edges to `uses` (and to the graph's outputs with `as_output`).

    The op runs right after the producer of `source`; `op.outputs[0]` replaces `source` in these uses.
    """
    insert_chain(graph, source, [op], uses, as_output=as_output)


def insert_chain(
    graph: Graph, source: Tensor, ops: Sequence[Op], uses: Sequence[Use] | None = None, *, as_output: bool = True
) -> None:
    """Insert a chain of ops after `source`; the output of the last one replaces `source`, by default everywhere."""
    uses = Uses(graph).readers(source) if uses is None else uses
    replace_with(graph, source, ops[-1].outputs[0], ops, uses, as_output=as_output)


def replace_with(
    graph: Graph, source: Tensor, result: Tensor, ops: Sequence[Op], uses: Sequence[Use], *, as_output: bool
) -> None:
    """Have `uses` read `result` instead of `source`; the `ops` that compute it, if it is new, follow `source`."""
    if result.shape != source.shape:
        raise ValueError(f"'{result.name}' has another shape than '{source.name}': {list(result.shape)}")
    for use in uses:
        if use.op.inputs[use.slot] is not source:
            raise ValueError(f"{use.op} does not read '{source.name}' at input {use.slot}")
    position = next((k + 1 for k, other in enumerate(graph.ops) if source in other.outputs), 0)
    graph.ops[position:position] = ops
    _admit(graph, (t for op in ops for t in op.tensors()))
    for use in uses:
        use.op.inputs[use.slot] = result
    if as_output:
        graph.outputs = [result if t is source else t for t in graph.outputs]


def retype(tensor: Tensor, dtype: DType, params: QuantParams | None) -> None:
    """Set the type and parameters of an activation, and drop its value range from the file, which no longer holds."""
    tensor.dtype = dtype
    tensor.quantization = None if params is None else Quantization.of(params)


def set_constant(tensor: Tensor, data: Array, dtype: DType, params: QuantParams | None = None) -> None:
    """Replace a constant's data, type and parameters. Tensors that shared its buffer keep the old bytes."""
    give_buffer(tensor, buffer_of(data, dtype), dtype, None if params is None else Quantization.of(params))
    if data.shape != tensor.shape:
        tensor.shape, tensor.shape_signature = data.shape, None


def give_buffer(tensor: Tensor, buffer: Buffer | None, dtype: DType, quantization: Quantization | None) -> None:
    """Store a constant of the same shape in another buffer, with another type and quantization."""
    if tensor.buffer is None and tensor.size:
        raise ValueError(f"'{tensor.name}' is not a constant")
    tensor.buffer, tensor.dtype, tensor.quantization, tensor.sparsity = buffer, dtype, quantization, None


def remove_op(graph: Graph, op: Op) -> None:
    """Remove an op that now acts as the identity: readers of its first output read its first input instead."""
    source, result = op.inputs[0], op.outputs[0]
    if source is None:
        raise ValueError(f"{op} has no input that could replace its output")
    uses = Uses(graph)
    if any(not uses.is_unused(t) for t in op.outputs[1:]):
        raise ValueError(f"{op} has other outputs that are in use")
    for use in uses.readers(result):
        use.op.inputs[use.slot] = source
    graph.outputs = [source if t is result else t for t in graph.outputs]
    graph.ops.remove(op)
    drop_unused(graph)


def absorb(graph: Graph, op: Op, producer: Op, options: Record) -> None:
    """Remove `op` and have `producer`, which feeds only `op`, do its work through `options` (a fused activation)."""
    if op.inputs[0] is not producer.outputs[0] or len(Uses(graph).readers(producer.outputs[0])) != 1:
        raise ValueError(f"{producer} does not feed {op} alone")
    producer.options = options
    producer.outputs[0] = op.outputs[0]
    graph.ops.remove(op)


def recast(graph: Graph, op: Op, kind: str, inputs: Sequence[Tensor], options: Record | None) -> None:
    """Turn `op` into an op of another kind with the same outputs."""
    op.kind, op.version, op.inputs, op.options = kind, 1, list(inputs), options
    _admit(graph, inputs)


def replace_op(graph: Graph, op: Op, ops: Sequence[Op]) -> None:
    """Replace `op` by a sequence of ops."""
    place = graph.ops.index(op)
    graph.ops[place : place + 1] = ops
    _admit(graph, (t for each in ops for t in each.tensors()))


def inline(graph: Graph, op: Op, callee: Graph) -> dict[Tensor, Tensor]:
    """Replace the calling op `op` by the body of `callee`; return a map from each new tensor to its original."""
    ends = dict(zip((*callee.inputs, *callee.outputs), (*op.inputs, *op.outputs), strict=True))
    twins: dict[Any, Any] = {t: ends.get(t) or _shallow(t) for t in callee.tensors} | {None: None}
    for tensor in callee.tensors:
        if tensor not in ends:
            twins[tensor].quantization = _with_scales(tensor.quantization, twins)
    replace_op(graph, op, [_op_on(inner, twins) for inner in callee.ops])
    return {twin: t for t, twin in twins.items() if t is not None and t not in ends}


def with_shape_of(tensor: Tensor, name: str, dtype: DType) -> Tensor:
    """Return a new tensor with the shape of `tensor`."""
    return Tensor(name, tensor.shape, dtype, shape_signature=tensor.shape_signature)


def _admit(graph: Graph, tensors: Iterable[Tensor]) -> None:
    """Add tensors that the graph does not list yet: results and constants of a new op."""
    for tensor in tensors:
        if tensor not in graph.tensors:
            graph.tensors.append(tensor)


def unused_name(graph: Graph, wanted: str) -> str:
    """Return `wanted`, with a number appended if a tensor already has that name."""
    taken = {t.name for t in graph.tensors}
    numbered = (f"{wanted}#{k}" for k in count(2))
    return next(name for name in chain([wanted], numbered) if name not in taken)


def fold_into_constant(graph: Graph, op: Op, constant: Tensor) -> None:
    """Remove `op`, whose only output always equals `constant`."""
    result = op.outputs[0]
    if result in graph.outputs or constant.shape != result.shape:
        raise ValueError(f"{constant!r} cannot replace '{result.name}'")
    for other in graph.ops:
        other.inputs = [constant if t is result else t for t in other.inputs]
    graph.tensors[graph.tensors.index(result)] = constant
    graph.ops.remove(op)


def add_constant_input(graph: Graph, op: Op, slot: int, constant: Tensor) -> None:
    """Have `op` read `constant` at `slot`, an optional input that was absent."""
    if (present := op.input(slot)) is not None:
        raise ValueError(f"{op} reads '{present!r}' at input {slot}")
    op.inputs += [None] * (slot + 1 - len(op.inputs))
    op.inputs[slot] = constant
    graph.tensors.append(constant)


def replace_input(graph: Graph, op: Op, slot: int, tensor: Tensor) -> None:
    """Have `op` read `tensor` at `slot`."""
    op.inputs[slot] = tensor
    _admit(graph, [tensor])


def duplicate_constant(graph: Graph, tensor: Tensor, uses: Sequence[Use], suffix: str = "copy") -> Tensor:
    """Return a copy of a constant that only `uses` read, initially with the same bytes."""
    twin = replace(tensor, name=unused_name(graph, f"{tensor.name}/{suffix}"))
    graph.tensors.append(twin)
    for use in uses:
        use.op.inputs[use.slot] = twin
    return twin


@contextmanager
def signatures_follow(model: Model) -> Iterator[None]:
    """Update signatures on exit, for edits that replace graph inputs or outputs by other tensors."""

    def spots(named: dict[str, Tensor], ends: list[Tensor]) -> dict[str, int]:
        return {name: ends.index(tensor) for name, tensor in named.items()}

    before = [(s, spots(s.inputs, s.graph.inputs), spots(s.outputs, s.graph.outputs)) for s in model.signatures]
    yield
    for signature, inputs, outputs in before:
        signature.inputs = {name: signature.graph.inputs[k] for name, k in inputs.items()}
        signature.outputs = {name: signature.graph.outputs[k] for name, k in outputs.items()}


def drop_unused(graph: Graph) -> None:
    """Remove tensors that nothing refers to."""
    used = graph.referred()
    graph.tensors = [t for t in graph.tensors if t in used]


def cut_model(model: Model, graph: Graph, tensors: list[Tensor]) -> tuple[Model, set[Tensor]]:
    """Return a model that computes only `tensors`, and the inputs it still needs. Objects are shared with `model`.

    Ops without outputs stay, because they fill tensors that others read.
    """
    needed = set(tensors)
    kept_ops = []
    for op in reversed(graph.ops):
        if needed.intersection(op.outputs) or not op.outputs:
            kept_ops.append(op)
            needed.update(t for t in op.inputs if t is not None)
    inputs = [t for t in graph.inputs if t in needed]
    part = Graph(graph.name, list(graph.tensors), kept_ops[::-1], inputs, list(tensors))
    drop_unused(part)
    others = [g for g in model.graphs if g is not graph]
    return Model([part, *others]), set(inputs)


def with_written_ranges(model: Model) -> Model:
    """Return a copy in which every quantized tensor also stores the smallest and largest real value it can represent.

    Runtimes only need the scale and zero point; viewers show all of `min <= scale * (q - zero_point) <= max`.
    """
    made = copy_model(model)
    for tensor in (t for graph in made.graphs for t in graph.tensors):
        params, stored = tensor.params, tensor.quantization
        if params is None or stored is None:
            continue
        pairs = list(zip(params.scales, params.zero_points, strict=True))
        ends = [tuple(s * (end - z) for s, z in pairs) for end in (params.dtype.min, params.dtype.max)]
        tensor.quantization = replace(stored, min=ends[0], max=ends[1])
    return made


def copy_model(model: Model) -> Model:
    """Return a copy that can be edited without affecting `model`; constant bytes are shared until they are replaced."""
    graphs = {graph: _shallow(graph) for graph in model.graphs}
    tensors: dict[Any, Any] = {t: _shallow(t) for graph in model.graphs for t in graph.tensors} | {None: None}

    def named(originals: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensors[t] for name, t in originals.items()}

    for original, twin in graphs.items():
        twin.tensors = [tensors[t] for t in original.tensors]
        twin.inputs, twin.outputs = [tensors[t] for t in original.inputs], [tensors[t] for t in original.outputs]
        for tensor in twin.tensors:
            if tensor.quantization is not None:
                tensor.quantization = _with_scales(tensor.quantization, tensors)
        twin.ops = [_op_on(op, tensors) for op in original.ops]
        for op in twin.ops if len(graphs) > 1 else ():
            if op.options is not None and any(op.graphs()):
                op.options = op.options.replace(**{k: _exchanged(v, graphs) for k, v in op.options.values.items()})
    return replace(
        model,
        graphs=list(graphs.values()),
        signatures=[Signature(s.key, graphs[s.graph], named(s.inputs), named(s.outputs)) for s in model.signatures],
        metadata=list(model.metadata),
        metadata_buffers=None if model.metadata_buffers is None else list(model.metadata_buffers),
    )


def _op_on(original: Op, tensors: Mapping[Any, Any]) -> Op:
    """Return a copy that refers to other tensors, following the mapping."""
    twin = _shallow(original)
    twin.inputs, twin.outputs = [tensors[t] for t in twin.inputs], [tensors[t] for t in twin.outputs]
    twin.intermediates = [tensors[t] for t in twin.intermediates]
    return twin


def _shallow(original: Part) -> Part:
    """Return a copy that shares all fields. `copy.copy` is made for any object and takes several times as long."""
    twin = object.__new__(type(original))
    twin.__dict__ = original.__dict__.copy()
    return twin


def only_signature(model: Model, key: str) -> Model:
    """Return a copy with the single signature `key`, its graph first; graphs that it does not call are dropped."""
    own = copy_model(model)
    kept = next(s for s in own.signatures if s.key == key)
    own.signatures, own.graphs = [kept], [kept.graph, *reachable_graphs(kept.graph)]
    return own


def _exchanged(value: Any, graphs: Mapping[Graph, Graph]) -> Any:
    """Replace the graphs that an op option refers to, following the mapping."""
    if isinstance(value, tuple):
        return tuple(_exchanged(v, graphs) for v in value)
    return graphs.get(value, value) if isinstance(value, Graph) else value


def _with_scales(stored: Quantization | None, tensors: Mapping[Any, Any]) -> Quantization | None:
    """Replace the tensors that hold block scales, following the mapping."""
    if stored is None or not isinstance(blocks := stored.details, BlockScales):
        return stored
    scales, zero_points = tensors[blocks.scales], tensors[blocks.zero_points]
    return replace(stored, details=BlockScales(blocks.record, scales, zero_points))
