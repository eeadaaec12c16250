"""A block of a plan as a Keras model that learns roundings, scales and biases.

Rounding up or down is learned as AdaRound does it: a weight is its lower integer plus h, which is a variable between 0
and 1 and counts as the nearer of the two, with straight-through gradients. It starts so that the rounding is the
plan's own, which compensates already, and so that weights are the readier to change sides the closer they lie to the
middle. Scales of weights, biases and ranges of activations are learned beside, as in training. Of activations a random
half is not rounded in each step (QDrop), so that what is learned does not lean on single roundings. The best state on
samples that are not learned from is kept.
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
from .fake_quant import QuantSettings, Rounding, straight_through
from .fake_quant_graph import Blueprint, FakeQuantGraph
from .forward_pass import ForwardPass, Value
from .losses import relative_error
from .reconstruction import CHECKED_EVERY, BlockData
from .weight_quantizers import WeightQuantizer
from .weights import TrainableConstant

DROPPED = 0.5
"""The share of activations that a step leaves as they are."""

ROUNDING_UNIT = 4.0
"""Roundings learn so many times as fast as scales, ranges and biases."""

RATE = 1e-3

SURE = 0.02, 0.45
"""Where a rounding starts lies so far from its integer, at least and at most, in steps."""

CHECKS = 10
"""How often the state is looked at."""


@dataclass(frozen=True)
class LearnedBlock:
    """New numbers for constants, parameters of weights, and those of all groups of the plan."""

    values: Mapping[Use, Array]
    grids: Mapping[Use, QuantParams]
    params: Sequence[QuantParams]


class LearnedRounding:
    """Which of its two neighbouring integers each weight becomes."""

    def __init__(self, constant: TrainableConstant, quantizer: WeightQuantizer, held: Array, add_weight: Any) -> None:
        self.constant, self.quantizer = constant, quantizer
        scale = quantizer.first
        most = quantizer.levels.steps // 2
        exact, now = np.asarray(constant.tensor.data) / scale, np.clip(np.round(held / scale), -most, most)
        below = np.where(exact < now, now - 1, now)
        self.lower = np.clip(below, -most, most - 1).astype(np.float32)
        least, greatest = SURE
        gap = np.clip(np.abs(exact - now), least, greatest)
        share = np.where(now > self.lower, 1 - gap, gap)
        start = (share / ROUNDING_UNIT).astype(np.float32)
        self.variable = new_variable(add_weight, "up", start, trainable=True)

    def whole(self) -> Any:
        """The integers, with the gradient of what lies between them."""
        up = ops.clip(ops.convert_to_tensor(self.variable) * ROUNDING_UNIT, 0.0, 1.0)
        return ops.convert_to_tensor(self.lower) + straight_through(up, ops.cast(up >= 0.5, "float32"))

    def learned(self) -> tuple[Array, QuantParams]:
        """The weights, and the parameters that hold them exactly."""
        params = self.quantizer.params(self.constant.value)
        scales, _ = params.along(self.lower.ndim)
        return (array_of(self.whole()) * scales).astype(np.float32), params


@dataclass
class BlockPass(ForwardPass):
    """A forward pass with learned roundings; while training, a random part of the activations stays as it is."""

    roundings: Mapping[Use, LearnedRounding] = field(default_factory=dict)
    seeds: Any = None

    def _weights(self, use: Use) -> Value:
        if use not in self.weights:
            rounding = self.roundings[use]
            scale = rounding.quantizer.scale(None)
            self.weights[use] = Value(whole=rounding.whole(), scale=scale)
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
        """Kernels compute with whole numbers only."""
        return None if self.training else super()._by_kernel(op, operands)


class BlockModel(keras.Model):  # type: ignore[misc]  # Keras has no types
    """The block; its loss is the error of its outputs beside that before training."""

    def __init__(self, blueprint: Blueprint, seed: int) -> None:
        super().__init__(name="block")
        self.graph = FakeQuantGraph.of(blueprint, lambda _: self.add_weight)
        if self.graph.loops:
            raise UnsupportedOp("blocks with loops are not reconstructed")
        self.learning = _Roundings(self.graph, self.add_weight)
        self.seeds = keras.random.SeedGenerator(seed)
        self.before = 1.0
        self.built = True

    def build(self, input_shape: Any = None) -> None:
        """All variables exist already."""

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        forward = BlockPass(self.graph, 0, bool(training), roundings=self.learning.by_use, seeds=self.seeds)
        return forward.outputs(list(inputs))

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        del x, sample_weight, training
        return self.error(y, y_pred) / self.before

    def error(self, wanted: Sequence[Any], found: Sequence[Any]) -> Any:
        """The relative error of all outputs together."""
        return sum(relative_error(f, w) for f, w in zip(found, wanted, strict=True)) / len(wanted)


class _Roundings:
    """The roundings of a block by use. All other constants but biases of its layers stay as they are."""

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
    """Trains the only graph of `plan`, a part of that of `planned`."""

    def __init__(self, planned: Planned, plan: Plan, request: Request, seed: int) -> None:
        settings = QuantSettings(weight_scales="learned")
        blueprint = Blueprint(planned, plan, request, tuple(plan.graph.outputs), settings)
        self.model, self.rng = BlockModel(blueprint, seed), np.random.default_rng(seed)

    def run(self, data: BlockData, steps: int, batch: int) -> LearnedBlock | None:
        """What was learned; None if that is no gain on samples that were not learned from."""
        model, count = self.model, len(data.wanted)
        checked = list(range(0, count, CHECKED_EVERY)) if count >= 2 * CHECKED_EVERY else list(range(count))
        kept = [k for k in range(count) if k not in set(checked)] or checked
        size = min(batch, len(kept)) if model.graph.takes_any_batch else 1
        before = self._error(data, checked, size)
        if not model.learning.by_use or not before > 0:
            return None
        model.before, least, best = before, before, None
        rate = keras.optimizers.schedules.CosineDecay(RATE, steps, alpha=0.05)
        jit = False if keras.backend.backend() == "tensorflow" else "auto"
        model.compile(optimizer=keras.optimizers.Adam(rate), jit_compile=jit)
        every = max(1, steps // CHECKS)
        for step, chosen in enumerate(self._batches(kept, size, steps), 1):
            inputs = [self._mixed(*columns) for columns in zip(*_columns(data, chosen), strict=True)]
            model.train_on_batch(inputs, _stacked(data.wanted, chosen))
            if step % every == 0 and (error := self._error(data, checked, size)) < least:
                least, best = error, [array_of(variable) for variable in model.trainable_variables]
        if best is None:
            return None
        for variable, value in zip(model.trainable_variables, best, strict=True):
            variable.assign(value)
        return self._found()

    def _batches(self, kept: Sequence[int], size: int, steps: int) -> Iterator[list[int]]:
        order: list[int] = []
        for _ in range(steps):
            while len(order) < size:
                order += self.rng.permutation(kept).tolist()
            yield order[:size]
            order = order[size:]

    def _mixed(self, quantized: Array, exact: Array) -> Array:
        """Values of both models, at random."""
        if quantized.dtype.kind != "f":
            return quantized
        return np.where(self.rng.random(quantized.shape, np.float32) < DROPPED, exact, quantized)

    def _error(self, data: BlockData, chosen: Sequence[int], size: int) -> float:
        """The error of the block as it would be deployed."""
        total = 0.0
        for start in range(0, len(chosen), size):
            part = chosen[start : start + size]
            found = self.model(_stacked(data.quantized, part), training=False)
            wanted = [ops.convert_to_tensor(w) for w in _stacked(data.wanted, part)]
            total += float(array_of(self.model.error(wanted, found))) * len(part)
        return total / len(chosen)

    def _found(self) -> LearnedBlock:
        learning, values, grids = self.model.learning, dict[Use, Array](), dict[Use, QuantParams]()
        for use, rounding in learning.by_use.items():
            values[use], grids[use] = rounding.learned()
        for constant in learning.biases:
            values.update(dict.fromkeys(constant.uses, constant.value))
        return LearnedBlock(values, grids, self.model.graph.ranges.deployed(0))


def _columns(data: BlockData, chosen: Sequence[int]) -> tuple[list[Array], list[Array]]:
    return _stacked(data.quantized, chosen), _stacked(data.exact, chosen)


def _stacked(samples: Sequence[Sequence[Array]], chosen: Sequence[int]) -> list[Array]:
    return [np.concatenate(column) for column in zip(*(samples[k] for k in chosen), strict=True)]
