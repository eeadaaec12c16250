"""The interface that people know from TensorFlow: the same names and settings, with our quantizer behind them."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from .dtypes import DType
from .errors import InvalidRecipe, InvalidSample, UnsupportedOp
from .files import PathLike
from .graph.model import Model
from .improve.pipeline import Result
from .plan.qdq import has_trained_ranges
from .quantization import quantize
from .sources.conversion import Conversion
from .sources.models import load
from .sources.ports import entries
from .sources.samples import Samples, iterate
from .sources.tensorflow import from_functions, from_saved_model
from .tflite.write import to_bytes


class NamedEnum(Enum):
    """Each value is its name."""

    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[Any]) -> str:  # noqa: ARG004
        return name


class Optimize(NamedEnum):
    """What to optimize. All but the last mean the same: quantize."""

    DEFAULT = auto()
    OPTIMIZE_FOR_SIZE = auto()
    OPTIMIZE_FOR_LATENCY = auto()
    EXPERIMENTAL_SPARSITY = auto()


class OpsSet(NamedEnum):
    """Which ops the result may hold."""

    TFLITE_BUILTINS = auto()
    SELECT_TF_OPS = auto()
    TFLITE_BUILTINS_INT8 = auto()
    EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8 = auto()


INT8_OPS = OpsSet.TFLITE_BUILTINS_INT8
INT16X8_OPS = OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8


@dataclass
class RepresentativeDataset:
    """A function that gives samples."""

    input_gen: Callable[[], Iterable[Any]]


@dataclass
class TargetSpec:
    """What the result may use."""

    supported_ops: Iterable[Any] = field(default_factory=lambda: {OpsSet.TFLITE_BUILTINS})
    supported_types: Iterable[Any] = field(default_factory=list)


FORWARDED = (
    "_experimental_allow_all_select_tf_ops",
    "_experimental_default_to_single_batch_in_tensor_list_ops",
    "_experimental_disable_fuse_mul_and_fc",
    "_experimental_enable_dynamic_update_slice",
    "_experimental_guarantee_all_funcs_one_use",
    "_experimental_lower_tensor_list_ops",
    "_experimental_preserve_assert_op",
    "canonicalizing_inf_as_min_max_float",
    "exclude_conversion_metadata",
    "experimental_enable_resource_variables",
    "experimental_lower_to_saved_model",
    "experimental_new_converter",
    "legalize_custom_tensor_list_ops",
    "unfold_batchmatmul",
)
"""Attributes of TensorFlow's converter that affect the conversion to a float model: they are passed on to it."""

WITHOUT_EFFECT = ("experimental_new_quantizer", "experimental_new_dynamic_range_quantizer")
"""Attributes that choose among TensorFlow's own quantizers."""


