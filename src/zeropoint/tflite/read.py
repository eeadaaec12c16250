"""Bytes -> Model. Accepts any `.tflite`; raises InvalidModel, and nothing else, for anything that is not one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from ..dtypes import Array
from ..errors import InvalidModel
from ..files import PathLike, reading
from ..graph.check import check
from ..graph.model import BlockScales, Buffer, Graph, Model, Op, Quantization, Record, Signature, Tensor
from . import schema
from .flatbuffer import Content, File, Table
from .other_files import other_file
from .packed_files import cut_archive

LARGEST_FILE = (1 << 31) - 1
"""Size limit: offsets in a flatbuffer are 32 bits wide, and signed in places."""

MOST_DIMENSIONS = 32
"""Rank limit: far above what any kernel supports, and supported by every NumPy version."""

T = TypeVar("T")


def load(source: PathLike | bytes) -> Model:
    """Read a model from a file or from bytes."""
    if isinstance(source, bytes | bytearray | memoryview):
        return _Reader(_identified(bytes(source), "the given content")).model()
    path = Path(source)
    content = _identified(_content(path), str(path))
    try:
        return _Reader(content).model()
    except InvalidModel as error:
        raise InvalidModel(f"{path} is not a valid .tflite model: {error}") from None


def custom_codes(content: bytes) -> list[str]:
    """Return the names of the custom ops that a model's content refers to, without reading anything else."""
    codes = (_op_code(table) for table in File(content).root().tables(1) or ())
    return [code for _, _, code in codes if code is not None]


def _content(path: Path) -> memoryview:
    with reading(path, "a .tflite model", InvalidModel):
        if path.is_dir():
            raise InvalidModel(f"{path} is a folder; give a .tflite file")
        size = path.stat().st_size
        if not path.is_file():  # a device may be endless, and a pipe may have no writer
            raise InvalidModel(f"{path} is not a regular file; give a .tflite file")
        if size > LARGEST_FILE:
            raise InvalidModel(f"{path} has {size / 2**30:.1f} GB; files over 2 GB cannot be read")
        # NumPy requests huge pages, which halves the time that `read_bytes` takes.
        content = np.fromfile(path, np.uint8)
        content.flags.writeable = False
        return memoryview(content)  # type: ignore[arg-type]  # NumPy's stubs hide that arrays are buffers


def _identified(content: Content, name: str) -> Content:
    if not content:
        raise InvalidModel(f"{name} is empty; expected a .tflite model")
    identifier = bytes(content[4:8])
    if identifier != schema.IDENTIFIER and (other := other_file(content)) is not None:
        raise InvalidModel(f"{name} is {other}")
    if identifier != schema.IDENTIFIER:
        raise InvalidModel(
            f"{name} is not a .tflite model: bytes 4 to 8 are {identifier!r} instead of {schema.IDENTIFIER!r}"
        )
    return content


