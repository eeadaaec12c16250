"""Files packed into a model: a zip archive appended to the flatbuffer, where TFLite Metadata keeps labels and
vocabularies.

Offsets in such an archive count from the beginning of the file, model included. A `Model` holds it with offsets from
the archive's own beginning; reading and writing shift the offsets and change nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..dtypes import Array
from ..errors import InvalidModel
from ..graph.model import Buffer, Model

_END = struct.Struct("<4s4H2IH")  # signature, two disks, two counts, size and offset of the directory, comment size
_ENTRY = struct.Struct("<4s6H3I5H2I")  # only sizes, flags and the offset of the file's header matter here
_FLAGS, _SIZE, _NAME, _EXTRA, _COMMENT, _HEADER = 3, 9, 10, 11, 12, 16
_IS_UTF8 = 1 << 11
LONGEST_COMMENT = (1 << 16) - 1
UNSAID = (0xFFFF, 0xFFFFFFFF)
"""The count and offset that mean "see the zip64 record"."""


@dataclass(frozen=True)
class PackedFile:
    """One file of the archive; `size` is its unpacked size as stated by the archive."""

    name: str
    size: int


@dataclass(frozen=True)
class _Archive:
    start: int
    base: int  # the origin of its offsets
    entries: tuple[int, ...]  # the positions of its directory entries
    end: int  # the position of its last record


def cut_archive(content: Array) -> Buffer | None:
    """Return the archive at the end of a file, or None if there is none."""
    found = _find(content)
    return None if found is None else Buffer(_shifted(content[found.start :], found.base - found.start))


def archive_at(archive: Buffer, place: int) -> Array:
    """Return the archive with offsets for the given position in a file."""
    return _shifted(archive.raw, place)


def packed_files(model: Model) -> list[PackedFile]:
    """Return the files packed into a model."""
    return [] if model.packed_files is None else list(_listed(model.packed_files.raw))


def _listed(raw: Array) -> Iterator[PackedFile]:
    found = _find(raw)
    for at in () if found is None else found.entries:
        fields = _ENTRY.unpack_from(raw.data, at)
        name = raw[at + _ENTRY.size :][: fields[_NAME]].tobytes()
        yield PackedFile(name.decode("utf-8" if fields[_FLAGS] & _IS_UTF8 else "cp437", "replace"), fields[_SIZE])


def _find(content: Array) -> _Archive | None:
    """Locate the archive. Every field must be consistent: four bytes of a weight may look like a zip signature."""
    tail = content[-(_END.size + LONGEST_COMMENT) :].tobytes()
    at = tail.rfind(b"PK\5\6")
    if at < 0 or at + _END.size > len(tail):
        return None
    end = content.size - len(tail) + at
    _, _, _, _, count, size, offset, _ = _END.unpack_from(content.data, end)
    if count == UNSAID[0] or UNSAID[1] in (size, offset):
        raise InvalidModel("files are appended to the model in a zip64 archive, which cannot be kept; repack them")
    position, entries, headers = end - size, [], []
    base = position - offset
    for _ in range(count):
        if not 0 <= position <= end - _ENTRY.size:
            return None
        fields = _ENTRY.unpack_from(content.data, position)
        header = base + fields[_HEADER]
        if fields[0] != b"PK\1\2" or header < 0 or content[header : header + 4].tobytes() != b"PK\3\4":
            return None
        entries.append(position)
        headers.append(header)
        position += _ENTRY.size + fields[_NAME] + fields[_EXTRA] + fields[_COMMENT]
    return _Archive(min(headers, default=position), base, tuple(entries), end) if position == end else None


def _shifted(raw: Array, by: int) -> Array:
    """Return a copy of the archive `raw` with all offsets increased by `by`."""
    found = _find(raw)
    assert found is not None
    made: Array = raw.copy()
    for at in (*(k + _ENTRY.size - 4 for k in found.entries), found.end + _END.size - 6):
        field = made[at : at + 4].view("<u4")
        field[:] = np.int64(field[0]) + by
    return made
