"""A drop-in replacement for TensorFlow's converter: the same names and settings, with our quantizer behind them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from .converter_settings import INTEGER_MODES, ConverterSettings, OpsSet, Optimize
from .dtypes import DType
from .errors import InvalidRecipe, InvalidSample, UnsupportedOp
from .files import PathLike
from .graph.model import Model
from .improve.pipeline import Result
from .quantization import quantize
from .sources.conversion import Conversion, GraphEnds
from .sources.models import load
from .sources.ports import entries
from .sources.samples import Samples, iterate
from .sources.tensorflow import from_frozen_graph, from_functions, from_saved_model, from_session
from .tflite.write import to_bytes


@dataclass
class RepresentativeDataset:
    """Wraps a function that yields samples, as in `tf.lite`."""

    input_gen: Callable[[], Iterable[Any]]


@dataclass
class TargetSpec:
    """The ops and types that the result may use."""

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
"""Attributes of TensorFlow's converter that affect the conversion to a float model, and are passed on to it."""

WITHOUT_EFFECT = (
    "experimental_new_quantizer",
    "experimental_new_dynamic_range_quantizer",
    "reorder_across_fake_quant",
    "change_concat_input_ranges",
    "drop_control_dependency",
)
"""Attributes that select among TensorFlow's own quantizers, or request what is done here anyway."""


