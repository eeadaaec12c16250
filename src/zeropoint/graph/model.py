"""A model as objects that point at each other, and as text. Indices exist only in files; see `zeropoint.tflite`."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np

from ..affine import PerAxis, PerTensor, QuantParams
from ..display import Displayed, counted
from ..dtypes import Array, DType
from ..errors import printable
from ..packing import pack, unpack
from ..parallel import cached_property


@dataclass(frozen=True)
class Record:
    """A table of the LiteRT schema, by type name, with its fields as plain values: op options, sparsity, and so on.

    Subgraph indices are replaced by the Graph itself; vectors are tuples.
    """

    type: str
    values: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.values.get(name, default)

    def replace(self, **changes: Any) -> Record:
        return Record(self.type, {**self.values, **changes})

    @cached_property
    def graphs(self) -> tuple[Graph, ...]:
        """The graphs that it refers to. Found once, because copies of an op share its options."""
        others = [value for value in self.values.values() if not isinstance(value, int)]  # most are numbers
        found = [value for value in others if isinstance(value, Graph)]
        within = [v for value in others if isinstance(value, tuple) for v in value if isinstance(v, Graph)]
        return (*found, *within)


@dataclass(eq=False)
class Buffer:
    """Constant bytes: a view of the file they came from. Tensors that share a Buffer share its bytes."""

    raw: Array  # uint8, one dimension


@dataclass(frozen=True)
class Quantization:
    """What a file stores about a tensor's quantization, valid or not.

    `details` is `BlockScales`, or a Record that this package preserves without interpreting.
    """

    scales: tuple[float, ...] = ()
    zero_points: tuple[int, ...] = ()
    axis: int = 0
    min: tuple[float, ...] = ()
    max: tuple[float, ...] = ()
    details: Record | BlockScales | None = None

    @classmethod
    def of(cls, params: QuantParams) -> Quantization:
        return cls(params.scales, params.zero_points, params.axis or 0)

    def params(self, dtype: DType) -> QuantParams | None:
        """The affine parameters, or None if there are none or they are of another kind."""
        known = self._params
        if dtype not in known:
            known[dtype] = self._as_params(dtype)
        return known[dtype]

    @cached_property
    def _params(self) -> dict[DType, QuantParams | None]:
        """By type. Made once, because every tensor is asked for its parameters many times."""
        return {}

    def _as_params(self, dtype: DType) -> QuantParams | None:
        if not self.scales or not dtype.is_integer or self.details is not None:
            return None
        zero_points = self.zero_points or (0,)
        if len(zero_points) == 1:
            zero_points *= len(self.scales)
        if len(zero_points) != len(self.scales):
            return None
        granularity = PerAxis(self.axis) if len(self.scales) > 1 else PerTensor()
        return QuantParams(self.scales, zero_points, dtype, granularity)


@dataclass(frozen=True)
class BlockScales:
    """One scale for each block of consecutive elements, stored in float16 tensors of their own."""

    record: Record
    scales: Tensor
    zero_points: Tensor | None


@dataclass(eq=False)
class Tensor:
    """A value in a graph: an activation, or a constant if it has a buffer."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    buffer: Buffer | None = None
    quantization: Quantization | None = None
    shape_signature: tuple[int, ...] | None = None  # -1 marks a dynamic dimension
    is_variable: bool = False
    has_rank: bool = False
    sparsity: Record | None = None
    variants: tuple[Record, ...] | None = None
    external_buffer: int = 0  # identifies an entry of Model.external_buffers; 0 is none

    @property
    def is_constant(self) -> bool:
        return self.buffer is not None or self.external_buffer != 0

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def dynamic_shape(self) -> tuple[int, ...]:
        """The shape, with -1 for dimensions that are known only at run time."""
        return self.shape_signature or self.shape

    @property
    def is_dynamic(self) -> bool:
        """Whether a dimension is known only at run time."""
        return any(size < 0 for size in self.dynamic_shape)

    @property
    def params(self) -> QuantParams | None:
        params = None if self.quantization is None else self.quantization.params(self.dtype)
        if params is None or not params.axis or len(self.shape) != 1:
            return params
        return replace(params, granularity=PerAxis(0))  # a vector has only this axis, whatever the file says

    @property
    def is_quantized(self) -> bool:
        """Whether the integers represent real numbers, as opposed to indices and counts."""
        stored = self.quantization
        return self.dtype.is_integer and stored is not None and bool(stored.scales or stored.details)

    @property
    def has_data(self) -> bool:
        """Whether `data` is not None, which takes longer to make."""
        return self.buffer is not None and self.sparsity is None and self.dtype.storage is not None

    @property
    def data(self) -> Array | None:
        """The constant in the tensor's shape: a view of the file, or an unpacked copy for int4 and int2."""
        if self.buffer is None or self.sparsity is not None:
            return None
        storage = self.dtype.storage
        if storage is None:
            return None
        if self.dtype.is_packed:
            return unpack(self.buffer.raw, self.dtype, self.size).reshape(self.shape)
        return self.buffer.raw.view(storage).reshape(self.shape)

    @classmethod
    def constant(cls, name: str, data: Array, dtype: DType, params: QuantParams | None = None) -> Tensor:
        """Return a constant tensor that stores `data` as `dtype`."""
        stored = None if params is None else Quantization.of(params)
        return cls(name, tuple(data.shape), dtype, buffer_of(data, dtype), stored)

    def __repr__(self) -> str:
        shape = ",".join(map(str, self.shape))
        return f"<{'const ' if self.is_constant else ''}{self.dtype.label}[{shape}] {self.name!r}>"


