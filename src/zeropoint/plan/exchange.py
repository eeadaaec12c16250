"""A plan in which some layers have the weights that another plan of the same model gives them.

Planning a model again takes much longer than deriving what follows from other weights of one layer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from ..graph.model import Op
from ..graph.query import Use
from ..ops import OpSpec
from .derive import settle
from .plan import Plan, Planned


def with_weights_of(
    planned: Planned, other: Planned, layers: Collection[Op], ops: Mapping[str, OpSpec]
) -> Planned | None:
    """Return the plans in which `layers` have the weights and biases that they have in `other`; None if other weights
    alone do not make the difference."""
    theirs, plans = {plan.graph: plan for plan in other.plans}, []
    for plan in planned.plans:
        own = [op for op in plan.graph.ops if op in layers]
        made = _exchanged(plan, theirs.get(plan.graph), own, ops) if own else plan
        if made is None:
            return None
        plans.append(made)
    return replace(planned, plans=tuple(plans))


def _exchanged(plan: Plan, other: Plan | None, layers: Collection[Op], ops: Mapping[str, OpSpec]) -> Plan | None:
    if other is None or any(_arithmetic(plan, op) != _arithmetic(other, op) for op in layers):
        return None
    moved = {Use(op, slot) for op in layers for slot in range(len(op.inputs))}
    new, constants = other.constants, plan.constants
    keys = {use: key for use, key in new.keys.items() if use in moved}
    kept = {use: key for use, key in constants.keys.items() if use not in moved}
    if not set(keys.values()).isdisjoint(kept.values()):  # other layers read the same bytes
        return None
    constants = replace(
        constants,
        keys={**kept, **keys},
        values={**constants.values, **{key: new.values[key] for key in keys.values()}},
        grids={use: new.grids.get(use, grid) if use in moved else grid for use, grid in constants.grids.items()},
    )
    schemes = {op: other.schemes[op] if op in layers else scheme for op, scheme in plan.schemes.items()}
    packed = {use: other.packed.get(use, held) if use in moved else held for use, held in plan.packed.items()}
    made, refused = settle(replace(plan, schemes=schemes, constants=constants, packed=packed), ops)
    return None if refused else made


def _arithmetic(plan: Plan, op: Op) -> tuple[object, ...]:
    """Return the type of an op's activations, and which of its constants are stored as integers, in what way."""
    scheme, uses = plan.schemes.get(op), [Use(op, slot) for slot in range(len(op.inputs))]
    packed = [use in plan.packed and plan.packed[use].unpacked for use in uses]
    held = [use in plan.constants.grids or use in plan.packed for use in uses]
    return None if scheme is None else scheme.activations, (*packed,), (*held,)
