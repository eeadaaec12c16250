"""A stable text form of a model: short enough to read, complete enough to diff. Fields with defaults are left out."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from ..dtypes import Array
from .model import Buffer, Graph, Model, Op, Record, Tensor

INLINE_ELEMENTS = 8
"""Vectors and constants up to this size are written out; larger ones as a checksum."""

Names = Mapping[Tensor, str]


def model_text(model: Model) -> str:
    names = {tensor: f"%{k}" for graph in model.graphs for k, tensor in enumerate(graph.tensors)}
    lines = [f"model{_fields(model, names, skip=('graphs', 'signatures'))}"]
    lines += [f"signature{_fields(signature, names)}" for signature in model.signatures]
    return "\n".join([*lines, *(graph_text(graph) for graph in model.graphs)])


def graph_text(graph: Graph) -> str:
    names = {tensor: f"%{k}" for k, tensor in enumerate(graph.tensors)}
    lines = [f"graph {graph.name!r}{_fields(graph, names, skip=('name', 'tensors', 'ops'))}"]
    lines += [f"  {names[tensor]} {_tensor(tensor, names)}" for tensor in graph.tensors]
    return "\n".join([*lines, *(f"  {_op(op, names)}" for op in graph.ops)])


def _tensor(tensor: Tensor, names: Names) -> str:
    kind = f"{tensor.dtype.label}[{','.join(map(str, tensor.shape))}]"
    data = tensor.data if tensor.size <= INLINE_ELEMENTS else None
    skip = ("name", "dtype", "shape", "" if data is None else "buffer")
    return f"{tensor.name!r} {kind}{_fields(tensor, names, skip)}{'' if data is None else f' = {data.tolist()}'}"


def _op(op: Op, names: Names) -> str:
    outputs, inputs = (", ".join(_shown(t, names) for t in side) for side in (op.outputs, op.inputs))
    return f"{outputs} = {op.label}({inputs}){_fields(op, names, skip=('kind', 'inputs', 'outputs'))}"


def _fields(value: Any, names: Names, skip: tuple[str, ...] = ()) -> str:
    """The fields of a dataclass that are not at their defaults, each behind a space."""
    text = ""
    for field in fields(value):
        held = getattr(value, field.name)
        is_default = held is None or (not isinstance(held, np.ndarray) and held in (field.default, []))
        if field.name not in skip and not is_default:
            text += f" {field.name}={_shown(held, names)}"
    return text


def _shown(value: Any, names: Names) -> str:
    if value is None:
        return "-"
    if isinstance(value, Tensor):
        return names.get(value, f"?{value.name}")
    if isinstance(value, Graph):
        return f"@{value.name}"
    if isinstance(value, Buffer | np.ndarray):
        raw = value.raw if isinstance(value, Buffer) else value
        return f"<{raw.size} bytes {_checksum(raw)}>"
    if isinstance(value, Record):
        # Absent, zero and false are the schema's usual defaults; leaving them out keeps a line readable.
        return f"{value.type}{{{', '.join(f'{k}={_shown(v, names)}' for k, v in value.values.items() if v)}}}"
    if is_dataclass(value):
        return f"({_fields(value, names).lstrip()})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{k}={_shown(v, names)}' for k, v in value.items())}}}"
    if isinstance(value, tuple) and len(value) > INLINE_ELEMENTS and isinstance(value[0], int | float):
        return f"<{len(value)} values {_checksum(repr(value).encode())}>"
    if isinstance(value, tuple | list):
        return f"[{', '.join(_shown(v, names) for v in value)}]"
    return repr(value)


def _checksum(data: bytes | Array) -> str:
    """Eight hexadecimal digits that tell different data apart."""
    return f"{zlib.crc32(data):08x}"  # type: ignore[arg-type]  # NumPy's stubs hide that arrays are buffers
