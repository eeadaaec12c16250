"""What is known about a quantized model: its tensors and weights next to the originals, and what fixes gain.

Each fix is tried on samples, so what a finding promises was measured here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..affine import QuantParams
from ..bench.alignment import Alignment
from ..bench.bench import Bench
from ..bench.judged_outputs import PLAIN, JudgedOutputs
from ..calibration import Grid, Method, Stats, TensorStats, choose_range
from ..comparison.metrics import NamedMetric
from ..comparison.values import Comparison, Finding
from ..dtypes import Array
from ..errors import ZeropointError
from ..graph.model import Model, Op, Tensor
from ..graph.query import Uses, tensor_keys
from ..improve.candidate import Candidate
from ..improve.pipeline import Result
from ..improve.steps import TRIED
from ..ops import OPS, OpSpec, Weight, spec_of
from ..ops.execution import execution_of, macs_of, total_macs
from ..parallel import cached_property
from ..plan.prepared import Prepared, prepare_model
from ..plan.request import RangeChoice, Request
from ..recipe import PRESETS, Effort, Recipe, Rule, preset
from ..recipe_files import plain_rules
from ..sources.ports import entry
from ..sources.samples import Samples
from ..targets import INTEGER, Target

FEW, FEWEST, MOST = 4, 16, 256
TRIAL_MACS = 4e9
"""Fixes are compared on FEWEST to MOST samples, as many as this amount of work allows; sets of ops on FEW."""


@dataclass(frozen=True)
class Fix:
    """Rules to append to those in use, and another range method or effort."""

    rules: tuple[Rule, ...] = ()
    range: Method | None = None
    effort: Effort | None = None

    def and_then(self, other: Fix) -> Fix:
        """Combine both; where they conflict, the other one wins."""
        return Fix((*self.rules, *other.rules), other.range or self.range, other.effort or self.effort)

    @property
    def options(self) -> dict[str, Any]:
        """The fix as arguments of `quantize`."""
        options = {"range": self.range, "effort": self.effort}
        return {name: value for name, value in options.items() if value is not None}


def rule_for(op: Op, scheme: str) -> Rule:
    """Return the rule that gives this scheme to `op` alone."""
    return Rule(PRESETS[scheme], ops=op.label, name=op.name)


def affordable_samples(model: Model, ops: Mapping[str, OpSpec]) -> int:
    """Return the number of samples on which fixes of `model` are compared."""
    macs = total_macs(entry(model).graph.ops, ops)
    return int(max(FEWEST, min(MOST, TRIAL_MACS // max(1, macs))))


@dataclass(frozen=True)
class FixTrials:
    """Quantizes the model of a bench with different fixes on top of `recipe`, and measures the error.

    `chosen` is the range method that an earlier fix asked for. Measurements and prepared models are cached.
    """

    bench: Bench
    recipe: Recipe
    deadline: float
    chosen: Method | None = None
    target: Target = INTEGER
    prepared: dict[Recipe, Prepared] = field(default_factory=dict)
    errors: dict[object, float] = field(default_factory=dict)
    planned: dict[object, Candidate] = field(default_factory=dict)

    @cached_property
    def method(self) -> Method:
        """The range method for fixes that do not set one: the better of the usual ones."""
        if self.chosen is not None:
            return self.chosen
        return min(TRIED, key=lambda method: self.error(Fix(range=method)))

    @property
    def is_late(self) -> bool:
        return time.perf_counter() > self.deadline

    def after(self, fix: Fix) -> FixTrials:
        """Return trials on top of `fix`."""
        recipe = self.recipe.then(*fix.rules)
        return FixTrials(self.bench, recipe, self.deadline, fix.range or self.method, self.target, self.prepared)

    def on_fewer(self, share: float) -> FixTrials:
        """Return the trials on a share of the samples, with a minimum of a few."""
        count = max(FEW, math.ceil(share * len(self.bench.judged_rows)))
        return replace(self, bench=self.bench.judging(count), chosen=self.method, errors={}, planned={})

    def candidate(self, fix: Fix, prepared_for: Fix | None = None) -> Candidate:
        """Return the model with `fix`, prepared for this fix or, to save time, for `prepared_for`."""
        ready = self.recipe.then(*(prepared_for or fix).rules)
        method = fix.range or self.method
        request = Request(ready, self.bench.stats, method=method, ops=self.bench.ops, target=self.target)
        if ready not in self.prepared:
            others = next(iter(self.prepared.values()), None)
            self.prepared[ready] = prepare_model(self.bench.model, request).sharing_constants(others)
        return Candidate(self.prepared[ready], replace(request, recipe=self.recipe.then(*fix.rules)))

    def error(
        self, fix: Fix | None = None, without: frozenset[int] = frozenset(), prepared_for: Fix | None = None
    ) -> float:
        """Return the relative squared error of the outputs, not counting the samples in `without`; infinite for models
        that LiteRT refuses."""
        fix = fix or Fix()
        key = fix.rules, fix.range or self.method, without
        if key not in self.errors:
            try:
                self.errors[key] = self.bench.error(self.candidate(fix, prepared_for).model(), without)
            except ZeropointError:  # no such kernel, or it refuses these scales: this fixes nothing
                self.errors[key] = math.inf
        return self.errors[key]

    def error_without(self, ops: Collection[Op], fix: Fix | None = None) -> float:
        """Return the error with `fix` and with the ops of these names left float, the rest of the plan unchanged.

        Sets of ops are compared this way because planning each anew would take longer than running it.
        """
        fix, named = fix or Fix(), frozenset((op.label, op.name) for op in ops)
        base = fix.rules, fix.range or self.method
        if (key := (*base, named)) not in self.errors:
            if base not in self.planned:
                self.planned[base] = self.candidate(fix)
            candidate = self.planned[base]
            left = [op for op in candidate.planned.plans[0].graph.ops if (op.label, op.name) in named]
            self.errors[key] = self.bench.error(candidate.model(left_float=left))
        return self.errors[key]


def wide_share(model: Model, ops: Mapping[str, OpSpec]) -> float:
    """Return the share of multiply-accumulates that use more than 8 bits."""
    macs = {op: macs_of(op, ops) for op in entry(model).graph.ops}
    wide = (op for op in macs if execution_of(op, ops) != "integer" or any(t.dtype.bits > 8 for t in op.outputs[:1]))
    return sum(macs[op] for op in wide) / max(1, sum(macs.values()))


@dataclass(frozen=True)
class DiagnosisRequest:
    """What to examine: a float model, samples, and optionally a quantized version with the samples it was calibrated
    on.

    `most` is the share of multiply-accumulates that may get more bits, None for as many as each cause considers
    reasonable; `seconds` is the time limit for trying fixes; `progress` is called with a description of the current
    step; `keep_state` is as in the settings of calibration.
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
    most: float | None = None
    progress: Callable[[str], None] | None = None
    keep_state: bool | None = None
    target: Target = INTEGER
    ops: Mapping[str, OpSpec] = field(default_factory=lambda: OPS)
    outputs: JudgedOutputs = PLAIN

    def report(self, what: str) -> None:
        if self.progress is not None:
            self.progress(what)


