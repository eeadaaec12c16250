"""Ranges of tensors from any source: statistics, a JSON file, training, or another tool's encodings."""

from __future__ import annotations

import fnmatch
import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ..affine import QuantParams
from ..display import Brief, counted
from ..dtypes import DType
from ..errors import InvalidStats, names_are_listed
from ..files import PathLike, reading
from ..graph.model import Model
from ..graph.names import short_names
from ..graph.query import tensor_keys
from ..ops import OPS
from ..tflite import load
from .encodings import Encoding, encodings_in
from .onnx_scales import read_qdq
from .skeleton import Place, Skeleton, find_places, skeleton_of
from .task import OpTable


@dataclass(frozen=True)
class Range:
    """A tensor's range. `params` are set if parameters were given rather than a range.

    `origin` says who gave it, and is empty for ranges computed from others. `channels` are per-channel ranges of
    weights; `low` and `high` span all of them. `found_by` says how the tensor was found, if not by name.
    """

    low: float
    high: float
    origin: str = ""
    params: QuantParams | None = None
    channels: tuple[tuple[float, float], ...] = ()
    found_by: str = ""


@dataclass(frozen=True, repr=False)
class Ranges(Brief):
    """Given ranges by tensor name.

    `default` applies to activations without any other range. `foreign` ranges come from a tool that may use other
    tensor names: names that the model does not have are listed in `unmatched` instead of raising. If the tool's own
    network file is known, its `skeleton` shows where they belong.
    """

    entries: Mapping[str, Range]
    default: Range | None = None
    foreign: bool = False
    unmatched: tuple[str, ...] = ()
    skeleton: Skeleton | None = field(default=None, compare=False)

    def merge(self, other: Ranges) -> Ranges:
        """Combine both; where both have a tensor, `other` wins."""
        return Ranges(
            {**self.entries, **other.entries},
            other.default or self.default,
            self.foreign or other.foreign,
            self.unmatched + other.unmatched,
            self.skeleton or other.skeleton,
        )

    @property
    def is_empty(self) -> bool:
        return not self.entries and self.default is None

    def resolved(self, model: Model, ops: OpTable = OPS) -> Ranges:
        """Return the ranges with tensor names as keys, resolving patterns (`block1/*`) and short display names.

        What another tool named differently is found by the weights it is computed with; `ops` tells which those are.
        """
        if not self.entries:
            return replace(self, unmatched=())
        names, exact, short = list(tensor_keys(model).values()), self._known_names(model), short_names(model)
        entries: dict[str, Range] = {}
        unmatched = []
        for key in sorted(self.entries, key=lambda key: key in exact):  # an exact name takes precedence over a pattern
            found = [exact[key]] if key in exact else fnmatch.filter(names, key)
            found = found or [name for name in names if fnmatch.fnmatchcase(short[name], key)]
            entries |= dict.fromkeys(found, self.entries[key])
            if not found:
                unmatched.append(key)
        if unmatched and not self.foreign:
            raise _absent(unmatched, {*names, *short.values(), *exact})
        placed = self._placed(model, unmatched, ops)
        for name, place in ((name, place) for name, places in placed.items() for place in places):
            given = self.entries[name]
            origin = f"{given.origin}: '{name}', found by {place.found_by}"
            entries.setdefault(place.name, replace(given, origin=origin, found_by=place.found_by))
        return replace(self, entries=entries, unmatched=tuple(name for name in unmatched if name not in placed))

    def _known_names(self, model: Model) -> dict[str, str]:
        """Return all names by which tensors can be given, mapped to their names in the file."""
        names = list(tensor_keys(model).values())
        exact = {name: key for name, key in _signature_names(model).items() if name not in names}
        if self.foreign:  # other tools may use one part of a name that a converter joined from several
            parts = Counter(part for name in names for part in _parts(name))
            exact |= {part: name for name in names for part in _parts(name) if parts[part] == 1}
        return exact | {name: name for name in names}

    def _placed(self, model: Model, unmatched: Sequence[str], ops: OpTable) -> Mapping[str, Sequence[Place]]:
        """Locate tensors with other names in the model by what they compute."""
        if not unmatched or self.skeleton is None:
            return {}
        return find_places(self.skeleton, skeleton_of(model, ops), unmatched)

    def require(self, model: Model) -> None:
        """Raise if a name does not exist in the model."""
        unknown = self.entries.keys() - set(tensor_keys(model).values())
        if unknown:
            raise _absent(unknown, set(tensor_keys(model).values()))

    def notes(self) -> Iterator[str]:
        """Yield notes for the user about how these ranges are applied."""
        found_by = Counter(entry.found_by for entry in self.entries.values()) if self.skeleton is not None else {}
        if found_by:
            ways = ", ".join(f"{count} by {way or 'name'}" for way, count in sorted(found_by.items()))
            yield f"{counted(len(self.entries), 'tensor')} with a given range, found {ways}"
        if self.unmatched:
            count = len(self.unmatched)
            what = "1 given range is" if count == 1 else f"{count} given ranges are"
            yield f"{what} not used, because the model has no tensors with these names: {_listed(self.unmatched)}"


