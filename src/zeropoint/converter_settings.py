"""Translates the settings of TensorFlow's converter: which mode they ask for, and which of them contradict each
other."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from .calibration import Ranges, default_range, ranges_from_input_stats
from .dtypes import DType
from .errors import InvalidRecipe
from .graph.model import Model
from .plan.qdq import has_trained_ranges

if TYPE_CHECKING:
    from .converter import TFLiteConverter


class NamedEnum(Enum):
    """An enum whose values are the names of its members."""

    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[Any]) -> str:  # noqa: ARG004
        return name


class Optimize(NamedEnum):
    """What to optimize for. All but the last mean the same: quantize."""

    DEFAULT = auto()
    OPTIMIZE_FOR_SIZE = auto()
    OPTIMIZE_FOR_LATENCY = auto()
    EXPERIMENTAL_SPARSITY = auto()


class OpsSet(NamedEnum):
    """The set of ops that the result may contain."""

    TFLITE_BUILTINS = auto()
    SELECT_TF_OPS = auto()
    TFLITE_BUILTINS_INT8 = auto()
    EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8 = auto()


INT8_OPS = OpsSet.TFLITE_BUILTINS_INT8
INT16X8_OPS = OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8


INTEGER_MODES = ("int8", "int16x8", "uint8")
MODES = (*INTEGER_MODES, "dynamic", "float16", "float")
"""All modes. Of those that every setting allows, the first is chosen."""


@dataclass(frozen=True)
class Setting:
    """The modes that a setting allows, and what to do if it contradicts another one."""

    text: str
    modes: frozenset[str]
    remedy: str = "choose one of them"


NOT_OPTIMIZED = Setting("optimizations = []", frozenset({"float"}), "set optimizations = [Optimize.DEFAULT]")
NO_DATA = Setting(
    "representative_dataset = None",
    frozenset({"dynamic", "float16", "float"}),
    "give samples, to determine the ranges of tensors; the model has no trained ranges",
)
OF_TYPES = {
    name: Setting(f"target_spec.supported_types = [{name}]", frozenset({mode}))
    for name, mode in (("int8", "int8"), ("float16", "float16"), ("float32", "float"))
}
OF_OPS = {
    ops: Setting(f"target_spec.supported_ops with {ops.name}", frozenset({mode}))
    for ops, mode in ((INT8_OPS, "int8"), (INT16X8_OPS, "int16x8"))
}


@dataclass(frozen=True)
class ConverterSettings:
    """The converter's settings in our own terms; TensorFlow's enums and types are recognized by name."""

    optimized: bool
    ops: frozenset[OpsSet]
    types: tuple[str, ...]
    input_type: str
    output_type: str
    has_data: bool
    type: str = "float32"
    input_stats: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    default_range: tuple[float, float] | None = None

    @classmethod
    def of(cls, converter: TFLiteConverter) -> ConverterSettings:
        wishes = {_member(Optimize, "optimizations", o) for o in converter.optimizations}
        if Optimize.EXPERIMENTAL_SPARSITY in wishes:
            raise InvalidRecipe("optimizations has EXPERIMENTAL_SPARSITY, which is not supported; leave it out")
        spec = converter.target_spec
        types = sorted({_type_name("target_spec.supported_types", t) for t in spec.supported_types})
        if unknown := [name for name in types if name not in OF_TYPES]:
            raise InvalidRecipe(f"target_spec.supported_types has {', '.join(unknown)}; int8 and float16 are supported")
        if len(types) > 1:
            raise InvalidRecipe(f"target_spec.supported_types has {' and '.join(types)}; choose one")
        inference = _type_name("inference_type", converter.inference_type)
        if inference not in ("float32", "int8", "uint8"):
            raise InvalidRecipe(f"inference_type is {inference}; choose float32, int8 or uint8 (QUANTIZED_UINT8)")
        asked = cls(
            bool(wishes),
            frozenset(_member(OpsSet, "target_spec.supported_ops", o) for o in spec.supported_ops),
            tuple(types),
            _end(inference, "inference_input_type", converter.inference_input_type),
            _end(inference, "inference_output_type", converter.inference_output_type),
            converter.representative_dataset is not None,
            inference,
            dict(converter.quantized_input_stats or {}),
            converter.default_ranges_stats,
        )
        if asked.input_stats and asked.input_type == "float32":
            raise InvalidRecipe("quantized_input_stats are for integer inputs; set inference_type to int8 or uint8")
        _agreed(asked.settings)
        return asked

    @property
    def settings(self) -> list[Setting]:
        """The settings that restrict the mode."""
        ends = (f"inference_input_type = {self.input_type}", f"inference_output_type = {self.output_type}")
        return [
            *(OF_TYPES[name] for name in self.types),
            *(setting for ops, setting in OF_OPS.items() if ops in self.ops),
            *(Setting(end, frozenset(INTEGER_MODES)) for end in ends if not end.endswith(" float32")),
            *(() if self.type == "float32" else (Setting(f"inference_type = {self.type}", frozenset({self.type})),)),
            *(() if self.optimized or self.type != "float32" else (NOT_OPTIMIZED,)),
        ]

    def given_ranges(self, model: Model) -> Ranges:
        """Return the ranges that the settings specify."""
        found = Ranges({})
        if self.input_stats:
            stats = {key: (float(mean), float(std)) for key, (mean, std) in self.input_stats.items()}
            found = ranges_from_input_stats(stats, DType.parse(self.input_type))
        if self.default_range is not None:
            found = found.merge(default_range(*map(float, self.default_range)))
        return found.resolved(model)

    @property
    def int8_only(self) -> bool:
        """Whether 8 bits are requested explicitly, so that no op gets 16."""
        return INT8_OPS in self.ops or self.type != "float32" or "int8" in self.types

    @property
    def integer_only(self) -> str:
        """The setting that forbids float ops; empty if none does."""
        if self.type != "float32":
            return f"inference_type = {self.type}"
        if self.types == ("int8",):
            return OF_TYPES["int8"].text
        return "" if self.ops - OF_OPS.keys() else next((OF_OPS[ops].text for ops in self.ops), "")

    def mode(self, model: Model) -> str:
        """Return the mode for `quantize`, or "float"."""
        has_ranges = self.has_data or self.default_range is not None or has_trained_ranges(model)
        mode = _agreed(self.settings if has_ranges else [*self.settings, NO_DATA])
        if self.has_data and mode in ("float16", "float"):
            why = "float16 needs no samples" if mode == "float16" else "the settings ask for a float model"
            warnings.warn(f"representative_dataset is not used: {why}", stacklevel=3)
        return mode


def _agreed(settings: Sequence[Setting]) -> str:
    """Return the first mode that all settings allow; raises if two settings have none in common."""
    for one, other in combinations(settings, 2):
        if not one.modes & other.modes:
            raise InvalidRecipe(f"{one.text} and {other.text} contradict each other; {other.remedy}")
    return next(mode for mode in MODES if all(mode in setting.modes for setting in settings))


Kind = TypeVar("Kind", bound=Enum)


def _member(kind: type[Kind], setting: str, value: Any) -> Kind:
    """Return the enum member for one of ours, one of TensorFlow's, or a name."""
    name = value.name if isinstance(value, Enum) else value
    if not isinstance(name, str) or name not in kind.__members__:
        raise InvalidRecipe(f"{setting} has {value!r}; choose from {', '.join(kind.__members__)}")
    return kind[name]


def _end(inference: str, setting: str, value: Any) -> str:
    """Return the type of inputs or outputs; in a fully integer model, the default is the integer type."""
    name = _type_name(setting, value)
    return inference if name == "float32" else name


def _type_name(setting: str, value: Any) -> str:
    """Return the name of a type of ours, of NumPy or of TensorFlow."""
    if isinstance(value, DType):
        return value.label
    if isinstance(name := getattr(value, "name", None), str):
        return name
    try:
        return str(np.dtype(value).name)
    except TypeError:
        raise InvalidRecipe(f"{setting} is {value!r}, which is not a type; give np.int8 or the like") from None
