"""Messages between a process and the child that runs LiteRT for it: a line of JSON, then the bytes of the arrays.

Nothing is pickled: data from a process that ran an untrusted file must not be able to execute code here.
"""

from __future__ import annotations

import json
from typing import IO, Any

import numpy as np

from ..dtypes import Array

Message = dict[str, Any]


def send(stream: IO[bytes], message: Message, arrays: list[Array] | None = None) -> None:
    """Write a message. String arrays, which have no fixed element size, are sent in its header."""
    kinds: list[list[Any]] = []
    bodies: list[Array] = []
    for array in map(np.asarray, arrays or ()):
        if array.dtype.hasobject:
            texts = [value if isinstance(value, bytes) else str(value).encode() for value in array.reshape(-1)]
            kinds.append(["texts", list(array.shape), [text.decode("latin-1") for text in texts]])
        else:
            kinds.append([array.dtype.str, list(array.shape), None])
            bodies.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    stream.write(json.dumps({**message, "arrays": kinds}).encode() + b"\n")
    for body in bodies:
        stream.write(memoryview(body))  # type: ignore[arg-type]  # NumPy's stubs hide that arrays are buffers
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[Message, list[Array]]:
    """Read a message. Raises EOFError if the other side has closed the stream."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    message: Message = json.loads(line)
    return message, [_array(stream, *kind) for kind in message.pop("arrays")]


def _array(stream: IO[bytes], dtype: str, shape: list[int], texts: list[str] | None) -> Array:
    if texts is not None:
        values = np.empty(len(texts), object)
        values[:] = [text.encode("latin-1") for text in texts]
        return values.reshape(shape)
    array = np.empty(shape, dtype)
    rest = memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
    while rest:
        count = stream.readinto(rest)  # type: ignore[attr-defined]  # buffered streams have it
        if not count:
            raise EOFError
        rest = rest[count:]
    return array
