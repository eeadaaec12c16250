"""Records in the model's metadata how it was made, so that tools that examine the file later need not guess.

The entry "zeropoint" holds JSON, a zero byte, and numbers as little-endian float16. The JSON has the version, the
settings, and under "equalized" a list of [name, shape, start]: the CRC-32 of a tensor's name, and where its factors
begin among the numbers. The tensor's values are those of the float model times these factors, which broadcast to its
shape. "unlike" lists checksums of tensors that hold something else than any tensor of the float model.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..dtypes import Array
from ..graph.model import Buffer, Model

NAME = "zeropoint"

FACTOR = np.dtype("<f2")

MOST_RULES = 400
"""Recipes up to this many characters are stored in full; of longer ones, only the number of rules."""

WORDS = {"target": "for {}", "range": "range {}", "effort": "effort {}"}
"""How settings are displayed."""


@dataclass(frozen=True)
class Provenance:
    """How a model was made: the `settings` as plain values, and equalization `factors` by checksum of the tensor's
    name. `unlike` are such checksums of tensors without a counterpart in the float model.

    The factors are incomplete (`is_complete` is false) if some tensors have no unique name.
    """

    version: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    factors: Mapping[int, Array] = field(default_factory=dict)
    is_complete: bool = True
    unlike: frozenset[int] = frozenset()

    def has_counterpart(self, name: str) -> bool:
        """Whether a tensor may hold the values of one of the float model."""
        return _checksum(name) not in self.unlike

    def without_counterparts(self, names: Iterable[str]) -> Provenance:
        """Return a copy in which these tensors are unlike those of the float model, too."""
        return replace(self, unlike=self.unlike.union(map(_checksum, names)))

    def factors_of(self, name: str) -> Array | None:
        """Return the factors that a tensor's values were multiplied by; None if they are the float model's."""
        return self.factors.get(_checksum(name))

    def scaled(self, factors: Mapping[str, Array]) -> Provenance:
        """Return a copy with further factors, by tensor name, multiplied onto the existing ones."""
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
    """Return how the model was made, if it has a readable record of that."""
    raw = next((b.raw.tobytes() for name, b in model.metadata if name == NAME and b is not None), None)
    if raw is None:
        return None
    text, _, numbers = raw.partition(b"\0")
    try:
        content = json.loads(text)
        version, rows, lacks = content.pop("version"), content.pop("equalized", []), content.pop("incomplete", False)
        unlike = frozenset(map(int, content.pop("unlike", [])))
        factors = {int(name): _factors(numbers, tuple(map(int, shape)), int(start)) for name, shape, start in rows}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None  # written by another tool, or damaged: no reason to refuse the model
    return Provenance(str(version), content, factors, not lacks, unlike)


def _factors(numbers: bytes, shape: tuple[int, ...], start: int) -> Array:
    if min((*shape, start, 0)) < 0 or start + math.prod(shape) * FACTOR.itemsize > len(numbers):
        raise ValueError("factors lie outside the entry")
    values = np.frombuffer(numbers, FACTOR, math.prod(shape), start).astype(np.float32).reshape(shape)
    if not (np.isfinite(values) & (values > 0)).all():
        raise ValueError("a factor is not positive")
    return values


def recorded(model: Model, made: Provenance | None) -> Model:
    """Return the model with `made` as its provenance record, replacing any earlier one; None removes it."""
    others = [(name, buffer) for name, buffer in model.metadata if name != NAME]
    entry = [] if made is None else [(NAME, Buffer(np.frombuffer(_content(made), np.uint8)))]
    return replace(model, metadata=[*others, *entry])


def _content(made: Provenance) -> bytes:
    rows, numbers, places = [], b"", dict[bytes, int]()
    for name, values in sorted(made.factors.items()):
        held = np.ascontiguousarray(values, FACTOR).tobytes()
        if held not in places:  # tensors that propagate factors share one array
            places[held] = len(numbers)
            numbers += held
        rows.append([name, values.shape, places[held]])
    settings = dict(made.settings)
    if len(json.dumps(settings.get("rules"))) > MOST_RULES:
        settings["rules"] = len(settings["rules"])
    content = {"version": made.version, **settings, **({"equalized": rows} if rows else {})}
    if not made.is_complete:
        content["incomplete"] = True
    if made.unlike:
        content["unlike"] = sorted(made.unlike)
    return json.dumps(content, separators=(",", ":")).encode() + (b"\0" + numbers if rows else b"")
