"""What is known about a quantized model before anything is tried: tensors and weights beside their originals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..affine import QuantParams
from ..bench.alignment import Alignment
from ..calibration import Grid, Stats, TensorStats, choose_range
from ..comparison.compare import NamedMetric
from ..comparison.values import Comparison, Finding
from ..dtypes import Array
from ..graph.model import Model, Op, Tensor
from ..graph.query import Uses, tensor_keys
from ..improve.pipeline import Result
from ..ops import OPS, OpSpec, Weight
from ..plan.request import RangeChoice
from ..recipe import Effort, Recipe, plain_rules, preset
from ..sources.samples import Samples
from .trials import Fix, FixTrials


@dataclass(frozen=True)
class DiagnosisRequest:
    """What to examine: a float model, samples, perhaps a quantized version of it with the samples it was calibrated on.

    `most` is the share of the multiply-accumulates that may be given more bits; `seconds` the time for trying;
    `progress` is called with what is being done.
    """

    model: Model
    data: Samples
    quantized: Model | None = None
    calibration: Samples | None = None
    recipe: Recipe = field(default_factory=lambda: preset("int8"))
    range: RangeChoice = "auto"
    effort: Effort = "standard"
    limit: int | None = None
    metric: NamedMetric | None = None
    seconds: float = 100.0
    most: float = 0.1
    progress: Callable[[str], None] | None = None
    ops: Mapping[str, OpSpec] = field(default_factory=lambda: OPS)

    def report(self, what: str) -> None:
        if self.progress is not None:
            self.progress(what)


@dataclass(frozen=True)
class ModelEvidence:
    """The quantized model beside the float one.

    `calibration` are statistics of the samples that the ranges came from, where these are others than the data;
    `quantization` is what our own quantizer reported, if it made the model.
    """

    request: DiagnosisRequest
    made: Model
    comparison: Comparison
    alignment: Alignment
    trials: FixTrials
    calibration: Stats | None = None
    quantization: Result | None = None

    @property
    def ops(self) -> Mapping[str, OpSpec]:
        return self.request.ops

    @cached_property
    def keys(self) -> dict[Tensor, str]:
        return tensor_keys(self.request.model)

    @cached_property
    def float_uses(self) -> Uses:
        return Uses(self.alignment.float)

    def seen(self, tensor: Tensor, *, calibrated: bool = False) -> TensorStats | None:
        """Statistics of a tensor of the float model."""
        stats = self.calibration if calibrated and self.calibration is not None else self.trials.bench.stats
        return stats.tensors.get(self.keys[tensor])

    def quantized_tensors(self) -> Iterator[tuple[Tensor, Tensor, QuantParams]]:
        """Tensors of the quantized model with one scale of 8 bits, and their originals."""
        for tensor, original in self.alignment.partner.items():
            params = tensor.params
            if params is not None and params.axis is None and params.dtype.bits == 8:
                yield tensor, original, params

    def has_fixed_range(self, original: Tensor) -> bool:
        """Whether the kernel prescribes the scale, as for SOFTMAX."""
        op = self.float_uses.producer(original)
        spec = None if op is None else self.ops.get(op.kind)
        return spec is not None and bool(spec.fixed)

    @cached_property
    def weights(self) -> tuple[QuantizedWeights, ...]:
        return tuple(self._weights())

    def _weights(self) -> Iterator[QuantizedWeights]:
        for op in self.alignment.quantized.ops:
            spec, original = self.ops.get(op.kind), self.original(op)
            if spec is None or original is None:
                continue
            for role, stored, exact in zip(spec.inputs, op.inputs, original.inputs, strict=False):
                if not isinstance(role, Weight) or role.axis is None or stored is None or exact is None:
                    continue
                is_rounded = stored.shape == exact.shape and exact.dtype.is_float
                if is_rounded and stored.params is not None and stored.data is not None and exact.data is not None:
                    both = (_by_channel(values, role.axis) for values in (stored.data, exact.data))
                    yield QuantizedWeights(op, original, stored.params, *both)

    def original(self, op: Op) -> Op | None:
        """The float op that `op` was made of: what makes its output, or what that was fused from."""
        tensor = self.alignment.partner.get(op.outputs[0]) if op.outputs else None
        while tensor is not None:
            maker = self.float_uses.producer(tensor)
            if maker is None or maker.kind == op.kind:
                return maker
            tensor = next((t for t in maker.inputs if t is not None and not t.is_constant), None)
        return None

    def name(self, op: Op) -> str:
        """By which the float model knows what an op makes."""
        original = self.alignment.partner.get(op.outputs[0])
        return op.name if original is None else original.name


def _by_channel(values: Array, axis: int) -> Array:
    """One row for each channel."""
    return np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)


@dataclass(frozen=True, eq=False)
class QuantizedWeights:
    """The weights of an op in both models, with a row for each output channel."""

    op: Op
    original: Op
    params: QuantParams
    stored: Array
    exact: Array

    @property
    def scheme(self) -> str:
        """How the op computes."""
        return "int8" if self.op.outputs[0].dtype.bits == 8 else "int16x8"

    @property
    def label(self) -> str:
        return f"{self.op.label} '{self.original.name}'"

    @cached_property
    def peaks(self) -> Array:
        """The largest weight of each channel."""
        return np.asarray(np.abs(self.exact).max(axis=1))


@dataclass(frozen=True)
class Hypothesis:
    """A possible cause that the numbers speak for. Whether it matters is found out by trying its fixes.

    The fault lies in the given model, so that quantizing anew repairs it, unless it is `in_recipe`. `samples` are not
    counted when a fix is judged, because they are what is wrong. `gain` is an estimate, where trying would take too
    long. Without fixes, it costs only time.
    """

    title: str
    evidence: tuple[str, ...]
    effect: str
    advice: str
    numbers: Mapping[str, float]
    ops: tuple[str, ...] = ()
    samples: tuple[int, ...] = ()
    fixes: tuple[Fix, ...] = (Fix(),)
    in_recipe: bool = False
    gain: float | None = None

    def finding(self, code: str, gain: float | None, fix: Fix, *, is_measured: bool) -> Finding:
        text = self.title, self.evidence, self.effect, self.advice
        rules = plain_rules(Recipe(fix.rules)) if is_measured else None
        return Finding(code, *text, gain, is_measured, rules, fix.options, self.ops, self.samples, self.numbers)


def span(low: float, high: float) -> float:
    """The width of a range that has to hold zero."""
    return max(high, 0.0) - min(low, 0.0)


def seen_span(seen: TensorStats) -> float:
    return span(seen.low.value, seen.high.value)


def percentile_span(seen: TensorStats, percentile: float) -> float:
    """The range without the outermost values, so that a few samples out of line do not change it."""
    return span(*choose_range(seen, "percentile", Grid(), percentile))


def count(number: int, noun: str) -> str:
    """`1 layer`, `2 layers`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listed(items: Iterable[object], most: int) -> str:
    """The first `most` items, with dots if there are more."""
    shown = list(map(str, items))
    return ", ".join(shown[:most]) + (" ..." if len(shown) > most else "")


def numbers(**values: Any) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}
