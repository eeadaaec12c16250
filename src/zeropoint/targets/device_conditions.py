"""Further conditions of compilers for small devices: shapes, sizes and options beyond the types."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..dtypes import DType
from .conditions import Condition
from .typed_op import TypedOp


@dataclass(frozen=True)
class NoType(Condition):
    """No operand has one of these types, except scalars if these are exempt."""

    types: tuple[DType, ...]
    but_scalars: bool = False
    remedy = "hold it in another type"

    def broken(self, op: TypedOp) -> str | None:
        looked_at = (o for o in op.operands if o.shape or not self.but_scalars)
        found = next((o.dtype.label for o in looked_at if o.dtype in self.types), None)
        return None if found is None else f"reads or makes {found}"


@dataclass(frozen=True)
class NoScalars(Condition):
    """No activation is a scalar."""

    remedy = "keep the dimensions (keep_dims)"

    def broken(self, op: TypedOp) -> str | None:
        scalar = any(o.shape == () and o.constant is None for o in op.operands)
        return "reads or makes a tensor without dimensions" if scalar else None


@dataclass(frozen=True)
class OnlyBatchOpen(Condition):
    """Only the first dimension may be dynamic."""

    remedy = "give the model's inputs fixed shapes"

    def broken(self, op: TypedOp) -> str | None:
        tensors = (t for t in (*op.op.inputs, *op.op.outputs) if t is not None)
        is_open = any(d < 0 for t in tensors for d in t.dynamic_shape[1:])
        return "has a shape that is known only at run time" if is_open else None


@dataclass(frozen=True)
class OneBatch(Condition):
    """Four-dimensional tensors have batch size 1."""

    remedy = "fix the batch to 1"

    def broken(self, op: TypedOp) -> str | None:
        source = op.input(0)
        return "has several samples in a batch" if source and len(source.shape) == 4 and source.shape[0] > 1 else None


@dataclass(frozen=True)
class BiasBelow(Condition):
    """The integers of the bias at `slot` are at most `limit`."""

    slot: int
    limit: int
    remedy = "make the weights of that channel coarser"

    def broken(self, op: TypedOp) -> str | None:
        bias, values = op.input(self.slot), op.constant(self.slot)
        if bias is None or values is None or not values.size:
            return None
        if values.dtype.kind == "f":  # planned: real values and parameters, not integers yet
            if bias.params is None:
                return None
            values = values / np.array(bias.params.scales)
        greatest = float(np.abs(values).max())
        return f"has a bias of {greatest:.3g}, more than {self.limit}" if greatest > self.limit else None


@dataclass(frozen=True)
class OptionBelow(Condition):
    """None of these options of the op exceeds `most`."""

    names: tuple[str, ...]
    most: int

    @property
    def remedy(self) -> str:
        return f"at most {self.most} is supported"

    def broken(self, op: TypedOp) -> str | None:
        found = next((n for n in self.names if int(op.option(n, 1)) > self.most), None)
        return None if found is None else f"has {found} {op.option(found)}"


@dataclass(frozen=True)
class EitherOf(Condition):
    """At least one of these conditions is met."""

    conditions: tuple[Condition, ...]

    @property
    def remedy(self) -> str:
        return " or ".join(c.remedy for c in self.conditions)

    def broken(self, op: TypedOp) -> str | None:
        found = [c.broken(op) for c in self.conditions]
        return None if None in found else found[0]


@dataclass(frozen=True)
class Factors(Condition):
    """An image is scaled by one of these factors in both directions; with the option `half_pixel`, by one of its own
    list.

    `alike`: by the same factor in both directions, unless the image has a single pixel or keeps its size.
    """

    factors: tuple[int, ...]
    half_pixel: tuple[int, ...]
    alike: bool
    remedy = "resize by a power of two"

    def broken(self, op: TypedOp) -> str | None:
        source = op.input(0)
        if source is None or len(source.shape) != 4 or not op.outputs or len(op.outputs[0].shape) != 4:
            return None
        before, after = source.shape[1:3], op.outputs[0].shape[1:3]
        if before in ((1, 1), after):
            return None
        corners = 1 if op.option("alignCorners") else 0
        allowed = self.half_pixel if op.option("halfPixelCenters") else self.factors
        grown = [(a - corners) / max(1, b - corners) for b, a in zip(before, after, strict=True)]
        fits = all(factor in allowed for factor in grown) and (not self.alike or len(set(grown)) == 1)
        return None if fits else f"resizes {before[0]}x{before[1]} to {after[0]}x{after[1]}"


@dataclass(frozen=True)
class AlongAxes(Condition):
    """The axes at input `slot` are constant, and all among these, counted from the end."""

    slot: int
    axes: tuple[int, ...]
    name: str = "works along another axis than the target's"
    remedy = "transpose its input"

    def broken(self, op: TypedOp) -> str | None:
        source, values = op.input(0), op.constant(self.slot)
        if source is None or values is None:
            return None
        rank = len(source.shape)
        found = {int(a) - rank if a >= 0 else int(a) for a in np.ravel(values)}
        return None if found <= set(self.axes) else self.name


@dataclass(frozen=True)
class KnownToHaveOneScale(Condition):
    """The weights are known to be per-tensor: until scales are chosen, they may become per-channel."""

    remedy = "give it 8-bit weights, or one scale"

    def broken(self, op: TypedOp) -> str | None:
        params = None if op.weights is None else op.weights.params
        return None if params is not None and len(params.scales) == 1 else "has a scale for each channel of its weights"
