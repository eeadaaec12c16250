"""Divisors and arguments of logarithms: rounding must not turn them into zeros."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ..calibration.range_methods import Bounds
from ..graph.model import Op, Tensor
from ..graph.query import Use, Uses
from ..ops import Activation, OpSpec, Trait
from .plan import Plan, Skipped
from .tensor_ranges import TensorRanges

FEWEST_STEPS = 2.0
"""Rounding costs half a step, and kernels may be off by one more: in 8 bits, because weights have no more."""

WIDE = 2.0
"""Multiple of the measured range."""

ZERO_TO_ZERO = Trait.TIED | Trait.HOMOGENEOUS | Trait.MULTIPLIES | Trait.KEEPS_ZERO
PASSES_ERRORS_ON = Trait.TIED | Trait.HOMOGENEOUS | Trait.ADDS | Trait.SUBTRACTS
"""Ops whose results are off by about as much as their inputs, whatever their range."""


def rounded_to_poles(plan: Plan, ops: Mapping[str, OpSpec], ranges: TensorRanges) -> Iterator[Skipped]:
    """Yield ops that have to stay float: rounding may turn their integers into zeros, from which they, or others,
    compute infinity."""
    uses = Uses(plan.graph)
    for use in _poles(plan, ops):
        if use.op not in plan.schemes:
            yield from _makers_of_zeros(use, uses, plan, ops, ranges)
            continue
        step = max(plan.wanted[use].scale, _coarsest_step(use.tensor, uses, plan, ops))
        is_off = ops[use.op.kind].table is not None or _reaches_too_far(use.op, plan, ranges)
        if is_off and _has_zeros(step, ranges.bounds(use.tensor)):
            yield Skipped(use.op, f"rounding '{use.tensor.name}' could give it a zero", "scale")


def _makers_of_zeros(
    use: Use, uses: Uses, plan: Plan, ops: Mapping[str, OpSpec], ranges: TensorRanges
) -> Iterator[Skipped]:
    """Yield integer ops that produce the input of a float op, and those before them that could turn it into zero."""
    waiting = [use.tensor]
    for read in waiting:  # which grows meanwhile
        maker, stored = uses.producer(read), plan.stored.get(read)
        if maker is None:
            continue
        if maker in plan.schemes and stored is not None:
            if _has_zeros(_coarsest_step(read, uses, plan, ops), ranges.bounds(read)):
                told = f"{use.op.label} '{use.op.name}' is float, and rounding '{read.name}' could give it a zero"
                yield Skipped(maker, told, "scale")
        elif maker.kind in ops and ops[maker.kind].traits & ZERO_TO_ZERO:
            spec = ops[maker.kind]
            sources = (t for t in spec.read_activations(maker) if t.data is None and ranges.knows(t))
            waiting += (t for t in sources if t not in waiting and (spec.tied or _excludes_zero(ranges.bounds(t))))


def _poles(plan: Plan, ops: Mapping[str, OpSpec]) -> Iterator[Use]:
    """Yield uses where ops turn zeros into infinity."""
    for op in (op for op in plan.graph.ops if op.kind in ops and _has_pole(op, ops[op.kind])):
        for slot, tensor in enumerate(op.inputs):
            role = ops[op.kind].input_role(slot)
            if isinstance(role, Activation) and role.pole and tensor is not None and tensor.data is None:
                yield Use(op, slot)


def _has_pole(op: Op, spec: OpSpec) -> bool:
    """Whether the op turns zero into infinity, as far as that depends on more than its kind."""
    function = None if spec.table is None else spec.table(op)
    with np.errstate(divide="ignore"):
        return function is None or not np.isfinite(function(np.zeros(1))).all()


def _reaches_too_far(op: Op, plan: Plan, ranges: TensorRanges) -> bool:
    """Whether the end of the output's range, which kernels use for infinity, lies beyond everything measured."""
    (low, high), (least, greatest) = ranges.bounds(op.outputs[0]), plan.stored[op.outputs[0]].range()
    return greatest - least > WIDE * (max(high, 0.0) - min(low, 0.0))


def _coarsest_step(tensor: Tensor, uses: Uses, plan: Plan, ops: Mapping[str, OpSpec]) -> float:
    """Return the coarsest step of the integers that the values passed through: finer ones do not restore what is
    lost."""
    steps, waiting = [], [tensor]
    for made in waiting:  # which grows meanwhile
        maker, stored = uses.producer(made), plan.stored.get(made)
        steps += [] if stored is None else [stored.scale]
        if maker is not None and maker in plan.schemes and ops[maker.kind].traits & PASSES_ERRORS_ON:
            waiting += (t for t in ops[maker.kind].read_activations(maker) if t.data is None and t not in waiting)
    return max(steps, default=0.0)


def _has_zeros(step: float, bounds: Bounds) -> bool:
    nearest = FEWEST_STEPS * max(step, max(map(abs, bounds)) / 256)
    return bounds[0] < nearest and bounds[1] > -nearest


def _excludes_zero(bounds: Bounds) -> bool:
    return bounds[0] > 0 or bounds[1] < 0
