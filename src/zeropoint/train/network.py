"""The trainable graph as a Keras model, and how it is made from a `.tflite` or from another Keras model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from ..calibration import Ranges, Stats, calibrate
from ..errors import InvalidModel, InvalidRecipe, InvalidSample, UnsupportedOp, names_are_listed
from ..files import PathLike
from ..graph.edit import copy_model
from ..graph.model import Graph, Model, Op, Tensor
from ..graph.query import Uses
from ..improve.pipeline import plan as plan_model
from ..ops import OPS, OpSpec
from ..ops.execution import logits_of
from ..plan.plan import Plan, Planned
from ..plan.prepare import prepare
from ..plan.prepared import with_matched_rules
from ..plan.request import Interface, Request, WeightOptions, resolve_recipe, resolve_target
from ..recipe import FLOAT, Recipe, Rule
from ..sources.data import DataSource, samples_from
from ..sources.models import ModelSource, load
from ..sources.ports import Port, Row, entry, entry_graphs
from ..sources.samples import iterate, row_list
from ..targets import Target
from .backend import array_of, variable_name
from .fake_quant import QuantSettings
from .fake_quant_graph import Blueprint, FakeQuantGraph, trainable_target, trained_ops
from .forward_pass import ForwardPass
from .mean_shift import channel_means
from .open_shapes import fixed_for, leaves_sizes_open
from .saving import blueprint_content, blueprint_from
from .weights import unmatched

NOISE_RUNS = 8


class OpLayer(keras.layers.Layer):  # type: ignore[misc]  # Keras has no types
    """The variables of one op of the graph, under its name; the graph itself computes the op."""

    def __init__(self, op: Op, name: str) -> None:
        super().__init__(name=name, dtype="float32")
        self.kind, self.shape = op.label, tuple(None if n == -1 else n for n in op.outputs[0].shape)
        self.built = True

    @property
    def output_shape(self) -> tuple[int | None, ...]:
        return self.shape

    def build(self, input_shape: Any = None) -> None:
        """Do nothing: the graph adds the variables."""


class Trainable(keras.Model):  # type: ignore[misc]  # Keras has no types
    """A `.tflite` as a Keras model. Its inputs and outputs are those of the file, in the same order.

    Inputs are given as one array, a list, or a dict by name. Weights and biases can be trained. `save`, `load_model`
    and `clone_model` work as with any Keras model. With the policy "mixed_float16", layers multiply in float16 in
    training.
    """

    def __init__(self, blueprint: Blueprint, name: str = "trainable", dtype: Any = None) -> None:
        if blueprint.plan.packed:
            raise InvalidRecipe("the recipe only stores weights in fewer bits; training is for integer arithmetic")
        if unknown := unmatched(blueprint.freeze, blueprint.planned.model.graphs):
            raise InvalidRecipe(f"nothing matches the pattern {unknown[0]!r}; {names_are_listed()}")
        super().__init__(name=name, dtype=dtype, autocast=False)
        self.blueprint, self.ports = blueprint, entry(blueprint.planned.model).ports
        layers = op_layers(blueprint)
        self.graph = FakeQuantGraph.of(blueprint, lambda op: (self if op is None else layers[op]).add_weight)
        self.op_layers = list(layers.values())
        self._steps = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="steps")
        self.built = True

    def build(self, input_shape: Any = None) -> None:
        """Do nothing: all variables already exist."""

    @property
    def takes_any_batch(self) -> bool:
        """Whether it can be run with any batch size, or only with that of the file."""
        return self.graph.takes_any_batch

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        forward = ForwardPass(self.graph, self._steps, bool(training), self.compute_dtype)
        outputs = forward.outputs(self._arranged(inputs))
        if training and self.blueprint.quantize:
            forward.finish()
            self._steps.assign(self._steps + 1)
        return outputs[0] if len(outputs) == 1 else outputs

    def _arranged(self, inputs: Any) -> list[Any]:
        ports = self.ports
        if isinstance(inputs, Mapping):
            found = [next((inputs[n] for n in p.names if n in inputs), None) for p in ports]
        else:
            found = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        if len(found) != len(ports) or any(v is None for v in found):
            raise InvalidSample(f"give an array for each input of the model: {', '.join(map(str, ports))}")
        for port, value in zip(ports, found, strict=True):
            shape: tuple[int | None, ...] = tuple(getattr(value, "shape", ()))
            if -1 in port.shape[1:] and shape[1:] != port.tensor.shape[1:]:
                raise InvalidSample(
                    f"input {port}: the graph to train has the size {list(port.tensor.shape)}, not {list(shape)}; "
                    "make it of zeropoint.train.fix_shapes(model, sample)"
                )
        return found

    def get_config(self) -> dict[str, Any]:
        """Return everything that it is made of: the `.tflite`, the plan, the recipe and the settings, but not the
        variables."""
        return {"name": self.name, "dtype": self.dtype_policy.name, **blueprint_content(self.blueprint)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> Trainable:
        del custom_objects
        return cls(blueprint_from(config), config["name"], config["dtype"])

    def freeze_ranges(self) -> None:
        """Keep the ranges fixed from now on; weights are still trained."""
        for part in self.graph.parts:
            part.ranges.freeze()

    @property
    def step(self) -> int:
        """The number of training steps so far."""
        return int(array_of(self._steps))

    @property
    def least_bits(self) -> int:
        """The fewest bits of trained weights; 8 if there are none."""
        quantizers = (quantizer for part in self.graph.parts for quantizer in part.quantizers.values())
        return min((quantizer.bits for quantizer in quantizers), default=8)


keras.saving.register_keras_serializable("zeropoint")(Trainable)


def op_layers(blueprint: Blueprint) -> dict[Op, OpLayer]:
    """Return a layer for each op that is computed, with a unique name."""
    taken: dict[str, int] = {}
    found = {}
    for op in trained_ops(blueprint):
        name = f"{variable_name(op.name)}_{op.label.lower()}"
        taken[name] = taken.get(name, 0) + 1
        found[op] = OpLayer(op, name if taken[name] == 1 else f"{name}_{taken[name]}")
    return found


class FreezeRanges(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """A Keras callback that fixes the ranges of activations from the start of an epoch on; weights are still
    trained."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        del logs
        if epoch == self.epoch:
            if not hasattr(self.model, "freeze_ranges"):
                raise InvalidRecipe("FreezeRanges is for models that zeropoint.train.trainable made")
            self.model.freeze_ranges()


