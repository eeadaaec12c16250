"""Fixes, each tried on samples. What a finding promises was measured here."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ..bench.bench import Bench
from ..calibration import Method
from ..errors import ZeropointError
from ..graph.model import Model, Op
from ..improve.bias_correction import plan_and_correct
from ..improve.steps import TRIED
from ..ops import OPS, OpSpec
from ..ops.execution import execution_of, macs_of
from ..plan.plan import Planned
from ..plan.planner import Prepared, prepare_model
from ..plan.request import Request
from ..plan.rewrite import build
from ..recipe import PRESETS, Effort, Recipe, Rule
from ..sources.ports import entry

FEW, FEWEST, MOST = 4, 16, 256
TRIAL_MACS = 4e9
"""On how many samples fixes are compared: from FEWEST to MOST, so many that it takes this work; sets of ops on FEW."""


@dataclass(frozen=True)
class Fix:
    """Rules to be added behind those in use, and another range method or effort."""

    rules: tuple[Rule, ...] = ()
    range: Method | None = None
    effort: Effort | None = None

    def and_then(self, other: Fix) -> Fix:
        """Both; where they disagree, the other one counts."""
        return Fix((*self.rules, *other.rules), other.range or self.range, other.effort or self.effort)

    @property
    def options(self) -> dict[str, Any]:
        """As arguments of `quantize`."""
        options = {"range": self.range, "effort": self.effort}
        return {name: value for name, value in options.items() if value is not None}


def rule_for(op: Op, scheme: str) -> Rule:
    """The rule that makes `op` alone compute in this way."""
    return Rule(PRESETS[scheme], ops=op.label, name=op.name)


def affordable_samples(model: Model, ops: Mapping[str, OpSpec]) -> int:
    """On how many samples of `model` fixes are compared."""
    macs = sum(macs_of(op, ops) for op in entry(model).graph.ops)
    return int(max(FEWEST, min(MOST, TRIAL_MACS // max(1, macs))))


@dataclass(frozen=True)
class FixTrials:
    """Quantizes the model of a bench with one fix or another on top of `recipe`, and measures the error.

    `chosen` is the range method that an earlier fix asked for. What was measured or prepared once is kept.
    """

    bench: Bench
    recipe: Recipe
    deadline: float
    chosen: Method | None = None
    prepared: dict[Recipe, Prepared] = field(default_factory=dict)
    errors: dict[object, float] = field(default_factory=dict)

    @cached_property
    def method(self) -> Method:
        """The range method where a fix does not name one: the better of the usual ones."""
        if self.chosen is not None:
            return self.chosen
        return min(TRIED, key=lambda method: self.error(Fix(range=method)))

    @property
    def is_late(self) -> bool:
        return time.perf_counter() > self.deadline

    def after(self, fix: Fix) -> FixTrials:
        """Trials on top of `fix`."""
        recipe = self.recipe.then(*fix.rules)
        return FixTrials(self.bench, recipe, self.deadline, fix.range or self.method, self.prepared)

    def on_fewer(self, share: float) -> FixTrials:
        """The same on a share of the samples, though not on fewer than a few."""
        count = max(FEW, math.ceil(share * len(self.bench.judged_rows)))
        return replace(self, bench=self.bench.judging(count, logits=False), chosen=self.method, errors={})

    def planned(self, fix: Fix, prepared_for: Fix | None = None) -> Planned:
        """The plan with `fix`, of the model as it is prepared for that or, to save time, for another one."""
        ready = self.recipe.then(*(prepared_for or fix).rules)
        request = Request(ready, self.bench.stats, method=fix.range or self.method, ops=self.bench.ops)
        if ready not in self.prepared:
            self.prepared[ready] = prepare_model(self.bench.model, request)
        return plan_and_correct(self.prepared[ready], replace(request, recipe=self.recipe.then(*fix.rules)))

    def error(
        self, fix: Fix | None = None, without: frozenset[int] = frozenset(), prepared_for: Fix | None = None
    ) -> float:
        """Relative squared error of the outputs; infinite for what LiteRT refuses. Samples `without` are left out."""
        fix = fix or Fix()
        key = fix.rules, fix.range or self.method, without
        if key not in self.errors:
            try:
                made = build(self.planned(fix, prepared_for), self.bench.ops)
                self.errors[key] = self.bench.error(made, without)
            except ZeropointError:  # no such kernel, or one that refuses these scales: then this fixes nothing
                self.errors[key] = math.inf
        return self.errors[key]


def wide_share(model: Model, ops: Mapping[str, OpSpec] = OPS) -> float:
    """The share of multiply-accumulates that are computed with more than 8 bits."""
    macs = {op: macs_of(op, ops) for op in entry(model).graph.ops}
    wide = (op for op in macs if execution_of(op, ops) != "integer" or any(t.dtype.bits > 8 for t in op.outputs[:1]))
    return sum(macs[op] for op in wide) / max(1, sum(macs.values()))
