"""A stable text form of a graph: short enough to read, complete enough to diff."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from ..dtypes import Array
from .model import BlockScales, Buffer, Graph, Model, Op, Quantization, Record, Tensor
from .query import unique_names

INLINE_ELEMENTS = 8
"""Constants up to this size are written out; larger ones as a checksum."""


def model_text(model: Model) -> str:
    lines = [f"model {model.description!r} version {model.version}"]
    for signature in model.signatures:
        names = unique_names(signature.graph)
        ends = (
            ", ".join(f"{key}={names.get(t, t.name)}" for key, t in side.items())
            for side in (signature.inputs, signature.outputs)
        )
        lines.append(f"signature {signature.key!r} of {signature.graph.name!r}: ({') -> ('.join(ends)})")
    lines += [f"metadata {name!r} {_bytes(buffer)}" for name, buffer in model.metadata]
    lines += [f"metadata buffer {_bytes(buffer)}" for buffer in model.metadata_buffers or ()]
    lines += [f"external group {_record(r)}" for r in model.external_buffer_groups or ()]
    lines += [f"external {_record(r)}" for r in model.external_buffers or ()]
    return "\n".join([*lines, *(graph_text(graph) for graph in model.graphs)])


def graph_text(graph: Graph) -> str:
    return "\n".join(_graph_lines(graph))


def _graph_lines(graph: Graph) -> Iterator[str]:
    names = {tensor: f"%{k}" for k, tensor in enumerate(graph.tensors)}
    yield f"graph {graph.name!r}"
    for title, ends in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        yield f"  {title} {', '.join(names.get(t, '?' + t.name) for t in ends)}"
    for tensor in graph.tensors:
        yield f"  {names[tensor]} {tensor.name!r} {_tensor(tensor, names)}"
    for op in graph.ops:
        yield f"  {_op(op, names)}"


def _op(op: Op, names: dict[Tensor, str]) -> str:
    def listed(tensors: list[Tensor | None] | list[Tensor]) -> str:
        return ", ".join("-" if t is None else names.get(t, "?" + t.name) for t in tensors)

    parts = [f"{listed(op.outputs)} = {op.label} v{op.version}({listed(op.inputs)})"]
    if op.kind == "CUSTOM":
        parts.append(f"custom {'' if op.custom_options is None else _checksum(op.custom_options.tobytes())}")
    if op.options is not None:
        parts.append(_record(op.options))
    if op.intermediates:
        parts.append(f"intermediates({listed(op.intermediates)})")
    if op.mutating_variable_inputs:
        parts.append(f"mutates{[k for k, m in enumerate(op.mutating_variable_inputs) if m]}")
    return " ".join(parts)


def _tensor(tensor: Tensor, names: dict[Tensor, str]) -> str:
    parts = [f"{tensor.dtype.label}[{','.join(map(str, tensor.shape))}]"]
    if tensor.shape_signature is not None and tensor.shape_signature != tensor.shape:
        parts.append(f"signature[{','.join(map(str, tensor.shape_signature))}]")
    if tensor.is_variable:
        parts.append("variable")
    if tensor.quantization is not None:
        parts.append(_quantization(tensor.quantization, names))
    if tensor.sparsity is not None:
        parts.append(_record(tensor.sparsity))
    parts += [_record(variant) for variant in tensor.variants or ()]
    if tensor.external_buffer:
        parts.append(f"external {tensor.external_buffer}")
    if tensor.buffer is not None:
        data = tensor.data if tensor.size <= INLINE_ELEMENTS else None
        parts.append(f"= {_bytes(tensor.buffer)}" if data is None else f"= {data.tolist()}")
    return " ".join(part for part in parts if part)


def _quantization(stored: Quantization, names: dict[Tensor, str]) -> str:
    parts = []
    if len(stored.scales) == 1:
        parts.append(f"scale {stored.scales[0]!r} zero {', '.join(map(str, stored.zero_points))}")
    elif stored.scales:
        parts.append(
            f"{len(stored.scales)} scales on axis {stored.axis} "
            f"{_checksum(repr((stored.scales, stored.zero_points)).encode())}"
        )
    if stored.min or stored.max:
        parts.append(f"range {_short(stored.min)} .. {_short(stored.max)}")
    if isinstance(stored.details, BlockScales):
        zeros = stored.details.zero_points
        parts.append(f"blocks of {_record(stored.details.record)} scales={names.get(stored.details.scales, '?')}")
        parts.append("" if zeros is None else f"zeros={names.get(zeros, '?')}")
    elif stored.details is not None:
        parts.append(_record(stored.details))
    return " ".join(part for part in parts if part)


def _short(values: tuple[float, ...]) -> str:
    return repr(values[0]) if len(values) == 1 else _checksum(repr(values).encode())


def _record(record: Record) -> str:
    def shown(value: object) -> object:
        if isinstance(value, Graph):
            return f"@{value.name}"
        if isinstance(value, tuple) and any(isinstance(v, Graph | Record) for v in value):
            return f"({', '.join(str(shown(v)) for v in value)})"
        return _record(value) if isinstance(value, Record) else value

    # Absent, zero and false are the schema's usual defaults; leaving them out keeps a line readable.
    fields = ", ".join(f"{k}={shown(v)}" for k, v in record.values.items() if v)
    return f"{record.type}{{{fields}}}"


def _bytes(buffer: Buffer | None) -> str:
    return "none" if buffer is None else f"{buffer.raw.size} bytes {_checksum(buffer.raw)}"


def _checksum(data: bytes | Array) -> str:
    """Eight hexadecimal digits that tell different data apart."""
    return f"{zlib.crc32(data):08x}"  # type: ignore[arg-type]  # NumPy's stubs hide that arrays are buffers
