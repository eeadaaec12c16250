"""The content of a `.tflite` as values: the numbers that Netron shows, and those that the kernels compute with."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from ..affine import QuantParams
from ..display import Displayed, counted, share_text
from ..dtypes import DType
from ..fixedpoint import to_fixed_point
from ..graph.check import inputs_are_filled
from ..graph.model import BlockScales, Graph, Model, Op, Record, Tensor
from ..graph.names import short_names
from ..graph.query import tensor_keys, unique_names
from ..json_values import json_values
from ..ops import fused_activation
from ..ops.execution import Execution, execution_of, kernel_factors, macs_of
from ..sources.models import ModelSource, load, size_of
from ..tflite import to_bytes
from ..tflite.packed_files import PackedFile, packed_files
from ..tflite.provenance import provenance

SCHEMA_VERSION = 1
"""Schema version of `Inspection.to_json`; documented in docs/inspect-json.md."""

Kind = Literal["input", "output", "constant", "variable", "activation"]


@dataclass(frozen=True)
class QuantRow:
    """low ≤ scale * (q - zero_point) ≤ high. `source` says where low and high come from."""

    low: float
    high: float
    source: Literal["stored", "representable"]
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    axis: int | None
    formula: str


@dataclass(frozen=True)
class TensorRow:
    graph: str
    name: str
    kind: Kind
    dtype: str
    shape: tuple[int, ...]
    shape_signature: tuple[int, ...] | None
    bytes: int
    quantization: QuantRow | None
    values: tuple[float, float] | None  # minimum and maximum of a float constant
    note: str
    short_name: str  # the name that all commands show and accept
    levels: int | None = None  # number of distinct integers in a quantized constant of 8 bits or fewer


@dataclass(frozen=True)
class Multiplier:
    """A real factor that an integer kernel applies, as int32 multiplier and shift."""

    what: str
    real: float
    multiplier: int
    shift: int

    def __str__(self) -> str:
        return f"{self.what}: {self.real:.6g} = {self.multiplier} * 2^{self.shift - 31}"


@dataclass(frozen=True)
class OperandRow:
    """An op's input or output, with its parameters in one line."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    formula: str | None
    short_name: str


@dataclass(frozen=True)
class InspectedOp:
    graph: str
    kind: str
    name: str
    version: int
    activation: str
    execution: Execution
    macs: int
    inputs: tuple[OperandRow | None, ...]  # None: an absent optional input
    outputs: tuple[OperandRow, ...]
    multipliers: tuple[Multiplier, ...]
    short_name: str


@dataclass(frozen=True)
class PortRow(OperandRow):
    """An input or output of the model as a caller sees it, with the name of its tensor."""

    tensor: str


@dataclass(frozen=True)
class SignatureRow:
    key: str | None  # None: the model has no signature; these are the first graph's inputs and outputs
    graph: str
    inputs: tuple[PortRow, ...]
    outputs: tuple[PortRow, ...]


