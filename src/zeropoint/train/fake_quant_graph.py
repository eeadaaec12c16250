"""A plan's graph with fake quantization, and a forward pass through it.

Tensors on a grid are carried as whole numbers of steps and the size of a step. Sums of products of whole numbers are
exact in float32 up to 2**24, so that an integer layer comes out as LiteRT's kernels compute it, not merely close to it:
a network turns one rounding that differs into many.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from keras import ops

from ..dtypes import Array, DType
from ..errors import UnsupportedOp
from ..graph.model import Graph, Op, Tensor
from ..graph.query import Use
from ..improve.squant import nonnegative_tensors
from ..ops import Bias, OpSpec, Trait, fused_activation
from ..ops.batching import Free, free_tensors
from ..ops.states import is_streaming
from ..parallel import cached_property
from ..plan.plan import Group, Held, Node, Plan, Planned
from ..plan.request import Request
from ..simulation.rescaling import Float32
from ..simulation.rules import OPTIMIZED, XNNPACK
from ..targets import Target
from ..train_bits import TrainBits
from . import fake_quant
from .activation_ranges import ActivationRanges
from .backend import LayerOf, array_of, held_type, variable_name
from .compute import COMPUTE, FUSED, RecurrentState, compute
from .weight_quantizers import LearnedScales, WeightQuantizer, quantizer_for
from .weights import TrainableConstant, constants_of

LAST_SLOPE = 0.02
"""How much of each step the risers take in the end, where weights are rounded softly: next to nothing."""


def without_dynamic_layers(target: Target) -> Target:
    """The same target: what rounds its inputs as it runs has no ranges that could be trained."""
    return target if target.costs is None else replace(target, costs=replace(target.costs, dynamic=False))


@dataclass(frozen=True)
class Blueprint:
    """What to build. `outputs` are the tensors to compute; `quantize` is False for a plan that quantizes nothing."""

    planned: Planned
    plan: Plan
    request: Request
    outputs: tuple[Tensor, ...]
    settings: fake_quant.QuantSettings = field(default_factory=fake_quant.QuantSettings)
    freeze: tuple[str, ...] = ()
    quantize: bool = True
    stage: TrainBits | None = None

    def bits(self, op: Op) -> TrainBits | None:
        """What `op` is trained in; in a `stage` on the way there, as many as that has, if these are more."""
        scheme = self.plan.schemes.get(op)
        trained = None if scheme is None else scheme.trained
        return None if trained is None else trained.at_least(self.stage)

    @property
    def specs(self) -> Mapping[str, OpSpec]:
        return self.request.ops


@dataclass(frozen=True, eq=False)
class FakeQuantGraph:
    """The ops to compute, in order, and the variables that they read.

    `statics` are integers that do not depend on the inputs; `by_use` has the float constants, `quantizers` those of
    weights; `groups` has the number of each place's group in the plan, which is also that of its range.
    """

    blueprint: Blueprint
    ops: tuple[Op, ...]
    free: Free
    statics: Mapping[Tensor, Array]
    constants: tuple[TrainableConstant, ...]
    by_use: Mapping[Use, TrainableConstant]
    quantizers: Mapping[Use, WeightQuantizer]
    groups: Mapping[Node, int]
    ranges: ActivationRanges

    @classmethod
    def of(cls, blueprint: Blueprint, layer_of: LayerOf) -> FakeQuantGraph:
        plan, specs = blueprint.plan, blueprint.specs
        needed = needed_ops(plan, blueprint.outputs)
        require_known(needed)
        require_whole_sequences(plan.graph)
        free = free_tensors(plan.graph.inputs, needed, specs)
        constants = constants_of(plan, needed, specs, blueprint.freeze, layer_of)
        return cls(
            blueprint,
            needed,
            free,
            _statics(needed, free, specs),
            constants,
            {use: constant for constant in constants for use in constant.uses},
            _quantizers(blueprint, constants, layer_of),
            {node: k for k, group in enumerate(plan.groups) for node in group.nodes},
            ActivationRanges(plan.groups, group_bits(blueprint), blueprint.settings, layer_of(None)),
        )

    def stored(self, tensor: Tensor) -> int | None:
        """The group of a tensor as its producer leaves it; None for float."""
        params = self.blueprint.plan.stored.get(tensor)
        return None if params is None else self.groups.get(Held(tensor, params.dtype))


def _quantizers(
    blueprint: Blueprint, constants: Sequence[TrainableConstant], layer_of: LayerOf
) -> dict[Use, WeightQuantizer]:
    plan, made = blueprint.plan, dict[Use, WeightQuantizer]()
    for constant in constants:
        for use in constant.uses:
            if use in plan.constants.grids:
                add = LearnedScales(layer_of(use.op), variable_name(constant.tensor.name))
                trained, data = blueprint.bits(use.op), constant.value
                made[use] = quantizer_for(plan.wanted[use], data, blueprint.settings, trained, add)
    return made


def group_bits(blueprint: Blueprint) -> list[int]:
    """The bits of each group's values: what its ops are trained in, if none of its values can be below zero.

    Kernels saturate at the end of their type, so that the highest of few levels is put there; where a ReLU begins, the
    lowest one is. Values on both sides of zero have no such end, and keep all levels of their type.
    """
    plan = blueprint.plan
    makers = {t: op for op in plan.graph.ops for t in op.outputs}
    rectified = nonnegative_tensors(plan.graph, blueprint.specs)

    def bits(group: Group) -> int:
        whole, tensors = group.params.dtype.bits, {node.tensor for node in group.nodes}
        if group.fixed or whole != 8 or not tensors <= rectified:
            return whole
        trained = [None if (op := makers.get(t)) is None else blueprint.bits(op) for t in tensors]
        return max((whole if one is None else one.activations for one in trained), default=whole)

    return [bits(group) for group in plan.groups]


def needed_ops(plan: Plan, outputs: Sequence[Tensor]) -> tuple[Op, ...]:
    """The ops that `outputs` depend on, in order."""
    wanted, found = set(outputs), []
    for op in reversed(plan.graph.ops):
        if any(t in wanted for t in op.outputs):
            found.append(op)
            wanted.update(t for t in op.inputs if t is not None)
    return tuple(reversed(found))


def require_known(needed: Sequence[Op]) -> None:
    """Raise with all ops that there is no function for."""
    missing = [op for op in needed if op.label not in COMPUTE]
    if missing:
        ends = dict.fromkeys(
            t.name for op in missing for t in op.inputs if t is not None and not t.is_constant and t.dtype.is_float
        )
        raise UnsupportedOp(
            "these ops cannot be trained through:",
            *(f"  {op.label} '{op.name}'" for op in missing),
            "train the part in front of them: outputs=[...] with names out of " + ", ".join(map(repr, ends))
            if ends
            else "nothing comes before them that could be trained alone",
        )


def require_whole_sequences(graph: Graph) -> None:
    """Raise for models that compute one step in a run: in training, every sample starts from the initial state."""
    if is_streaming(graph):
        raise UnsupportedOp(
            "the model goes on from the state that the run before left, one step at a time, and training starts every "
            "sample anew; train a version of it that takes whole sequences"
        )


def _statics(needed: Sequence[Op], free: Free, specs: Mapping[str, OpSpec]) -> dict[Tensor, Array]:
    """Integers that do not depend on the inputs: constants, shapes, and what is computed from them."""
    read = {tensor for op in needed for tensor in op.inputs if tensor is not None and not tensor.dtype.is_float}
    known: dict[Tensor, Array] = {t: np.asarray(t.data) for t in read if t.data is not None}
    for op in needed:
        spec = specs.get(op.kind)
        shapes_only = spec is not None and spec.reads_shapes_only
        if shapes_only or all(t is None or t in known for t in op.inputs):
            results = compute(op, [None if t is None else known.get(t) for t in op.inputs], free)
            known.update(zip(op.outputs, map(array_of, results), strict=True))
    return known


@dataclass
class Value:
    """A tensor's value: `whole` steps of `scale`, or a `plain` real."""

    plain: Any = None
    whole: Any = None
    scale: Any = None

    @property
    def real(self) -> Any:
        if self.plain is None:
            self.plain = self.whole * self.scale
        return self.plain