def _parts(name: str) -> set[str]:
    """Split a joined name: `a;b` are the names of two tensors that became one; converters append the rest."""
    return {part.removeprefix("serving_default_").removesuffix(":0") for part in name.split(";")} - {name}


def _absent(names: Collection[str], known: Collection[str]) -> InvalidStats:
    """Return the error for ranges of tensors that do not exist, with the existing name that is most like the first."""
    near = get_close_matches(min(names), sorted(known), 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return InvalidStats(
        f"ranges are given for {_listed(names)}, which the model does not have; {hint}{names_are_listed()}"
    )


def _listed(names: Any) -> str:
    shown = ", ".join(repr(n) for n in sorted(names)[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def _signature_names(model: Model) -> dict[str, str]:
    """Map the signatures' names of inputs and outputs to tensor names."""
    keys = tensor_keys(model)
    ends = [pair for s in model.signatures for pair in (*s.inputs.items(), *s.outputs.items())]
    return {name: keys[tensor] for name, tensor in reversed(ends)}


def ranges_from_json(path: PathLike, ops: OpTable = OPS) -> Ranges:
    """Read ranges: `{tensor name: {"min": ..., "max": ...}}` or `{"scale": ..., "zero_point": ..., "type": "int8"}`.

    Names may be patterns, or a signature's names of inputs and outputs. For weights, "min" and "max" may be lists with
    one number per channel. Also reads AIMET encodings (both versions), the scales of an ONNX model with QuantizeLinear
    and DequantizeLinear, and those of a quantized `.tflite`, such as litert-torch produces from PT2E;
    `ops` is the op table for that, if not the package's own.
    """
    suffix, origin = Path(path).suffix.lower(), Path(path).name
    if suffix == ".onnx":
        with reading(path, "ONNX", InvalidStats):
            found = read_qdq(path)
        entries = {name: _encoded(each, origin) for name, each in found.activations.items()}
        entries |= {name: _encoded_weights(each, origin) for name, each in found.weights.items()}
        return Ranges(entries, foreign=True, skeleton=found.skeleton)
    if suffix == ".tflite":
        return _ranges_of_model(load(path), origin, ops)
    with reading(path, "JSON", InvalidStats):
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise InvalidStats(f"{path} must hold an object of tensor names")
    encodings = encodings_in(content, str(path))
    if encodings is not None:
        return Ranges({name: _encoded(each, origin) for name, each in encodings.items()}, foreign=True)
    given = ranges_from(content, str(path)).entries  # its errors state the full path
    return Ranges({name: replace(each, origin=origin) for name, each in given.items()})


def _ranges_of_model(model: Model, origin: str, ops: OpTable) -> Ranges:
    """Return the scales of a quantized model, except those of biases."""
    entries: dict[str, Range] = {}
    for tensor, key in tensor_keys(model).items():
        params, key = tensor.params, key.removesuffix(f"/{tensor.dtype.label}")  # the suffix of our own outputs
        if params is None or params.dtype.bits > 16 or params.block is not None:
            continue
        if not tensor.is_constant and len(params.scales) == 1:
            entries[key] = Range(*params.range(), origin, params)
        elif tensor.is_constant and params.is_symmetric:
            peaks = [scale * params.levels.max for scale in params.scales]
            channels = tuple((-peak, peak) for peak in peaks) if len(peaks) > 1 else ()
            entries[key] = Range(-max(peaks), max(peaks), origin, channels=channels)
    if not entries:
        raise InvalidStats(f"{origin} is not quantized; give a quantized model, or one with the ranges as JSON")
    return Ranges(entries, foreign=True, skeleton=skeleton_of(model, ops))


def ranges_from(content: Mapping[str, Any], origin: str) -> Ranges:
    """Build ranges from plain values, as in a JSON file."""
    return Ranges({name: _range(name, value, origin) for name, value in content.items()})


def ranges_from_input_stats(stats: Mapping[str, tuple[float, float]], dtype: DType) -> Ranges:
    """Return ranges of integer inputs from (mean, std), where real = (q - mean) / std."""
    entries = {}
    for name, (mean, std) in stats.items():
        if not (math.isfinite(mean) and math.isfinite(std) and std > 0):
            raise InvalidStats(f"the input '{name}' has mean {mean:g} and std {std:g}; std must be positive")
        low, high = ((q - mean) / std for q in (dtype.min, dtype.max))
        if low > 0 or high < 0:
            raise InvalidStats(
                f"the input '{name}' would hold {low:g} to {high:g} with mean {mean:g} and std {std:g}; "
                f"the mean must be an integer of {dtype.label}: it is the zero point"
            )
        entries[name] = Range(low, high, "mean and std")
    return Ranges(entries)


def default_range(low: float, high: float) -> Ranges:
    """Return one range for all activations without any other range."""
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InvalidStats(f"{low:g} to {high:g} is not a valid range; give two numbers such as -6,6")
    return Ranges({}, Range(low, high, "default range"))


def _encoded(channels: tuple[Encoding, ...], origin: str) -> Range:
    """Return the range of a tensor; with several channels, one range for each."""
    ends = tuple((each.low, each.high) for each in channels)
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    if len(channels) > 1:
        return Range(low, high, origin, channels=ends)
    return Range(low, high, origin, channels[0].params)


def _encoded_weights(channels: tuple[Encoding, ...], origin: str) -> Range:
    """Return ranges that give weights exactly the scales of the encodings. Kernels do not use the lowest integer of a
    type."""
    peaks = [each.scale * (2 ** (each.bits - 1) - 1) if each.is_symmetric else None for each in channels]
    ends = tuple(
        (each.low, each.high) if peak is None else (-peak, peak) for each, peak in zip(channels, peaks, strict=True)
    )
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    return Range(low, high, origin, channels=ends if len(ends) > 1 else ())


def _range(name: str, value: Any, origin: str) -> Range:
    if not isinstance(value, dict):
        raise InvalidStats(f"{origin}: '{name}' needs an object with min and max, or scale and zero_point")
    keys = set(value)
    try:
        if keys == {"min", "max"}:
            if isinstance(value["min"], list) or isinstance(value["max"], list):
                channels = tuple(_ends(*pair) for pair in zip(value["min"], value["max"], strict=True))
                return Range(min(c[0] for c in channels), max(c[1] for c in channels), origin, channels=channels)
            return Range(*_ends(value["min"], value["max"]), origin)
        if keys in ({"scale", "zero_point"}, {"scale", "zero_point", "type"}):
            params = _params(value)
            return Range(*params.range(), origin, params)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidStats(f"{origin}: '{name}': {error}") from None
    raise InvalidStats(f"{origin}: '{name}' has {sorted(keys)}; give min and max, or scale and zero_point")


def _ends(least: Any, greatest: Any) -> tuple[float, float]:
    low, high = float(least), float(greatest)
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise ValueError(f"min {low} and max {high} are not a valid range")
    return low, high


def _params(value: Mapping[str, Any]) -> QuantParams:
    dtype = DType.parse(str(value.get("type", "int8")))
    params = QuantParams((float(value["scale"]),), (int(value["zero_point"]),), dtype)
    if not (math.isfinite(params.scale) and params.scale > 0):
        raise ValueError(f"the scale {params.scale} is not positive")
    if not dtype.min <= value["zero_point"] <= dtype.max or params.zero_point != value["zero_point"]:
        raise ValueError(f"the zero point {value['zero_point']} is not an integer of {dtype.label}")
    return params