@dataclass(eq=False, repr=False)
class TFLiteConverter:
    """A model, and what to make of it.

    The attributes are those of TensorFlow's converter; `effort`, `range` and `keep` are those of `zeropoint.quantize`.
    After `convert`, `result` tells what was done: the plan, and which ops stayed float and why.
    """

    _to_float: Callable[[Conversion], Model]
    _settings: dict[str, object] = field(default_factory=dict)
    optimizations: Iterable[Any] = field(default_factory=list)
    representative_dataset: Any = None
    target_spec: TargetSpec = field(default_factory=TargetSpec)
    inference_input_type: Any = DType.FLOAT32
    inference_output_type: Any = DType.FLOAT32
    allow_custom_ops: bool = False
    effort: Any = "standard"
    range: Any = "auto"
    keep: Iterable[str] = ()
    result: Result | None = None

    @classmethod
    def from_keras_model(cls, model: Any) -> TFLiteConverter:
        return cls(partial(load, model, None))

    @classmethod
    def from_saved_model(
        cls, saved_model_dir: PathLike, signature_keys: Iterable[str] | None = None, tags: Iterable[str] | None = None
    ) -> TFLiteConverter:
        keys, wanted = tuple(signature_keys or ()), tuple(tags or ("serve",))

        def convert(conversion: Conversion) -> Model:
            return from_saved_model(Path(saved_model_dir), replace(conversion, signatures=keys), wanted)

        return cls(convert)

    @classmethod
    def from_concrete_functions(cls, funcs: Iterable[Any], trackable_obj: Any = None) -> TFLiteConverter:
        return cls(partial(from_functions, list(funcs), trackable_obj))

    @classmethod
    def from_tflite(cls, model: PathLike | bytes | Model) -> TFLiteConverter:
        """A float `.tflite`: its path or its bytes. TensorFlow is not needed."""
        return cls(partial(load, model, None))

    @classmethod
    def from_torch(cls, module: Any, sample_inputs: Any) -> TFLiteConverter:
        """A PyTorch module, traced on sample inputs by litert-torch."""
        return cls(partial(load, module, sample_inputs))

    @property
    def target_ops(self) -> Iterable[Any]:
        """The older name of `target_spec.supported_ops`."""
        return self.target_spec.supported_ops

    @target_ops.setter
    def target_ops(self, ops: Iterable[Any]) -> None:
        self.target_spec.supported_ops = ops

    def __setattr__(self, name: str, value: Any) -> None:
        """TensorFlow's converter accepts any attribute, even a misspelt one; this one does not."""
        if name in FORWARDED:
            self._settings[name] = value
        elif name not in WITHOUT_EFFECT:
            own = {*TFLiteConverter.__annotations__, "target_ops"}
            if name not in own:
                near = difflib.get_close_matches(name, [*own, *FORWARDED, *WITHOUT_EFFECT], 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise InvalidRecipe(f"the converter has no setting {name!r} that has an effect here{hint}")
            object.__setattr__(self, name, value)

    def convert(self) -> bytes:
        """The model as the settings ask for it, in the form of a `.tflite`."""
        asked = ConverterSettings.of(self)
        select = OpsSet.SELECT_TF_OPS in asked.ops
        model = self._to_float(
            Conversion(select_tf_ops=select, custom_ops=self.allow_custom_ops, settings=self._settings)
        )
        mode = asked.mode(model)
        if mode is None:
            return to_bytes(model)
        with_data = mode in ("int8", "int16x8") and asked.has_data
        self.result = quantize(
            model,
            mode,
            samples_of(self.representative_dataset, model) if with_data else None,
            range=self.range,
            effort=self.effort,
            input_type=asked.input_type,
            output_type=asked.output_type,
            keep=tuple(self.keep),
        )
        if asked.integer_only and (count := len(self.result.skipped)):
            raise UnsupportedOp(
                f"{asked.integer_only} allows no float, but {count} {'op needs' if count == 1 else 'ops need'} it:",
                *(f"  {s}" for s in self.result.skipped),
                "add OpsSet.TFLITE_BUILTINS to target_spec.supported_ops to keep them in float, or change the model",
            )
        return to_bytes(self.result.model)


@dataclass(frozen=True)
class ConverterSettings:
    """The settings in our own terms; TensorFlow's enums and types are recognized by their names."""

    optimized: bool
    ops: frozenset[OpsSet]
    types: frozenset[str]
    input_type: str
    output_type: str
    has_data: bool

    @classmethod
    def of(cls, converter: TFLiteConverter) -> ConverterSettings:
        wishes = {_member(Optimize, "optimizations", o) for o in converter.optimizations}
        if Optimize.EXPERIMENTAL_SPARSITY in wishes:
            raise InvalidRecipe("optimizations has EXPERIMENTAL_SPARSITY, which is not supported; leave it out")
        spec = converter.target_spec
        asked = cls(
            bool(wishes),
            frozenset(_member(OpsSet, "target_spec.supported_ops", o) for o in spec.supported_ops),
            frozenset(_type_name("target_spec.supported_types", t) for t in spec.supported_types),
            _type_name("inference_input_type", converter.inference_input_type),
            _type_name("inference_output_type", converter.inference_output_type),
            converter.representative_dataset is not None,
        )
        asked._require_consistent()
        return asked

    @property
    def integer_only(self) -> str:
        """The setting that forbids float ops, if one does."""
        if self.types == {"int8"}:
            return "target_spec.supported_types = [int8]"
        return "" if self.ops & {OpsSet.TFLITE_BUILTINS, OpsSet.SELECT_TF_OPS} else self._integer_sets

    @property
    def _integer_sets(self) -> str:
        sets = self.ops & {INT8_OPS, INT16X8_OPS}
        return _supported_ops(sets) if sets else ""

    @property
    def _integers(self) -> str:
        """A setting that cannot be met without integer arithmetic."""
        ends = (("input", self.input_type), ("output", self.output_type))
        integer_ends = (f"inference_{name}_type = {type}" for name, type in ends if type != "float32")
        return self.integer_only or self._integer_sets or next(integer_ends, "")

    def _require_consistent(self) -> None:
        if unknown := self.types - {"int8", "float16", "float32"}:
            raise InvalidRecipe(f"target_spec.supported_types has {', '.join(unknown)}; int8 and float16 are supported")
        if len(self.types) > 1:
            raise InvalidRecipe(f"target_spec.supported_types has {' and '.join(sorted(self.types))}; choose one")
        if {INT8_OPS, INT16X8_OPS} <= self.ops:
            _disagree(_supported_ops({INT8_OPS}), _supported_ops({INT16X8_OPS}), "choose one of them")
        if INT16X8_OPS in self.ops and self.types == {"int8"}:
            _disagree(_supported_ops({INT16X8_OPS}), "target_spec.supported_types = [int8]", "choose one of them")
        if "float16" in self.types and self._integers:
            _disagree("target_spec.supported_types = [float16]", self._integers, "choose one of them")
        quantizing = self._integers or (f"target_spec.supported_types = {sorted(self.types)}" if self.types else "")
        if quantizing and not self.optimized:
            _disagree(quantizing, "optimizations = []", "set optimizations = [Optimize.DEFAULT]")

    def mode(self, model: Model) -> str | None:
        """What `quantize` is asked for; None to stay float."""
        if not self.optimized or self.types == {"float32"}:
            self._warn_unused("optimizations is empty, so that the result is float")
            return None
        if self.types == {"float16"}:
            self._warn_unused("float16 needs no samples")
            return "float16"
        if self.has_data or has_trained_ranges(model):
            return "int16x8" if INT16X8_OPS in self.ops else "int8"
        if self._integers:
            _disagree(
                self._integers,
                "representative_dataset = None",
                "give samples, from which the ranges of tensors are known; the model holds no trained ones",
            )
        return "dynamic"

    def _warn_unused(self, why: str) -> None:
        if self.has_data:
            warnings.warn(f"representative_dataset is not used: {why}", stacklevel=4)


def _disagree(first: str, second: str, remedy: str) -> None:
    raise InvalidRecipe(f"{first} and {second} disagree; {remedy}")


def _supported_ops(sets: Iterable[OpsSet]) -> str:
    return f"target_spec.supported_ops with {' and '.join(sorted(s.name for s in sets))}"


Kind = TypeVar("Kind", bound=Enum)


def _member(kind: type[Kind], setting: str, value: Any) -> Kind:
    """Our member of an enum for one of ours, one of TensorFlow's, or its name."""
    name = value.name if isinstance(value, Enum) else value
    if not isinstance(name, str) or name not in kind.__members__:
        raise InvalidRecipe(f"{setting} has {value!r}; choose from {', '.join(kind.__members__)}")
    return kind[name]


def _type_name(setting: str, value: Any) -> str:
    """The name of a type of ours, of NumPy's or of TensorFlow's."""
    if isinstance(value, DType):
        return value.label
    if isinstance(name := getattr(value, "name", None), str):
        return name
    try:
        return str(np.dtype(value).name)
    except TypeError:
        raise InvalidRecipe(
            f"{setting} is {value!r}, which is not a type; give np.int8, np.uint8 or the like"
        ) from None


# Samples.


def samples_of(dataset: Any, model: Model) -> Samples | Mapping[str, Samples]:
    """The samples of a representative dataset; for several signatures it gives pairs (signature, sample)."""
    source = getattr(dataset, "input_gen", dataset)
    if len({e.graph for e in entries(model)}) < 2:
        return partial(_samples, source, None)
    if isinstance(source, Iterator):
        source = list(source)  # each signature takes its own from it
    keys = dict.fromkeys(key for key, _ in _pairs(source, required=True))
    return {key: partial(_samples, source, key) for key in keys}


def _samples(source: Samples, key: str | None) -> Iterator[Any]:
    """Those of the signature `key`, or all."""
    return (sample for own, sample in _pairs(source, required=key is not None) if key in (None, own))


def _pairs(source: Samples, required: bool) -> Iterator[tuple[str, Any]]:
    """(signature, sample). Samples without a signature are refused if it is `required`, and else get an empty one."""
    for number, sample in enumerate(iterate(source)):
        if isinstance(sample, tuple) and len(sample) == 2 and isinstance(sample[0], str):
            yield sample
        elif required:
            raise InvalidSample(
                f"sample {number} of representative_dataset names no signature, and the model has several; "
                'yield pairs such as ("serving_default", {"input": array})'
            )
        else:
            yield "", sample
