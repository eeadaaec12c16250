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
from .builder import ALIGNMENT, OFFSET, Builder
from .packed_files import archive_at
from .read import LARGEST_FILE

FEW = 8
"""Vectors up to this length are written element by element."""


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
    """Builds the structure of the file. Slots and defaults are the schema's; fields at their default are omitted."""

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
            (1, OFFSET, builder.tables([self._op_code(*key) for key in self.codes])),
            (2, OFFSET, builder.tables(graphs)),
            (4, OFFSET, self._buffer_tables()),
            (0, "I", model.version or None),
            (3, OFFSET, self._text(model.description)),
            (5, OFFSET, self._numbers(older, np.int32)),
            (6, OFFSET, builder.tables(metadata) if metadata else None),
            (7, OFFSET, builder.tables(signatures) if signatures else None),
            (8, OFFSET, self._records(model.external_buffer_groups)),
            (9, OFFSET, self._records(model.external_buffers)),
        )
        return builder.finish(root, schema.IDENTIFIER)

    def _buffer(self, buffer: Buffer | None) -> int:
        """Return the buffer's index in the file; 0 is the empty buffer that every file begins with."""
        return 0 if buffer is None else self.buffers.setdefault(buffer, len(self.buffers) + 1)

    def _buffer_tables(self) -> int:
        places = [self.builder.table(), *(self.builder.table((0, "I", 0)) for _ in self.buffers)]
        # A table begins with the offset of its vtable (4 bytes); its only field follows.
        self.data_offsets = [place - 4 for place in places[1:]]
        return self.builder.tables(places)

    def _graph(self, graph: Graph) -> int:
        builder, index = self.builder, {tensor: k for k, tensor in enumerate(graph.tensors)}
        return builder.table(
            (0, OFFSET, builder.tables([self._tensor(t, index) for t in graph.tensors])),
            (1, OFFSET, self._indices(graph.inputs, index)),
            (2, OFFSET, self._indices(graph.outputs, index)),
            (3, OFFSET, builder.tables([self._op(op, index) for op in graph.ops])),
            (4, OFFSET, self._text(graph.name)),
            (5, "i", None if graph.debug_metadata_index == -1 else graph.debug_metadata_index),
        )

    def _tensor(self, tensor: Tensor, index: dict[Tensor, int]) -> int:
        stored, signature = tensor.quantization, tensor.shape_signature
        return self.builder.table(
            (0, OFFSET, self.builder.integers(tensor.shape)),
            (3, OFFSET, self._text(tensor.name)),
            (1, "b", schema.dtype_code(tensor.dtype) or None),
            (2, "I", self._buffer(tensor.buffer) or None),
            (5, "B", int(tensor.is_variable) or None),
            (8, "B", int(tensor.has_rank) or None),
            (10, "I", tensor.external_buffer or None),
            (4, OFFSET, None if stored is None else self._quantization(stored, tensor, index)),
            (6, OFFSET, None if tensor.sparsity is None else self._record(tensor.sparsity)),
            (7, OFFSET, None if signature is None else self.builder.integers(signature)),
            (9, OFFSET, self._records(tensor.variants)),
        )

    def _quantization(self, stored: Quantization, tensor: Tensor, index: dict[Tensor, int]) -> int:
        axis = 0 if len(tensor.shape) == 1 else stored.axis  # LiteRT refuses an axis that does not exist
        details = None if stored.details is None else self._block_record(stored.details, index)
        return self.builder.table(
            (0, OFFSET, self._numbers(stored.min or None, np.float32)),
            (1, OFFSET, self._numbers(stored.max or None, np.float32)),
            (2, OFFSET, self._few(stored.scales, "f") or self._numbers(stored.scales or None, np.float32)),
            (3, OFFSET, self._few(stored.zero_points, "q") or self._numbers(stored.zero_points or None, np.int64)),
            (6, "i", axis or None),
            (4, "B", None if details is None else schema.details_code(details.type)),
            (5, OFFSET, None if details is None else self._record(details)),
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
        type_slot, slot = (3, 4) if union == 1 else (11, 12)
        return self.builder.table(
            (1, OFFSET, self._indices(op.inputs, index)),
            (2, OFFSET, self._indices(op.outputs, index)),
            (0, "I", self.codes.setdefault((op.kind, op.custom_code, op.version), len(self.codes)) or None),
            (type_slot, "B", options_code),
            (slot, OFFSET, None if options is None else self._record(options)),
            (5, OFFSET, None if custom is None else self.builder.numbers(custom.astype(np.uint8, copy=False))),
            (6, "b", op.custom_options_format or None),
            (7, OFFSET, self._numbers(op.mutating_variable_inputs, np.bool_)),
            (8, OFFSET, self._indices(op.intermediates, index) if op.intermediates else None),
            (13, "i", None if op.debug_metadata_index == -1 else op.debug_metadata_index),
        )

    def _record(self, record: Record) -> int:
        """Write a table that is preserved without being interpreted."""
        return self.builder.generated(schema.packed(record, self.graph_index))

    def _records(self, records: Sequence[Record] | None) -> int | None:
        return None if records is None else self.builder.tables([self._record(r) for r in records])

    def _signature(self, signature: Signature) -> int:
        builder, index = self.builder, {tensor: k for k, tensor in enumerate(signature.graph.tensors)}

        def named(tensors: dict[str, Tensor]) -> int:
            entries = [((0, OFFSET, self._text(n)), (1, "I", index[t])) for n, t in tensors.items()]
            return builder.tables([builder.table(*entry) for entry in entries])

        return builder.table(
            (0, OFFSET, named(signature.inputs)),
            (1, OFFSET, named(signature.outputs)),
            (2, OFFSET, self._text(signature.key)),
            (4, "I", self.graph_index[signature.graph]),
        )

    def _metadata(self, name: str, buffer: Buffer | None) -> int:
        return self.builder.table((0, OFFSET, self._text(name)), (1, "I", self._buffer(buffer)))

    def _op_code(self, kind: str, custom_code: str | None, version: int) -> int:
        code = schema.op_code(kind)
        return self.builder.table(
            (0, "b", min(code, 127)), (2, "i", version), (3, "i", code), (1, OFFSET, self._text(custom_code))
        )

    def _indices(self, tensors: Sequence[Tensor | None], index: dict[Tensor, int]) -> int:
        return self.builder.integers([-1 if t is None else index[t] for t in tensors])

    def _numbers(self, values: Sequence[float] | None, dtype: type[np.generic]) -> int | None:
        return None if values is None else self.builder.numbers(np.array(values, dtype))

    def _few(self, values: Sequence[float], kind: str) -> int | None:
        """Write a vector of so few numbers that creating an array would take longer than writing it."""
        return self.builder.short(values, kind) if 0 < len(values) <= FEW else None

    def _text(self, text: str | None) -> int | None:
        return None if text is None else self.builder.text(text.encode("utf-8", "surrogateescape"))
