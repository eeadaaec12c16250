"""Makes operands fit what the target demands of them: zero points of 0, and ratios of scales within limits."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from ..dtypes import DType
from ..graph.model import Op
from ..graph.query import Use, Uses
from ..ops import OpSpec
from ..recipe import Scheme
from ..targets import Operand, Target, TypedOp
from ..targets.conditions import ScaleRatio, SymmetricOperand
from .derive import settle
from .plan import Form, Held, Node, Plan, Planned, Repair, Skipped

ROUNDS = 4
SLACK = 1.01


def typed(plan: Plan, op: Op, ops: Mapping[str, OpSpec]) -> TypedOp:
    """Return an op with the forms that the plan gives its operands."""

    def read(use: Use) -> Form:
        packed = plan.packed.get(use)
        if packed is not None:
            return DType.FLOAT32 if packed.unpacked else packed.form
        return plan.wanted.get(use, DType.FLOAT32)

    return TypedOp.of_plan(op, read, lambda tensor: plan.stored.get(tensor, DType.FLOAT32), ops)


def placed(planned: Planned, ops: Mapping[str, OpSpec], target: Target) -> Planned:
    """Return the plans with the verdict on where each op will run on the target."""

    def with_verdicts(plan: Plan) -> Plan:
        return replace(plan, verdicts={op: target.verdict(typed(plan, op, ops)) for op in plan.graph.ops})

    return replace(planned, plans=tuple(map(with_verdicts, planned.plans)))


def symmetric_uses(schemes: Mapping[Op, Scheme], ops: Mapping[str, OpSpec], target: Target) -> set[Use]:
    """Return the uses for which the target demands zero point 0."""
    found = set()
    for op, scheme in schemes.items():
        if not target.may_demand(op.label, SymmetricOperand):
            continue
        conditions = target.conditions(TypedOp.of_scheme(op, scheme, ops))
        found |= {Use(op, c.slot) for c in conditions if isinstance(c, SymmetricOperand)}
    return found


def fit_scales(plan: Plan, ops: Mapping[str, OpSpec], target: Target) -> tuple[Plan, tuple[Skipped, ...]]:
    """Settle, and widen ranges as far as the target's limits on ratios of scales demand; return also the ops that
    LiteRT refuses."""
    plan, refused = settle(plan, ops)
    for _ in range(ROUNDS):
        misfits = [] if refused else list(_misfits(plan, ops, target))
        if not misfits:
            break
        for node, factor in misfits:
            plan = _widened(plan, node, factor, target)
        plan, refused = settle(plan, ops)
    return plan, refused


@dataclass(frozen=True)
class _ScaledOp:
    """An op, or a conversion that the plan implies, with the node of its output and those of its inputs by slot."""

    op: TypedOp
    made: Node
    read: Mapping[int, Node]


def _misfits(plan: Plan, ops: Mapping[str, OpSpec], target: Target) -> Iterator[tuple[Node, float]]:
    """Yield nodes whose scale is too small relative to others, with the factor by which it must grow."""
    free: set[Node] | None = None
    for one in _scaled_ops(plan, ops, target):
        broken = [c for c in target.conditions(one.op) if c.broken(one.op) is not None]
        ratios = [c for c in broken if isinstance(c, ScaleRatio)]
        if not ratios or len(ratios) < len(broken):  # no scale would make it fit
            continue
        free = set(_free_to_grow(plan, ops)) if free is None else free
        for condition in ratios:
            yield from _growth(one, condition, free)


def _free_to_grow(plan: Plan, ops: Mapping[str, OpSpec]) -> Iterator[Node]:
    """Yield nodes whose scale may change. A use changes alone, unless its op requires the same scale elsewhere."""
    for group in plan.groups:
        if not group.fixed:
            yield from (n for n in group.nodes if isinstance(n, Held) or not ops[n.op.kind].tied)


def _growth(one: _ScaledOp, condition: ScaleRatio, free: Collection[Node]) -> Iterator[tuple[Node, float]]:
    """Yield nodes that may get a larger scale, so that the ratios fall within the condition's limits."""
    for ratio in condition.ratios(one.op):
        if ratio >= condition.high:
            places, factor = [one.made], ratio / condition.high
        elif ratio < condition.low:
            places, factor = [one.read[k] for k in condition.of if k in one.read], condition.low / ratio
        else:
            continue
        yield from islice(((place, SLACK * factor) for place in places if place in free), 1)


def _scaled_ops(plan: Plan, ops: Mapping[str, OpSpec], target: Target) -> Iterator[_ScaledOp]:
    """Yield the ops and conversions whose ratios of scales the target may limit."""
    for op, scheme in plan.schemes.items():
        if not target.may_demand(op.label, ScaleRatio):
            continue
        assert scheme.activations is not None
        read = {slot: Use(op, slot) for slot in range(len(op.inputs))}
        yield _ScaledOp(typed(plan, op, ops), Held(op.outputs[0], scheme.activations), read)
    if not target.may_demand("QUANTIZE", ScaleRatio):
        return
    uses = Uses(plan.graph)
    for use, wanted in plan.wanted.items():
        tensor, stored = use.tensor, plan.stored.get(use.tensor)
        if stored is not None and stored != wanted and not tensor.has_data:
            operands = (Operand.of(tensor, stored),), (Operand.of(tensor, wanted),)
            conversion = TypedOp(Op("QUANTIZE", [tensor], [tensor]), *operands, ops.get("QUANTIZE"))
            # Other readers would lose precision with a larger scale; this one needs no more.
            is_alone = len(uses.readers(tensor)) == 1 and not uses.is_output(tensor)
            yield _ScaledOp(conversion, use, {0: Held(tensor, stored.dtype)} if is_alone else {})


def _widened(plan: Plan, node: Node, factor: float, target: Target) -> Plan:
    """Return the plan with a wider range at one node. A use leaves its group for that, so that other readers are
    unaffected."""
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
