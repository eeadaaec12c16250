"""What a target demands of an op's operands and options, as small values that the facts in its table refer to.

A condition says what is `broken`, and its `remedy` how to fix that. Parameters that have not been chosen yet break
nothing: the planner makes them fit, and checks again.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from ..affine import QuantParams
from ..dtypes import DType
from .typed_op import TypedOp


class Condition(ABC):
    """Something that an op must satisfy."""

    @abstractmethod
    def broken(self, op: TypedOp) -> str | None:
        """Return what is wrong with `op`, as the rest of a sentence about it; None if nothing is."""

    @property
    @abstractmethod
    def remedy(self) -> str:
        """How to satisfy the condition."""


@dataclass(frozen=True)
class StaticShape(Condition):
    """All dimensions are known before the model runs."""

    remedy = "give the model's inputs fixed shapes"

    def broken(self, op: TypedOp) -> str | None:
        return "has a shape that is known only at run time" if any(o.is_open for o in op.operands) else None


@dataclass(frozen=True)
class ConstantOperand(Condition):
    """The input at `slot` is a constant."""

    slot: int
    remedy = "make it a constant of the model"

    def broken(self, op: TypedOp) -> str | None:
        operand = op.input(self.slot)
        return None if operand is None or operand.constant is not None else f"computes its input {self.slot}"


@dataclass(frozen=True)
class PresentOperand(Condition):
    """The input at `slot` is present."""

    slot: int
    name: str = "bias"

    @property
    def remedy(self) -> str:
        return f"give it a {self.name} of zeros"

    def broken(self, op: TypedOp) -> str | None:
        return f"has no {self.name}" if op.input(self.slot) is None else None


@dataclass(frozen=True)
class SymmetricOperand(Condition):
    """The integers at input `slot` have zero point 0."""

    slot: int
    remedy = "quantize it symmetrically"

    def broken(self, op: TypedOp) -> str | None:
        operand = op.input(self.slot)
        params = None if operand is None else operand.params
        if params is None or params.is_symmetric:
            return None
        return f"has the zero point {params.zero_points[0]} at input {self.slot}, which has to be 0"


@dataclass(frozen=True)
class ScaleRatio(Condition):
    """low <= (product of the scales of inputs `of`) / (the output's scale) < high; or <= high if it is `closed`."""

    low: float
    high: float
    of: tuple[int, ...] = (0,)
    closed: bool = False
    remedy = "widen the range of its output, or of an input"

    def ratios(self, op: TypedOp) -> tuple[float, ...]:
        """Return one ratio for each channel; none as long as the parameters are not known."""
        read = [None if (o := op.input(slot)) is None else o.params for slot in self.of]
        made = op.outputs[0].params if op.outputs else None
        if made is None or len(made.scales) != 1 or made.scale == 0:
            return ()
        return tuple(product / made.scale for product in _products(read))

    def broken(self, op: TypedOp) -> str | None:
        for ratio in self.ratios(op):
            if not (self.low <= ratio < self.high or (self.closed and ratio == self.high)):
                what = "scale" if len(self.of) == 1 else "product of scales"
                limits = f"{self.low:.3g} to {self.high:.3g} are supported"
                return f"has a {what} {ratio:.3g} times that of its output; {limits}"
        return None


def _products(params: list[QuantParams | None]) -> tuple[float, ...]:
    """Return products of scales, per channel if one of them is per-channel."""
    scales = [p.scales for p in params if p is not None]
    if len(scales) < len(params):
        return ()
    several = [s for s in scales if len(s) > 1]
    if len(several) > 1:
        return ()
    single = math.prod(s[0] for s in scales if len(s) == 1)
    return tuple(single * scale for scale in (several[0] if several else (1.0,)))


@dataclass(frozen=True)
class SlopeRatio(Condition):
    """`ScaleRatio` for negative values, which LEAKY_RELU multiplies by alpha."""

    low: float
    high: float
    remedy = "widen the range of its output, or of its input"

    def broken(self, op: TypedOp) -> str | None:
        for ratio in ScaleRatio(self.low, self.high).ratios(op):
            slope = abs(ratio * float(op.option("alpha", 0.0)))
            if not self.low <= slope <= self.high:
                return f"multiplies negative integers by {slope:.3g}; {self.low:.3g} to {self.high:.3g} are supported"
        return None


@dataclass(frozen=True)
class SameParameters(Condition):
    """All activations of the op have one scale and zero point."""

    remedy = "give its inputs and outputs one range"

    def broken(self, op: TypedOp) -> str | None:
        flowing = [o.params for o in op.operands if o.params is not None and o.constant is None]
        return "changes the scale of what it moves" if len(set(flowing)) > 1 else None


@dataclass(frozen=True)
class Not(Condition):
    """The other condition is broken: for rows that describe what goes wrong then."""

    condition: Condition
    remedy = ""

    def broken(self, op: TypedOp) -> str | None:
        return "is fine" if self.condition.broken(op) is None else None


@dataclass(frozen=True)
class OutputTypes(Condition):
    """The output has one of these types."""

    types: tuple[DType, ...]

    @property
    def remedy(self) -> str:
        return f"convert to {' or '.join(t.label for t in self.types)}"

    def broken(self, op: TypedOp) -> str | None:
        made = op.outputs[0].dtype if op.outputs else None
        return None if made is None or made in self.types else f"makes {made.label}"


@dataclass(frozen=True)
class OperandTypes(Condition):
    """The input at `slot` has one of these types."""

    slot: int
    types: tuple[DType, ...]

    @property
    def remedy(self) -> str:
        return f"hold it as {' or '.join(t.label for t in self.types)}"

    def broken(self, op: TypedOp) -> str | None:
        operand = op.input(self.slot)
        return None if operand is None or operand.dtype in self.types else f"reads {operand.dtype.label} at {self.slot}"


@dataclass(frozen=True)
class InputCount(Condition):
    """The number of inputs lies within these limits."""

    least: int
    most: int
    remedy = "join in several steps"

    def broken(self, op: TypedOp) -> str | None:
        n = len(op.inputs)
        return None if self.least <= n <= self.most else f"has {n} inputs; {self.least} to {self.most} are supported"


@dataclass(frozen=True)
class OutputCount(Condition):
    """The number of outputs lies within these limits."""

    least: int
    most: int
    remedy = "split in several steps"

    def broken(self, op: TypedOp) -> str | None:
        n = len(op.outputs)
        return None if self.least <= n <= self.most else f"has {n} outputs; {self.least} to {self.most} are supported"


@dataclass(frozen=True)
class WeightBits(Condition):
    """The weights are integers of one of these widths."""

    bits: tuple[int, ...]

    @property
    def remedy(self) -> str:
        return f"give it weights of {' or '.join(map(str, self.bits))} bits"

    def broken(self, op: TypedOp) -> str | None:
        if op.weights is None or (op.weights.dtype.is_integer and op.weights.dtype.bits in self.bits):
            return None
        return f"has {op.weights.dtype.label} weights"


@dataclass(frozen=True)
class OptionIn(Condition):
    """An option of the op has one of these values; `default` applies if the file does not set it."""

    name: str
    values: tuple[object, ...]
    default: object = None

    @property
    def remedy(self) -> str:
        return f"{self.name} has to be {' or '.join(map(str, self.values))}"

    def broken(self, op: TypedOp) -> str | None:
        value = op.option(self.name, self.default)
        return None if value in self.values else f"has {self.name} {value}"


@dataclass(frozen=True)
class Fused(Condition):
    """The fused activation function is one of these."""

    names: tuple[str, ...]
    remedy = "apply the activation function in a separate op"

    def broken(self, op: TypedOp) -> str | None:
        return None if op.fused in self.names else f"applies {op.fused} to its output"


@dataclass(frozen=True)
class Rank(Condition):
    """The rank of the input at `slot` lies within these limits."""

    least: int
    most: int
    slot: int = 0
    remedy = "reshape its input"

    def broken(self, op: TypedOp) -> str | None:
        operand = op.input(self.slot)
        if operand is None or self.least <= len(operand.shape) <= self.most:
            return None
        return f"has {len(operand.shape)} dimensions at input {self.slot}; {self.least} to {self.most} are supported"


@dataclass(frozen=True)
class DimensionMultiple(Condition):
    """The dimension `axis` of the input at `slot` is a multiple of `of`."""

    slot: int
    axis: int
    of: int

    @property
    def remedy(self) -> str:
        return f"make it a multiple of {self.of}"

    def broken(self, op: TypedOp) -> str | None:
        operand = op.input(self.slot)
        if operand is None or not operand.shape or operand.shape[self.axis] % self.of == 0:
            return None
        return f"has {operand.shape[self.axis]} elements along axis {self.axis} of input {self.slot}"


@dataclass(frozen=True)
class Values(Condition):
    """The values of the constant at `slot` lie within these limits."""

    slot: int
    least: float
    most: float
    name: str

    @property
    def remedy(self) -> str:
        return f"{self.name}s have to be {self.least:g}{'' if self.most == self.least else ' or more'}"

    def broken(self, op: TypedOp) -> str | None:
        data = op.constant(self.slot)
        if data is None or not data.size or (data.min() >= self.least and data.max() <= self.most):
            return None
        return f"has the {self.name} {next(v for v in data.ravel() if not self.least <= v <= self.most):g}"


@dataclass(frozen=True)
class PoolCoversStride(Condition):
    """The window of a pooling op is at least as large as its stride."""

    remedy = "slice before pooling"

    def broken(self, op: TypedOp) -> str | None:
        fits = all(
            op.option(f"filter{s}", 1) >= op.option(f"stride{d}", 1) for s, d in (("Height", "H"), ("Width", "W"))
        )
        return None if fits else "skips values between its windows"


@dataclass(frozen=True)
class ZeroOperand(Condition):
    """The constant at input `slot`, called `name`, is all zeros."""

    slot: int
    name: str

    @property
    def remedy(self) -> str:
        return f"do its {self.name} in a separate op before it"

    def broken(self, op: TypedOp) -> str | None:
        values = op.constant(self.slot)
        return None if values is not None and not values.any() else f"has a {self.name}"


@dataclass(frozen=True)
class AbsentOperand(Condition):
    """None of the inputs `slots`, which select a variant called `name`, is present."""

    slots: tuple[int, ...]
    name: str
    remedy = "train the model without it"

    def broken(self, op: TypedOp) -> str | None:
        return f"has {self.name}" if any(op.input(slot) is not None for slot in self.slots) else None
