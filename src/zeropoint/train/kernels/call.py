"""One op with whole numbers as inputs, as the integer kernels take it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from keras import ops

from ...affine import QuantParams
from ...dtypes import Array, DType
from ...graph.model import Op
from ...ops import fused_activation
from ...simulation.rules import Rules
from ..compute import Call, compute
from .rescaling import TrainedScales, half_away


@dataclass(frozen=True)
class Integers:
    """Numbers on a grid, as `whole` steps from zero: scale * whole, stored as whole + zero point. `start` are the
    initial parameters of the grid, which fixed grids keep."""

    whole: Any
    scale: Any
    zero_point: Any
    dtype: DType
    start: QuantParams | None = None

    @property
    def stored(self) -> Any:
        return self.whole + ops.cast(self.zero_point, self.whole.dtype)


@dataclass(frozen=True)
class IntegerCall:
    """An op with inputs that are Integers, arrays known in advance, or None; `output` is its grid, without values.

    `wide` is the type in which reals are computed: float64 for what is deployed, if the backend has it.
    """

    call: Call
    inputs: tuple[Any, ...]
    output: Integers
    rules: Rules
    wide: str

    @property
    def op(self) -> Op:
        return self.call.op

    def whole(self, slot: int) -> Any:
        return ops.cast(self.inputs[slot].whole, self.wide)

    def stored(self, slot: int) -> Any:
        return self.whole(slot) + ops.cast(self.inputs[slot].zero_point, self.wide)

    def scale(self, slot: int) -> Any:
        return self.inputs[slot].scale

    def ratio(self, slot: int = 0, other: Any = 1.0) -> TrainedScales:
        """Return the requantization factor from the scale of an input, times another one, to the output's."""
        return TrainedScales(self.scale(slot), ops.convert_to_tensor(other, "float32"), self.output.scale, self.wide)

    def zero_point(self, slot: int | None = None) -> Any:
        """Return the zero point of an input, or of the output."""
        return ops.cast((self.output if slot is None else self.inputs[slot]).zero_point, self.wide)

    def real(self, value: Any) -> Any:
        return ops.cast(value, self.wide)

    def option(self, name: str, default: Any = None) -> Any:
        return self.op.option(name, default)

    def computed(self, *values: Any) -> Any:
        """Return what the op itself computes from other values."""
        return compute(replace(self.call, inputs=values))[0]

    def clamped(self, units: Any, low: float, high: float) -> Any:
        """Clamp between two reals, if these are finite."""
        for end, limit in ((low, ops.maximum), (high, ops.minimum)):
            if math.isfinite(end):
                units = limit(units, ops.cast(half_away(ops.cast(end, "float32") / self.output.scale), units.dtype))
        return units

    def finished(self, units: Any) -> Any:
        """Clamp to the fused activation; the output's own limits are applied elsewhere."""
        bounds = fused_activation(self.op).bounds
        return units if bounds is None else self.clamped(units, *bounds)

    def vectorized(self, slot: int, lanes: int) -> Array:
        """Return which elements of an input kernels compute `lanes` at a time; the remainder is computed one by one."""
        tensor = self.op.inputs[slot]
        assert tensor is not None
        shape = (1, *tensor.shape[1:]) if tensor in self.call.free else tensor.shape
        size = int(np.prod(shape))
        return np.asarray(np.arange(size) < size // lanes * lanes).reshape(shape)


IntegerKernel: TypeAlias = Callable[[IntegerCall], Any]
"""Computes the output of an op with its inputs, in whole steps of the output's grid."""
