"""How a model was made, in an entry of its metadata, so that whoever examines the file later on need not guess.

The entry "zeropoint" holds JSON, a zero byte, and numbers as little-endian float16. The JSON has the version, what was
asked for, and under "equalized" a list of [name, shape, start]: a tensor by the CRC-32 of its name, and where among the
numbers the factors begin that its values are multiples of, compared with the float model's. Factors have the shape that
broadcasts to the tensor's.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..dtypes import Array
from ..graph.model import Buffer, Model

NAME = "zeropoint"

FACTOR = np.dtype("<f2")

MOST_RULES = 400
"""Characters up to which the rules of a recipe are held; of longer ones, their number."""

WORDS = {"target": "for {}", "range": "range {}", "effort": "effort {}"}
"""How settings are told to people."""


@dataclass(frozen=True)
class Provenance:
    """`settings` are what was asked for, as plain values. `factors` are by the checksum of a tensor's name; if some
    tensors have no name of their own, they are not complete."""

    version: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    factors: Mapping[int, Array] = field(default_factory=dict)
    is_complete: bool = True

    def factors_of(self, name: str) -> Array | None:
        """What the values of a tensor were multiplied with; None if they are the float model's."""
        return self.factors.get(_checksum(name))

    def scaled(self, factors: Mapping[str, Array]) -> Provenance:
        """With these factors, by the names of tensors, on top of what was done before."""
        all_factors = dict(self.factors)
        for name, values in factors.items():
            all_factors[_checksum(name)] = values * all_factors.get(_checksum(name), np.float32(1))
        return replace(self, factors=all_factors)

    def __str__(self) -> str:
        what = str(self.settings.get("mode") or f"a recipe of {_count(self.settings.get('rules'))} rules")
        how = [what, *(text.format(self.settings[name]) for name, text in WORDS.items() if name in self.settings)]
        text = f"zeropoint {self.version} with {', '.join(how)}"
        return text + ("; trained" if self.settings.get("trained") else "") + ("; equalized" if self.factors else "")


def _count(rules: Any) -> Any:
    return len(rules) if isinstance(rules, list | tuple) else rules


def _checksum(name: str) -> int:
    return zlib.crc32(name.encode("utf-8", "surrogateescape"))


def provenance(model: Model) -> Provenance | None:
    """How the model was made, if it says so in a way that can be read."""
    raw = next((b.raw.tobytes() for name, b in model.metadata if name == NAME and b is not None), None)
    if raw is None:
        return None
    text, _, numbers = raw.partition(b"\0")
    try:
        content = json.loads(text)
        version, rows, lacks = content.pop("version"), content.pop("equalized", []), content.pop("incomplete", False)
        factors = {int(name): _factors(numbers, tuple(map(int, shape)), int(start)) for name, shape, start in rows}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None  # another tool's, or damaged, which is no reason to refuse the model
    return Provenance(str(version), content, factors, not lacks)


def _factors(numbers: bytes, shape: tuple[int, ...], start: int) -> Array:
    if min((*shape, start, 0)) < 0 or start + math.prod(shape) * FACTOR.itemsize > len(numbers):
        raise ValueError("factors lie outside of the entry")
    values = np.frombuffer(numbers, FACTOR, math.prod(shape), start).astype(np.float32).reshape(shape)
    if not (np.isfinite(values) & (values > 0)).all():
        raise ValueError("a factor is not positive")
    return values


def recorded(model: Model, made: Provenance | None) -> Model:
    """The model with this entry in place of the one it has; without any for None."""
    others = [(name, buffer) for name, buffer in model.metadata if name != NAME]
    entry = [] if made is None else [(NAME, Buffer(np.frombuffer(_content(made), np.uint8)))]
    return replace(model, metadata=[*others, *entry])


def _content(made: Provenance) -> bytes:
    rows, numbers, places = [], b"", dict[bytes, int]()
    for name, values in sorted(made.factors.items()):
        held = np.ascontiguousarray(values, FACTOR).tobytes()
        if held not in places:  # tensors that pass factors on have the same
            places[held] = len(numbers)
            numbers += held
        rows.append([name, values.shape, places[held]])
    settings = dict(made.settings)
    if len(json.dumps(settings.get("rules"))) > MOST_RULES:
        settings["rules"] = len(settings["rules"])
    content = {"version": made.version, **settings, **({"equalized": rows} if rows else {})}
    if not made.is_complete:
        content["incomplete"] = True
    return json.dumps(content, separators=(",", ":")).encode() + (b"\0" + numbers if rows else b"")
