"""Model -> bytes, deterministic: equal models give equal bytes.

The structure is built first, without constant data: each `Buffer` table has a placeholder, and the data follow the
structure, so that no weight is copied on its way to the file. Offsets in a flatbuffer point forward, so the result is
an ordinary flatbuffer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import numpy as np

from ..errors import InvalidModel
from ..files import PathLike, write_whole
from ..graph.check import check
from ..graph.model import BlockScales, Buffer, Graph, Model, Op, Quantization, Record, Signature, Tensor
from . import schema
from .builder import ALIGNMENT, OFFSET, Builder, TableKind
from .packed_files import archive_at
from .read import LARGEST_FILE

# The kinds of tables, with slots as in the schema. Fields at their default are omitted.
_MODEL = TableKind(
    (1, OFFSET),  # op codes
    (2, OFFSET),  # graphs
    (4, OFFSET),  # buffers
    (0, "I"),  # version
    (3, OFFSET),  # description
    (5, OFFSET),  # metadata buffers
    (6, OFFSET),  # metadata
    (7, OFFSET),  # signatures
    (8, OFFSET),  # groups of external buffers
    (9, OFFSET),  # external buffers
)
_GRAPH = TableKind(
    (0, OFFSET),  # tensors
    (1, OFFSET),  # inputs
    (2, OFFSET),  # outputs
    (3, OFFSET),  # ops
    (4, OFFSET),  # name
    (5, "i"),  # debug metadata
)
_TENSOR = TableKind(
    (0, OFFSET),  # shape
    (3, OFFSET),  # name
    (1, "b"),  # type
    (2, "I"),  # buffer
    (5, "B"),  # is variable
    (8, "B"),  # has rank
    (10, "I"),  # external buffer
    (4, OFFSET),  # quantization
    (6, OFFSET),  # sparsity
    (7, OFFSET),  # signature of the shape
    (9, OFFSET),  # variants
)
_QUANTIZATION = TableKind(
    (0, OFFSET),  # min
    (1, OFFSET),  # max
    (2, OFFSET),  # scales
    (3, OFFSET),  # zero points
    (6, "i"),  # axis
    (4, "B"),  # type of details
    (5, OFFSET),  # details
)
_SIGNATURE = TableKind(
    (0, OFFSET),  # inputs
    (1, OFFSET),  # outputs
    (2, OFFSET),  # key
    (4, "I"),  # graph
)
_OP_CODE = TableKind(
    (0, "b"),  # code up to 127
    (2, "i"),  # version
    (3, "i"),  # code
    (1, OFFSET),  # custom code
)
_NAMED = TableKind(
    (0, OFFSET),  # name
    (1, "I"),  # index of a tensor or buffer
)
_BUFFER = TableKind((0, "I"))
_OPS = {
    union: TableKind(
        (1, OFFSET),  # inputs
        (2, OFFSET),  # outputs
        (0, "I"),  # op code
        (type_slot, "B"),  # type of options
        (slot, OFFSET),  # options
        (5, OFFSET),  # custom options
        (6, "b"),  # format of custom options
        (7, OFFSET),  # mutating inputs
        (8, OFFSET),  # intermediates
        (13, "i"),  # debug metadata
    )
    for union, type_slot, slot in ((1, 3, 4), (2, 11, 12))
}
"""Ops, by the union that their options belong to."""


def save(model: Model, path: PathLike, *, overwrite: bool = False) -> int:
    """Write `model` to `path`, whole or not at all; return the file's size."""
    return write_whole(path, chunks(model), overwrite=overwrite)


def to_bytes(model: Model) -> bytes:
    """Return the model as the content of a `.tflite` file."""
    return b"".join(chunks(model))