@dataclass(eq=False, repr=False)
class TFLiteConverter:
    """Convert and quantize a model, with the interface of TensorFlow's converter.

    The attributes are those of TensorFlow's converter, including version 1: `inference_type` int8 or uint8 (the older
    kernels) gives a fully integer model; `quantized_input_stats` are (mean, std) of inputs, where real = (q - mean) /
    std; `default_ranges_stats` is the range of tensors for which no other range is known. `effort`, `range`,
    `keep_float` and `target` are those of `zeropoint.quantize`, except that the default target runs every op with an
    integer kernel in integers.
    After `convert`, `result` describes what was done: the plan, and which ops stayed float and why.
    """

    _to_float: Callable[[Conversion], Model]
    _settings: dict[str, object] = field(default_factory=dict)
    optimizations: Iterable[Any] = field(default_factory=list)
    representative_dataset: Any = None
    target_spec: TargetSpec = field(default_factory=TargetSpec)
    inference_input_type: Any = DType.FLOAT32
    inference_output_type: Any = DType.FLOAT32
    inference_type: Any = DType.FLOAT32
    quantized_input_stats: Mapping[str, tuple[float, float]] | None = None
    default_ranges_stats: tuple[float, float] | None = None
    allow_custom_ops: bool = False
    effort: Any = "standard"
    range: Any = "auto"
    keep_float: Iterable[str] = ()
    target: Any = "integer"
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
        """Start from a float `.tflite`: its path or its bytes. Does not need TensorFlow."""
        return cls(partial(load, model, None))

    @classmethod
    def from_torch(cls, module: Any, sample_inputs: Any) -> TFLiteConverter:
        """Start from a PyTorch module, traced on sample inputs by litert-torch."""
        return cls(partial(load, module, sample_inputs))

    # The interface of TensorFlow 1.

    @classmethod
    def from_frozen_graph(
        cls,
        graph_def_file: PathLike,
        input_arrays: Iterable[str],
        output_arrays: Iterable[str],
        input_shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> TFLiteConverter:
        """Start from a frozen graph: a `.pb` whose variables are constants."""
        ends = GraphEnds(tuple(input_arrays), tuple(output_arrays), dict(input_shapes or {}))
        return cls(partial(from_frozen_graph, Path(graph_def_file), ends))

    @classmethod
    def from_session(cls, sess: Any, input_tensors: Iterable[Any], output_tensors: Iterable[Any]) -> TFLiteConverter:
        """Start from a `tf.compat.v1` session, with the values that its variables have when `convert` is called."""
        return cls(partial(from_session, sess, list(input_tensors), list(output_tensors)))

    @classmethod
    def from_keras_model_file(
        cls,
        model_file: PathLike,
        input_arrays: Iterable[str] | None = None,
        input_shapes: Mapping[str, Sequence[int]] | None = None,
        output_arrays: Iterable[str] | None = None,
        custom_objects: Mapping[str, Any] | None = None,
    ) -> TFLiteConverter:
        """Start from a `.h5` or `.keras` file."""
        if any(given is not None for given in (input_arrays, input_shapes, output_arrays, custom_objects)):
            raise InvalidRecipe(
                "from_keras_model_file takes the whole model here; for parts of it or your own classes, use "
                "TFLiteConverter.from_keras_model(keras.models.load_model(path, custom_objects=...))"
            )
        return cls(partial(load, Path(model_file), None))

    @property
    def post_training_quantize(self) -> bool:
        """The older name of `optimizations = [Optimize.DEFAULT]`."""
        return bool(list(self.optimizations))

    @post_training_quantize.setter
    def post_training_quantize(self, wanted: bool) -> None:
        self.optimizations = [Optimize.DEFAULT] if wanted else []

    @property
    def target_ops(self) -> Iterable[Any]:
        """The older name of `target_spec.supported_ops`."""
        return self.target_spec.supported_ops

    @target_ops.setter
    def target_ops(self, ops: Iterable[Any]) -> None:
        self.target_spec.supported_ops = ops

    def __setattr__(self, name: str, value: Any) -> None:
        """Reject unknown attributes. TensorFlow's converter accepts any, even a misspelt one."""
        if name in FORWARDED:
            self._settings[name] = value
        elif name not in WITHOUT_EFFECT:
            own = {*TFLiteConverter.__annotations__, "target_ops", "post_training_quantize"}
            if name not in own:
                near = difflib.get_close_matches(name, [*own, *FORWARDED, *WITHOUT_EFFECT], 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise InvalidRecipe(f"the converter has no setting {name!r} that has an effect here{hint}")
            object.__setattr__(self, name, value)

    def convert(self) -> bytes:
        """Convert the model according to the settings, and return it as the content of a `.tflite`."""
        asked = ConverterSettings.of(self)
        select, custom = OpsSet.SELECT_TF_OPS in asked.ops, self.allow_custom_ops
        model = self._to_float(Conversion(select_tf_ops=select, custom_ops=custom, settings=self._settings))
        mode = asked.mode(model)
        if mode == "float":
            return to_bytes(model)
        with_data = mode in INTEGER_MODES and asked.has_data
        self.result = quantize(
            model,
            mode,
            samples_of(self.representative_dataset, model) if with_data else None,
            range=self.range,
            effort=self.effort,
            ranges=asked.given_ranges(model),
            input_type=asked.input_type,
            output_type=asked.output_type,
            keep_float=tuple(self.keep_float),
            target="int8" if self.target == "integer" and asked.int8_only else self.target,
        )
        if asked.integer_only and (count := len(self.result.skipped)):
            raise UnsupportedOp(
                f"{asked.integer_only} allows no float, but {count} {'op needs' if count == 1 else 'ops need'} it:",
                *(f"  {s}" for s in self.result.skipped),
                "add OpsSet.TFLITE_BUILTINS to target_spec.supported_ops to keep them in float, or change the model",
            )
        return to_bytes(self.result.model)


def samples_of(dataset: Any, model: Model) -> Samples | Mapping[str, Samples]:
    """Return the samples of a representative dataset; for several signatures, it yields pairs (signature, sample)."""
    source = getattr(dataset, "input_gen", dataset)
    if len({e.graph for e in entries(model)}) < 2:
        return partial(_samples, source, None)
    if isinstance(source, Iterator):
        source = list(source)  # each signature picks its own samples
    keys = dict.fromkeys(key for key, _ in _pairs(source, required=True))
    return {key: partial(_samples, source, key) for key in keys}


def _samples(source: Samples, key: str | None) -> Iterator[Any]:
    """Yield the samples of the signature `key`, or all for None."""
    return (sample for own, sample in _pairs(source, required=key is not None) if key in (None, own))


def _pairs(source: Samples, required: bool) -> Iterator[tuple[str, Any]]:
    """Yield (signature, sample). Samples without a signature raise if it is `required`, and otherwise get an empty
    one."""
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
