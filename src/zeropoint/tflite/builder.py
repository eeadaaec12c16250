"""Builds a flatbuffer back to front, as its offsets demand: they point forward, to what has been put down before.

The builder of the flatbuffers package does the same a field at a time, which for the thousands of small tables of a
model takes several times as long. Places are given as distances from the end, which do not change as more is put in
front. Equal vectors and tables are put down once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from ..dtypes import Array

ALIGNMENT = 16
"""Of the whole, a multiple of what any of its numbers needs; and of constants, which kernels and delegates read with
vector instructions."""

OFFSET = "o"
"""The format of a field that points at something; its value is a place."""

Field = tuple[int, str, int | None]
"""Slot in the schema, format (of `struct`, at most 4 bytes, or OFFSET), value; None for a field that is left out."""


@dataclass(frozen=True)
class _TableLayout:
    """Where the fields of a table lie, counted from its beginning, and the vtable that says so."""

    order: tuple[int, ...]
    pack: struct.Struct
    pointers: tuple[tuple[int, int], ...]  # position in the packed values, place in the table
    vtable: bytes


@cache
def _layout(kinds: tuple[tuple[int, str], ...]) -> _TableLayout:
    """Larger fields first, so that none needs padding in front of it."""
    sizes = [struct.calcsize("<I" if kind == OFFSET else f"<{kind}") for _, kind in kinds]
    order = tuple(sorted(range(len(kinds)), key=lambda k: -sizes[k]))
    places, position, pointers = {}, 4, []
    for at, k in enumerate(order):
        slot, kind = kinds[k]
        places[slot] = position
        if kind == OFFSET:
            pointers.append((at + 1, position))
        position += sizes[k]
    formats = "".join("I" if kinds[k][1] == OFFSET else kinds[k][1] for k in order)
    slots = [places.get(slot, 0) for slot in range(max(places, default=-1) + 1)]
    vtable = struct.pack(f"<{2 + len(slots)}H", 4 + 2 * len(slots), position, *slots)
    return _TableLayout(order, struct.Struct(f"<i{formats}{-position % 4}x"), tuple(pointers), vtable)


_SIZES = {"f": 4, "q": 8}


class Builder:
    """Each method returns the place of what it put down."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._known: dict[tuple[int, bytes], int] = {}

    def _put(self, content: bytes, alignment: int, skipped: int = 0) -> int:
        """Put `content` down such that what comes `skipped` bytes after its beginning is aligned."""
        padding = -(self._size + len(content) - skipped) % alignment
        self._parts.append(content + bytes(padding) if padding else content)
        self._size += len(content) + padding
        return self._size

    def _put_once(self, content: bytes, alignment: int, skipped: int = 0) -> int:
        place = self._known.get((alignment, content))
        if place is None:
            place = self._known[alignment, content] = self._put(content, alignment, skipped)
        return place

    def numbers(self, values: Array) -> int:
        """A vector of numbers, of their own type."""
        content = struct.pack("<I", values.size) + values.tobytes()
        return self._put_once(content, max(4, values.itemsize), skipped=4)

    def short(self, values: Sequence[float], kind: str) -> int:
        """A vector of a few numbers of a kind that `struct` knows."""
        return self._put_once(struct.pack(f"<I{len(values)}{kind}", len(values), *values), _SIZES[kind], skipped=4)

    def integers(self, values: Sequence[int]) -> int:
        """A vector of 32-bit integers. Most are so short that an array takes longer to make than to write."""
        return self._put_once(struct.pack(f"<I{len(values)}i", len(values), *values), 4, skipped=4)

    def text(self, content: bytes) -> int:
        return self._put_once(struct.pack("<I", len(content)) + content + b"\0", 4)

    def tables(self, places: Sequence[int]) -> int:
        """A vector of tables."""
        # The first element lies as far in front of the end as the vector without its length.
        first = self._size + 4 * len(places)
        first += -first % 4
        offsets = [first - 4 * k - place for k, place in enumerate(places)]
        return self._put(struct.pack(f"<{1 + len(places)}I", len(places), *offsets), 4)

    def table(self, *given: Field) -> int:
        fields = [(slot, kind, value) for slot, kind, value in given if value is not None]
        layout = _layout(tuple([(slot, kind) for slot, kind, _ in fields]))
        vtable = self._put_once(layout.vtable, 2)
        place = self._size + layout.pack.size
        place += -place % 4
        values = [vtable - place, *[fields[k][2] for k in layout.order]]
        for at, position in layout.pointers:
            values[at] = place - position - values[at]
        return self._put(layout.pack.pack(*values), 4)

    def generated(self, content: bytes) -> int:
        """A table that the generated code of the schema packed, a flatbuffer of its own."""
        (root,) = struct.unpack_from("<I", content)
        return self._put_once(content, ALIGNMENT) - int(root)

    def finish(self, root: int, identifier: bytes) -> bytearray:
        """The whole, which begins with where the root table is."""
        total = self._size + 8
        total += -total % ALIGNMENT
        start = struct.pack("<I", total - root) + identifier
        return bytearray(b"".join((start, bytes(total - self._size - 8), *reversed(self._parts))))