@dataclass(frozen=True)
class ModelEvidence:
    """The quantized model next to the float model.

    `calibration` are statistics of the samples that the ranges came from, if these are not the data; `quantization` is
    what our own quantizer reported, if it made the model.
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
        """Return the statistics of a tensor of the float model."""
        stats = self.calibration if calibrated and self.calibration is not None else self.trials.bench.stats
        return stats.tensors.get(self.keys[tensor])

    def quantized_tensors(self) -> Iterator[tuple[Tensor, Tensor, QuantParams]]:
        """Yield 8-bit per-tensor quantized tensors, with their originals and parameters."""
        for tensor, original in self.alignment.partner.items():
            params = tensor.params
            if params is not None and params.axis is None and params.dtype.bits == 8:
                yield tensor, original, params

    def has_fixed_range(self, original: Tensor) -> bool:
        """Whether the kernel prescribes the scale, as for SOFTMAX."""
        op = self.float_uses.producer(original)
        return op is not None and bool(spec_of(op, self.ops).fixed)

    @cached_property
    def weights(self) -> tuple[QuantizedWeights, ...]:
        return tuple(self._weights())

    def _weights(self) -> Iterator[QuantizedWeights]:
        for op in self.alignment.quantized.ops:
            spec, original = spec_of(op, self.ops), self.original(op)
            if original is None:
                continue
            for role, stored, exact in zip(spec.inputs, op.inputs, original.inputs, strict=False):
                if not isinstance(role, Weight) or role.axis is None or stored is None or exact is None:
                    continue
                is_rounded = stored.shape == exact.shape and exact.dtype.is_float
                if is_rounded and stored.params is not None and stored.data is not None and exact.data is not None:
                    both = (_by_channel(values, role.axis) for values in (stored.data, exact.data))
                    yield QuantizedWeights(op, original, stored.params, *both)

    def original(self, op: Op) -> Op | None:
        """Return the float op that `op` was made from: the producer of its output's counterpart, or an op fused into
        that."""
        tensor = self.alignment.partner.get(op.outputs[0]) if op.outputs else None
        while tensor is not None:
            maker = self.float_uses.producer(tensor)
            if maker is None or maker.kind == op.kind:
                return maker
            tensor = next((t for t in maker.inputs if t is not None and not t.is_constant), None)
        return None

    def name(self, op: Op) -> str:
        """Return the float model's name for an op's output."""
        original = self.alignment.partner.get(op.outputs[0])
        return op.name if original is None else original.name


def _by_channel(values: Array, axis: int) -> Array:
    """Return the values with one row for each channel."""
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
        """The scheme of the op."""
        return "int8" if self.op.outputs[0].dtype.bits == 8 else "int16x8"

    @property
    def label(self) -> str:
        return f"{self.op.label} '{self.original.name}'"

    @cached_property
    def peaks(self) -> Array:
        """The largest absolute weight of each channel."""
        return np.asarray(np.abs(self.exact).max(axis=1))


@dataclass(frozen=True)
class Hypothesis:
    """A possible cause suggested by the numbers. Trying its fixes shows whether it matters.

    The fault lies in the given model, so that quantizing again fixes it, unless it is `in_recipe`. `samples` are
    excluded when a fix is judged, because they are what is wrong. `gain` is an estimate, for fixes that would take too
    long to try. A hypothesis without fixes costs only time. What `is_choice` was requested by the user, and is no fault
    if the outputs are close.
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
    is_choice: bool = False

    def finding(self, code: str, gain: float | None, fix: Fix, *, is_measured: bool) -> Finding:
        text = self.title, self.evidence, self.effect, self.advice
        rules = plain_rules(Recipe(fix.rules)) if is_measured else None
        return Finding(code, *text, gain, is_measured, rules, fix.options, self.ops, self.samples, self.numbers)


def span(low: float, high: float) -> float:
    """Return the width of a range extended to include zero."""
    return max(high, 0.0) - min(low, 0.0)


def seen_span(seen: TensorStats) -> float:
    return span(seen.low.value, seen.high.value)


def percentile_span(seen: TensorStats, percentile: float) -> float:
    """Return the width of the range without the outermost values, so that a few outlying samples do not change it."""
    return span(*choose_range(seen, "percentile", Grid(), percentile))


def listed(items: Iterable[object], most: int) -> str:
    """Join the first `most` items, with dots if there are more."""
    shown = list(map(str, items))
    return ", ".join(shown[:most]) + (" ..." if len(shown) > most else "")


def numbers(**values: Any) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}
