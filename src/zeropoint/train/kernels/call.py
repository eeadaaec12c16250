"""One op with whole numbers for its inputs: what every integer kernel computes from."""

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
    parameters that the grid started with, which those of fixed ones stay."""

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
    """`inputs` are Integers, arrays that are known beforehand, or None; `output` is its grid, without numbers.

    `wide` is the type that reals are computed in: float64 for what is deployed, where the backend has it.
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
        """From the scale of an input, times another one, to the output's."""
        return TrainedScales(self.scale(slot), ops.convert_to_tensor(other, "float32"), self.output.scale, self.wide)

    def zero_point(self, slot: int | None = None) -> Any:
        """Of an input, or the output's."""
        return ops.cast((self.output if slot is None else self.inputs[slot]).zero_point, self.wide)

    def real(self, value: Any) -> Any:
        return ops.cast(value, self.wide)

    def option(self, name: str, default: Any = None) -> Any:
        return self.op.option(name, default)

    def computed(self, *values: Any) -> Any:
        """What the op itself computes, of other values."""
        return compute(replace(self.call, inputs=values))[0]

    def clamped(self, units: Any, low: float, high: float) -> Any:
        """Between two reals, as far as these are finite."""
        for end, limit in ((low, ops.maximum), (high, ops.minimum)):
            if math.isfinite(end):
                units = limit(units, ops.cast(half_away(ops.cast(end, "float32") / self.output.scale), units.dtype))
        return units

    def finished(self, units: Any) -> Any:
        """Within what the fused activation leaves; the output's own ends are seen to elsewhere."""
        bounds = fused_activation(self.op).bounds
        return units if bounds is None else self.clamped(units, *bounds)

    def vectorized(self, slot: int, lanes: int) -> Array:
        """Which elements of an input kernels compute `lanes` at a time; what is left over they compute one by one."""
        tensor = self.op.inputs[slot]
        assert tensor is not None
        shape = (1, *tensor.shape[1:]) if tensor in self.call.free else tensor.shape
        size = int(np.prod(shape))
        return np.asarray(np.arange(size) < size // lanes * lanes).reshape(shape)


IntegerKernel: TypeAlias = Callable[[IntegerCall], Any]
"""From an op and its inputs to its output, in whole steps of the output's grid."""
