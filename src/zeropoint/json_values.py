"""Converts values to what JSON can hold."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any


def json_values(value: Any, digits: int | None = None) -> Any:
    """Convert dataclasses to objects, sequences to lists, NaN and infinity to null; floats are rounded to `digits`, if
    given."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: json_values(getattr(value, f.name), digits) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): json_values(v, digits) for key, v in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [json_values(v, digits) for v in value]
    if isinstance(value, float):
        rounded = value if digits is None else float(f"{value:.{digits}g}")  # rounding can overflow
        return next((v for v in (rounded, value) if math.isfinite(v)), None)
    return value
