"""What an ONNX file says of its graph: inputs, nodes, and the constants beside them.

Of the format, a protocol buffer, only the fields that are asked for are read, so that no library is needed for it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..dtypes import Array
from ..errors import InvalidModel
from ..files import PathLike

# Numbers of fields, by message.
MODEL_GRAPH = 7
GRAPH_NODE, GRAPH_INITIALIZER, GRAPH_INPUT = 1, 5, 11
NODE_INPUT, NODE_OUTPUT, NODE_OP = 1, 2, 4
TENSOR_DIMS, TENSOR_TYPE, TENSOR_FLOATS, TENSOR_INTS, TENSOR_NAME, TENSOR_RAW = 1, 2, 4, 5, 8, 9
TYPES = {1: np.float32, 2: np.uint8, 3: np.int8, 4: np.uint16, 5: np.int16, 6: np.int32, 7: np.int64, 10: np.float16}


@dataclass(frozen=True)
class OnnxNode:
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class OnnxFile:
    """`inputs` have the shapes that the file gives them, 0 where these are open; `constants` are of known types."""

    inputs: dict[str, tuple[int, ...]]
    nodes: tuple[OnnxNode, ...]
    constants: dict[str, Array]


def read_onnx(path: PathLike) -> OnnxFile:
    content = Path(path).read_bytes()
    try:
        graph = next(value for number, value in _fields(content) if number == MODEL_GRAPH and isinstance(value, bytes))
        constants = dict(_constants(graph))
        nodes = tuple(_node(value) for value in _messages(graph, GRAPH_NODE))
        inputs = dict(_input(value) for value in _messages(graph, GRAPH_INPUT))
    except (StopIteration, ValueError, IndexError, struct.error) as error:
        raise InvalidModel(f"{path} is not a whole ONNX model: {str(error) or 'it has no graph'}") from None
    return OnnxFile({n: s for n, s in inputs.items() if n not in constants}, nodes, constants)


def _node(content: bytes) -> OnnxNode:
    names = [_texts(content, number) for number in (NODE_OP, NODE_INPUT, NODE_OUTPUT)]
    return OnnxNode("".join(names[0]), tuple(names[1]), tuple(names[2]))


def _constants(graph: bytes) -> Iterator[tuple[str, Array]]:
    for content in _messages(graph, GRAPH_INITIALIZER):
        fields = list(_fields(content))
        dtype = TYPES.get(next((int(v) for n, v in fields if n == TENSOR_TYPE and isinstance(v, int)), 0))
        if dtype is None:
            continue
        raw, shape, listed = _joined(fields, TENSOR_RAW), _listed(fields, TENSOR_DIMS), _listed(fields, TENSOR_INTS)
        if not raw and dtype is np.float32:
            raw = _joined(fields, TENSOR_FLOATS)
        signed = [d - (1 << 64) if d >> 63 else d for d in listed]
        values = np.array(signed, dtype) if listed else np.frombuffer(raw, dtype)
        if values.size == int(np.prod(shape)):
            yield "".join(_texts(content, TENSOR_NAME)), values.reshape(shape)


def _joined(fields: Sequence[tuple[int, int | bytes]], number: int) -> bytes:
    return b"".join(v for n, v in fields if n == number and isinstance(v, bytes))


def _listed(fields: Sequence[tuple[int, int | bytes]], number: int) -> list[int]:
    """Whole numbers, which a file may hold one by one or packed."""
    return [d for n, v in fields if n == number for d in ([v] if isinstance(v, int) else _numbers(v))]


def _input(content: bytes) -> tuple[str, tuple[int, ...]]:
    """ValueInfoProto: a name (1) and a type (2), of that the tensor (1), of that the shape (2), its dimensions (1)."""
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
    """Numbers that are packed into one field."""
    found, at = [], 0
    while at < len(content):
        value, at = _varint(content, at)
        found.append(value)
    return found


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        wire = tag & 7
        if wire == 0:
            value, at = _varint(content, at)
            yield tag >> 3, value
            continue
        size, at = _varint(content, at) if wire == 2 else ({1: 8, 5: 4}.get(wire, -1), at)
        if size < 0 or at + size > len(content):
            raise ValueError("a field goes beyond its end")
        yield tag >> 3, content[at : at + size]
        at += size


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = content[at]
        value, at = value | (byte & 127) << shift, at + 1
        if byte < 128:
            return value, at
    raise ValueError("a number without an end")