@dataclass
class ForwardPass:
    """`seen` has what went through the range of each group, where ranges follow that. `product_type` is what layers
    multiply in while training; rounding is done in float32, and so is all that is deployed."""

    graph: FakeQuantGraph
    step: Any
    training: bool
    product_type: str = "float32"
    grids: list[fake_quant.NudgedRange] = field(default_factory=list)
    values: dict[Tensor, Value] = field(default_factory=dict)
    converted: dict[tuple[Tensor, int], Value] = field(default_factory=dict)
    weights: dict[Use, Value] = field(default_factory=dict)
    seen: dict[int, list[Any]] = field(default_factory=dict)

    def outputs(self, inputs: Sequence[Any]) -> list[Any]:
        graph = self.graph
        self.grids = graph.ranges.nudged(self.step)
        for tensor, value in zip(graph.blueprint.plan.graph.inputs, inputs, strict=True):
            given = ops.convert_to_tensor(value, dtype=held_type(tensor.dtype))
            self.values[tensor] = self._stored(tensor, given, None)
        for op in graph.ops:
            if not all(t in graph.statics for t in op.outputs):
                self._compute(op)
        known = graph.statics
        return [ops.convert_to_tensor(known[t]) if t in known else self.values[t].real for t in graph.blueprint.outputs]

    def _compute(self, op: Op) -> None:
        blueprint = self.graph.blueprint
        operands = [self._operand(Use(op, slot), tensor) for slot, tensor in enumerate(op.inputs)]
        # With a delay an op may have to compute in float in this step.
        integer = blueprint.specs[op.kind] if op in blueprint.plan.schemes and not blueprint.settings.delay else None
        if integer is not None and _only_moves(op, integer):
            self._move(op, operands)
        elif integer is not None and integer.bias_slot is not None and _are_whole(operands):
            self.values[op.outputs[0]] = self._layer(op, operands)
        else:
            self._compute_reals(op, [v.real if isinstance(v, Value) else v for v in operands])

    def _compute_reals(self, op: Op, operands: Sequence[Any]) -> None:
        results, spec = compute(op, operands, self.graph.free), self.graph.blueprint.specs.get(op.kind)
        fused = fused_activation(op).name
        if fused != "NONE" and (spec is None or fused != spec.own_activation):
            results[0] = FUSED[fused](results[0])
        for tensor, result in zip(op.outputs, results, strict=True):
            self.values[tensor] = self._stored(tensor, result, op)

    def _move(self, op: Op, operands: Sequence[Any]) -> None:
        held = [v for v in operands if isinstance(v, Value) and v.whole is not None]
        given = [v if not isinstance(v, Value) else v.real if v.whole is None else v.whole for v in operands]
        for tensor, result in zip(op.outputs, compute(op, given, self.graph.free), strict=True):
            on_grid = self.graph.stored(tensor) is not None
            self.values[tensor] = Value(whole=result, scale=held[0].scale) if on_grid else Value(result)

    def _layer(self, op: Op, operands: Sequence[Any]) -> Value:
        """Sums of products, multiplied once by input scale * weight scale / output scale."""
        slot, group = self._data_slot(op), self.graph.stored(op.outputs[0])
        assert group is not None
        factor = operands[1].scale * operands[slot].scale / self.grids[group].scale
        flat = ops.reshape(factor, (-1,))
        whole = [v.whole if isinstance(v, Value) else v for v in operands]
        if self.training:  # saves a pass over the outputs; exact sums matter little here
            for at, operand in enumerate(operands):
                if isinstance(operand, Value) and at != slot:
                    whole[at] = operand.whole * (factor if at == 1 else flat)
            whole = [ops.cast(v, self.product_type) if ops.is_tensor(v) else v for v in whole]
        (k,) = compute(op, whole, self.graph.free)
        k = ops.cast(k, "float32") if self.training else k * flat
        bits = self.graph.blueprint.settings.gradient_bits
        if self.training and bits is not None:
            k = fake_quant.with_gradient_bits(k, bits, self.step)
        return self._on_grid(k, group, self._rounding(op, group), fused_activation(op).bounds)

    def _data_slot(self, op: Op) -> int:
        return next(slot for slot in range(len(op.inputs)) if self.graph.groups.get(Use(op, slot)) is not None)

    def _operand(self, use: Use, tensor: Tensor | None) -> Any:
        """A Value; what is known beforehand as an array; a RecurrentState; or None."""
        graph = self.graph
        if tensor is None:
            return None
        if tensor.is_variable:
            return self._state(tensor)
        if tensor in graph.statics:
            return graph.statics[tensor]
        if use in graph.by_use:
            return self._constant(use)
        used = graph.groups.get(use)
        if used is None or used == graph.stored(tensor):
            return self.values[tensor]
        if (tensor, used) not in self.converted:
            self.converted[tensor, used] = self._quantized(self.values[tensor].real, used)
        return self.converted[tensor, used]

    def _state(self, tensor: Tensor) -> RecurrentState:
        """States start at zero; those of integer layers are rounded at each step."""
        group, zeros = self.graph.stored(tensor), np.zeros(tensor.shape, np.float32)
        return RecurrentState(zeros, lambda value: value if group is None else self._quantized(value, group).real)

    def _constant(self, use: Use) -> Value:
        """A constant as it is held at this use: weights and biases on their grids, data on their group's."""
        graph, plan = self.graph, self.graph.blueprint.plan
        current, group = graph.by_use[use].current, graph.groups.get(use)
        if group is not None:
            return self._quantized(current, group)
        if use in graph.quantizers:
            return self._weights(use)
        role = graph.blueprint.specs[use.op.kind].input_role(use.slot) if use in plan.wanted else None
        return self._bias(use, role, current) if isinstance(role, Bias) else Value(current)

    def _weights(self, use: Use) -> Value:
        if use not in self.weights:
            quantizer, current = self.graph.quantizers[use], self.graph.by_use[use].current
            scale = quantizer.scale(current)
            whole = quantizer.steps(current, scale, self._slope)
            self.weights[use] = self._after_delay(self.graph.by_use[use].in_float, Value(whole=whole, scale=scale))
        return self.weights[use]

    @cached_property
    def _slope(self) -> Any:
        """How softly weights are rounded at this step; None for plain rounding."""
        settle = self.graph.blueprint.settings.settle
        if not settle or not self.training:
            return None
        done = ops.minimum(ops.cast(ops.convert_to_tensor(self.step), "float32") / settle, 1.0)
        return LAST_SLOPE + (1.0 - LAST_SLOPE) * 0.5 * (1.0 + ops.cos(math.pi * done))

    def _bias(self, use: Use, role: Bias, current: Any) -> Value:
        """A multiple of input scale * weight scale, in which the products are summed up."""
        data, weights = Use(use.op, role.of[0]), Use(use.op, role.of[1])
        group = self.graph.groups.get(data)
        if group is None or weights not in self.graph.quantizers:
            return Value(current)
        products = ops.reshape(self._weights(weights).scale, (-1,)) * self.grids[group].scale
        k = current / products
        whole = Value(whole=fake_quant.straight_through(k, ops.round(k)), scale=products)
        return self._after_delay(self.graph.by_use[use].in_float, whole)

    def _stored(self, tensor: Tensor, value: Any, producer: Op | None) -> Value:
        """A tensor's value as it is stored: on its grid, if it has one."""
        group = self.graph.stored(tensor)
        if group is None or tensor.dtype is not DType.FLOAT32:
            return Value(value)
        return self._quantized(value, group, self._rounding(producer, group))

    def _rounding(self, producer: Op | None, group: int) -> fake_quant.Rounding:
        """How the kernel that makes the tensor rounds."""
        if producer is None:
            return fake_quant.HALF_TO_EVEN
        grid, weights = self.grids[group], Use(producer, 1)
        if producer.kind == "AVERAGE_POOL_2D":
            lowest = self.graph.ranges.lowest(group)
            return fake_quant.half_away_from(ops.stop_gradient(ops.round(-grid.low / grid.scale)) + lowest)
        if weights not in self.weights or not rounds_twice(producer, self.graph.quantizers[weights]):
            return fake_quant.HALF_TO_EVEN
        data = self.graph.groups[Use(producer, self._data_slot(producer))]
        products = ops.reshape(self.weights[weights].scale, (-1,)) * self.grids[data].scale
        return fake_quant.double_rounding(ops.stop_gradient(products / grid.scale))

    def _quantized(self, value: Any, group: int, rounding: fake_quant.Rounding = fake_quant.HALF_TO_EVEN) -> Value:
        quantized = self._on_grid(self.grids[group].in_steps(value), group, rounding)
        return self._after_delay(value, quantized)

    def _on_grid(
        self, k: Any, group: int, rounding: fake_quant.Rounding, fused: tuple[float, float] | None = None
    ) -> Value:
        """`k` is in steps of the group's grid; `fused` limits what it stands for."""
        ranges, grid = self.graph.ranges, self.grids[group]
        bounds = grid.bounds(learn=ranges.learned and not ranges.groups[group].fixed)
        if fused is not None:
            bounds = _within(bounds, fused, grid.scale)
        if self.training and not ranges.learned:
            self.seen.setdefault(group, []).append((k, fused))
        return Value(whole=fake_quant.round_and_clip(k, bounds, rounding), scale=grid.scale)

    def _after_delay(self, value: Any, quantized: Value) -> Value:
        delay = self.graph.blueprint.settings.delay
        if not delay:
            return quantized
        in_float = self.training and ops.convert_to_tensor(self.step) < delay
        return Value(ops.where(in_float, value, quantized.real), None, quantized.scale)

    def finish(self) -> None:
        """Update the ranges by what was seen. A group of which nothing was seen keeps its range."""
        ranges = self.graph.ranges
        extremes = () if ranges.learned else [self._extremes(group) for group in range(len(ranges.groups))]
        ranges.update(extremes, self.step)

    def _extremes(self, group: int) -> Any:
        """The least and greatest value seen, zero included. Behind a ReLU there is no need to look for the least."""
        if group not in self.seen:
            return ops.convert_to_tensor(self.graph.ranges.tracked)[:, group]
        lows = [ops.min(k) for k, fused in self.seen[group] if fused is None or fused[0] < 0]
        highs = [ops.max(k) for k, _ in self.seen[group]]
        least, greatest = ops.min(ops.stack([*lows, ops.zeros(())])), ops.max(ops.stack([*highs, ops.zeros(())]))
        return ops.stop_gradient(ops.stack([least, greatest])) * self.grids[group].scale


