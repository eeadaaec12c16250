"""A block of a plan as a Keras model that learns roundings, scales and biases.

Rounding is learned as in AdaRound: during training, a weight lies anywhere between two neighbouring integers. It starts
near the float weight, on the side that compensated rounding chose. The step between the two integers becomes steeper
over time (`soft_round`), so that weights settle on one of them: clear cases first, and the others offset their errors.
Those whose optimum is between two integers probably do not: they follow the step, however steep, and are rounded only
in the end, which often costs more than was learned (docs/accuracy.md has figures). Hard rounding with straight-through
gradients does not learn in so few steps, because weights near the middle flip back and forth.

Weight scales, biases and activation ranges are learned at the same time, as in quantization-aware training. In each
step, a random half of the activations is not rounded (QDrop), so that the result does not depend on single roundings.
The state that is best on separate samples is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from keras import ops

from ..affine import QuantParams
from ..dtypes import Array
from ..errors import UnsupportedOp
from ..graph.model import Op
from ..graph.query import Use
from ..ops import Bias
from ..plan.plan import Plan, Planned
from ..plan.request import Request
from .backend import array_of, new_variable
from .fake_quant import QuantSettings, Rounding, soft_round
from .fake_quant_graph import Blueprint, FakeQuantGraph
from .forward_pass import ForwardPass, Value
from .losses import relative_error
from .reconstruction import BlockData
from .weight_quantizers import WeightQuantizer
from .weights import TrainableConstant

DROPPED = 0.5
"""The share of activations that a training step does not round."""

RATE = 1e-3
"""The learning rate: of roundings in quantization steps; of scales, ranges and biases relative to their size. A higher
rate undoes the compensation that roundings start from before it finds anything better."""

LEAST_LEAD = 0.05
"""The minimum distance of a weight from the middle at the start, in quantization steps. It keeps the roundings of the
plan, which compensate each other."""

FIRST_SLOPE, LAST_SLOPE = 0.3, 0.02
"""The width of the transition between two integers at the start and at the end, in quantization steps. A width of 1
would mean float weights, which lose the compensation when there are few bits."""

SETTLED = 0.8
"""The share of the training steps after which the step between two integers does not become steeper."""

CHECKS = 4
"""How often the error is checked after the weights have settled."""


@dataclass(frozen=True)
class LearnedBlock:
    """New values of constants, and the parameters of weights and of all groups of the plan."""

    values: Mapping[Use, Array]
    grids: Mapping[Use, QuantParams]
    params: Sequence[QuantParams]


class LearnedRounding:
    """The choice between the two neighbouring integers of each weight."""

    def __init__(self, constant: TrainableConstant, quantizer: WeightQuantizer, held: Array, add_weight: Any) -> None:
        self.constant, self.quantizer = constant, quantizer
        scale, most = quantizer.first, quantizer.levels.steps // 2
        exact, now = (np.clip(w / scale, -most, most) for w in (np.asarray(constant.tensor.data), held))
        now = np.round(now)
        self.lower = np.clip(np.where(exact < now, now - 1, now), -most, most - 1).astype(np.float32)
        up, share = now > self.lower, np.clip(exact - self.lower, 0, 1)
        share = np.where(up, np.maximum(share, 0.5 + LEAST_LEAD), np.minimum(share, 0.5 - LEAST_LEAD))
        self.variable = new_variable(add_weight, "up", share.astype(np.float32), trainable=True)

    def whole(self, slope: Any = None) -> Any:
        """Return the integers; with a slope, the values between them that are used during training."""
        up = ops.clip(ops.convert_to_tensor(self.variable), 0.0, 1.0)
        between = ops.cast(up >= 0.5, "float32") if slope is None else soft_round(up, slope)
        return ops.convert_to_tensor(self.lower) + between

    def learned(self) -> tuple[Array, QuantParams]:
        """Return the weights, and the parameters that represent them exactly."""
        params = self.quantizer.params(self.constant.value)
        scales, _ = params.along(self.lower.ndim)
        return (array_of(self.whole()) * scales).astype(np.float32), params


@dataclass
class BlockPass(ForwardPass):
    """A forward pass with learned roundings; during training, a random part of the activations is not rounded."""

    roundings: Mapping[Use, LearnedRounding] = field(default_factory=dict)
    seeds: Any = None
    slope: Any = None

    def _weights(self, use: Use) -> Value:
        if use not in self.weights:
            rounding = self.roundings[use]
            scale = rounding.quantizer.scale(None)
            self.weights[use] = Value(whole=rounding.whole(self.slope), scale=scale)
        return self.weights[use]

    def _on_grid(
        self,
        k: Any,
        group: int,
        rounding: Rounding,
        fused: tuple[float, float] | None = None,
        every: int | None = None,
    ) -> Value:
        made = super()._on_grid(k, group, rounding, fused, every)
        if not self.training:
            return made
        if fused is not None:
            low, high = (end / made.scale if math.isfinite(end) else end for end in fused)
            k = ops.maximum(k, low) if fused[0] > -math.inf else k
            k = ops.minimum(k, high) if fused[1] < math.inf else k
        dropped = keras.random.uniform(ops.shape(k), seed=self.seeds) < DROPPED
        return made.at(ops.where(dropped, k, made.whole))

    def _by_kernel(self, op: Op, operands: Sequence[Any]) -> Any:
        """During training there is no kernel to call: kernels take whole numbers only."""
        return None if self.training else super()._by_kernel(op, operands)


class BlockModel(keras.Model):  # type: ignore[misc]  # Keras has no types
    """A block as a Keras model; its loss is the error of its outputs relative to the error before training."""

    def __init__(self, blueprint: Blueprint, seed: int) -> None:
        super().__init__(name="block")
        self.graph = FakeQuantGraph.of(blueprint, lambda _: self.add_weight)
        if self.graph.loops:
            raise UnsupportedOp("blocks with loops are not reconstructed")
        self.learning = _Roundings(self.graph, self.add_weight)
        self.seeds = keras.random.SeedGenerator(seed)
        self.slope = new_variable(self.add_weight, "slope", np.ones((), np.float32))
        self.before = 1.0
        self.built = True

    def build(self, input_shape: Any = None) -> None:
        """All variables exist already."""

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        slope = ops.convert_to_tensor(self.slope) if training else None
        learning = {"roundings": self.learning.by_use, "seeds": self.seeds, "slope": slope}
        return BlockPass(self.graph, 0, bool(training), **learning).outputs(list(inputs))

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        del x, sample_weight, training
        return self.error(y, y_pred) / self.before

    def error(self, wanted: Sequence[Any], found: Sequence[Any]) -> Any:
        """Return the relative error, averaged over the outputs."""
        return sum(relative_error(f, w) for f, w in zip(found, wanted, strict=True)) / len(wanted)


class _Roundings:
    """The roundings of a block by use. Of the other constants, only the biases of its layers are trained."""

    def __init__(self, graph: FakeQuantGraph, add_weight: Any) -> None:
        plan, specs = graph.blueprint.plan, graph.blueprint.specs
        self.by_use: dict[Use, LearnedRounding] = {}
        self.biases: list[TrainableConstant] = []
        for constant in graph.constants:
            use = constant.uses[0]
            if use in graph.quantizers and len(constant.uses) == 1:
                held = np.asarray(plan.constants.at(use))
                self.by_use[use] = LearnedRounding(constant, graph.quantizers[use], held, add_weight)
            is_bias = isinstance(specs[use.op.kind].input_role(use.slot), Bias) and use in plan.wanted
            if is_bias and constant.variable.trainable:
                self.biases.append(constant)
            else:
                constant.variable.trainable = False


class BlockTraining:
    """Trains the graph of `plan`, which is a part of the graph of `planned`."""

    def __init__(self, planned: Planned, plan: Plan, request: Request, seed: int) -> None:
        settings = QuantSettings(weight_scales="learned")
        blueprint = Blueprint(planned, plan, request, tuple(plan.graph.outputs), settings)
        self.model, self.rng = BlockModel(blueprint, seed), np.random.default_rng(seed)

    def run(self, data: BlockData, checked: BlockData, steps: int, batch: int) -> LearnedBlock | None:
        """Train, and return what was learned; None if that is no gain on the `checked` samples."""
        model, count = self.model, len(data.wanted)
        size = min(batch, count) if model.graph.takes_any_batch else 1
        before = self._error(checked, size)
        if not model.learning.by_use or not before > 0:
            return None
        model.before, least, best = before, before, None
        rate = keras.optimizers.schedules.CosineDecay(RATE, steps, alpha=0.05)
        jit = False if keras.backend.backend() == "tensorflow" else "auto"
        model.compile(optimizer=keras.optimizers.Adam(rate), jit_compile=jit)
        settled = round(SETTLED * steps)
        every = max(1, (steps - settled) // CHECKS)
        for step, chosen in enumerate(self._batches(count, size, steps), 1):
            model.slope.assign(_slope(step / settled))
            inputs = [self._mixed(*columns) for columns in zip(*_columns(data, chosen), strict=True)]
            model.train_on_batch(inputs, _stacked(data.wanted, chosen))
            is_due = step >= settled and (steps - step) % every == 0
            if is_due and (error := self._error(checked, size)) < least:
                least, best = error, [array_of(variable) for variable in model.trainable_variables]
        if best is None:
            return None
        for variable, value in zip(model.trainable_variables, best, strict=True):
            variable.assign(value)
        return self._found()

    def _batches(self, count: int, size: int, steps: int) -> Iterator[list[int]]:
        order: list[int] = []
        for _ in range(steps):
            while len(order) < size:
                order += self.rng.permutation(count).tolist()
            yield order[:size]
            order = order[size:]

    def _mixed(self, quantized: Array, exact: Array) -> Array:
        """Return a random mix of the values in the quantized and in the float model."""
        if quantized.dtype.kind != "f":
            return quantized
        return np.where(self.rng.random(quantized.shape, np.float32) < DROPPED, exact, quantized)

    def _error(self, data: BlockData, size: int) -> float:
        """Return the error of the block as it would be deployed."""
        total, every = 0.0, range(len(data.wanted))
        for start in range(0, len(every), size):
            part = every[start : start + size]
            found = self.model(_stacked(data.quantized, part), training=False)
            wanted = [ops.convert_to_tensor(w) for w in _stacked(data.wanted, part)]
            total += float(array_of(self.model.error(wanted, found))) * len(part)
        return total / len(every)

    def _found(self) -> LearnedBlock:
        learning, values, grids = self.model.learning, dict[Use, Array](), dict[Use, QuantParams]()
        for use, rounding in learning.by_use.items():
            values[use], grids[use] = rounding.learned()
        for constant in learning.biases:
            values.update(dict.fromkeys(constant.uses, constant.value))
        return LearnedBlock(values, grids, self.model.graph.ranges.deployed(0))


def _slope(done: float) -> float:
    """Return the width of the transition between integers; `done` is the share of the steps until all have settled."""
    return LAST_SLOPE + (FIRST_SLOPE - LAST_SLOPE) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))


def _columns(data: BlockData, chosen: Sequence[int]) -> tuple[list[Array], list[Array]]:
    return _stacked(data.quantized, chosen), _stacked(data.exact, chosen)


def _stacked(samples: Sequence[Sequence[Array]], chosen: Sequence[int]) -> list[Array]:
    return [np.concatenate(column) for column in zip(*(samples[k] for k in chosen), strict=True)]