class _Reader:
    """Resolves indices to objects, so that no other code has to."""

    def __init__(self, content: Content) -> None:
        self.file = File(content)
        self.root = self.file.root()
        self.buffers = [self._buffer(t) for t in self.root.tables(4) or ()]
        self.codes = [_op_code(t) for t in self.root.tables(1) or ()]
        self.graphs: list[Graph] = []

    def model(self) -> Model:
        root = self.root
        tables = root.tables(2) or []
        self.graphs = [Graph(t.text(4) or "") for t in tables]
        for graph, table in zip(self.graphs, tables, strict=True):
            self._fill(graph, table)
        metadata = [(t.text(0) or "", _pick(self.buffers, t.number(1, "I"), "buffer")) for t in root.tables(6) or ()]
        older = root.numbers(5)
        model = Model(
            self.graphs,
            [self._signature(t) for t in root.tables(7) or ()],
            root.text(3),
            root.number(0, "I"),
            metadata,
            None if older is None else [_pick(self.buffers, k, "buffer") for k in older],
            _records(root.tables(8), "ExternalBufferGroup"),
            _records(root.tables(9), "ExternalBuffer"),
            cut_archive(self.file.bytes),
        )
        check(model)
        return model

    def _buffer(self, table: Table) -> Buffer | None:
        raw = table.vector(0, np.uint8)
        if raw is None and table.number(1, "Q") > 1:  # stored after the flatbuffer; 0 and 1 mean "not there"
            raw = self._outside(table.number(1, "Q"), table.number(2, "Q"))
        return None if raw is None or raw.size == 0 else Buffer(raw)

    def _outside(self, offset: int, size: int) -> Array:
        if offset + size > len(self.file.content):
            raise InvalidModel(f"{size} bytes of data at byte {offset} lie beyond the end of the file")
        return self.file.bytes[offset : offset + size]

    def _fill(self, graph: Graph, table: Table) -> None:
        tensors = table.tables(0) or []
        graph.tensors = [self._tensor(t) for t in tensors]
        for tensor, source in zip(graph.tensors, tensors, strict=True):
            if (stored := source.table(4)) is not None:
                tensor.quantization = self._quantization(stored, graph)
        graph.inputs = _tensors(graph, table.numbers(1))
        graph.outputs = _tensors(graph, table.numbers(2))
        graph.ops = [self._op(t, graph) for t in table.tables(3) or ()]
        graph.debug_metadata_index = table.number(5, "i", -1)

    def _tensor(self, table: Table) -> Tensor:
        shape = table.numbers(0) or ()
        if len(shape) > MOST_DIMENSIONS:
            raise InvalidModel(f"a tensor has {len(shape)} dimensions; at most {MOST_DIMENSIONS} can be read")
        return Tensor(
            table.text(3) or "",
            shape,
            schema.dtype_of(table.number(1, "b")),
            _pick(self.buffers, table.number(2, "I"), "buffer") if self.buffers else None,
            shape_signature=table.numbers(7),
            is_variable=table.flag(5),
            has_rank=table.flag(8),
            sparsity=_sparsity(table.table(6)),
            variants=_records(table.tables(9), "VariantSubType"),
            external_buffer=table.number(10, "I"),
        )

    def _quantization(self, table: Table, graph: Graph) -> Quantization | None:
        stored = Quantization(
            table.numbers(2, np.float32) or (),
            table.numbers(3, np.int64) or (),
            table.number(6, "i"),
            table.numbers(0, np.float32) or (),
            table.numbers(1, np.float32) or (),
            self._details(table, graph),
        )
        return None if stored == Quantization() else stored

    def _details(self, table: Table, graph: Graph) -> Record | BlockScales | None:
        record = schema.union_record(table, "QuantizationDetails", 4, 5)
        if record is None or record.type == "CustomQuantization":
            return record
        zeros = record["zeroPoints"]
        return BlockScales(
            # Without zero points, some writers omit the field, which reads as 0, and others store -1.
            record.replace(scales=None, zeroPoints=0 if zeros == 0 else None),
            _pick(graph.tensors, record["scales"], "tensor"),
            _pick(graph.tensors, zeros, "tensor") if zeros > 0 else None,
        )

    def _op(self, table: Table, graph: Graph) -> Op:
        kind, version, custom_code = _pick(self.codes, table.number(0, "I"), "operator code")
        mutating = table.numbers(7, np.uint8)
        return Op(
            kind,
            [None if k == -1 else _pick(graph.tensors, k, "tensor") for k in table.numbers(1) or ()],
            _tensors(graph, table.numbers(2)),
            self._options(table),
            version,
            custom_code,
            self._custom_options(table),
            table.number(6, "b"),
            _tensors(graph, table.numbers(8)),
            None if mutating is None else tuple(bool(flag) for flag in mutating),
            table.number(13, "i", -1),
        )

    def _options(self, table: Table) -> Record | None:
        first = schema.union_record(table, "BuiltinOptions", 3, 4)
        second = schema.union_record(table, "BuiltinOptions2", 11, 12)
        if first is not None and second is not None:
            raise InvalidModel(f"an op has both {first.type} and {second.type}")
        options = first or second
        if options is None:
            return None
        return options.replace(**{k: self._called(v) for k, v in options.values.items() if schema.holds_subgraphs(k)})

    def _called(self, index: int | tuple[int, ...] | None) -> object:
        """Replace one or several subgraph indices by the graphs; the code for "no graph" stays unchanged."""
        if isinstance(index, tuple):
            return tuple(self._called(k) for k in index)
        return index if index is None or index < 0 else _pick(self.graphs, index, "subgraph")

    def _custom_options(self, table: Table) -> Array | None:
        offset, size = table.number(9, "Q"), table.number(10, "Q")
        return self._outside(offset, size) if offset > 1 else table.vector(5, np.uint8)

    def _signature(self, table: Table) -> Signature:
        graph = _pick(self.graphs, table.number(4, "I"), "subgraph")

        def named(slot: int) -> dict[str, Tensor]:
            maps = table.tables(slot) or ()
            return {t.text(0) or "": _pick(graph.tensors, t.number(1, "I"), "tensor") for t in maps}

        return Signature(table.text(2) or "", graph, named(0), named(1))


def _op_code(table: Table) -> tuple[str, int, str | None]:
    """Return kind, version and custom code. Old files only fill the 8-bit code field, newer ones both fields."""
    kind = schema.op_kind(max(table.number(0, "b"), table.number(3, "i")))
    return kind, table.number(2, "i", 1), table.text(1)


def _sparsity(table: Table | None) -> Record | None:
    if table is None:
        return None
    # Dimensions and blocks, counted before the generated code creates an object for each.
    if len(table.tables(2) or ()) > 2 * MOST_DIMENSIONS:
        raise InvalidModel("a sparse tensor has more dimensions than can be read")
    return schema.record(table, "SparsityParameters")


def _records(tables: list[Table] | None, type: str) -> tuple[Record, ...] | None:
    return None if tables is None else tuple(schema.record(t, type) for t in tables)


def _tensors(graph: Graph, indices: Sequence[int] | None) -> list[Tensor]:
    return [_pick(graph.tensors, k, "tensor") for k in indices or ()]


def _pick(items: Sequence[T], index: int, what: str) -> T:
    if not 0 <= index < len(items):
        raise InvalidModel(f"{what} {index} is referred to, but there are {len(items)}")
    return items[index]
