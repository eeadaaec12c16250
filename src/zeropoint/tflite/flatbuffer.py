"""A bounds-checked view of a flatbuffer. The generated accessors trust offsets; untrusted files may contain bad ones.

Reading is linear in the size of the file, whatever its offsets are: every table and element that is accessed is charged
to a budget that a well-formed file cannot exceed.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..dtypes import Array
from ..errors import InvalidModel

Content = bytes | memoryview

_U16, _U32, _I32 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<i")


@cache
def _struct(format: str) -> struct.Struct:
    return struct.Struct(f"<{format}")


TABLE_COST = 64
"""The cost of reading a table: the objects created from it are far larger than the few bytes it may occupy."""


class File:
    """The bytes of one flatbuffer, with a budget for how much may be read from it."""

    def __init__(self, content: Content) -> None:
        self.content = content
        self.bytes = np.frombuffer(content, np.uint8)
        # Writers share equal strings and vectors, so a byte may legitimately be read more than once.
        self._budget = 16 * len(content) + 65536
        self._layouts: dict[int, tuple[tuple[int, ...], int]] = {}

    def charge(self, amount: int) -> None:
        self._budget -= amount
        if self._budget < 0:
            raise InvalidModel("the file refers to the same bytes over and over; it is damaged or malicious")

    def root(self) -> Table:
        return Table(self, self.offset(0))

    def offset(self, position: int) -> int:
        """Follow the unsigned offset stored at `position`."""
        return position + int(self.number(_U32, position))

    def layout(self, position: int) -> tuple[tuple[int, ...], int]:
        """Return the vtable at `position` as field offsets and the table's size. Cached, because most vtables are
        shared.
        """
        if position not in self._layouts:
            own, size = self.number(_U16, position), self.number(_U16, position + 2)
            if own < 4 or own % 2 or position + own > len(self.content):
                raise InvalidModel(f"the table layout at byte {position} is not valid")
            self.charge(16 * own)
            self._layouts[position] = (struct.unpack_from(f"<{own // 2 - 2}H", self.content, position + 4), size)
        return self._layouts[position]

    def number(self, format: struct.Struct, position: int) -> int:
        if not 0 <= position <= len(self.content) - format.size:
            raise InvalidModel(f"an offset points to byte {position} of a file of {len(self.content)} bytes")
        (value,) = format.unpack_from(self.content, position)
        return int(value)

    def vector(self, position: int, dtype: npt.DTypeLike) -> Array:
        """The vector of numbers at `position`, as a view."""
        element = np.dtype(dtype)
        count = self.number(_U32, position)
        start, end = position + 4, position + 4 + count * element.itemsize
        if end > len(self.content):
            raise InvalidModel(f"a vector of {count} elements reaches beyond the end of the file")
        return self.bytes[start:end].view(element) if count else np.empty(0, element)


class Table:
    """One table, with fields by their slot in the schema. Absent fields have the default."""

    def __init__(self, file: File, position: int) -> None:
        self.file = file
        self.position = position
        file.charge(TABLE_COST)
        self._fields, self._size = file.layout(position - file.number(_I32, position))
        if position + self._size > len(file.content):
            raise InvalidModel(f"the table at byte {position} reaches beyond the end of the file")

    def at(self, slot: int) -> int | None:
        """Where the field is stored, or None if it is absent."""
        offset = self._fields[slot] if slot < len(self._fields) else 0
        if offset >= self._size and offset:
            raise InvalidModel(f"a field of the table at byte {self.position} lies outside of it")
        return self.position + offset if offset else None

    def number(self, slot: int, format: str, default: int = 0) -> int:
        """Return a scalar field, read with a `struct` format."""
        position = self.at(slot)
        return default if position is None else self.file.number(_struct(format), position)

    def flag(self, slot: int) -> bool:
        return bool(self.number(slot, "B"))

    def table(self, slot: int) -> Table | None:
        position = self.at(slot)
        return None if position is None else Table(self.file, self.file.offset(position))

    def tables(self, slot: int) -> list[Table] | None:
        """Return a vector of tables."""
        position = self.at(slot)
        if position is None:
            return None
        start = self.file.offset(position)
        offsets = self.file.vector(start, np.uint32)
        self.file.charge(4 * offsets.size)
        return [Table(self.file, start + 4 + 4 * k + int(offset)) for k, offset in enumerate(offsets)]

    def vector(self, slot: int, dtype: npt.DTypeLike) -> Array | None:
        """Return a vector of numbers as a view; not charged to the budget, because nothing is copied."""
        position = self.at(slot)
        return None if position is None else self.file.vector(self.file.offset(position), dtype)

    def numbers(self, slot: int, dtype: npt.DTypeLike = np.int32) -> tuple[Any, ...] | None:
        """Return a vector of numbers as Python values."""
        values = self.vector(slot, dtype)
        if values is None:
            return None
        self.file.charge(values.nbytes)
        return tuple(values.tolist())

    def text(self, slot: int) -> str | None:
        """Return a string. Bytes that are not UTF-8 survive a round trip as surrogates."""
        values = self.vector(slot, np.uint8)
        if values is None:
            return None
        self.file.charge(values.nbytes)
        return values.tobytes().decode("utf-8", "surrogateescape")