def chunks(model: Model, *, checked: bool = False) -> Iterator[bytes | memoryview]:
    """Yield the file in pieces: the structure, then each constant directly from where it lies in memory.

    With `checked`, the model is known to be legal and is not checked again.
    """
    if not checked:
        check(model)
    writer = _Writer(model)
    head = writer.head()
    pieces: list[bytes | memoryview] = []
    end = len(head)
    for place, buffer in zip(writer.data_offsets, writer.buffers, strict=True):
        padding = -(end + 4) % ALIGNMENT  # aligns the data, which follow their four-byte length
        struct.pack_into("<I", head, len(head) - place, end + padding - len(head) + place)
        pieces.append(bytes(padding) + struct.pack("<I", buffer.raw.size))
        pieces.append(memoryview(buffer.raw))  # type: ignore[arg-type]  # NumPy's stubs hide that arrays are buffers
        end += padding + 4 + buffer.raw.size
    pieces.append(bytes(-end % 4))
    end += -end % 4
    if model.packed_files is not None:
        archive = archive_at(model.packed_files, end)
        pieces.append(memoryview(archive))  # type: ignore[arg-type]  # as above
        end += archive.size
    if end > LARGEST_FILE:
        raise InvalidModel(f"the model would take {end / 2**30:.1f} GB; a .tflite holds at most 2 GB")
    yield bytes(head)
    yield from pieces


