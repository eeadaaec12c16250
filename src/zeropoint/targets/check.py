"""Checks where every op of a finished model runs on a target, whichever tool made the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..display import Brief
from ..graph.model import Model, Op
from ..ops import OPS, UNPACKING, OpSpec
from ..ops.execution import macs_of
from .target import SPEEDS, OpVerdict, Speed, Target
from .typed_op import TypedOp


@dataclass(frozen=True)
class CheckedOp:
    """An op, where it runs, and its multiply-accumulates in one run."""

    op: Op
    verdict: OpVerdict
    macs: int

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.op.label, "name": self.op.name, **vars(self.verdict), "macs": self.macs}


@dataclass(frozen=True, repr=False)
class Check(Brief):
    """How a target runs a model, op by op."""

    target: Target
    ops: tuple[CheckedOp, ...]
    notes: tuple[str, ...] = ()

    def having(self, speed: Speed) -> tuple[CheckedOp, ...]:
        return tuple(checked for checked in self.ops if checked.verdict.speed == speed)

    @property
    def counts(self) -> Mapping[Speed, int]:
        """The number of ops by speed."""
        return Counter(checked.verdict.speed for checked in self.ops)

    @property
    def macs(self) -> Mapping[Speed, int]:
        """Multiply-accumulates by speed."""
        found: Counter[Speed] = Counter()
        for checked in self.ops:
            found[checked.verdict.speed] += checked.macs
        return found

    @property
    def reasons(self) -> Mapping[tuple[str, OpVerdict], int]:
        """Everything that is not fast: op kinds with their verdicts, and how many there are."""
        return Counter((c.op.label, c.verdict) for c in self.ops if c.verdict.speed != "fast")

    def to_json(self) -> dict[str, Any]:
        facts = {"name": self.target.name, "source": self.target.source, "version": self.target.version}
        totals = {speed: {"ops": self.counts[speed], "macs": self.macs[speed]} for speed in SPEEDS}
        ops = [checked.to_json() for checked in self.ops]
        return {"schema": 1, "target": facts, "totals": totals, "ops": ops, "notes": list(self.notes)}


def check_model(model: Model, target: Target, ops: Mapping[str, OpSpec] = OPS) -> Check:
    """Check every op of every graph against the target."""

    unpacked = {
        op.outputs[0]: op.inputs[0]
        for graph in model.graphs
        for op in graph.ops
        if op.kind in UNPACKING and op.outputs and op.inputs  # files may omit them
        if op.inputs[0] is not None and op.inputs[0].is_constant
    }

    def checked(op: Op) -> CheckedOp:
        return CheckedOp(op, target.verdict(TypedOp.of_file(op, ops, unpacked)), macs_of(op, ops))

    return Check(target, tuple(checked(op) for graph in model.graphs for op in graph.ops))