def trainable(
    model: ModelSource,
    mode: str | None = None,
    stats: Stats | None = None,
    *,
    ranges: Ranges | None = None,
    recipe: Recipe | PathLike | None = None,
    weight_bits: int = 8,
    keep_float: Sequence[str] | str = (),
    target: Target | str | None = None,
    settings: QuantSettings | None = None,
    freeze: Sequence[str] = (),
    outputs: Sequence[str] | None = None,
    logits: bool = False,
    quantize: bool = True,
    ops: Mapping[str, OpSpec] = OPS,
) -> Trainable:
    """Turn a model into a Keras model that computes what its quantized version will, ready for `compile` and `fit`.

    Args:
        model: The float model, as for `quantize`.
        mode: "int8" (the default) or "int16x8".
        stats: The result of `calibrate`, from which ranges start.
        ranges: Ranges of tensors to start from, which take precedence over measured ones.
        recipe: Rules that set the mode for each op, or the path of a recipe file.
        weight_bits: 2 to 8.
        keep_float: Patterns of op kinds or names that stay float.
        target: What the model is made for, as in `quantize`; "integer" by default.
        settings: How fake quantization is trained.
        freeze: Patterns of op kinds, op names or constants that are not trained.
        outputs: Names of inner tensors to compute instead of the model's outputs.
        logits: Whether to stop before a final softmax or sigmoid, where losses are numerically more stable.
        quantize: If false, the result is the float model.
        ops: The op table, if not the package's own.

    Returns:
        The Keras model; `zeropoint.train.export` turns it into a quantized `.tflite` once it is trained.
    """
    source = load(model)
    if quantize:
        rules = (
            resolve_recipe(mode, recipe, WeightOptions(weight_bits), training=True).unmixed().keeping_float(keep_float)
        )
        if rules.is_unsigned:
            raise InvalidRecipe(
                "uint8 cannot be trained; train int8, or quantize a trained float model in the mode uint8"
            )
        made_for = trainable_target(resolve_target(target, rules, Interface(), strict=True))
        given = (ranges or Ranges({})).resolved(source, ops)
        request = Request(rules, stats, given, ops=ops, target=made_for)
        request = with_matched_rules(source, request)
        planned = plan_model(source, request)
    else:
        request = Request(Recipe((Rule(FLOAT),)), ops=ops)
        planned = float_plan(source, request)
    plan = entry_plan(planned)
    graph, uses = plan.graph, Uses(plan.graph)
    ends = graph.outputs if outputs is None else [_tensor(graph, name) for name in outputs]
    if logits:
        ends = [logits_of(tensor, uses, ops)[0] for tensor in ends]
    settings = settings or QuantSettings()
    blueprint = Blueprint(planned, plan, request, tuple(ends), settings, tuple(freeze), quantize)
    return Trainable(replace(blueprint, means=channel_means(stats)))


