"""Builds a flatbuffer back to front, because offsets point forward, to what has already been written.

The builder of the flatbuffers package works one field at a time, which is several times slower for the thousands of
small tables in a model. Positions are distances from the end, which do not change as more is written in front. Equal
vectors and tables are written once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from operator import itemgetter

from ..dtypes import Array

ALIGNMENT = 16
"""Alignment of the whole file, a multiple of what any scalar needs, and of constants, which kernels and delegates read
with vector instructions."""

OFFSET = "o"
"""The format of a field that refers to something; its value is a position."""


@dataclass(frozen=True, eq=False)
class _TableLayout:
    """Positions of a table's fields relative to its beginning, and the vtable that encodes them."""

    taken: Callable[[Sequence[int | None]], Sequence[int]]  # the values of the fields that it has, in its order
    pack: struct.Struct
    pointers: tuple[tuple[int, int], ...]  # position in the packed values, position in the table
    vtable: bytes


class TableKind:
    """The fields that tables of one kind may have: for each its slot in the schema, and its format (a `struct` code of
    at most 4 bytes, or OFFSET)."""

    def __init__(self, *fields: tuple[int, str]) -> None:
        self._fields = fields
        self._layouts: dict[tuple[bool, ...], _TableLayout] = {}

    def layout(self, values: Sequence[int | None]) -> _TableLayout:
        """Return the layout of a table with these values; fields without one are omitted."""
        given = tuple([value is not None for value in values])
        found = self._layouts.get(given)
        if found is None:
            found = self._layouts[given] = self._lay_out([k for k, is_given in enumerate(given) if is_given])
        return found

    def _lay_out(self, given: list[int]) -> _TableLayout:
        """Lay out larger fields first, so that no field needs padding."""
        formats = {k: "I" if self._fields[k][1] == OFFSET else self._fields[k][1] for k in given}
        order = tuple(sorted(given, key=lambda k: -struct.calcsize(f"<{formats[k]}")))
        places, position, pointers = {}, 4, []
        for at, k in enumerate(order):
            slot, kind = self._fields[k]
            places[slot] = position
            if kind == OFFSET:
                pointers.append((at + 1, position))
            position += struct.calcsize(f"<{formats[k]}")
        slots = [places.get(slot, 0) for slot in range(max(places, default=-1) + 1)]
        vtable = struct.pack(f"<{2 + len(slots)}H", 4 + 2 * len(slots), position, *slots)
        pack = struct.Struct(f"<i{''.join(formats[k] for k in order)}{-position % 4}x")
        taken = itemgetter(*order) if len(order) > 1 else lambda values: [values[k] for k in order]
        return _TableLayout(taken, pack, tuple(pointers), vtable)


@cache
def _vector(kind: str, count: int) -> struct.Struct:
    return struct.Struct(f"<I{count}{kind}")


_INTEGERS = tuple(_vector("i", count) for count in range(9))
"""Most vectors are shapes, and the inputs or outputs of an op."""

_SIZES = {"f": 4, "q": 8}

KEPT_TEXTS = 1 << 14
"""Number of names of which the bytes are kept: candidate versions of a model repeat most of them."""


@lru_cache(KEPT_TEXTS)
def _text(text: str) -> bytes:
    """Return a string as a file holds it: its length, its bytes, and a zero."""
    content = text.encode("utf-8", "surrogateescape")
    return struct.pack("<I", len(content)) + content + b"\0"


class Builder:
    """Flatbuffer builder. Each method returns the position of what it wrote."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._known: dict[int, dict[bytes, int]] = {2: {}, 4: {}, 8: {}, ALIGNMENT: {}}  # by alignment
        self._vtables: dict[_TableLayout, int] = {}

    def _put(self, content: bytes, alignment: int, skipped: int = 0) -> int:
        """Write `content` so that the byte `skipped` bytes after its beginning is aligned."""
        padding = -(self._size + len(content) - skipped) % alignment
        self._parts.append(content + bytes(padding) if padding else content)
        self._size += len(content) + padding
        return self._size

    def _put_once(self, content: bytes, alignment: int, skipped: int = 0) -> int:
        known = self._known[alignment]
        place = known.get(content)
        if place is None:
            place = known[content] = self._put(content, alignment, skipped)
        return place

    def numbers(self, values: Array) -> int:
        """Write an array as a vector of its own element type."""
        content = struct.pack("<I", values.size) + values.tobytes()
        return self._put_once(content, max(4, values.itemsize), skipped=4)

    def packed(self, values: Sequence[float], kind: str) -> int:
        """Write a vector of Python's numbers with the `struct` code `kind`; an array of them would take longer."""
        return self._put_once(_vector(kind, len(values)).pack(len(values), *values), _SIZES[kind], skipped=4)

    def integers(self, values: Sequence[int]) -> int:
        """Write a vector of 32-bit integers. Most are so short that creating an array would take longer than writing
        it.
        """
        count = len(values)
        pack = _INTEGERS[count] if count < len(_INTEGERS) else _vector("i", count)
        content = pack.pack(count, *values)
        return self._known[4].get(content) or self._put_once(content, 4, skipped=4)

    def text(self, text: str) -> int:
        content = _text(text)
        return self._known[4].get(content) or self._put_once(content, 4)

    def tables(self, places: Sequence[int]) -> int:
        """Write a vector of tables."""
        # The first element's distance from the end is that of the vector without its length prefix.
        first = self._size + 4 * len(places)
        first += -first % 4
        offsets = [first - 4 * k - place for k, place in enumerate(places)]
        return self._put(struct.pack(f"<{1 + len(places)}I", len(places), *offsets), 4)

    def table(self, kind: TableKind, *given: int | None) -> int:
        """Write a table with these values of the kind's fields, in their order; None for an omitted field."""
        layout = kind.layout(given)
        vtable = self._vtables.get(layout)
        if vtable is None:
            vtable = self._vtables[layout] = self._put_once(layout.vtable, 2)
        place = self._size + layout.pack.size
        padding = -place % 4
        place += padding
        values = [vtable - place, *layout.taken(given)]
        for at, position in layout.pointers:
            values[at] = place - position - values[at]
        content = layout.pack.pack(*values)
        self._parts.append(content + bytes(padding) if padding else content)
        self._size = place
        return place

    def generated(self, content: bytes) -> int:
        """Write a table that the schema's generated code has packed, as a flatbuffer of its own."""
        (root,) = struct.unpack_from("<I", content)
        return self._put_once(content, ALIGNMENT) - int(root)

    def finish(self, root: int, identifier: bytes) -> bytearray:
        """Return the complete file, which begins with the offset of the root table."""
        total = self._size + 8
        total += -total % ALIGNMENT
        start = struct.pack("<I", total - root) + identifier
        return bytearray(b"".join((start, bytes(total - self._size - 8), *reversed(self._parts))))
