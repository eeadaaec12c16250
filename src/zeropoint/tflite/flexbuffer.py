"""FlexBuffers: the format without a schema in which custom ops keep their options. Only what is needed of it."""

from __future__ import annotations

from ..dtypes import Array
from ..errors import InvalidModel

VECTOR, STRING = 10, 5


def strings(options: Array | None) -> list[bytes]:
    """The elements of a vector of strings, which need not be text (the flatbuffers package reads text only)."""
    data = b"" if options is None else options.tobytes()
    try:
        # From the end: the width of the root, its packed type, then the root: a distance back to the vector.
        root_width = data[-1]
        kind, width = divmod(data[-2], 4)
        if kind != VECTOR:
            raise IndexError
        vector, width = _back(data, len(data) - 2 - root_width, root_width), 1 << width
        count = _number(data, vector - width, width)
        types = data[vector + count * width :][:count]
        return [_string(data, vector + k * width, width, types[k]) for k in range(count)]
    except (IndexError, OverflowError):
        raise InvalidModel("the options of a custom op are damaged, or not a list of strings") from None


def _string(data: bytes, position: int, width: int, packed: int) -> bytes:
    kind, own_width = divmod(packed, 4)
    if kind != STRING:
        raise IndexError
    start = _back(data, position, width)
    size = _number(data, start - (1 << own_width), 1 << own_width)
    if start + size > len(data):
        raise IndexError
    return data[start : start + size]


def _back(data: bytes, position: int, width: int) -> int:
    """Where an offset points: they count backwards."""
    return position - _number(data, position, width)


def _number(data: bytes, position: int, width: int) -> int:
    if position < 0 or width < 1 or position + width > len(data):
        raise IndexError
    return int.from_bytes(data[position : position + width], "little")
