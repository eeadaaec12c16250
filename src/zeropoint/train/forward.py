"""A forward pass through a graph with fake quantization.

Tensors on a grid are carried as whole numbers of steps and the size of a step. Sums of products of whole numbers are
exact in float32 up to 2**24, so that an integer layer comes out as LiteRT's kernels compute it, not merely close to it:
a network turns one rounding that differs into many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from keras import ops

from ..dtypes import DType
from ..graph.model import Op, Tensor
from ..graph.query import Use
from ..ops import Bias, Trait, fused_activation
from .backend import held_type
from .compute import FUSED, RecurrentState, compute
from .fake_quant import (
    HALF_TO_EVEN,
    ClipBounds,
    NudgedRange,
    Rounding,
    double_rounding,
    half_away_from,
    round_and_clip,
    straight_through,
)
from .fake_quant_graph import FakeQuantGraph
from .weights import WeightQuantizer

LAST_SLOPE = 0.02
"""How much of each step the risers take in the end, where weights are rounded softly: next to nothing."""


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
    """`seen` has what went through the range of each group, where ranges follow that."""

    graph: FakeQuantGraph
    step: Any
    training: bool
    grids: list[NudgedRange] = field(default_factory=list)
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
        return [self._output(t) for t in graph.blueprint.outputs]

    def _output(self, tensor: Tensor) -> Any:
        known = self.graph.statics.get(tensor)
        return self.values[tensor].real if known is None else ops.convert_to_tensor(known)

    def _compute(self, op: Op) -> None:
        operands = [self._operand(Use(op, slot), tensor) for slot, tensor in enumerate(op.inputs)]
        if self._moves(op):
            self._move(op, operands)
        elif self._is_layer(op) and all(v.whole is not None for v in operands if isinstance(v, Value)):
            self.values[op.outputs[0]] = self._layer(op, operands)
        else:
            self._compute_reals(op, [v.real if isinstance(v, Value) else v for v in operands])

    def _is_integer(self, op: Op) -> bool:
        """Whether the op computes with whole numbers; with a delay it may have to be float in this step."""
        return op in self.graph.blueprint.plan.schemes and not self.graph.blueprint.settings.delay

    def _moves(self, op: Op) -> bool:
        """Whether the op only chooses among integers, which share its grid."""
        spec = self.graph.blueprint.specs.get(op.kind)
        chooses = spec is not None and spec.tied and Trait.AVERAGES not in spec.traits
        return chooses and fused_activation(op).name == "NONE" and self._is_integer(op)

    def _is_layer(self, op: Op) -> bool:
        spec = self.graph.blueprint.specs.get(op.kind)
        return spec is not None and spec.bias_slot is not None and self._is_integer(op)

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
        if self.training:  # one pass over the outputs less; that sums are exact counts for little here
            shares = {1: factor, slot: 1.0}
            k = self._computed(op, [_times(v, shares.get(at, flat)) for at, v in enumerate(operands)])
        else:
            k = self._computed(op, operands) * flat
        return self._on_grid(k, group, self._rounding(op, group), fused_activation(op).bounds)

    def _data_slot(self, op: Op) -> int:
        return next(slot for slot in range(len(op.inputs)) if self.graph.used(Use(op, slot)) is not None)

    def _computed(self, op: Op, operands: Sequence[Any]) -> Any:
        (result,) = compute(op, [v.whole if isinstance(v, Value) else v for v in operands], self.graph.free)
        return result

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
        used = graph.used(use)
        if used is None or used == graph.stored(tensor):
            return self.values[tensor]
        if (tensor, used) not in self.converted:
            self.converted[tensor, used] = self._quantized(self.values[tensor].real, used)
        return self.converted[tensor, used]

    def _state(self, tensor: Tensor) -> RecurrentState:
        """States start at zero; those of integer layers are rounded at each step."""
        group, zeros = self.graph.stored(tensor), np.zeros(tensor.shape, np.float32)
        if group is None:
            return RecurrentState(zeros, lambda value: value)
        return RecurrentState(zeros, lambda value: self._quantized(value, group).real)

    def _constant(self, use: Use) -> Value:
        """A constant as it is held at this use: weights and biases on their grids, data on their group's."""
        graph, plan = self.graph, self.graph.blueprint.plan
        current, group = graph.by_use[use].current, graph.used(use)
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
            self.weights[use] = self._after_delay(current, Value(whole=whole, scale=scale))
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
        group = self.graph.used(data)
        if group is None or weights not in self.graph.quantizers:
            return Value(current)
        products = ops.reshape(self._weights(weights).scale, (-1,)) * self.grids[group].scale
        k = current / products
        return self._after_delay(current, Value(whole=straight_through(k, ops.round(k)), scale=products))

    def _stored(self, tensor: Tensor, value: Any, producer: Op | None) -> Value:
        """A tensor's value as it is stored: on its grid, unless it cannot but lie there already."""
        group = self.graph.stored(tensor)
        if group is None or tensor.dtype is not DType.FLOAT32:
            return Value(value)
        return self._quantized(value, group, self._rounding(producer, group))

    def _rounding(self, producer: Op | None, group: int) -> Rounding:
        """How the kernel that makes the tensor rounds."""
        grid = self.grids[group]
        if producer is not None and producer.kind == "AVERAGE_POOL_2D":
            lowest = self.graph.ranges.groups[group].params.dtype.min
            return half_away_from(ops.stop_gradient(ops.round(-grid.low / grid.scale)) + lowest)
        weights = None if producer is None else self.weights.get(Use(producer, 1))
        if producer is None or weights is None or not rounds_twice(producer, self.graph.quantizers[Use(producer, 1)]):
            return HALF_TO_EVEN
        data = self.graph.used(Use(producer, self._data_slot(producer)))
        assert data is not None
        products = ops.reshape(weights.scale, (-1,)) * self.grids[data].scale
        return double_rounding(ops.stop_gradient(products / grid.scale))

    def _quantized(self, value: Any, group: int, rounding: Rounding = HALF_TO_EVEN) -> Value:
        quantized = self._on_grid(self.grids[group].in_steps(value), group, rounding)
        return self._after_delay(value, quantized)

    def _on_grid(self, k: Any, group: int, rounding: Rounding, fused: tuple[float, float] | None = None) -> Value:
        """`k` is in steps of the group's grid; `fused` limits what it stands for."""
        ranges, grid = self.graph.ranges, self.grids[group]
        bounds = grid.bounds(learn=ranges.learned and not ranges.groups[group].fixed)
        if fused is not None:
            bounds = _within(bounds, fused, grid.scale)
        if self.training and not ranges.learned:
            self.seen.setdefault(group, []).append((k, fused))
        return Value(whole=round_and_clip(k, bounds, rounding), scale=grid.scale)

    def _after_delay(self, value: Any, quantized: Value) -> Value:
        delay = self.graph.blueprint.settings.delay
        if not delay:
            return quantized
        if not self.training:
            return Value(quantized.real, None, quantized.scale)
        plain = ops.where(ops.convert_to_tensor(self.step) < delay, value, quantized.real)
        return Value(plain, None, quantized.scale)

    def finish(self) -> None:
        """Update the ranges by what was seen. A group of which nothing was seen keeps its range."""
        ranges = self.graph.ranges
        if ranges.learned:
            ranges.update((), (), self.step)
            return
        lows, highs = [], []
        for k in range(len(ranges.groups)):
            values = self.seen.get(k)
            scale = self.grids[k].scale
            lows.append(_least(values) * scale if values else ranges.low[k])
            highs.append(_greatest(values) * scale if values else ranges.high[k])
        ranges.update(lows, highs, self.step)


