"""What is known about a quantized model before anything is tried: tensors and weights beside their originals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..affine import QuantParams
from ..bench.alignment import Alignment, align
from ..calibration import Grid, Stats, TensorStats, choose_range
from ..comparison.values import Comparison, Finding
from ..dtypes import Array
from ..graph.model import Model, Op, Tensor
from ..graph.query import Uses, tensor_keys
from ..ops import OPS, Weight
from ..sources.ports import entry
from .trial import Fix


@dataclass(frozen=True)
class Facts:
    """Both models with how they compare. `stats` are of the samples that count, `calibration` of those that the ranges
    came from, where these are others; `repairs` is what the quantizer said it had to change."""

    wanted: Model
    made: Model
    comparison: Comparison
    stats: Stats
    calibration: Stats | None = None
    repairs: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)  # ops that stayed float, by name
    kept: frozenset[str] = frozenset()  # those of them that the recipe keeps in float

    @cached_property
    def alignment(self) -> Alignment:
        return align((entry(self.wanted), entry(self.made)))

    @cached_property
    def keys(self) -> dict[Tensor, str]:
        return tensor_keys(self.wanted)

    @cached_property
    def makers(self) -> tuple[Uses, Uses]:
        return Uses(self.alignment.float), Uses(self.alignment.quantized)

    def seen(self, tensor: Tensor, *, calibrated: bool = False) -> TensorStats | None:
        """Statistics of a tensor of the float model."""
        stats = self.calibration if calibrated and self.calibration is not None else self.stats
        return stats.tensors.get(self.keys[tensor])

    def held(self) -> Iterator[tuple[Tensor, Tensor, QuantParams]]:
        """Tensors of the quantized model with one scale of 8 bits, and their originals."""
        for tensor, original in self.alignment.partner.items():
            params = tensor.params
            if params is not None and params.axis is None and params.dtype.bits == 8:
                yield tensor, original, params

    def layers(self) -> Iterator[Layer]:
        """Ops with quantized weights, with the weights they were made of."""
        for op in self.alignment.quantized.ops:
            spec, original = OPS.get(op.kind), self.original(op)
            if spec is None or original is None:
                continue
            for role, stored, exact in zip(spec.inputs, op.inputs, original.inputs, strict=False):
                if not isinstance(role, Weight) or stored is None or exact is None or stored.shape != exact.shape:
                    continue
                is_rounded = stored.params is not None and stored.data is not None and exact.dtype.is_float
                if is_rounded and exact.data is not None:
                    yield Layer(op, original, stored, exact.data, role.axis)

    def original(self, op: Op) -> Op | None:
        """The float op that `op` was made of: what makes its output, or what that was fused from."""
        tensor = self.alignment.partner.get(op.outputs[0]) if op.outputs else None
        while tensor is not None:
            maker = self.makers[0].producer(tensor)
            if maker is None or maker.kind == op.kind:
                return maker
            tensor = next((t for t in maker.inputs if t is not None and not t.is_constant), None)
        return None

    def name(self, op: Op) -> str:
        """By which the float model knows what an op makes."""
        original = self.alignment.partner.get(op.outputs[0])
        return op.name if original is None else original.name


@dataclass(frozen=True)
class Layer:
    """A weighted op in both models; `axis` is that of its output channels."""

    op: Op
    original: Op
    stored: Tensor
    exact: Array
    axis: int | None

    @property
    def params(self) -> QuantParams:
        assert self.stored.params is not None
        return self.stored.params

    @property
    def scheme(self) -> str:
        """How it computes."""
        return "int8" if self.op.outputs[0].dtype.bits == 8 else "int16x8"

    @property
    def channels(self) -> int:
        return int(self.exact.shape[self.axis or 0])

    def by_channel(self, values: Array) -> Array:
        """One row for each output channel."""
        return np.moveaxis(values, self.axis or 0, 0).reshape(values.shape[self.axis or 0], -1)


@dataclass(frozen=True)
class Suspect:
    """Something that the numbers speak for; whether it matters is told by trying one of the fixes.

    `about_model`: it lies in the given model, and quantizing anew mends it; else in the recipe. `without` are samples
    that do not count when the fix is judged, because they are what is wrong.
    """

    finding: Finding
    fixes: tuple[Fix, ...] = (Fix(),)
    about_model: bool = True
    without: frozenset[int] = frozenset()


def span(low: float, high: float) -> float:
    """The width of a range that has to hold zero."""
    return max(high, 0.0) - min(low, 0.0)


def seen_span(seen: TensorStats) -> float:
    return span(seen.low.value, seen.high.value)


def usual_span(seen: TensorStats) -> float:
    """What a single run takes, on average."""
    return span(*seen.average.range)


def central_span(seen: TensorStats) -> float:
    """What nine of ten values take: a few samples out of line do not change it."""
    return span(*choose_range(seen, "percentile", Grid(), 95.0))


def dense_span(seen: TensorStats) -> float:
    """What all but one of ten thousand values take."""
    return span(*choose_range(seen, "percentile", Grid()))


def count(number: int, noun: str) -> str:
    """`1 layer`, `2 layers`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def numbers(**values: Any) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}
