"""One pass through a trainable graph.

Tensors on a grid are carried as whole numbers of steps and the size of a step. Sums of products of whole numbers are
exact in float32 up to 2**24, so that an integer layer comes out as LiteRT's kernels compute it, not merely close to it:
a network turns one rounding that differs into many.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from keras import ops

from ..dtypes import DType
from ..graph.model import Op, Tensor
from ..graph.query import Use
from ..ops import OPS, Bias, CellState, OutputState, fused_activation
from ..recipe import Scheme
from .compute import COMPUTE, FUSED, Call, State, held_type
from .constants import WeightGrid
from .fake_quant import HALF_TO_EVEN, Bounds, Rounding, Step, bounds_of, half_away_from, in_steps, twice, whole_steps
from .parts import Parts

LAST_SLOPE = 0.02
"""Of the staircase that weights come to rest on: as good as steps."""


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
class Run:
    parts: Parts
    step: Any
    training: bool
    grids: list[Step] = field(default_factory=list)
    values: dict[Tensor, Value] = field(default_factory=dict)
    converted: dict[tuple[Tensor, int], Value] = field(default_factory=dict)
    weights: dict[Use, Value] = field(default_factory=dict)
    seen: dict[int, list[Any]] = field(default_factory=dict)

    def outputs(self, inputs: Sequence[Any]) -> list[Any]:
        parts = self.parts
        self.grids = parts.ranges.steps(self.step)
        for tensor, value in zip(parts.blueprint.plan.graph.inputs, inputs, strict=True):
            self.values[tensor] = self._stored(
                tensor, ops.convert_to_tensor(value, dtype=held_type(tensor.dtype)), None
            )
        for op in parts.ops:
            if not all(t in parts.statics for t in op.outputs):
                self._compute(op)
        return [self._output(t) for t in parts.blueprint.outputs]

    def _output(self, tensor: Tensor) -> Any:
        known = self.parts.statics.get(tensor)
        return self.values[tensor].real if known is None else ops.convert_to_tensor(known)

    def _compute(self, op: Op) -> None:
        operands = [self._operand(Use(op, slot), tensor) for slot, tensor in enumerate(op.inputs)]
        if self._moves(op):
            self._move(op, operands)
            return
        if self._is_integer_layer(op, operands):
            self.values[op.outputs[0]] = self._layer(op, operands)
            return
        reals = [v.real if isinstance(v, Value) else v for v in operands]
        made = COMPUTE[op.label](Call(op, reals, self.parts.free))
        results = made if isinstance(made, list) else [made]
        fused, spec = fused_activation(op).name, OPS.get(op.kind)
        if fused != "NONE" and (spec is None or fused != spec.own_activation):
            results = [FUSED[fused](results[0]), *results[1:]]
        for tensor, result in zip(op.outputs, results, strict=True):
            self.values[tensor] = self._stored(tensor, result, op)

    # Ops that move integers.

    def _moves(self, op: Op) -> bool:
        """Whether the op only chooses among its operands, which share its grid."""
        spec = OPS.get(op.kind)
        return (
            spec is not None
            and spec.tied
            and op in self._schemes
            and not spec.averages
            and fused_activation(op).name == "NONE"
            and not self.parts.blueprint.settings.delay
        )

    def _move(self, op: Op, operands: Sequence[Any]) -> None:
        held = [v for v in operands if isinstance(v, Value) and v.whole is not None]
        given = [v if not isinstance(v, Value) else v.real if v.whole is None else v.whole for v in operands]
        made = COMPUTE[op.label](Call(op, given, self.parts.free))
        for tensor, result in zip(op.outputs, made if isinstance(made, list) else [made], strict=True):
            on_grid = self.parts.ties.stored(tensor) is not None
            self.values[tensor] = Value(whole=result, scale=held[0].scale) if on_grid else Value(result)

    # Layers of weights.

    def _is_integer_layer(self, op: Op, operands: Sequence[Any]) -> bool:
        present = [v for v in operands if isinstance(v, Value)]
        spec = OPS.get(op.kind)
        is_layer = spec is not None and spec.bias_slot is not None
        exact = is_layer and op in self._schemes and not self.parts.blueprint.settings.delay
        return exact and all(v.whole is not None for v in present)

    def _layer(self, op: Op, operands: Sequence[Any]) -> Value:
        """Sums of products, multiplied once by input scale * weight scale / output scale."""
        data = next(v for slot, v in enumerate(operands) if self.parts.ties.used(Use(op, slot)) is not None)
        weights, group = self.weights[Use(op, 1)], self.parts.ties.stored(op.outputs[0])
        assert group is not None
        grid = self.grids[group]
        factor = weights.scale * data.scale / grid.scale
        flat = ops.reshape(factor, (-1,))
        if self.training:  # one pass over the outputs less; that sums are exact counts for little here
            shares = {id(weights): factor, id(data): 1.0}
            k = self._computed(op, [_times(v, shares.get(id(v), flat)) for v in operands])
        else:
            k = self._computed(op, operands) * flat
        return self._on_grid(k, group, self._rounding(op, group), fused_activation(op).bounds)

    def _computed(self, op: Op, operands: Sequence[Any]) -> Any:
        whole = [v.whole if isinstance(v, Value) else v for v in operands]
        return COMPUTE[op.label](Call(op, whole, self.parts.free))

    # Operands.

    def _operand(self, use: Use, tensor: Tensor | None) -> Any:
        """A Value; what is known beforehand as an array; a State; or None."""
        parts = self.parts
        if tensor is None:
            return None
        if tensor.is_variable:
            return self._state(use, tensor)
        if tensor in parts.statics:
            return parts.statics[tensor]
        if use in parts.by_use:
            return self._constant(use)
        stored, used = parts.ties.stored(tensor), parts.ties.used(use)
        if used is None or used == stored:
            return self.values[tensor]
        if (tensor, used) not in self.converted:
            self.converted[tensor, used] = self._quantized(self.values[tensor].real, used)
        return self.converted[tensor, used]

    def _state(self, use: Use, tensor: Tensor) -> State:
        """States start at zero; those of integer layers are rounded at each step."""
        group = self.parts.ties.stored(tensor)
        spec = OPS.get(use.op.kind)
        role = None if spec is None else spec.input_role(use.slot)
        if group is None or not isinstance(role, OutputState | CellState):
            return State(np.zeros(tensor.shape, np.float32), lambda value: value)
        return State(np.zeros(tensor.shape, np.float32), lambda value: self._quantized(value, group).real)

    def _constant(self, use: Use) -> Value:
        """A constant as it is held at this use: weights and biases on their grids, data on their group's."""
        parts = self.parts
        variable = parts.by_use[use].current
        group = parts.ties.used(use)
        if group is not None:
            return self._quantized(variable, group)
        if use in parts.grids:
            return self._weights(use)
        role = parts.blueprint.request.ops[use.op.kind].input_role(use.slot) if use.op in self._schemes else None
        if isinstance(role, Bias) and use in parts.blueprint.plan.wanted:
            return self._bias(use, role, variable)
        return Value(variable)

    @property
    def _schemes(self) -> Mapping[Op, Scheme]:
        return self.parts.blueprint.plan.schemes if self.parts.blueprint.quantize else {}

    def _weights(self, use: Use) -> Value:
        if use not in self.weights:
            grid, variable = self.parts.grids[use], self.parts.by_use[use].current
            scale = grid.scale(variable)
            whole = grid.steps(variable, scale, self._slope)
            self.weights[use] = self._after_delay(variable, Value(whole=whole, scale=scale))
        return self.weights[use]

    @cached_property
    def _slope(self) -> Any:
        """Of the staircase that weights are rounded on; None for steps."""
        settle = self.parts.blueprint.settings.settle
        if not settle or not self.training:
            return None
        done = ops.minimum(ops.cast(ops.convert_to_tensor(self.step), "float32") / settle, 1.0)
        return LAST_SLOPE + (1.0 - LAST_SLOPE) * 0.5 * (1.0 + ops.cos(math.pi * done))

    def _bias(self, use: Use, role: Bias, variable: Any) -> Value:
        """A multiple of input scale * weight scale, in which the products are summed up."""
        data, weights = Use(use.op, role.of[0]), Use(use.op, role.of[1])
        group = self.parts.ties.used(data)
        if group is None or weights not in self.parts.grids:
            return Value(variable)
        products = ops.reshape(self._weights(weights).scale, (-1,)) * self.grids[group].scale
        k = variable / products
        return self._after_delay(variable, Value(whole=k + ops.stop_gradient(ops.round(k) - k), scale=products))

    # Results.

    def _stored(self, tensor: Tensor, value: Any, producer: Op | None) -> Value:
        """A tensor's value as it is stored: on its grid, unless it cannot but lie there already."""
        group = self.parts.ties.stored(tensor)
        if group is None or tensor.dtype is not DType.FLOAT32:
            return Value(value)
        return self._quantized(value, group, self._rounding(producer, group))

    def _rounding(self, producer: Op | None, group: int) -> Rounding:
        """How the kernel that makes the tensor rounds."""
        grid = self.grids[group]
        if producer is not None and producer.kind == "AVERAGE_POOL_2D":
            lowest = self.parts.ranges.groups[group].params.dtype.min
            return half_away_from(ops.stop_gradient(ops.round(-grid.low / grid.scale)) + lowest)
        weights = None if producer is None else self.weights.get(Use(producer, 1))
        if producer is None or weights is None or not rounds_twice(producer, self.parts.grids[Use(producer, 1)]):
            return HALF_TO_EVEN
        data = self.parts.ties.used(Use(producer, 0))
        assert data is not None
        products = ops.reshape(weights.scale, (-1,)) * self.grids[data].scale
        return twice(ops.stop_gradient(products / grid.scale))

    def _quantized(self, value: Any, group: int, rounding: Rounding = HALF_TO_EVEN) -> Value:
        quantized = self._on_grid(in_steps(value, self.grids[group]), group, rounding)
        return self._after_delay(value, quantized)

    def _on_grid(self, k: Any, group: int, rounding: Rounding, fused: tuple[float, float] | None = None) -> Value:
        """`k` is in steps of the group's grid; `fused` limits what it stands for."""
        ranges, grid = self.parts.ranges, self.grids[group]
        bounds = bounds_of(grid, learn=ranges.learned and not ranges.groups[group].fixed)
        if fused is not None:
            bounds = _within(bounds, fused, grid.scale)
        if self.training and not ranges.learned:
            self.seen.setdefault(group, []).append((k, fused))
        return Value(whole=whole_steps(k, bounds, rounding), scale=grid.scale)

    def _after_delay(self, value: Any, quantized: Value) -> Value:
        delay = self.parts.blueprint.settings.delay
        if not delay:
            return quantized
        if not self.training:
            return Value(quantized.real, None, quantized.scale)
        plain = ops.where(ops.convert_to_tensor(self.step) < delay, value, quantized.real)
        return Value(plain, None, quantized.scale)

    def finish(self) -> None:
        """Tell the ranges what was seen. A group that nothing was seen of keeps its range."""
        ranges = self.parts.ranges
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