def _times(value: Any, factor: Any) -> Any:
    return Value(whole=value.whole * factor) if isinstance(value, Value) and not isinstance(factor, float) else value


def _within(bounds: ClipBounds, fused: tuple[float, float], scale: Any) -> ClipBounds:
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
    """Whether LiteRT's own kernels compute the op, in fixed point, and not XNNPACK: that takes no 4-bit convolutions.

    Of dense layers it takes those with rows of whole bytes (LiteRT 2.3).
    """
    tensor, dtype = op.inputs[1], weights.start.dtype
    whole = tensor is not None and tensor.shape[-1] * dtype.bits % 8 == 0
    return dtype.is_packed and not (op.kind == "FULLY_CONNECTED" and whole)


def _least(values: Sequence[tuple[Any, tuple[float, float] | None]]) -> Any:
    """The least of all values, or zero if that is less: ranges hold it. Behind a ReLU there is no need to look."""
    found = [ops.stop_gradient(ops.min(v)) for v, fused in values if fused is None or fused[0] < 0]
    return ops.min(ops.stack([*found, ops.zeros(())]))


def _greatest(values: Sequence[tuple[Any, tuple[float, float] | None]]) -> Any:
    return ops.max(ops.stack([*(ops.stop_gradient(ops.max(v)) for v, _ in values), ops.zeros(())]))
