"""One execution of an op: the values it reads, and the outputs and intermediate steps it computes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..affine import QuantParams, round_half_away
from ..dtypes import Array
from ..errors import InvalidModel
from ..graph.model import Op, Tensor
from ..ops import OpSpec, fused_activation
from ..ops.layout import Layout

if TYPE_CHECKING:
    from .rules import Rules


@dataclass(frozen=True)
class Interim:
    """An intermediate result: its name, and values that broadcast against the output."""

    name: str
    values: Array


@dataclass(frozen=True)
class Computed:
    """The outputs of an op, and the intermediate steps of the first output. `note` says how far kernels may deviate, if
    they may."""

    outputs: tuple[Array, ...]
    steps: tuple[Interim, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class KernelCall:
    """An op with the values of its inputs (None for absent ones), the rules of the kernels that run it, and the op
    table."""

    op: Op
    values: tuple[Array | None, ...]
    rules: Rules
    ops: Mapping[str, OpSpec]

    @property
    def spec(self) -> OpSpec | None:
        return self.ops.get(self.op.kind)

    @property
    def layout(self) -> Layout:
        """How the layer's weights are laid out."""
        layout = None if self.spec is None else self.spec.layout
        assert layout is not None
        return layout

    @property
    def bias_slot(self) -> int | None:
        return None if self.spec is None else self.spec.bias_slot

    def has(self, slot: int) -> bool:
        return slot < len(self.values) and self.values[slot] is not None

    def value(self, slot: int) -> Array:
        """Return the input at `slot`; raises if it is absent."""
        value = self.values[slot] if slot < len(self.values) else None
        if value is None:
            raise InvalidModel(f"{self.op.label} '{self.op.name}' has no input {slot}")
        return value

    def tensor(self, slot: int) -> Tensor:
        tensor = self.op.inputs[slot]
        assert tensor is not None
        return tensor

    def params(self, slot: int) -> QuantParams:
        return _params(self.tensor(slot), self.op)

    @property
    def output(self) -> QuantParams:
        return _params(self.op.outputs[0], self.op)

    def scale(self, slot: int) -> Array:
        """Return the scale at `slot`: one number, or one for each channel."""
        return _scale(self.params(slot))

    @property
    def output_scale(self) -> Array:
        return _scale(self.output)

    def centered(self, slot: int) -> Array:
        """Return q - zero point."""
        values = self.value(slot)
        _, zero_points = self.params(slot).along(values.ndim)
        return np.asarray(values.astype(np.int64) - zero_points)

    def option(self, name: str, default: Any = None) -> Any:
        return self.op.option(name, default)

    def bounds(self) -> tuple[int, int]:
        """Return the smallest and largest output integers that the fused activation allows."""
        return self.bounds_of(*(fused_activation(self.op).bounds or (-math.inf, math.inf)))

    def bounds_of(self, low: float, high: float) -> tuple[int, int]:
        params = self.output
        ends = [params.dtype.min, params.dtype.max]
        for place, end in enumerate((low, high)):
            if math.isfinite(end):
                steps = round_half_away(np.float32(end) / np.float32(params.scale))
                limit = max if place == 0 else min
                ends[place] = limit(ends[place], params.zero_point + int(steps))
        return ends[0], ends[1]

    def stored(self, values: Array, slot: int = 0) -> Array:
        """Return the values in the type and shape that the file gives the output."""
        tensor = self.op.outputs[slot]
        return np.asarray(values).astype(tensor.dtype.storage).reshape(tensor.shape)

    def finished(self, units: Array, steps: Sequence[Interim] = (), bounds: tuple[int, int] | None = None) -> Computed:
        """Return output = clamp(units + zero point)."""
        low, high = self.bounds() if bounds is None else bounds
        zero_point = self.output.zero_point
        clamped = np.clip(units + zero_point, low, high)
        last = [Interim("rescaled", units), Interim("zero point", np.asarray(zero_point))]
        last += [Interim("lower bound", np.asarray(low)), Interim("upper bound", np.asarray(high))]
        return Computed((self.stored(clamped),), (*steps, *last))


def _params(tensor: Tensor, op: Op) -> QuantParams:
    params = tensor.params
    if params is None:
        raise InvalidModel(f"{op.label} '{op.name}': '{tensor.name}' is {tensor.dtype.label} without a scale")
    return params


def _scale(params: QuantParams) -> Array:
    scales, _ = params.arrays
    return scales if len(params.scales) > 1 else np.asarray(scales[0])