@dataclass(frozen=True, repr=False)
class Inspection(Displayed):
    """Everything that `zeropoint inspect` prints."""

    description: str | None
    file_bytes: int | None
    signatures: tuple[SignatureRow, ...]
    data_bytes: dict[str, int]  # constant data by type; shared buffers count once
    other_bytes: int | None
    tensors: tuple[TensorRow, ...]
    ops: tuple[InspectedOp, ...]
    packed_files: tuple[PackedFile, ...] = ()
    made_by: str | None = None  # how it was made, as recorded in the file
    remarks: tuple[str, ...] = ()  # why LiteRT would not run it, or what it has to ignore
    zip_bytes: int | None = None  # size when zipped, as apps ship it; only if weights have few levels

    @property
    def few_levels(self) -> str | None:
        """Which weights use far fewer integers than their type has, and how many bits they need; None if there are
        none."""
        weights = [t for t in self.tensors if t.levels is not None]
        few = Counter(t.levels or 0 for t in weights if has_few_levels(t))
        if not few:
            return None
        bits = {k: counted(bits_for(k), "bit") for k in few}
        told = ", ".join(f"{n} with {counted(k, 'level')} ({bits[k]})" for k, n in sorted(few.items()))
        return f"{few.total()} of {len(weights)} weights: {told}"

    @property
    def ops_by_kind(self) -> dict[str, Counter[Execution]]:
        counts: dict[str, Counter[Execution]] = {}
        for op in self.ops:
            counts.setdefault(op.kind, Counter())[op.execution] += 1
        return counts

    @property
    def macs(self) -> dict[Execution, int]:
        """Multiply-accumulates by how they are executed."""
        totals: Counter[Execution] = Counter()
        for op in self.ops:
            totals[op.execution] += op.macs
        return {execution: n for execution, n in totals.items() if n}

    @property
    def integer_share(self) -> float | None:
        """The share of the arithmetic that runs in integers; None for a model without multiplications."""
        macs = self.macs
        return macs.get("integer", 0) / sum(macs.values()) if macs else None

    @property
    def integer_share_text(self) -> str:
        """The integer share as text: 100.0% only if no op at all computes in float, even ops without
        multiplications."""
        is_all = not any(op.execution in ("float", "hybrid") for op in self.ops)
        return share_text(self.integer_share or 0.0, is_all)

    def filtered(self, pattern: str) -> Inspection:
        """Return only tensors and ops whose name or kind matches a glob, ignoring case."""
        wanted = pattern.lower()

        def matches(*texts: str) -> bool:
            return any(fnmatch.fnmatchcase(text.lower(), wanted) for text in texts)

        return dataclasses.replace(
            self,
            tensors=tuple(t for t in self.tensors if matches(t.name, t.short_name, t.kind, t.dtype)),
            ops=tuple(op for op in self.ops if matches(op.name, op.short_name, op.kind)),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the inspection as JSON values; docs/inspect-json.md describes them."""
        kinds = {kind: dict(counts) for kind, counts in self.ops_by_kind.items()}
        summary = {"macs": self.macs, "integer_share": self.integer_share, "ops_by_kind": kinds}
        return {"schema": SCHEMA_VERSION, **json_values(self), "summary": json_values(summary)}


def inspect(model: ModelSource, file_bytes: int | None = None) -> Inspection:
    """Describe a model: its inputs and outputs, ops, tensors, scales, and how much of it runs in integers.

    Args:
        model: A model, or anything that `load` accepts.
        file_bytes: The size of the file that a `Model` came from, if there is one.

    Returns:
        What `zeropoint inspect` prints, as values; `to_json()` gives them as JSON.
    """
    source, model = model, load(model)
    if isinstance(source, str | os.PathLike):
        file_bytes = size_of(source, model)
    names = _names(model)
    types = {t.buffer: t.dtype.label for g in model.graphs for t in g.tensors if t.buffer is not None}
    data: Counter[str] = Counter()
    for buffer, label in types.items():
        data[label] += buffer.raw.size
    rows = tuple(_tensor_row(t, g, names[t]) for g in model.graphs for t in g.tensors)
    return Inspection(
        model.description,
        file_bytes,
        tuple(_signatures(model, names)),
        dict(data.most_common()),
        None if file_bytes is None else file_bytes - data.total(),
        rows,
        tuple(_op_row(op, g, names) for g in model.graphs for op in g.ops),
        tuple(packed_files(model)),
        None if (made := provenance(model)) is None else str(made),
        tuple(_remarks(model)),
        len(zlib.compress(to_bytes(model))) if any(map(has_few_levels, rows)) else None,
    )


def has_few_levels(row: TensorRow) -> bool:
    """Whether a constant's integers need at most half of the bits of their type."""
    if row.levels is None:
        return False
    return row.levels <= 2 ** (DType.parse(row.dtype).bits // 2) and math.prod(row.shape) >= 8 * row.levels


def bits_for(levels: int) -> int:
    """Return how many bits are needed for this many distinct integers."""
    return max(1, (levels - 1).bit_length())


class _Names(NamedTuple):
    """The names of a tensor: unique in its graph, and for display."""

    name: str
    short: str


def _names(model: Model) -> dict[Tensor, _Names]:
    keys, short = tensor_keys(model), short_names(model)
    return {t: _Names(name, short[keys[t]]) for g in model.graphs for t, name in unique_names(g).items()}


def _remarks(model: Model) -> Iterator[str]:
    """Yield what is unusual about a file that can nevertheless be read."""
    pairs = [(t.name, t.params, t.quantization) for g in model.graphs for t in g.tensors]
    if unknown := [(n, q.axis) for n, p, q in pairs if p and q and p.axis not in (None, q.axis)]:
        (name, axis), more = unknown[0], _and_more(len(unknown) - 1)
        yield f"'{name}' is quantized along axis {axis}, which a vector does not have{more}; taken as 0"
    if unfilled := [text for graph in model.graphs for text in inputs_are_filled(graph)]:
        yield f"{unfilled[0]}{_and_more(len(unfilled) - 1)}: the model can be inspected, but not run here"
    if custom := sorted({op.label for g in model.graphs for op in g.ops if op.kind == "CUSTOM"}):
        yield f"custom ops run only where their kernels are installed: {', '.join(custom)}"


def _and_more(count: int) -> str:
    return f" (and {count} more)" if count else ""


def formula(params: QuantParams) -> str:
    """Return real as a function of q: `0.012566 * (q - 3)`; with many scales, their spread."""
    if params.axis is not None:
        spread = f"{min(params.scales):.4g} .. {max(params.scales):.4g}"
        zeros = "" if params.is_symmetric else f", zero points {min(params.zero_points)} .. {max(params.zero_points)}"
        return f"scale {spread} * q in {counted(len(params.scales), 'channel')} on axis {params.axis}{zeros}"
    offset = f"(q{signed(-params.zero_point)})" if params.zero_point else "q"
    return f"{params.scale:.5g} * {offset}"


def signed(offset: int) -> str:
    """Format an offset after a term: ` + 3`, ` - 3`, nothing for 0."""
    return f" {'+' if offset > 0 else '-'} {abs(offset)}" if offset else ""


def _signatures(model: Model, names: dict[Tensor, _Names]) -> Iterator[SignatureRow]:
    def row(key: str | None, graph: Graph, inputs: dict[str, Tensor], outputs: dict[str, Tensor]) -> SignatureRow:
        sides = ([_port(name, t, names[t], key) for name, t in side.items()] for side in (inputs, outputs))
        return SignatureRow(key, graph.name, *map(tuple, sides))

    for signature in model.signatures:
        yield row(signature.key, signature.graph, signature.inputs, signature.outputs)
    if not model.signatures:
        graph = model.main
        yield row(None, graph, *({names[t].name: t for t in side} for side in (graph.inputs, graph.outputs)))


def _port(name: str, tensor: Tensor, names: _Names, key: str | None) -> PortRow:
    params = tensor.params
    shown = None if params is None or params.axis is not None else formula(params)
    short = names.short if key is None else name
    return PortRow(name, tensor.dtype.label, tensor.shape_signature or tensor.shape, shown, short, names.name)


def _tensor_row(tensor: Tensor, graph: Graph, names: _Names) -> TensorRow:
    return TensorRow(
        graph.name,
        names.name,
        _kind(tensor, graph),
        tensor.dtype.label,
        tensor.shape,
        tensor.shape_signature,
        tensor.buffer.raw.size if tensor.buffer is not None else tensor.dtype.nbytes(tensor.size) or 0,
        _quant_row(tensor),
        _values(tensor),
        _note(tensor),
        names.short,
        _levels(tensor),
    )


def _kind(tensor: Tensor, graph: Graph) -> Kind:
    if tensor in graph.inputs:
        return "input"
    if tensor in graph.outputs:
        return "output"
    if tensor.is_constant:
        return "constant"
    return "variable" if tensor.is_variable else "activation"


def _quant_row(tensor: Tensor) -> QuantRow | None:
    params, stored = tensor.params, tensor.quantization
    if params is None or stored is None:
        return None
    has_range = bool(stored.min) and bool(stored.max)
    low, high = (min(stored.min), max(stored.max)) if has_range else params.range()
    source: Literal["stored", "representable"] = "stored" if has_range else "representable"
    return QuantRow(low, high, source, params.scales, params.zero_points, params.axis, formula(params))


def _values(tensor: Tensor) -> tuple[float, float] | None:
    data = tensor.data if tensor.dtype.is_float and not tensor.dtype.variant else None  # NumPy lacks the variants
    if data is None or data.size == 0:
        return None
    with np.errstate(invalid="ignore"):
        return float(data.min()), float(data.max())


def _levels(tensor: Tensor) -> int | None:
    if not tensor.is_constant or tensor.params is None or not tensor.dtype.is_integer or tensor.dtype.bits > 8:
        return None
    data = tensor.data
    return None if data is None else int(np.count_nonzero(np.bincount(data.astype(np.uint8).reshape(-1))))


def _note(tensor: Tensor) -> str:
    stored = tensor.quantization
    details = None if stored is None else stored.details
    notes = [] if tensor.sparsity is None else ["sparse"]
    if isinstance(details, BlockScales):
        notes.append(f"blocks of {details.record.get('blockSize')}, scales in '{details.scales.name}'")
    elif isinstance(details, Record):
        notes.append(details.type)
    if stored is not None and stored.scales and tensor.params is None and not notes:
        notes.append("has a scale that its type does not use")
    return ", ".join(notes)


def _op_row(op: Op, graph: Graph, names: dict[Tensor, _Names]) -> InspectedOp:
    execution = execution_of(op)
    known = names[op.outputs[0]] if op.outputs else _Names("", "")
    factors = kernel_factors(op) if execution == "integer" else ()
    return InspectedOp(
        graph.name,
        op.label,
        known.name,
        op.version,
        fused_activation(op).name,
        execution,
        macs_of(op),
        tuple(None if t is None else _operand(t, names) for t in op.inputs),
        tuple(_operand(t, names) for t in op.outputs),
        tuple(Multiplier(what, real, *to_fixed_point(real)) for what, real in factors),
        known.short,
    )


def _operand(tensor: Tensor, names: dict[Tensor, _Names]) -> OperandRow:
    shown = None if tensor.params is None else formula(tensor.params)
    return OperandRow(names[tensor].name, tensor.dtype.label, tensor.shape, shown, names[tensor].short)