def _within(bounds: Bounds, fused: tuple[float, float], scale: Any) -> Bounds:
    """Bounds that a fused activation narrows. Ranges hold zero, so that where a ReLU starts they end."""
    low, high = fused
    if low == 0:
        bounds = replace(bounds, low=ops.zeros_like(bounds.low), learn_low=False)
    elif low > -math.inf:
        bounds = replace(bounds, low=ops.maximum(bounds.low, ops.round(low / scale)))
    if high < math.inf:
        bounds = replace(bounds, high=ops.minimum(bounds.high, ops.round(high / scale)))
    return bounds


def rounds_twice(op: Op, grid: WeightGrid) -> bool:
    """Whether LiteRT's own kernels compute the op, in fixed point, and not XNNPACK: that takes no 4-bit convolutions.

    Of dense layers it takes those with rows of whole bytes (LiteRT 2.3).
    """
    weights = op.inputs[1]
    whole = weights is not None and weights.shape[-1] * grid.start.dtype.bits % 8 == 0
    return grid.start.dtype.is_packed and not (op.kind == "FULLY_CONNECTED" and whole)


def _least(values: Sequence[tuple[Any, tuple[float, float] | None]]) -> Any:
    """The least of all values, or zero if that is less: ranges hold it. Behind a ReLU there is no need to look."""
    found = [ops.stop_gradient(ops.min(v)) for v, fused in values if fused is None or fused[0] < 0]
    return ops.min(ops.stack([*found, ops.zeros(())]))


def _greatest(values: Sequence[tuple[Any, tuple[float, float] | None]]) -> Any:
    return ops.max(ops.stack([*(ops.stop_gradient(ops.max(v)) for v, _ in values), ops.zeros(())]))