def _only_moves(op: Op, spec: OpSpec) -> bool:
    """Whether the op only chooses among integers, which share its grid."""
    return spec.tied and Trait.AVERAGES not in spec.traits and fused_activation(op).name == "NONE"


def _are_whole(operands: Sequence[Any]) -> bool:
    return all(v.whole is not None for v in operands if isinstance(v, Value))


def _within(bounds: fake_quant.ClipBounds, fused: tuple[float, float], scale: Any) -> fake_quant.ClipBounds:
    """Bounds that a fused activation narrows. Ranges hold zero, so that where a ReLU starts they end."""
    low, high = fused
    if low == 0:
        bounds = replace(bounds, low=ops.zeros_like(bounds.low), learn_low=False)
    elif low > -math.inf:
        bounds = replace(bounds, low=ops.maximum(bounds.low, ops.round(low / scale)))
    if high < math.inf:
        bounds = replace(bounds, high=ops.minimum(bounds.high, ops.round(high / scale)))
    return bounds


def rounds_twice(op: Op, weights: WeightQuantizer) -> bool:
    """Whether the kernel that computes the op rescales its sums in fixed point, by the rules of `zeropoint.simulate`.

    LiteRT's own kernels do that; XNNPACK, which multiplies by a float, takes no 4-bit convolutions, and dense layers
    only with rows of whole bytes (LiteRT 2.3).
    """
    tensor, dtype = op.inputs[1], weights.start.dtype
    whole = tensor is not None and tensor.shape[-1] * dtype.bits % 8 == 0
    rules = OPTIMIZED if dtype.is_packed and not (op.kind == "FULLY_CONNECTED" and whole) else XNNPACK
    return not isinstance(rules.layers.get(op.kind, Float32()), Float32)
