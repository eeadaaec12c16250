"""Ways to quantize a model, each tried on samples. What a finding promises was measured here."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..calibration import Method, Stats
from ..comparison.scoring import Scorer
from ..errors import ZeropointError
from ..graph.model import Model, Op
from ..improve.search import TRIED
from ..ops.execution import execution_of, macs_of
from ..plan.pipeline import Planned, Request, carry_out, plan_model
from ..recipe import PlainRules, Recipe, recipe_content, recipe_from
from ..sources.ports import entry

FEWEST, MOST = 16, 256
"""Samples on which ways are compared."""

PATIENCE = 1.0
"""Seconds of computing that one comparison may take before fewer samples have to do."""


@dataclass(frozen=True)
class Fix:
    """Rules behind those in use, and another range method or effort."""

    rules: PlainRules = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def and_then(self, other: Fix) -> Fix:
        return Fix((*self.rules, *other.rules), {**self.options, **other.options})


@dataclass
class Lab:
    """A float model with samples and statistics of them, the recipe in question, and an end to the time."""

    scorer: Scorer
    stats: Stats
    recipe: Recipe
    deadline: float
    method: Method = TRIED[0]
    known: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Pick the better range method, and as many samples as there is time for."""
        everything = self.scorer
        self.scorer = everything.first(FEWEST)
        start = time.process_time()  # not the clock: on a busy machine the result should be the same
        errors = {method: self.error(Fix(options={"range": method})) for method in TRIED}
        self.method = min(errors, key=errors.__getitem__)
        each = (time.process_time() - start) / len(TRIED)
        self.scorer = everything.first(max(FEWEST, min(MOST, int(FEWEST * PATIENCE / max(each, 1e-3)))))
        self.known.clear()

    @property
    def model(self) -> Model:
        return self.scorer.model

    @property
    def is_late(self) -> bool:
        return time.perf_counter() > self.deadline

    def after(self, fix: Fix) -> None:
        """From now on, everything is tried on top of `fix`."""
        self.recipe = extended(self.recipe, fix.rules)
        self.method = fix.options.get("range", self.method)
        self.known.clear()

    def request(self, fix: Fix) -> Request:
        return Request(extended(self.recipe, fix.rules), self.stats, method=fix.options.get("range", self.method))

    def planned(self) -> Planned:
        return plan_model(self.model, self.request(Fix()))

    def error(self, fix: Fix | None = None, without: frozenset[int] = frozenset()) -> float:
        """Relative squared error of the outputs; infinite for what LiteRT refuses. `without` leaves samples out."""
        fix = fix or Fix()
        key = repr((fix.rules, sorted(fix.options.items()), sorted(without)))
        if key not in self.known:
            try:
                request = self.request(fix)
                made = carry_out(plan_model(self.model, request), request).model
                self.known[key] = self.scorer.error(made, without)
            except ZeropointError:  # no such kernel, or one that refuses these scales: then it is no way out
                self.known[key] = math.inf
        return self.known[key]


def extended(recipe: Recipe, rules: PlainRules) -> Recipe:
    return recipe.then(*recipe_from(recipe_content(rules)).rules) if rules else recipe


def rule_for(op: Op, scheme: str, **more: Any) -> Mapping[str, Any]:
    """That `op` alone is computed so."""
    return {"scheme": scheme, "ops": op.label, "name": op.name, **more}


def wide_share(model: Model) -> float:
    """The share of multiply-accumulates that are computed with more than 8 bits."""
    ops = [(op, macs) for op in entry(model).graph.ops if (macs := macs_of(op))]
    wide = sum(n for op, n in ops if execution_of(op) != "integer" or any(t.dtype.bits > 8 for t in op.outputs[:1]))
    return wide / max(1, sum(n for _, n in ops))
