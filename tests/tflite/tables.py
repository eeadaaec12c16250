"""Tables of a flatbuffer, field by field."""

from __future__ import annotations

from zeropoint.tflite.builder import Builder, TableKind

Field = tuple[int, str, int | None]
"""Slot, format and value."""


def put_table(builder: Builder, *fields: Field) -> int:
    """Write a table of a kind of its own; return its position."""
    return builder.table(TableKind(*((slot, kind) for slot, kind, _ in fields)), *(value for *_, value in fields))
