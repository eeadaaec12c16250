"""A forward pass through a graph with fake quantization.

Tensors on a grid are carried as whole numbers of steps and the size of a step. Sums of products of whole numbers are
exact in float32 up to 2**24, so that an integer layer gives exactly what LiteRT's kernels compute, not just nearly: a
network turns one different rounding into many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from keras import ops

from ..dtypes import DType
from ..graph.model import Op, Tensor
from ..graph.query import Use
from ..ops import Bias, OpSpec, Trait, fused_activation, spec_of
from ..parallel import cached_property
from ..simulation.rescaling import Float32
from . import fake_quant
from .backend import held_type, wide_type
from .compute import FUSED, RecurrentState
from .fake_quant_graph import FakeQuantGraph, Loop
from .kernels import KERNELS, NEARLY_ROUNDED, IntegerCall, Integers
from .kernels.rescaling import TrainedScales, half_away, rescale

PARTS_PER_RANGE = 4
"""Ends of ranges move slowly: the first of this many parts of a batch suffices for their gradient, in less time."""


@dataclass
class Value:
    """A tensor's value: `whole` steps of `scale`, or a `plain` real. Integers are stored as whole + `zero_point`. For
    `every` see `fake_quant.scaled`."""

    plain: Any = None
    whole: Any = None
    scale: Any = None
    zero_point: Any = 0.0
    dtype: DType = DType.INT8
    every: int = 1

    @property
    def real(self) -> Any:
        if self.plain is None:
            self.plain = fake_quant.scaled(self.whole, self.scale, self.every)
        return self.plain

    def at(self, whole: Any) -> Value:
        """Return other numbers on the same grid."""
        return replace(self, plain=None, whole=whole)

    @property
    def integers(self) -> Integers:
        return Integers(self.whole, self.scale, self.zero_point, self.dtype)


@dataclass
class ForwardPass:
    """Computes a graph. `seen` has the values of each group, if ranges follow them. `product_type` is the type in which
    layers multiply in training; rounding is done in float32, and so is everything that is deployed."""

    graph: FakeQuantGraph
    step: Any
    training: bool
    product_type: str = "float32"
    grids: list[fake_quant.NudgedRange] = field(default_factory=list)
    values: dict[Tensor, Value] = field(default_factory=dict)
    converted: dict[tuple[Tensor, int], Value] = field(default_factory=dict)
    weights: dict[Use, Value] = field(default_factory=dict)
    seen: dict[int, list[Any]] = field(default_factory=dict)
    bodies: list[ForwardPass] = field(default_factory=list)

    def outputs(self, inputs: Sequence[Any]) -> list[Any]:
        graph = self.graph
        self.grids = graph.ranges.nudged(self.step)
        for tensor, value in zip(graph.blueprint.plan.graph.inputs, inputs, strict=True):
            given = ops.convert_to_tensor(value, dtype=held_type(tensor.dtype))
            if graph.sample_axis is not None:
                given = ops.expand_dims(given, 1)
            self.values[tensor] = self._stored(tensor, given)
        self._run()
        return [self._output(tensor) for tensor in graph.blueprint.outputs]

    def _run(self) -> None:
        for op in self.graph.ops:
            if op in self.graph.loops:
                self._loop(op, self.graph.loops[op])
            elif not all(t in self.graph.statics for t in op.outputs):
                self._compute(op)

    def _loop(self, op: Op, loop: Loop) -> None:
        """Run a loop iteration by iteration, with the same weights and ranges."""
        body = ForwardPass(loop.body, self.step, self.training, self.product_type)
        body.grids = loop.body.ranges.nudged(self.step)
        self.bodies.append(body)
        state = [self._operand(Use(op, slot), tensor) for slot, tensor in enumerate(op.inputs)]
        for known in loop.iterations:
            state = replace(body, graph=replace(loop.body, statics=known), values={}, converted={}).iterate(state)
        for tensor, value in zip(op.outputs, state, strict=True):
            if isinstance(value, Value):
                self.values[tensor] = self._received(tensor, value)

    def iterate(self, state: Sequence[Any]) -> list[Any]:
        """Run one iteration of a loop, of which this is the body: from the values it is passed to those it passes
        on."""
        graph = self.graph.blueprint.plan.graph
        for tensor, value in zip(graph.inputs, state, strict=True):
            if isinstance(value, Value):
                self.values[tensor] = self._received(tensor, value)
        self._run()
        return [self.graph.statics.get(tensor, self.values.get(tensor)) for tensor in graph.outputs]

    def _received(self, tensor: Tensor, value: Value) -> Value:
        """Return a value passed from another graph: integers in the scale that both have, or floats."""
        group = self.graph.stored(tensor)
        return Value(value.real) if group is None else replace(self._grid(group), whole=value.whole)

    def _output(self, tensor: Tensor) -> Any:
        """Return an output as callers see it: samples along the first dimension."""
        if tensor in self.graph.statics:
            return ops.convert_to_tensor(self.graph.statics[tensor])
        value = self.values[tensor].real
        has_axis = self.graph.sample_axis is not None and len(value.shape) > len(tensor.shape) > 0
        return ops.reshape(value, (-1, *tensor.shape[1:])) if has_axis else value

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
            exact = None if integer is None or not _are_whole(operands) else self._by_kernel(op, operands)
            self._compute_reals(op, [v.real if isinstance(v, Value) else v for v in operands], exact)

    def _by_kernel(self, op: Op, operands: Sequence[Any]) -> Any:
        """Return what the op's kernel computes from whole numbers; None if it only rounds the float result."""
        kernel, group = KERNELS.get(op.kind), self.graph.stored(op.outputs[0])
        if kernel is None or (self.training and op.kind in NEARLY_ROUNDED):
            return None
        call = self.graph.call(op, [v.whole if isinstance(v, Value) else v for v in operands])
        inputs = tuple(
            v.at(given).integers if isinstance(v, Value) else v.integers if isinstance(v, RecurrentState) else given
            for v, given in zip(operands, call.inputs, strict=True)
        )
        output = (Value() if group is None else self._grid(group)).integers
        exact = kernel(IntegerCall(call, inputs, output, self.graph.rules[op], self._wide))
        return None if exact is None else self.graph.made(op, [exact])[0]

    @property
    def _wide(self) -> str:
        """The type in which kernel arithmetic is computed: in training, exact sums matter little."""
        return "float32" if self.training else wide_type()

    def _grid(self, group: int) -> Value:
        """Return the grid of a group, without values."""
        ranges, grid = self.graph.ranges, self.grids[group]
        zero_point = ops.stop_gradient(ops.round(-grid.low / grid.scale)) + float(ranges.lowest(group))
        return Value(scale=grid.scale, zero_point=zero_point, dtype=ranges.groups[group].params.dtype)

    def _compute_reals(self, op: Op, operands: Sequence[Any], exact: Any) -> None:
        results, spec = self.graph.compute(op, operands), spec_of(op, self.graph.blueprint.specs)
        fused = fused_activation(op).name
        if fused not in ("NONE", spec.own_activation):
            results[0] = FUSED[fused](results[0])
        if exact is not None and self.graph.stored(op.outputs[0]) is None:  # booleans, which have no gradient
            self.values[op.outputs[0]] = Value(exact)
            return
        rounding = fake_quant.HALF_TO_EVEN if exact is None else fake_quant.given(exact)
        for tensor, result in zip(op.outputs, results, strict=True):
            self.values[tensor] = self._stored(tensor, result, rounding)

    def _move(self, op: Op, operands: Sequence[Any]) -> None:
        held = [v for v in operands if isinstance(v, Value) and v.whole is not None]
        given = [v if not isinstance(v, Value) else v.real if v.whole is None else v.whole for v in operands]
        for tensor, result in zip(op.outputs, self.graph.compute(op, given), strict=True):
            on_grid = self.graph.stored(tensor) is not None
            self.values[tensor] = held[0].at(result) if on_grid else Value(result)

    def _layer(self, op: Op, operands: Sequence[Any]) -> Value:
        """Return accumulators, multiplied once by input scale * weight scale / output scale."""
        slot, group = self._data_slot(op), self.graph.stored(op.outputs[0])
        assert group is not None
        factor = operands[1].scale * operands[slot].scale / self.grids[group].scale
        flat = ops.reshape(factor, (-1,))
        whole = [v.whole if isinstance(v, Value) else v for v in operands]
        if not self.training:
            sums, rounding = self._exact_sums(op, whole, (operands[slot].scale, operands[1].scale))
            return self._on_grid(sums * flat, group, rounding, fused_activation(op).bounds)
        for at, operand in enumerate(operands):  # saves a pass over the outputs; exact sums matter little here
            if isinstance(operand, Value) and at != slot:
                whole[at] = operand.whole * (factor if at == 1 else flat)
        whole = [ops.cast(v, self.product_type) if ops.is_tensor(v) else v for v in whole]
        (k,) = self.graph.compute(op, whole)
        k = ops.cast(k, "float32")
        bits = self.graph.blueprint.settings.gradient_bits
        if bits is not None:
            k = fake_quant.with_gradient_bits(k, bits, self.step)
        return self._on_grid(k, group, fake_quant.HALF_TO_EVEN, fused_activation(op).bounds)

    def _exact_sums(self, op: Op, whole: Sequence[Any], scales: tuple[Any, Any]) -> tuple[Any, fake_quant.Rounding]:
        """Return accumulators as kernels have them, and how these are requantized, given the scales of input and
        weights."""
        group, rule = self.graph.stored(op.outputs[0]), self.graph.rescaling(op)
        assert group is not None
        wide = "float32" if isinstance(rule, Float32) else self._wide
        (sums,) = self.graph.compute(op, [ops.cast(v, wide) if ops.is_tensor(v) else v for v in whole])
        data, weights = scales
        units = rescale(rule, sums, TrainedScales(data, ops.reshape(weights, (-1,)), self.grids[group].scale, wide))
        return ops.cast(sums, "float32"), fake_quant.given(units)

    def _data_slot(self, op: Op) -> int:
        return next(slot for slot in range(len(op.inputs)) if self.graph.groups.get(Use(op, slot)) is not None)

    def _operand(self, use: Use, tensor: Tensor | None) -> Any:
        """Return an operand as a Value; as an array if it is known in advance; as a RecurrentState; or None."""
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
            self.converted[tensor, used] = self._converted(tensor, used)
        return self.converted[tensor, used]

    def _converted(self, tensor: Tensor, group: int) -> Value:
        """Return a tensor on another grid than it is stored in, as QUANTIZE computes it."""
        value = self.values[tensor]
        if value.whole is None:
            return self._quantized(value.real, group)
        rule, one = self.graph.conversion(tensor, group).requantize, ops.ones((), "float32")
        units = rescale(rule, value.whole, TrainedScales(value.scale, one, self.grids[group].scale, self._wide))
        return self._quantized(value.real, group, fake_quant.given(units))

    def _state(self, tensor: Tensor) -> RecurrentState:
        """Return the initial state, zero; states of integer layers are rounded at each step."""
        group, zeros = self.graph.stored(tensor), np.zeros(tensor.shape, np.float32)
        if group is None:
            return RecurrentState(zeros, lambda value: value)
        start = self.graph.ranges.groups[group].params
        grid = replace(self._grid(group).integers, start=start)
        return RecurrentState(zeros, lambda value: self._quantized(value, group).real, grid)

    def _constant(self, use: Use) -> Value:
        """Return a constant as this use reads it: weights and biases on their grids, data on their group's."""
        graph, plan = self.graph, self.graph.blueprint.plan
        current, group = graph.by_use[use].current, graph.groups.get(use)
        if group is not None:
            rounding = fake_quant.given(half_away(current / self.grids[group].scale))
            quantized = self._on_grid(self.grids[group].in_steps(current), group, rounding, every=1)
            return self._after_delay(current, quantized)
        if use in graph.quantizers:
            return self._weights(use)
        role = graph.blueprint.specs[use.op.kind].input_role(use.slot) if use in plan.wanted else None
        return self._bias(use, role, current) if isinstance(role, Bias) else Value(current)

    def _weights(self, use: Use) -> Value:
        if use not in self.weights:
            quantizer, current = self.graph.quantizers[use], self.graph.by_use[use].current
            scale = quantizer.scale(current)
            whole = quantizer.steps(current, scale, self._softness, self._deciding)
            value = Value(whole=whole, scale=scale, dtype=quantizer.start.dtype)
            self.weights[use] = self._after_delay(self.graph.by_use[use].in_float, value)
        return self.weights[use]

    @cached_property
    def _softness(self) -> Any:
        """How softly weights are rounded at this step, from 1, not at all, to 0; None for plain rounding."""
        settle = self.graph.blueprint.settings.settle
        if not settle or not self.training:
            return None
        done = ops.minimum(ops.cast(ops.convert_to_tensor(self.step), "float32") / settle, 1.0)
        return 0.5 * (1.0 + ops.cos(math.pi * done))

    @cached_property
    def _deciding(self) -> Any:
        """How much of the time in which ternary weights decide for a level is left, from 1 to 0; above 1 before it."""
        decide = self.graph.blueprint.settings.decide
        if decide is None or not self.training:
            return None
        first, last = decide
        left = (last - ops.cast(ops.convert_to_tensor(self.step), "float32")) / (last - first)
        return ops.maximum(left, 0.0)

    def _bias(self, use: Use, role: Bias, current: Any) -> Value:
        """Return a multiple of input scale * weight scale, the unit in which products are accumulated."""
        data, weights = Use(use.op, role.of[0]), Use(use.op, role.of[1])
        group = self.graph.groups.get(data)
        if group is None or weights not in self.graph.quantizers:
            return Value(current)
        current = self.keep_means(use, current)
        products = ops.reshape(self._weights(weights).scale, (-1,)) * self.grids[group].scale
        k = current / products
        rounded = half_away(ops.cast(current, self._wide) / ops.cast(products, self._wide))
        whole = Value(whole=fake_quant.straight_through(k, ops.cast(rounded, "float32")), scale=products)
        return self._after_delay(self.graph.by_use[use].in_float, whole)

    def keep_means(self, use: Use, bias: Any) -> Any:
        """Return a bias that makes up for the shift of the means by rounded weights, if it is to do so."""
        shift = self.graph.mean_shifts.get(use)
        if shift is None:
            return bias
        quantizer, weights = self.graph.quantizers[shift.weights], self._weights(shift.weights)
        exact = quantizer.effective(self.graph.by_use[shift.weights].current)
        return bias - ops.reshape(shift(exact, weights.real, self._wide), bias.shape)

    def _stored(self, tensor: Tensor, value: Any, rounding: fake_quant.Rounding = fake_quant.HALF_TO_EVEN) -> Value:
        """Return a tensor's value as it is stored: on its grid, if it has one."""
        group = self.graph.stored(tensor)
        if group is None or tensor.dtype is not DType.FLOAT32:
            return Value(value)
        return self._quantized(value, group, rounding)

    def _quantized(self, value: Any, group: int, rounding: fake_quant.Rounding = fake_quant.HALF_TO_EVEN) -> Value:
        every = self._every(value)
        quantized = self._on_grid(self.grids[group].in_steps(value, every), group, rounding, every=every)
        return self._after_delay(value, quantized)

    def _on_grid(
        self,
        k: Any,
        group: int,
        rounding: fake_quant.Rounding,
        fused: tuple[float, float] | None = None,
        every: int | None = None,
    ) -> Value:
        """Return `k`, in steps of the group's grid, rounded and clipped; `fused` limits its real value; for `every` see
        `_every`."""
        ranges, grid = self.graph.ranges, self.grids[group]
        bounds = grid.bounds(learn=ranges.learned and not ranges.groups[group].fixed, bits=ranges.bits[group])
        bounds = replace(bounds, every=self._every(k) if every is None else every)
        if fused is not None:
            bounds = bounds.within(*fused, grid.scale)
        if self.training and not ranges.learned:
            self.seen.setdefault(group, []).append((k, fused))
        whole = fake_quant.round_and_clip(k, bounds, rounding)
        return replace(self._grid(group), whole=whole, every=bounds.every)

    def _every(self, value: Any) -> int:
        """Return into how many parts a batch is split for the gradients of ranges, of which one is used."""
        is_batch = self.graph.takes_any_batch and len(value.shape) > 1
        return PARTS_PER_RANGE if self.training and is_batch and self.graph.ranges.learned else 1

    def _after_delay(self, value: Any, quantized: Value) -> Value:
        delay = self.graph.blueprint.settings.delay
        if not delay:
            return quantized
        in_float = self.training and ops.convert_to_tensor(self.step) < delay
        return Value(ops.where(in_float, value, quantized.real), None, quantized.scale)

    def finish(self) -> None:
        """Update the ranges from the values seen. A group without values keeps its range."""
        ranges = self.graph.ranges
        extremes = () if ranges.learned else [self._extremes(group) for group in range(len(ranges.groups))]
        ranges.update(extremes, self.step)
        for body in self.bodies:
            body.finish()

    def _extremes(self, group: int) -> Any:
        """Return the minimum and maximum seen, including zero. After a ReLU the minimum is not needed."""
        if group not in self.seen:
            return ops.convert_to_tensor(self.graph.ranges.tracked)[:, group]
        lows = [ops.min(k) for k, fused in self.seen[group] if fused is None or fused[0] < 0]
        highs = [ops.max(k) for k, _ in self.seen[group]]
        least, greatest = ops.min(ops.stack([*lows, ops.zeros(())])), ops.max(ops.stack([*highs, ops.zeros(())]))
        return ops.stop_gradient(ops.stack([least, greatest])) * self.grids[group].scale


def _only_moves(op: Op, spec: OpSpec) -> bool:
    """Whether the op only selects among integers, which share its grid."""
    return spec.tied and Trait.AVERAGES not in spec.traits and fused_activation(op).name == "NONE"


def _are_whole(operands: Sequence[Any]) -> bool:
    return all(v.whole is not None for v in operands if isinstance(v, Value))
