"""Model -> bytes, deterministic: equal models give equal bytes.

The structure is packed by the flatbuffers builder; constant data is not. Each `Buffer` table is packed with a
placeholder for its data, and the data follow behind the structure, so that no weight is copied on its way to the
file. Offsets in a flatbuffer point forward, which makes this an ordinary flatbuffer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, TypeVar

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as generated

from ..dtypes import Array
from ..errors import InvalidModel
from ..files import PathLike, write_whole
from ..graph.check import check
from ..graph.model import BlockScales, Buffer, Graph, Model, Op, Quantization, Record, Signature, Tensor
from . import schema
from .read import LARGEST_FILE

ALIGNMENT = 16
"""Kernels and delegates read constants with vector instructions."""

T = TypeVar("T")


def save(model: Model, path: PathLike, *, overwrite: bool = False) -> int:
    """Write `model` to `path`, whole or not at all; return the file's size."""
    return write_whole(path, chunks(model), overwrite=overwrite)


def to_bytes(model: Model) -> bytes:
    """The file's content."""
    return b"".join(chunks(model))


def chunks(model: Model) -> Iterator[bytes | memoryview]:
    """The file in pieces: the structure, then each constant, straight from where it lies in memory."""
    check(model)
    writer = _Writer(model)
    head = writer.head()
    yield head
    position = len(head)
    for buffer in writer.buffers:
        padding = writer.padding_before(position)
        yield bytes(padding) + struct.pack("<I", buffer.raw.size)
        yield memoryview(buffer.raw)  # type: ignore[arg-type]  # NumPy's stubs hide that arrays are buffers
        position += padding + 4 + buffer.raw.size
    yield bytes(-position % 4)


