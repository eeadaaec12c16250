"""Operands made to fit what the target demands of them: zero points of 0, and scales that are not too far apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..dtypes import DType
from ..graph.model import Op
from ..graph.query import Use
from ..ops import OpSpec
from ..recipe import Scheme
from ..targets import Target, TypedOp
from ..targets.conditions import ScaleRatio, SymmetricOperand
from .derive import settle
from .plan import Form, Held, Node, Plan, Planned, Repair, Skipped

ROUNDS = 4
SLACK = 1.01


def typed(plan: Plan, op: Op, ops: Mapping[str, OpSpec]) -> TypedOp:
    """An op with the forms that the plan gives its operands."""

    def read(use: Use) -> Form:
        packed = plan.packed.get(use)
        if packed is not None:
            return DType.FLOAT32 if packed.unpacked else packed.form
        return plan.wanted.get(use, DType.FLOAT32)

    return TypedOp.of_plan(op, read, lambda tensor: plan.stored.get(tensor, DType.FLOAT32), ops)


def placed(planned: Planned, ops: Mapping[str, OpSpec], target: Target) -> Planned:
    """The same plans, which say where each op will run on the target."""

    def with_verdicts(plan: Plan) -> Plan:
        return replace(plan, verdicts={op: target.verdict(typed(plan, op, ops)) for op in plan.graph.ops})

    return replace(planned, plans=tuple(map(with_verdicts, planned.plans)))


def symmetric_uses(schemes: Mapping[Op, Scheme], ops: Mapping[str, OpSpec], target: Target) -> set[Use]:
    """What ops read that the target wants with the zero point 0."""
    found = set()
    for op, scheme in schemes.items():
        conditions = target.conditions(TypedOp.of_scheme(op, scheme, ops))
        found |= {Use(op, c.slot) for c in conditions if isinstance(c, SymmetricOperand)}
    return found


def fit_scales(plan: Plan, ops: Mapping[str, OpSpec], target: Target) -> tuple[Plan, tuple[Skipped, ...]]:
    """Settle, and widen ranges as far as the target's limits on ratios of scales demand; what LiteRT itself refuses."""
    plan, refused = settle(plan, ops)
    for _ in range(ROUNDS):
        misfits = [] if refused else list(_misfits(plan, ops, target))
        if not misfits:
            break
        for node, factor in misfits:
            plan = _widened(plan, node, factor, target)
        plan, refused = settle(plan, ops)
    return plan, refused


def _misfits(plan: Plan, ops: Mapping[str, OpSpec], target: Target) -> Iterator[tuple[Node, float]]:
    """Places whose scale is too small beside others, with the factor by which it has to grow."""
    limited = [rule for rule in target.rules if any(isinstance(c, ScaleRatio) for c in rule.conditions)]
    kinds = {kind for rule in limited for kind in rule.kinds}
    free = {node for group in plan.groups if not group.fixed for node in group.nodes}
    for op, scheme in plan.schemes.items():
        if op.label not in kinds and all(rule.kinds for rule in limited):
            continue
        asked = typed(plan, op, ops)
        for condition in (c for c in target.conditions(asked) if isinstance(c, ScaleRatio)):
            for ratio in condition.ratios(asked):
                if ratio >= condition.high and scheme.activations is not None:
                    places: list[Node] = [Held(op.outputs[0], scheme.activations)]
                    factor = ratio / condition.high
                else:
                    places, factor = [Use(op, slot) for slot in condition.of], condition.low / ratio
                place = next((place for place in places if place in free), None)
                if place is not None and condition.broken(asked) is not None:
                    yield place, SLACK * factor


def _widened(plan: Plan, node: Node, factor: float, target: Target) -> Plan:
    """With a wider range at one place. A use leaves its group for that: others go on reading what they did."""
    groups, text = [], f"its range is {factor:.3g} times as wide as measured, as {target.place} demands"
    for group in plan.groups:
        if node not in group.nodes:
            groups.append(group)
        elif isinstance(node, Use) and len(group.nodes) > 1:
            rest = tuple(n for n in group.nodes if n != node)
            groups += [replace(group, nodes=rest), replace(group, nodes=(node,)).widened(factor)]
        else:
            groups.append(group.widened(factor))
    return replace(plan, groups=tuple(groups), repairs=(*plan.repairs, Repair(node.tensor, text, "widened")))