def buffer_of(data: Array, dtype: DType) -> Buffer | None:
    """Return the bytes that store `data` as `dtype`; None for no elements, since files cannot represent an empty
    buffer.
    """
    if data.size == 0:
        return None
    if dtype.is_packed:
        return Buffer(pack(data, dtype))
    stored = np.ascontiguousarray(data, dtype.storage)
    return Buffer(stored.reshape(-1).view(np.uint8))


@dataclass(eq=False)
class Op:
    """One operation. An absent optional input is None."""

    kind: str
    inputs: list[Tensor | None]
    outputs: list[Tensor]
    options: Record | None = None
    version: int = 1
    custom_code: str | None = None
    custom_options: Array | None = None
    custom_options_format: int = 0
    intermediates: list[Tensor] = field(default_factory=list)
    mutating_variable_inputs: tuple[bool, ...] | None = None
    debug_metadata_index: int = -1

    @property
    def label(self) -> str:
        """The op kind, or the custom code of a custom op."""
        return self.custom_code or self.kind if self.kind == "CUSTOM" else self.kind

    @property
    def name(self) -> str:
        """The name of the first output: ops have no names of their own in a file."""
        return self.outputs[0].name if self.outputs else ""

    def option(self, name: str, default: Any = None) -> Any:
        return default if self.options is None else self.options.get(name, default)

    def input(self, slot: int) -> Tensor | None:
        """Return the input at `slot`; None if it is absent, or if the op has fewer inputs."""
        return self.inputs[slot] if slot < len(self.inputs) else None

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor that the op refers to, including the block scales of its operands."""
        for tensor in (*self.inputs, *self.outputs, *self.intermediates):
            if tensor is not None:
                yield tensor
                yield from attached(tensor)

    def graphs(self) -> tuple[Graph, ...]:
        """The graphs that the op calls."""
        return () if self.options is None else self.options.graphs

    def __repr__(self) -> str:
        return f"<{printable(self.label)} {self.name!r}>"


def attached(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensors that belong to `tensor`: the scales of a blockwise quantization."""
    if tensor.quantization is not None and isinstance(tensor.quantization.details, BlockScales):
        details = tensor.quantization.details
        yield details.scales
        if details.zero_points is not None:
            yield details.zero_points


@dataclass(eq=False)
class Graph:
    """Ops in execution order, and all tensors that belong to them."""

    name: str = "main"
    tensors: list[Tensor] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    debug_metadata_index: int = -1

    def referred(self) -> set[Tensor]:
        """The tensors that an op, a graph input or a graph output refers to."""
        lists = (held for op in self.ops for held in (op.inputs, op.outputs, op.intermediates))
        found: set[Tensor] = {t for held in (self.inputs, self.outputs, *lists) for t in held if t is not None}
        return found.union(*map(attached, (t for t in found if t.quantization is not None)))

    def tensor(self, name: str) -> Tensor:
        """Return the first tensor called `name`."""
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise KeyError(name)

    def __repr__(self) -> str:
        return f"<graph {self.name!r}: {counted(len(self.ops), 'op')}>"

    def __str__(self) -> str:
        return _graph_text(self)


@dataclass(eq=False)
class Signature:
    """The names by which callers address a graph's inputs and outputs."""

    key: str
    graph: Graph
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]