class _Writer:
    def __init__(self, model: Model) -> None:
        self.model = model
        self.builder = flatbuffers.Builder(1 << 16)
        self.graph_index = {graph: k for k, graph in enumerate(model.graphs)}
        self.codes: dict[tuple[str, str | None, int], int] = {}
        self.buffers: list[Buffer] = []
        self._buffer_index: dict[int, int] = {}
        self._slots: list[int] = []  # where, from the builder's end, each buffer's data offset is stored

    def head(self) -> bytes:
        """Everything but the constants, with their offsets filled in."""
        builder, model = self.builder, self.model
        # Buffer indices are given in this order, so tensors come before metadata, as in other writers.
        graphs = [self._graph(g).Pack(builder) for g in model.graphs]
        signatures = [self._signature(s).Pack(builder) for s in model.signatures]
        metadata = [self._metadata(name, buffer) for name, buffer in model.metadata]
        older = None if model.metadata_buffers is None else [self._buffer(b) for b in model.metadata_buffers]
        codes = [_op_code(*key).Pack(builder) for key in self.codes]
        groups = self._packed(model.external_buffer_groups)
        external = self._packed(model.external_buffers)
        vectors = {
            "OperatorCodes": self._vector(codes),
            "Subgraphs": self._vector(graphs),
            "Buffers": self._vector([self._buffer_table(k) for k in range(len(self.buffers) + 1)]),
            "Metadata": self._vector(metadata) if metadata else None,
            "MetadataBuffer": None if older is None else builder.CreateNumpyVector(np.array(older, np.int32)),
            "SignatureDefs": self._vector(signatures) if signatures else None,
            "ExternalBufferGroups": None if groups is None else self._vector(groups),
            "ExternalBuffers": None if external is None else self._vector(external),
            "Description": None if model.description is None else builder.CreateString(_text(model.description)),
        }
        generated.ModelStart(builder)
        generated.ModelAddVersion(builder, model.version)
        for name, offset in vectors.items():
            if offset is not None:
                getattr(generated, f"ModelAdd{name}")(builder, offset)
        builder.Finish(generated.ModelEnd(builder), file_identifier=schema.IDENTIFIER)
        return self._with_offsets(builder.Output())

    def padding_before(self, position: int) -> int:
        """Zeros that put the data, four bytes after its length, on an aligned address."""
        return -(position + 4) % ALIGNMENT

    def _with_offsets(self, head: bytearray) -> bytes:
        position = len(head)
        for slot, buffer in zip(self._slots, self.buffers, strict=True):
            position += self.padding_before(position)
            stored_at = len(head) - slot
            struct.pack_into("<I", head, stored_at, position - stored_at)
            position += 4 + buffer.raw.size
        if position > LARGEST_FILE:
            raise InvalidModel(f"the model would take {position / 2**30:.1f} GB; a .tflite holds at most 2 GB")
        return bytes(head)

    def _buffer(self, buffer: Buffer | None) -> int:
        """The buffer's index in the file; 0 is the empty one that every file begins with."""
        if buffer is None:
            return 0
        if id(buffer) not in self._buffer_index:
            self.buffers.append(buffer)
            self._buffer_index[id(buffer)] = len(self.buffers)
        return self._buffer_index[id(buffer)]

    def _buffer_table(self, index: int) -> int:
        generated.BufferStart(self.builder)
        if index > 0:
            self.builder.PrependUint32Slot(0, 0xFFFFFFFF, 0)
        end: int = generated.BufferEnd(self.builder)
        if index > 0:
            # A table begins with the offset of its layout (4 bytes); its only field follows.
            self._slots.append(end - 4)
        return end

    def _graph(self, graph: Graph) -> Any:
        index = {tensor: k for k, tensor in enumerate(graph.tensors)}
        table = generated.SubGraphT()
        table.name = _text(graph.name)
        table.tensors = [self._tensor(t, index) for t in graph.tensors]
        table.inputs = _indices(graph.inputs, index)
        table.outputs = _indices(graph.outputs, index)
        table.operators = [self._op(op, index) for op in graph.ops]
        table.debugMetadataIndex = graph.debug_metadata_index
        return table

    def _tensor(self, tensor: Tensor, index: dict[Tensor, int]) -> Any:
        table = generated.TensorT()
        table.name = _text(tensor.name)
        table.shape = np.array(tensor.shape, np.int32)
        table.type = schema.dtype_code(tensor.dtype)
        table.buffer = self._buffer(tensor.buffer)
        table.isVariable = tensor.is_variable
        table.hasRank = tensor.has_rank
        table.externalBuffer = tensor.external_buffer
        if tensor.shape_signature is not None:
            table.shapeSignature = np.array(tensor.shape_signature, np.int32)
        if tensor.quantization is not None:
            table.quantization = self._quantization(tensor.quantization, index)
        if tensor.sparsity is not None:
            table.sparsity = schema.generated_table(tensor.sparsity, self.graph_index)
        if tensor.variants is not None:
            table.variantTensors = [schema.generated_table(v, self.graph_index) for v in tensor.variants]
        return table

    def _quantization(self, stored: Quantization, index: dict[Tensor, int]) -> Any:
        table = generated.QuantizationParametersT()
        table.scale = _floats(stored.scales)
        table.zeroPoint = np.array(stored.zero_points, np.int64) if stored.zero_points else None
        table.min, table.max = _floats(stored.min), _floats(stored.max)
        table.quantizedDimension = stored.axis
        if isinstance(stored.details, BlockScales):
            record, zeros = stored.details.record, stored.details.zero_points
            without = -1 if record["zeroPoints"] is None else 0
            indices = {"scales": index[stored.details.scales], "zeroPoints": without if zeros is None else index[zeros]}
            table.details = schema.generated_table(record.replace(**indices), self.graph_index)
        elif stored.details is not None:
            table.details = schema.generated_table(stored.details, self.graph_index)
        if table.details is not None:
            name = type(table.details).__name__.removesuffix("T")
            table.detailsType = getattr(generated.QuantizationDetails, name)
        return table

    def _op(self, op: Op, index: dict[Tensor, int]) -> Any:
        table = generated.OperatorT()
        table.opcodeIndex = self.codes.setdefault((op.kind, op.custom_code, op.version), len(self.codes))
        table.inputs = _indices(op.inputs, index)
        table.outputs = _indices(op.outputs, index)
        if op.options is not None:
            self._set_options(table, op.options)
        table.customOptions = op.custom_options
        table.customOptionsFormat = op.custom_options_format
        if op.intermediates:
            table.intermediates = _indices(op.intermediates, index)
        if op.mutating_variable_inputs is not None:
            table.mutatingVariableInputs = np.array(op.mutating_variable_inputs, np.bool_)
        table.debugMetadataIndex = op.debug_metadata_index
        return table

    def _set_options(self, table: Any, options: Record) -> None:
        union, code = schema.option_types()[options.type]
        packed = schema.generated_table(options, self.graph_index)
        if union == 1:
            table.builtinOptionsType, table.builtinOptions = code, packed
        else:
            table.builtinOptions2Type, table.builtinOptions2 = code, packed

    def _signature(self, signature: Signature) -> Any:
        index = {tensor: k for k, tensor in enumerate(signature.graph.tensors)}

        def named(tensors: dict[str, Tensor]) -> list[Any]:
            maps = []
            for name, tensor in tensors.items():
                entry = generated.TensorMapT()
                entry.name, entry.tensorIndex = _text(name), index[tensor]
                maps.append(entry)
            return maps

        table = generated.SignatureDefT()
        table.signatureKey = _text(signature.key)
        table.subgraphIndex = self.graph_index[signature.graph]
        table.inputs, table.outputs = named(signature.inputs), named(signature.outputs)
        return table

    def _metadata(self, name: str, buffer: Buffer | None) -> int:
        table = generated.MetadataT()
        table.name, table.buffer = _text(name), self._buffer(buffer)
        packed: int = table.Pack(self.builder)
        return packed

    def _packed(self, records: tuple[Record, ...] | None) -> list[int] | None:
        if records is None:
            return None
        return [schema.generated_table(r, self.graph_index).Pack(self.builder) for r in records]

    def _vector(self, offsets: list[int]) -> int:
        self.builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self.builder.PrependUOffsetTRelative(offset)
        vector: int = self.builder.EndVector()
        return vector


def _op_code(kind: str, custom_code: str | None, version: int) -> Any:
    table = generated.OperatorCodeT()
    code = schema.op_code(kind)
    table.builtinCode, table.deprecatedBuiltinCode, table.version = code, min(code, 127), version
    table.customCode = None if custom_code is None else _text(custom_code)
    return table


def _indices(tensors: list[Tensor | None] | list[Tensor], index: dict[Tensor, int]) -> Array:
    return np.array([-1 if t is None else index[t] for t in tensors], np.int32)


def _floats(values: tuple[float, ...]) -> Array | None:
    return np.array(values, np.float32) if values else None


def _text(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
