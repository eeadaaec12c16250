"""Reads the graph of an ONNX file: inputs, nodes, and constants.

Only the required fields of the protocol buffer are read, so that no library is needed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..dtypes import Array
from ..errors import InvalidModel
from ..files import PathLike
from ..tflite.other_files import varint

# Field numbers, by message.
MODEL_GRAPH = 7
GRAPH_NODE, GRAPH_INITIALIZER, GRAPH_INPUT = 1, 5, 11
NODE_INPUT, NODE_OUTPUT, NODE_OP, NODE_ATTRIBUTE = 1, 2, 4, 5
ATTRIBUTE_NAME, ATTRIBUTE_INT, ATTRIBUTE_TENSOR = 1, 3, 5
TENSOR_DIMS, TENSOR_TYPE, TENSOR_FLOATS, TENSOR_INTS, TENSOR_NAME, TENSOR_RAW = 1, 2, 4, 5, 8, 9
TYPES = {1: np.float32, 2: np.uint8, 3: np.int8, 4: np.uint16, 5: np.int16, 6: np.int32, 7: np.int64, 10: np.float16}


@dataclass(frozen=True)
class OnnxNode:
    """A node of an ONNX graph. `numbers` are its integer attributes."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    numbers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class OnnxFile:
    """The graph of an ONNX file. `inputs` have the shapes in the file, with 0 for dynamic sizes; `constants` are those
    of known types."""

    inputs: dict[str, tuple[int, ...]]
    nodes: tuple[OnnxNode, ...]
    constants: dict[str, Array]


def read_onnx(path: PathLike) -> OnnxFile:
    content = Path(path).read_bytes()
    try:
        graph = next(value for number, value in _fields(content) if number == MODEL_GRAPH and isinstance(value, bytes))
        constants = dict(_constants(graph)) | dict(_constant_nodes(graph))
        nodes = tuple(_node(value) for value in _messages(graph, GRAPH_NODE))
        inputs = dict(_input(value) for value in _messages(graph, GRAPH_INPUT))
    except (StopIteration, ValueError, IndexError, struct.error) as error:
        raise InvalidModel(f"{path} is not a whole ONNX model: {str(error) or 'it has no graph'}") from None
    return OnnxFile({n: s for n, s in inputs.items() if n not in constants}, nodes, constants)


def _node(content: bytes) -> OnnxNode:
    names = [_texts(content, number) for number in (NODE_OP, NODE_INPUT, NODE_OUTPUT)]
    attributes = [list(_fields(a)) for a in _messages(content, NODE_ATTRIBUTE)]
    numbers = {
        _joined(fields, ATTRIBUTE_NAME).decode("utf-8", "replace"): _signed(value)
        for fields in attributes
        for number, value in fields
        if number == ATTRIBUTE_INT and isinstance(value, int)
    }
    return OnnxNode("".join(names[0]), tuple(names[1]), tuple(names[2]), numbers)


def _constants(graph: bytes) -> Iterator[tuple[str, Array]]:
    for content in _messages(graph, GRAPH_INITIALIZER):
        if (values := _tensor(content)) is not None:
            yield "".join(_texts(content, TENSOR_NAME)), values


def _constant_nodes(graph: bytes) -> Iterator[tuple[str, Array]]:
    """Yield constants that are stored as ops without inputs, as PyTorch exports them."""
    for content in _messages(graph, GRAPH_NODE):
        if _texts(content, NODE_OP) != ["Constant"]:
            continue
        tensors = [t for a in _messages(content, NODE_ATTRIBUTE) for t in _messages(a, ATTRIBUTE_TENSOR)]
        if tensors and (values := _tensor(tensors[0])) is not None:
            yield "".join(_texts(content, NODE_OUTPUT)), values


def _tensor(content: bytes) -> Array | None:
    """Return the content of a TensorProto; None if its type is not supported or its data are external."""
    fields = list(_fields(content))
    dtype = TYPES.get(next((int(v) for n, v in fields if n == TENSOR_TYPE and isinstance(v, int)), 0))
    if dtype is None:
        return None
    raw, shape, listed = _joined(fields, TENSOR_RAW), _listed(fields, TENSOR_DIMS), _listed(fields, TENSOR_INTS)
    if not raw and dtype is np.float32:
        raw = _joined(fields, TENSOR_FLOATS)
    values = np.array([_signed(d) for d in listed], dtype) if listed else np.frombuffer(raw, dtype)
    return values.reshape(shape) if values.size == int(np.prod(shape)) else None


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _joined(fields: Sequence[tuple[int, int | bytes]], number: int) -> bytes:
    return b"".join(v for n, v in fields if n == number and isinstance(v, bytes))


def _listed(fields: Sequence[tuple[int, int | bytes]], number: int) -> list[int]:
    """Return the integers of a field, which may be stored one by one or packed."""
    return [d for n, v in fields if n == number for d in ([v] if isinstance(v, int) else _numbers(v))]


def _input(content: bytes) -> tuple[str, tuple[int, ...]]:
    """Parse a ValueInfoProto: name (1) and type (2), of that the tensor (1), of that the shape (2), its dimensions
    (1)."""
    sizes = []
    for path in _messages(content, 2):
        for tensor in _messages(path, 1):
            for shape in _messages(tensor, 2):
                sizes += [
                    next((int(v) for n, v in _fields(d) if n == 1 and isinstance(v, int)), 0)
                    for d in _messages(shape, 1)
                ]
    return "".join(_texts(content, 1)), tuple(sizes)


def _messages(content: bytes, number: int) -> Iterator[bytes]:
    return (value for found, value in _fields(content) if found == number and isinstance(value, bytes))


def _texts(content: bytes, number: int) -> list[str]:
    return [value.decode("utf-8", "replace") for value in _messages(content, number)]


def _numbers(content: bytes) -> list[int]:
    """Return the numbers packed into one field."""
    found, at = [], 0
    while at < len(content):
        value, at = _number(content, at)
        found.append(value)
    return found


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(content):
        tag, at = _number(content, at)
        wire = tag & 7
        if wire == 0:
            value, at = _number(content, at)
            yield tag >> 3, value
            continue
        size, at = _number(content, at) if wire == 2 else ({1: 8, 5: 4}.get(wire, -1), at)
        if size < 0 or at + size > len(content):
            raise ValueError("a field goes beyond its end")
        yield tag >> 3, content[at : at + size]
        at += size


def _number(content: bytes, at: int) -> tuple[int, int]:
    value, end = varint(content, at)
    if end < 0:
        raise ValueError("a truncated number")
    return value, end
