"""Measures what each op costs in int8, with everything else in float: which ops to give more bits first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..bench.bench import Bench
from ..calibration import Stats
from ..graph.model import Op
from ..ops.execution import macs_of
from ..plan.planner import plan_model
from ..plan.prepared import prepare_model
from ..plan.request import Request
from ..plan.rewrite import build
from ..recipe import INT8, Recipe, Rule, Scheme
from ..targets import INTEGER, Target
from .sensitivity import on_affordable_rows

SAMPLES = 8
"""Maximum number of samples on which ops are tried."""

MOST = 400
"""Maximum number of ops that are tried one by one."""


@dataclass(frozen=True)
class Harm:
    """An op by kind and name, and the relative squared error of the outputs if only this op computes in int8."""

    kind: str
    name: str
    error: float
    macs: int


def addressable(ops: Sequence[Op]) -> list[Op]:
    """Return the ops that a rule can address by themselves: no other one has the same kind and name."""
    names = Counter((op.label, op.name) for op in ops)
    return [op for op in ops if names[op.label, op.name] == 1]


def harmful_ops(bench: Bench, stats: Stats, target: Target) -> tuple[Harm, ...]:
    """Return the ops of the model, as prepared for `target`, sorted by their cost relative to their arithmetic, largest
    first."""
    whole = Request(Recipe((Rule(INT8),)), stats, method="mse", effort="quick", ops=bench.ops, target=INTEGER)
    prepared = prepare_model(bench.model, replace(whole, target=target))
    plan = plan_model(prepared, whole).plans[0]
    known = set(addressable(plan.graph.ops))
    ops = [op for op in plan.schemes if op in known]
    macs = {op: macs_of(op, bench.ops) for op in plan.graph.ops}
    if not 1 < len(ops) <= MOST:
        return ()
    judge = on_affordable_rows(bench, sum(macs.values()) * len(ops), SAMPLES)

    def harm(op: Op) -> Harm:
        alone = replace(whole, recipe=Recipe((Rule(INT8, ops=op.label, name=op.name),)))
        made = build(plan_model(prepared, alone).with_float_ends(), bench.ops)
        return Harm(op.label, op.name, judge.error(made), macs[op])

    usual = max(1, sum(macs.values()) // len(ops))
    return tuple(sorted(map(harm, ops), key=lambda h: -h.error / (usual + h.macs)))


def widened(harms: Sequence[Harm], base: Scheme, island: Scheme) -> Recipe:
    """Return a recipe with all ops in `base`, and these ops in `island`."""
    return Recipe((Rule(base), *(Rule(island, ops=h.kind, name=h.name) for h in harms)))
