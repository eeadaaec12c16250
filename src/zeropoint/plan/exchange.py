"""A plan in which some layers have the weights that another plan of the same model gives them.

Planning a model again takes much longer than deriving what follows from other weights of one layer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TypeVar

from ..graph.model import Op
from ..graph.query import Use
from ..ops import OpSpec
from .derive import settle
from .plan import Constants, Plan, Planned

Key = TypeVar("Key")
Value = TypeVar("Value")


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
    constants = _moved(plan.constants, other.constants, moved)
    if constants is None:
        return None
    schemes, packed = _taken(plan.schemes, other.schemes, layers), _taken(plan.packed, other.packed, moved)
    made, refused = settle(replace(plan, schemes=schemes, constants=constants, packed=packed), ops)
    return None if refused else made


def _arithmetic(plan: Plan, op: Op) -> tuple[object, ...]:
    """Return the type of an op's activations, and which of its constants are stored as integers, in what way."""
    scheme, uses = plan.schemes.get(op), [Use(op, slot) for slot in range(len(op.inputs))]
    packed = [use in plan.packed and plan.packed[use].unpacked for use in uses]
    held = [use in plan.constants.grids or use in plan.packed for use in uses]
    return None if scheme is None else scheme.activations, (*packed,), (*held,)


def _moved(own: Constants, other: Constants, moved: Collection[Use]) -> Constants | None:
    """Return the constants with those of `other` where they are moved; None if others here read the same bytes."""
    keys = {use: key for use, key in other.keys.items() if use in moved}
    kept = {use: key for use, key in own.keys.items() if use not in moved}
    if not set(keys.values()).isdisjoint(kept.values()):
        return None
    values = {**own.values, **{key: other.values[key] for key in keys.values()}}
    return Constants(values, {**kept, **keys}, _taken(own.grids, other.grids, moved))


def _taken(own: Mapping[Key, Value], other: Mapping[Key, Value], places: Collection[Key]) -> dict[Key, Value]:
    """Return `own` with the values of `other` at these places, as far as both have them."""
    return {key: other.get(key, value) if key in places else value for key, value in own.items()}