class _Writer:
    """Builds the structure of the file."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.builder = Builder()
        self.graph_index = {graph: k for k, graph in enumerate(model.graphs)}
        self.codes: dict[tuple[str, str | None, int], int] = {}
        self.buffers: dict[Buffer, int] = {}  # with their index in the file
        self.data_offsets: list[int] = []  # where each offset to a buffer's data goes, from the end of the head

    def head(self) -> bytearray:
        """Build everything but the constants and the offsets to them."""
        builder, model = self.builder, self.model
        # Buffer indices are assigned in this order: tensors before metadata, as other writers do.
        graphs = [self._graph(g) for g in model.graphs]
        signatures = [self._signature(s) for s in model.signatures]
        metadata = [self._metadata(name, buffer) for name, buffer in model.metadata]
        older = None if model.metadata_buffers is None else [self._buffer(b) for b in model.metadata_buffers]
        root = builder.table(
            _MODEL,
            builder.tables([self._op_code(*key) for key in self.codes]),
            builder.tables(graphs),
            self._buffer_tables(),
            model.version or None,
            self._text(model.description),
            self._numbers(older, np.int32),
            builder.tables(metadata) if metadata else None,
            builder.tables(signatures) if signatures else None,
            self._records(model.external_buffer_groups),
            self._records(model.external_buffers),
        )
        return builder.finish(root, schema.IDENTIFIER)

    def _buffer(self, buffer: Buffer | None) -> int:
        """Return the buffer's index in the file; 0 is the empty buffer that every file begins with."""
        return 0 if buffer is None else self.buffers.setdefault(buffer, len(self.buffers) + 1)

    def _buffer_tables(self) -> int:
        places = [self.builder.table(_BUFFER, None), *(self.builder.table(_BUFFER, 0) for _ in self.buffers)]
        # A table begins with the offset of its vtable (4 bytes); its only field follows.
        self.data_offsets = [place - 4 for place in places[1:]]
        return self.builder.tables(places)

    def _graph(self, graph: Graph) -> int:
        builder, index = self.builder, {tensor: k for k, tensor in enumerate(graph.tensors)}
        return builder.table(
            _GRAPH,
            builder.tables([self._tensor(t, index) for t in graph.tensors]),
            self._indices(graph.inputs, index),
            self._indices(graph.outputs, index),
            builder.tables([self._op(op, index) for op in graph.ops]),
            self._text(graph.name),
            None if graph.debug_metadata_index == -1 else graph.debug_metadata_index,
        )

    def _tensor(self, tensor: Tensor, index: dict[Tensor, int]) -> int:
        stored, signature = tensor.quantization, tensor.shape_signature
        return self.builder.table(
            _TENSOR,
            self.builder.integers(tensor.shape),
            self._text(tensor.name),
            schema.dtype_code(tensor.dtype) or None,
            self._buffer(tensor.buffer) or None,
            int(tensor.is_variable) or None,
            int(tensor.has_rank) or None,
            tensor.external_buffer or None,
            None if stored is None else self._quantization(stored, tensor, index),
            None if tensor.sparsity is None else self._record(tensor.sparsity),
            None if signature is None else self.builder.integers(signature),
            self._records(tensor.variants),
        )

    def _quantization(self, stored: Quantization, tensor: Tensor, index: dict[Tensor, int]) -> int:
        axis = 0 if len(tensor.shape) == 1 else stored.axis  # LiteRT refuses an axis that does not exist
        details = None if stored.details is None else self._block_record(stored.details, index)
        return self.builder.table(
            _QUANTIZATION,
            self._numbers(stored.min or None, np.float32),
            self._numbers(stored.max or None, np.float32),
            self.builder.packed(stored.scales, "f") if stored.scales else None,
            self.builder.packed(stored.zero_points, "q") if stored.zero_points else None,
            axis or None,
            None if details is None else schema.details_code(details.type),
            None if details is None else self._record(details),
        )

    def _block_record(self, details: Record | BlockScales, index: dict[Tensor, int]) -> Record:
        if isinstance(details, Record):
            return details
        without = -1 if details.record["zeroPoints"] is None else 0
        zeros = without if details.zero_points is None else index[details.zero_points]
        return details.record.replace(scales=index[details.scales], zeroPoints=zeros)

    def _op(self, op: Op, index: dict[Tensor, int]) -> int:
        custom, options = op.custom_options, op.options
        union, options_code = (1, None) if options is None else schema.option_types()[options.type]
        return self.builder.table(
            _OPS[union],
            self._indices(op.inputs, index),
            self._indices(op.outputs, index),
            self.codes.setdefault((op.kind, op.custom_code, op.version), len(self.codes)) or None,
            options_code,
            None if options is None else self._record(options),
            None if custom is None else self.builder.numbers(custom.astype(np.uint8, copy=False)),
            op.custom_options_format or None,
            self._numbers(op.mutating_variable_inputs, np.bool_),
            self._indices(op.intermediates, index) if op.intermediates else None,
            None if op.debug_metadata_index == -1 else op.debug_metadata_index,
        )

    def _record(self, record: Record) -> int:
        """Write a table that is preserved without being interpreted."""
        return self.builder.generated(schema.packed(record, self.graph_index))

    def _records(self, records: Sequence[Record] | None) -> int | None:
        return None if records is None else self.builder.tables([self._record(r) for r in records])

    def _signature(self, signature: Signature) -> int:
        builder, index = self.builder, {tensor: k for k, tensor in enumerate(signature.graph.tensors)}

        def named(tensors: dict[str, Tensor]) -> int:
            entries = [(self._text(n), index[t]) for n, t in tensors.items()]
            return builder.tables([builder.table(_NAMED, *entry) for entry in entries])

        return builder.table(
            _SIGNATURE,
            named(signature.inputs),
            named(signature.outputs),
            self._text(signature.key),
            self.graph_index[signature.graph],
        )

    def _metadata(self, name: str, buffer: Buffer | None) -> int:
        return self.builder.table(_NAMED, self._text(name), self._buffer(buffer))

    def _op_code(self, kind: str, custom_code: str | None, version: int) -> int:
        code = schema.op_code(kind)
        return self.builder.table(_OP_CODE, min(code, 127), version, code, self._text(custom_code))

    def _indices(self, tensors: Sequence[Tensor | None], index: dict[Tensor, int]) -> int:
        return self.builder.integers([-1 if t is None else index[t] for t in tensors])

    def _numbers(self, values: Sequence[float] | None, dtype: type[np.generic]) -> int | None:
        return None if values is None else self.builder.numbers(np.array(values, dtype))

    def _text(self, text: str | None) -> int | None:
        return None if text is None else self.builder.text(text)
