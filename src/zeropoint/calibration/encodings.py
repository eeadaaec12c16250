"""AIMET encodings: scales and offsets in the layouts of its versions 0.x and 1.x.

A real number is scale * (q + offset) with q from 0 to 2**bits - 1. Version 0 files map each tensor name to a list with
one entry per channel; version 1 files hold a list of objects with lists in them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..affine import QuantParams
from ..dtypes import DType
from ..errors import InvalidStats

SECTIONS = ("activation_encodings", "param_encodings")
TYPES = {8: DType.INT8, 16: DType.INT16}


@dataclass(frozen=True)
class Encoding:
    """The quantization of one channel, or of a whole tensor."""

    scale: float
    offset: int
    bits: int

    @property
    def low(self) -> float:
        return self.scale * self.offset

    @property
    def high(self) -> float:
        return self.scale * (self.offset + (1 << self.bits) - 1)

    @property
    def is_symmetric(self) -> bool:
        """Whether the zero point of the signed integers is 0."""
        return self.offset == -(1 << (self.bits - 1))

    @property
    def params(self) -> QuantParams | None:
        """The parameters in a signed type; None if there is none with this many bits."""
        dtype = TYPES.get(self.bits)
        return None if dtype is None else QuantParams((self.scale,), (dtype.min - self.offset,), dtype)


def encodings_in(content: Mapping[str, Any], origin: str) -> dict[str, tuple[Encoding, ...]] | None:
    """Return the encodings of a file by tensor, without float ones; None if the file holds no encodings."""
    if not any(section in content for section in SECTIONS):
        return None
    found: dict[str, tuple[Encoding, ...]] = {}
    for section in SECTIONS:
        for name, channels in _named(content.get(section, {}), f"{origin}: {section}"):
            encodings = tuple(e for e in (_encoding(c, f"{origin}: '{name}'") for c in channels) if e is not None)
            if encodings:
                found[name] = encodings
    return found


def _named(section: Any, where: str) -> Iterator[tuple[str, Sequence[Mapping[str, Any]]]]:
    """Yield names with one object per channel, from either version."""
    if isinstance(section, dict):
        for name, channels in section.items():
            yield name, channels if isinstance(channels, list) else [channels]
        return
    if not isinstance(section, list):
        raise InvalidStats(f"{where} is neither an object nor a list")
    for entry in section:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise InvalidStats(f"{where} has an entry without a name")
        scales, offsets = entry.get("scale", []), entry.get("offset", [])
        if not isinstance(scales, list) or not isinstance(offsets, list) or len(scales) != len(offsets):
            raise InvalidStats(f"{where}: '{entry['name']}' needs as many scales as offsets")
        common = {"bitwidth": entry.get("bw"), "dtype": entry.get("dtype", "int")}
        pairs = zip(scales, offsets, strict=True)
        yield entry["name"], [{**common, "scale": scale, "offset": offset} for scale, offset in pairs]


def _encoding(value: Any, where: str) -> Encoding | None:
    """Parse one encoding; None for a tensor that stays float."""
    if not isinstance(value, dict):
        raise InvalidStats(f"{where} is no object")
    if str(value.get("dtype", "int")).lower() == "float":
        return None
    try:
        found = Encoding(float(value["scale"]), int(value["offset"]), int(value["bitwidth"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InvalidStats(f"{where} needs the numbers scale, offset and bitwidth: {error!r}") from None
    if not (math.isfinite(found.scale) and found.scale > 0 and 1 <= found.bits <= 32):
        raise InvalidStats(f"{where} has scale {found.scale:g} and {found.bits} bits")
    if not -(2**found.bits) < found.offset <= 0:
        raise InvalidStats(f"{where} has the offset {found.offset}; zero is not one of its {2**found.bits} numbers")
    return found
