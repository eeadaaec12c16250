"""Values as JSON has them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any


def plain(value: Any, digits: int | None = None) -> Any:
    """Objects and lists, null in place of NaN and infinity; floats rounded to so many significant `digits`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name), digits) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(v, digits) for key, v in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [plain(v, digits) for v in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return value if digits is None else float(f"{value:.{digits}g}")
    return value
