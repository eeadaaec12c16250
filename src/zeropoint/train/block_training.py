"""A block of a plan as a Keras model that learns roundings, scales and biases.

Rounding is learned as in AdaRound: during training, a weight lies between two neighbouring integers, at the share h of
the way from the lower to the upper one. It starts at the float weight, or on the side that compensated rounding chose.
A regularizer, 1 - |2h - 1|**beta, draws it to one of the two integers, and with a falling beta from further and further
away: clear cases settle first, and the others make up for their errors.

Biases follow the weights, so that the means of a layer's outputs stay where they are: on the way from one integer to
another, a weight would otherwise shift its channel in all samples.

Weight scales, biases and activation ranges are learned at the same time, as in quantization-aware training. In each
step, a random half of the activations is not rounded (QDrop), so that the result does not depend on single roundings.
The inputs of a block are always those that the quantized blocks before it produce, so that it makes up for their
errors. The state that is best on separate samples is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from ..affine import QuantParams
from ..dtypes import Array
from ..errors import UnsupportedOp
from ..graph.model import Op
from ..graph.query import Use, tensor_keys
from ..ops import Bias, Weight
from ..plan.plan import Plan, Planned
from ..plan.weights import bias_use
from .backend import array_of, new_variable
from .fake_quant import QuantSettings, Rounding
from .fake_quant_graph import Blueprint, FakeQuantGraph
from .forward_pass import ForwardPass, Value
from .losses import relative_error
from .mean_shift import InputMeans, channel_means
from .reconstruction import BlockData, Reconstruction, learned_uses
from .weight_quantizers import WeightQuantizer
from .weights import TrainableConstant

DROPPED = 0.5
"""The share of activations that a training step does not round."""

RATE, ROUNDING_RATE = 1e-3, 3e-2
"""The learning rates: of scales, ranges and biases relative to their size; of the logits of roundings."""

LEAST_LEAD, LEARNED_LEAD = 0.05, 0.3
"""The minimum distance of a weight from the middle at the start, in quantization steps. It keeps the roundings of the
plan, which compensate each other. The latter if blocks have learned them before, which would otherwise be lost."""

STRETCH = 0.1
"""The share h = sigmoid(logit) is stretched by this much beyond 0 and 1 and then clipped, so that it reaches both."""

FREE, FIRST_POWER, LAST_POWER = 0.2, 20.0, 2.0
"""The share of the training steps without regularizer, and its exponent beta after that and in the end."""

PENALTY = 4.0
"""The weight of the regularizer of each rounding, relative to the error before training: where it is not flat, it
outweighs what a single weight may change."""

LAST_STEPS, CHECKS = 0.1, 4
"""The share of the training steps in which the error is checked, and how often."""


@dataclass(frozen=True)
class LearnedBlock:
    """New values of constants, and the parameters of weights and of all groups of the plan."""

    values: Mapping[Use, Array]
    grids: Mapping[Use, QuantParams]
    params: Sequence[QuantParams]


class Start(NamedTuple):
    """The rounded weights of the plan, and the minimum distance of each from the middle between two integers."""

    held: Array
    lead: float


class LearnedRounding:
    """The choice between the two neighbouring integers of each weight; and how far it moves the means of the outputs.

    `inputs` are the means of what each weight is multiplied by, if known, and `axis` is that of the output channels.
    """

    inputs: Array | None = None
    axis = 0

    def __init__(self, constant: TrainableConstant, quantizer: WeightQuantizer, start: Start, add_weight: Any) -> None:
        held, lead = start.held, start.lead
        self.constant, self.quantizer, self.held = constant, quantizer, held
        scale, most = quantizer.first, quantizer.levels.steps // 2
        exact, now = (np.clip(w / scale, -most, most) for w in (np.asarray(constant.tensor.data), held))
        now = np.round(now)
        self.lower = np.clip(np.where(exact < now, now - 1, now), -most, most - 1).astype(np.float32)
        up, share = now > self.lower, np.clip(exact - self.lower, 0.01, 0.99)
        share = np.where(up, np.maximum(share, 0.5 + lead), np.minimum(share, 0.5 - lead))
        inner = (share + STRETCH) / (1 + 2 * STRETCH)
        logits = np.log(inner / (1 - inner)) * (RATE / ROUNDING_RATE)  # which makes one optimizer learn at two rates
        self.variable = new_variable(add_weight, "logit", logits.astype(np.float32), trainable=True)

    @property
    def share(self) -> Any:
        """How far each weight is from the lower to the upper integer."""
        inner = ops.sigmoid(ops.convert_to_tensor(self.variable) * (ROUNDING_RATE / RATE))
        return ops.clip(inner * (1 + 2 * STRETCH) - STRETCH, 0.0, 1.0)

    @property
    def whole(self) -> Any:
        """The integers that the weights are rounded to."""
        return ops.convert_to_tensor(self.lower) + ops.cast(self.share >= 0.5, "float32")

    @property
    def between(self) -> Any:
        """The values between integers that are used during training."""
        return ops.convert_to_tensor(self.lower) + self.share

    def penalty(self, power: Any) -> Any:
        """Return the regularizer, summed over the weights."""
        return ops.sum(1.0 - ops.abs(2.0 * self.share - 1.0) ** power)

    def shift(self, weights: Any) -> Any:
        """Return how far these weights, rather than those of the plan, move the means of the outputs."""
        others = tuple(k for k in range(self.held.ndim) if k != self.axis)
        change = weights - ops.convert_to_tensor(self.held)
        return ops.sum(change * ops.convert_to_tensor(self.inputs), axis=others)

    def learned(self) -> tuple[Array, QuantParams]:
        """Return the weights, and the parameters that represent them exactly."""
        params = self.quantizer.params(self.constant.value)
        scales, _ = params.along(self.lower.ndim)
        return (array_of(self.whole) * scales).astype(np.float32), params


@dataclass
class BlockPass(ForwardPass):
    """A forward pass with learned roundings; during training, a random part of the activations is not rounded."""

    roundings: Mapping[Use, LearnedRounding] = field(default_factory=dict)
    by_bias: Mapping[Use, LearnedRounding] = field(default_factory=dict)
    seeds: Any = None

    def _weights(self, use: Use) -> Value:
        if use not in self.roundings:
            return super()._weights(use)
        if use not in self.weights:
            rounding = self.roundings[use]
            whole = rounding.between if self.training else rounding.whole
            self.weights[use] = Value(whole=whole, scale=rounding.quantizer.scale(None))
        return self.weights[use]

    def keep_means(self, use: Use, bias: Any) -> Any:
        rounding = self.by_bias.get(use)
        if rounding is None:
            return bias
        return bias - ops.reshape(rounding.shift(self._weights(rounding.constant.uses[0]).real), bias.shape)

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

    def __init__(self, blueprint: Blueprint, seed: int, lead: float) -> None:
        super().__init__(name="block")
        self.graph = FakeQuantGraph.of(blueprint, lambda _: self.add_weight)
        if self.graph.loops:
            raise UnsupportedOp("blocks with loops are not reconstructed")
        self.learning = _Roundings(self.graph, lead, self.add_weight)
        self.seeds = keras.random.SeedGenerator(seed)
        self.power = new_variable(self.add_weight, "power", np.zeros((), np.float32))
        self.before = 1.0
        self.built = True

    def build(self, input_shape: Any = None) -> None:
        """All variables exist already."""

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        learning = {"roundings": self.learning.by_use, "by_bias": self.learning.by_bias, "seeds": self.seeds}
        return BlockPass(self.graph, 0, bool(training), **learning).outputs(list(inputs))

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        del x, sample_weight, training
        power = ops.convert_to_tensor(self.power)
        penalty = sum(rounding.penalty(ops.maximum(power, LAST_POWER)) for rounding in self.learning.by_use.values())
        return self.error(y, y_pred) / self.before + PENALTY * ops.where(power > 0, penalty, 0.0)

    def error(self, wanted: Sequence[Any], found: Sequence[Any]) -> Any:
        """Return the relative error, averaged over the outputs."""
        return sum(relative_error(f, w) for f, w in zip(found, wanted, strict=True)) / len(wanted)


class _Roundings:
    """The roundings of a block by use, and by the use of the bias that follows them. If some weights have fewer than 8
    bits, only theirs are learned. Of the other constants, only the biases of its layers are trained."""

    def __init__(self, graph: FakeQuantGraph, lead: float, add_weight: Any) -> None:
        plan, specs = graph.blueprint.plan, graph.blueprint.specs
        means = InputMeans(graph.blueprint.means, tensor_keys(graph.blueprint.planned.model), specs)
        learned = learned_uses(plan, graph.quantizers)
        self.by_use: dict[Use, LearnedRounding] = {}
        self.by_bias: dict[Use, LearnedRounding] = {}
        self.biases: list[TrainableConstant] = []
        for constant in graph.constants:
            use = constant.uses[0]
            if use in learned and len(constant.uses) == 1:
                start = Start(np.asarray(plan.constants.at(use)), lead)
                self.by_use[use] = LearnedRounding(constant, graph.quantizers[use], start, add_weight)
            elif use in graph.quantizers:
                graph.quantizers[use].exponents.trainable = False
            is_bias = isinstance(specs[use.op.kind].input_role(use.slot), Bias) and use in plan.wanted
            if is_bias and constant.variable.trainable:
                self.biases.append(constant)
            else:
                constant.variable.trainable = False
        for use, rounding in self.by_use.items():
            self._follow(use, rounding, means)

    def _follow(self, use: Use, rounding: LearnedRounding, means: InputMeans) -> None:
        """Let the bias of a layer follow its weights, if the means of their inputs are known."""
        spec = means.specs[use.op.kind]
        bias, role = bias_use(use.op, spec), spec.input_role(use.slot)
        axis = role.axis_of(use.op, use.data.ndim) if isinstance(role, Weight) else None
        inputs = means.at(use)
        if bias in {constant.uses[0] for constant in self.biases} and axis is not None and inputs is not None:
            assert bias is not None
            rounding.inputs, rounding.axis, self.by_bias[bias] = inputs, axis, rounding


class BlockTraining:
    """Trains a part of a graph, as its blueprint says. `is_learned`: its roundings have been learned before."""

    def __init__(self, blueprint: Blueprint, seed: int, *, is_learned: bool = False) -> None:
        lead = LEARNED_LEAD if is_learned else LEAST_LEAD
        self.model, self.rng = BlockModel(blueprint, seed, lead), np.random.default_rng(seed)

    @classmethod
    def of(cls, planned: Planned, plan: Plan, learner: Reconstruction, *, is_learned: bool = False) -> BlockTraining:
        """Return the training of a part of a plan; `is_learned` says that its roundings have been learned before."""
        settings, outputs = QuantSettings(weight_scales="learned"), tuple(plan.graph.outputs)
        blueprint = Blueprint(planned, plan, learner.request, outputs, settings, means=channel_means(learner.stats))
        return cls(blueprint, learner.seed, is_learned=is_learned)

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
        settled = round((1 - LAST_STEPS) * steps)
        every = max(1, (steps - settled) // CHECKS)
        for step, chosen in enumerate(self._batches(count, size, steps), 1):
            model.power.assign(_power(step / steps))
            model.train_on_batch(_stacked(data.inputs, chosen), _stacked(data.wanted, chosen))
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

    def _error(self, data: BlockData, size: int) -> float:
        """Return the error of the block as it would be deployed."""
        total, every = 0.0, range(len(data.wanted))
        for start in range(0, len(every), size):
            part = every[start : start + size]
            found = self.model(_stacked(data.inputs, part), training=False)
            wanted = [ops.convert_to_tensor(w) for w in _stacked(data.wanted, part)]
            total += float(array_of(self.model.error(wanted, found))) * len(part)
        return total / len(every)

    def _found(self) -> LearnedBlock:
        learning, values, grids = self.model.learning, dict[Use, Array](), dict[Use, QuantParams]()
        for use, rounding in learning.by_use.items():
            values[use], grids[use] = rounding.learned()
        for constant in learning.biases:
            values.update(dict.fromkeys(constant.uses, constant.value))
        for bias, rounding in learning.by_bias.items():
            shift = array_of(rounding.shift(ops.convert_to_tensor(values[rounding.constant.uses[0]])))
            values[bias] = values[bias] - shift.reshape(values[bias].shape)
        return LearnedBlock(values, grids, self.model.graph.ranges.deployed(0))


def _power(done: float) -> float:
    """Return the exponent of the regularizer, given the share of the steps that are done; 0 for no regularizer."""
    if done < FREE:
        return 0.0
    return FIRST_POWER + (LAST_POWER - FIRST_POWER) * (done - FREE) / (1 - FREE)


def _stacked(samples: Sequence[Sequence[Array]], chosen: Sequence[int]) -> list[Array]:
    return [np.concatenate(column) for column in zip(*(samples[k] for k in chosen), strict=True)]
