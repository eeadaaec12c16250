"""Ranges of a model's tensors, wherever they come from: statistics, a JSON file, training."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..affine import QuantParams
from ..display import Brief
from ..dtypes import DType
from ..errors import InvalidStats
from ..files import PathLike, reading
from ..graph.model import Model
from ..graph.query import tensor_keys


@dataclass(frozen=True)
class Range:
    """A tensor's range and where it comes from. `params` where these were given rather than a range."""

    low: float
    high: float
    origin: str
    params: QuantParams | None = None


@dataclass(frozen=True, repr=False)
class Ranges(Brief):
    """Given ranges by tensor name."""

    entries: Mapping[str, Range]

    def merge(self, other: Ranges) -> Ranges:
        """Both; where both know a tensor, `other` wins."""
        return Ranges({**self.entries, **other.entries})

    def require(self, model: Model) -> None:
        """Raise if a name is none of the model's."""
        unknown = self.entries.keys() - set(tensor_keys(model).values())
        if unknown:
            shown = ", ".join(repr(n) for n in sorted(unknown)[:5])
            raise InvalidStats(f"ranges are given for {shown}, which the model does not have")


def ranges_from_json(path: PathLike) -> Ranges:
    """`{tensor name: {"min": ..., "max": ...}}` or `{"scale": ..., "zero_point": ..., "type": "int8"}`."""
    with reading(path, "JSON", InvalidStats):
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise InvalidStats(f"{path} must hold an object of tensor names")
    return Ranges({name: _range(name, value, str(path)) for name, value in content.items()})


def _range(name: str, value: Any, origin: str) -> Range:
    if not isinstance(value, dict):
        raise InvalidStats(f"{origin}: '{name}' needs an object with min and max, or scale and zero_point")
    keys = set(value)
    try:
        if keys == {"min", "max"}:
            low, high = float(value["min"]), float(value["max"])
            if not (math.isfinite(low) and math.isfinite(high) and low <= high):
                raise ValueError(f"min {low} and max {high} are no range")
            return Range(low, high, origin)
        if keys in ({"scale", "zero_point"}, {"scale", "zero_point", "type"}):
            dtype = DType.parse(str(value.get("type", "int8")))
            params = QuantParams((float(value["scale"]),), (int(value["zero_point"]),), dtype)
            if not (math.isfinite(params.scale) and params.scale > 0):
                raise ValueError(f"the scale {params.scale} is not positive")
            if not dtype.min <= value["zero_point"] <= dtype.max or params.zero_point != value["zero_point"]:
                raise ValueError(f"the zero point {value['zero_point']} is no integer of {dtype.label}")
            return Range(*params.range(), origin, params)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidStats(f"{origin}: '{name}': {error}") from None
    raise InvalidStats(f"{origin}: '{name}' has {sorted(keys)}; give min and max, or scale and zero_point")
