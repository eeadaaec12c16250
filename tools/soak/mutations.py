"""Damaged models: of their bytes, and field by field of the structure that the bytes hold."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as generated

Random = np.random.Generator
SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 16, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000)
NASTY = (*SIZES, *(0xFFFFFFFF - k for k in (0, 1, 3, 7, 255)))

TEXTS = (b"", b"\xff\xfe", b"\x1b[2J", b"a" * 5000, b"x")

# Of bytes.


def flip(content: bytearray, rng: Random) -> None:
    for _ in range(rng.integers(1, 9)):
        content[somewhere(content, rng)] ^= 1 << rng.integers(8)


def set_bytes(content: bytearray, rng: Random) -> None:
    for _ in range(rng.integers(1, 5)):
        content[somewhere(content, rng)] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.integers(256)])


def overwrite_offset(content: bytearray, rng: Random) -> None:
    for _ in range(rng.integers(1, 4)):
        at = somewhere(content, rng) // 4 * 4
        near = (len(content), len(content) - at, at, int(rng.integers(len(content))))
        value = int(rng.choice([*NASTY, *(int(n + d) % 2**32 for n in near for d in (-4, -1, 0, 1, 4))]))
        content[at : at + 4] = struct.pack("<I", value)[: len(content) - at]


def truncate(content: bytearray, rng: Random) -> None:
    del content[int(rng.integers(len(content))) :]


def splice(content: bytearray, rng: Random) -> None:
    start, length = somewhere(content, rng), int(rng.integers(1, 200))
    piece = content[start : start + length]
    at = somewhere(content, rng)
    content[at : at + (len(piece) if rng.integers(2) else 0)] = piece


def cut(content: bytearray, rng: Random) -> None:
    at = somewhere(content, rng)
    del content[at : at + int(rng.integers(1, 64))]


def noise(content: bytearray, rng: Random) -> None:
    content[8:] = rng.bytes(int(rng.integers(0, 400)))


def somewhere(content: bytearray, rng: Random) -> int:
    """Anywhere, but more often in the first part, where the structure is."""
    return int(rng.integers(len(content) if rng.integers(4) == 0 else min(len(content), 3000)))


BYTEWISE: tuple[Callable[[bytearray, Random], None], ...] = (
    flip,
    set_bytes,
    overwrite_offset,
    overwrite_offset,
    truncate,
    splice,
    cut,
    noise,
)


def damage(content: bytes, kind: int, rng: Random) -> bytes:
    """`content` with some bytes changed, in one of the ways in `BYTEWISE`."""
    mutant = bytearray(content)
    BYTEWISE[kind % len(BYTEWISE)](mutant, rng)
    return bytes(mutant)


# Of fields. The file stays a valid flatbuffer, so that these go deeper into what reads it.


@dataclass(frozen=True, eq=False)
class Field:
    """A field of a table in a file."""

    owner: Any
    name: str

    @property
    def value(self) -> Any:
        return getattr(self.owner, self.name)


def fields(table: Any) -> Iterator[Field]:
    """All fields that are set, of `table` and of all tables below it."""
    for name, value in vars(table).items():
        if value is not None:
            yield Field(table, name)
        for below in value if isinstance(value, list) else (value,):
            if type(below).__name__.endswith("T") and hasattr(below, "Pack"):
                yield from fields(below)


def rearrange(content: bytes, rng: Random, changes: int = 1) -> bytes | None:
    """`content` with fields changed; None where the result cannot be written."""
    model = generated.ModelT.InitFromPackedBuf(content)
    for _ in range(changes):
        found = list(fields(model))
        chosen = found[int(rng.integers(len(found)))]
        alike = [f for f in found if f.name == chosen.name and f.owner is not chosen.owner]
        other = alike[int(rng.integers(len(alike)))].value if alike and rng.integers(3) == 0 else None
        setattr(chosen.owner, chosen.name, changed(chosen.value, rng) if other is None else other)
    builder = flatbuffers.Builder(len(content))
    try:
        builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    except (TypeError, ValueError, AttributeError, OverflowError, struct.error, IndexError, RecursionError):
        return None  # the generated code does not write every lie that it can hold
    return bytes(builder.Output())


def changed(value: Any, rng: Random) -> Any:
    """Another value, mostly of the same type."""
    if isinstance(value, bool | np.bool_):
        return not value
    if isinstance(value, int | np.integer):
        near = (int(value) + d for d in (-1, 1, 2, -2))
        return int(rng.choice([0, 1, -1, 2, 3, 127, 255, 1 << 16, (1 << 31) - 1, int(rng.integers(200)), *near]))
    if isinstance(value, float | np.floating):
        return float(rng.choice([0.0, -1.0, 1e-30, 1e30, np.inf, -np.inf, np.nan, 1e-45, float(value) * 1000]))
    if isinstance(value, np.ndarray | list) and len(value):
        return _changed_vector(value, rng)
    if isinstance(value, str | bytes):
        return TEXTS[int(rng.integers(len(TEXTS)))]
    return None


def _changed_vector(value: Any, rng: Random) -> Any:
    at, way = int(rng.integers(len(value))), int(rng.integers(6))
    rest = list(value)
    if way == 0:
        return None
    if way == 1:
        del rest[at]
    elif way == 2:
        rest.insert(at, rest[int(rng.integers(len(rest)))])
    elif way == 3:
        rest = rest[:at]
    elif way == 4:
        other = int(rng.integers(len(rest)))
        rest[at], rest[other] = rest[other], rest[at]
    elif not hasattr(rest[at], "Pack"):
        rest[at] = changed(rest[at], rng)
    if isinstance(value, np.ndarray):
        limits = np.iinfo(value.dtype) if value.dtype.kind in "iu" else None
        bounded = rest if limits is None else [min(max(int(v), limits.min), limits.max) for v in rest]
        return np.array(bounded, value.dtype)
    return rest