@dataclass(eq=False)
class Model(Displayed):
    """Everything a `.tflite` holds. The first graph is the one that runs by default."""

    graphs: list[Graph]
    signatures: list[Signature] = field(default_factory=list)
    description: str | None = None
    version: int = 3
    metadata: list[tuple[str, Buffer | None]] = field(default_factory=list)
    metadata_buffers: list[Buffer | None] | None = None  # the older equivalent of metadata
    external_buffer_groups: tuple[Record, ...] | None = None
    external_buffers: tuple[Record, ...] | None = None
    packed_files: Buffer | None = None  # a zip archive appended to the flatbuffer

    @property
    def main(self) -> Graph:
        return self.graphs[0]

    def __repr__(self) -> str:
        ops = sum(len(g.ops) for g in self.graphs)
        return f"<model: {counted(len(self.graphs), 'graph')}, {counted(ops, 'op')}>"

    def __str__(self) -> str:
        return _model_text(self)


# A stable text form: short enough to read, complete enough to diff. Fields at their defaults are left out.

INLINE_ELEMENTS = 8
"""Vectors and constants up to this size are written out; larger ones are shown as a checksum."""

Names = Mapping[Tensor, str]


def _model_text(model: Model) -> str:
    names = {tensor: f"%{k}" for graph in model.graphs for k, tensor in enumerate(graph.tensors)}
    lines = [f"model{_fields(model, names, skip=('graphs', 'signatures'))}"]
    lines += [f"signature{_fields(signature, names)}" for signature in model.signatures]
    return "\n".join([*map(printable, lines), *(_graph_text(graph) for graph in model.graphs)])


def _graph_text(graph: Graph) -> str:
    names = {tensor: f"%{k}" for k, tensor in enumerate(graph.tensors)}
    lines = [f"graph {graph.name!r}{_fields(graph, names, skip=('name', 'tensors', 'ops'))}"]
    lines += [f"  {names[tensor]} {_tensor(tensor, names)}" for tensor in graph.tensors]
    lines += [f"  {_op(op, names)}" for op in graph.ops]
    return "\n".join(map(printable, lines))


def _tensor(tensor: Tensor, names: Names) -> str:
    kind = f"{tensor.dtype.label}[{','.join(map(str, tensor.shape))}]"
    data = tensor.data if tensor.size <= INLINE_ELEMENTS else None
    skip = ("name", "dtype", "shape", "" if data is None else "buffer")
    return f"{tensor.name!r} {kind}{_fields(tensor, names, skip)}{'' if data is None else f' = {data.tolist()}'}"


def _op(op: Op, names: Names) -> str:
    outputs, inputs = (", ".join(_shown(t, names) for t in side) for side in (op.outputs, op.inputs))
    return f"{outputs} = {op.label}({inputs}){_fields(op, names, skip=('kind', 'inputs', 'outputs'))}"


def _fields(value: Any, names: Names, skip: tuple[str, ...] = ()) -> str:
    """Format the fields of a dataclass that differ from their defaults, each preceded by a space."""
    text = ""
    for known in fields(value):
        held = getattr(value, known.name)
        is_default = held is None or (not isinstance(held, np.ndarray) and held in (known.default, []))
        if known.name not in skip and not is_default:
            text += f" {known.name}={_shown(held, names)}"
    return text


def _shown(value: Any, names: Names) -> str:
    if isinstance(value, Tensor):
        return names.get(value, f"?{value.name}")
    if isinstance(value, Graph):
        return f"@{value.name}"
    if isinstance(value, Buffer):
        return _shown(value.raw, names)
    if isinstance(value, np.ndarray):
        return f"<{value.size} bytes {_checksum(value)}>"
    if isinstance(value, Record):
        # Absent, zero and false are the schema's usual defaults; leaving them out keeps a line readable.
        return value.type + _shown({k: v for k, v in value.values.items() if v}, names)
    if is_dataclass(value):
        return f"({_fields(value, names).lstrip()})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{k}={_shown(v, names)}' for k, v in value.items())}}}"
    if isinstance(value, tuple) and len(value) > INLINE_ELEMENTS:
        return f"<{len(value)} values {_checksum(repr(value).encode())}>"
    if isinstance(value, tuple | list):
        return f"[{', '.join(_shown(v, names) for v in value)}]"
    return "-" if value is None else repr(value)


def _checksum(data: bytes | Array) -> str:
    """Return a checksum of `data` as eight hexadecimal digits."""
    return f"{zlib.crc32(data):08x}"  # type: ignore[arg-type]  # NumPy's stubs hide that arrays are buffers