def float_plan(model: Model, request: Request) -> Planned:
    """Return a plan that quantizes nothing, for a copy of the model with plain float weights."""
    copy = copy_model(model)
    prepare(copy, request.recipe, request.ops)
    return Planned(copy, tuple(Plan(graph) for graph in entry_graphs(copy)))


def entry_plan(planned: Planned) -> Plan:
    """Return the plan of the only graph that callers run."""
    graph = entry(planned.model).graph  # raises if there are several
    for plan in planned.plans:
        if plan.graph is graph:
            return plan
    raise UnsupportedOp(f"the graph '{graph.name}' is run by other graphs and cannot be trained by itself")


def _tensor(graph: Graph, name: str) -> Tensor:
    try:
        return graph.tensor(name)
    except KeyError:
        raise InvalidModel(f"the model has no tensor {name!r} to train for; {names_are_listed()}") from None


def quantize_model(
    keras_model: Any,
    data: DataSource | None = None,
    mode: str | None = None,
    *,
    recipe: Recipe | PathLike | None = None,
    weight_bits: int = 8,
    settings: QuantSettings | None = None,
    logits: bool = False,
    ops: Mapping[str, OpSpec] = OPS,
) -> Trainable:
    """Turn a Keras model into a trainable quantized graph. Batch normalization is folded into the layers.

    With `data`, ranges start from the values on these samples. Without, they start from the first batches of training,
    so a few should be run before its result means anything. The model is converted by TensorFlow, whatever backend
    Keras uses afterwards.
    """
    require_seen_data(keras_model)
    model = load(keras_model)
    if data is None:
        settings = settings or QuantSettings(ranges="average", debias=True)
    samples = _noise(model) if data is None else samples_from(data, entry(model))
    if data is not None and leaves_sizes_open(model):
        samples = list(iterate(samples))
        model = fixed_for(model, row_list(samples, entry(model)))
    stats = calibrate(model, samples, ops=ops)
    return trainable(
        model, mode, stats, recipe=recipe, weight_bits=weight_bits, settings=settings, logits=logits, ops=ops
    )


def require_seen_data(keras_model: Any) -> None:
    """Raise for batch normalization that has seen no data: folded, it would leave nothing to train from."""
    flatten = getattr(keras_model, "_flatten_layers", None)
    for layer in () if flatten is None else flatten():
        if isinstance(layer, keras.layers.BatchNormalization) and layer.built:
            mean, variance = array_of(layer.moving_mean), array_of(layer.moving_variance)
            if not mean.any() and (variance == 1).all():
                raise InvalidModel(
                    f"the batch normalization '{layer.name}' has seen no data: it is folded into the weights before "
                    "training, which then has no batch statistics to go by; train the model in float first (fit), "
                    "then quantize it"
                )


def _noise(model: Model) -> list[Row]:
    """Return something to run the model on; the resulting ranges are replaced after the first batch."""
    rng = np.random.default_rng(0)
    return [tuple(_values(port, rng) for port in entry(model).ports) for _ in range(NOISE_RUNS)]


def _values(port: Port, rng: np.random.Generator) -> Any:
    shape = tuple(max(1, n) for n in port.shape)
    drawn = rng.standard_normal(shape) if port.dtype.is_float else np.zeros(shape)
    return drawn.astype(port.dtype.storage)
