"""Divisors and arguments of logarithms: rounding must not turn them into zeros."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ..calibration.range_methods import Bounds
from ..graph.model import Op, Tensor
from ..graph.query import Use, Uses
from ..ops import Activation, OpSpec, Trait
from .magnitudes import gain_of
from .plan import Plan, Skipped
from .tensor_ranges import TensorRanges

STEPS_OF_ROUNDING = 2.0
"""Rounding costs half a step, and kernels may be off by one more: in 8 bits, because weights have no more."""

WIDE = 2.0
"""Multiple of the measured range."""

ZERO_TO_ZERO = Trait.TIED | Trait.HOMOGENEOUS | Trait.MULTIPLIES | Trait.KEEPS_ZERO
PASSES_ERRORS_ON = Trait.TIED | Trait.HOMOGENEOUS | Trait.ADDS | Trait.SUBTRACTS
"""Ops whose results are off by about as much as their inputs, whatever their range."""


def rounded_to_poles(plan: Plan, ops: Mapping[str, OpSpec], ranges: TensorRanges) -> Iterator[Skipped]:
    """Yield ops that have to stay float: rounding may turn their integers into zeros, from which they, or others,
    compute infinity."""
    poles = list(_poles(plan, ops))
    if not poles:
        return
    uses, steps = Uses(plan.graph), _Steps.of(plan, ops, ranges)
    for use in poles:
        if use.op not in plan.schemes:
            yield from _makers_of_zeros(use, uses, ops, steps)
            continue
        is_off = ops[use.op.kind].table is not None or _reaches_too_far(use.op, plan, ranges)
        if is_off and steps.has_zeros(use.tensor, plan.wanted[use].scale):
            yield Skipped(use.op, f"rounding '{use.tensor.name}' could give it a zero", "scale")


def _makers_of_zeros(use: Use, uses: Uses, ops: Mapping[str, OpSpec], steps: _Steps) -> Iterator[Skipped]:
    """Yield integer ops that produce the input of a float op, and those before them that could turn it into zero."""
    plan, ranges, waiting = steps.plan, steps.ranges, [use.tensor]
    for read in waiting:  # which grows meanwhile
        maker, stored = uses.producer(read), plan.stored.get(read)
        if maker is None:
            continue
        if maker in plan.schemes and stored is not None:
            if steps.has_zeros(read):
                reason = f"{use.op.label} '{use.op.name}' is float, and rounding '{read.name}' could give it a zero"
                yield Skipped(maker, reason, "scale")
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


@dataclass(frozen=True)
class _Steps:
    """The coarsest step of the integers that the values of each tensor passed through: finer ones do not restore what
    is lost. Infinity if rounding may have turned an input into zero of which a root or a product was made."""

    plan: Plan
    ranges: TensorRanges
    passed_on: dict[Tensor, float] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan, ops: Mapping[str, OpSpec], ranges: TensorRanges) -> _Steps:
        steps = cls(plan, ranges)
        for op in (op for op in plan.graph.ops if op.kind in ops):
            passed = steps._passed(op, ops[op.kind])
            steps.passed_on.update((t, passed) for t in op.outputs if passed)
        return steps

    def _passed(self, op: Op, spec: OpSpec) -> float:
        """Return the step that the op's results have because its inputs and weights have theirs."""
        if _is_held_off_zero(op, spec):
            return 0.0
        sources = [t for t in spec.read_activations(op) if t.data is None]
        coarsest = max(map(self.coarsest, sources), default=0.0)
        if spec.traits & PASSES_ERRORS_ON or spec.saturates:
            return coarsest
        if Trait.NO_LARGER in spec.traits:  # a mean
            return coarsest / math.sqrt(max(1.0, Use(op, 0).tensor.size / max(1, op.outputs[0].size)))
        if (gain := gain_of(op, spec)) is not None:
            return _product(gain, coarsest) + self._of_weights(op, spec)
        if spec.traits & ZERO_TO_ZERO and any(map(self._is_rounded_to_zero, sources)):
            return math.inf
        if Trait.MULTIPLIES in spec.traits:
            read = list(spec.read_activations(op))
            return max(_product(self.coarsest(a), self.ranges.peak(b)) for a, b in (read, read[::-1]))
        return 0.0

    def _of_weights(self, op: Op, spec: OpSpec) -> float:
        """Return the step that rounded weights give the result of a layer: that of a weight, times the inputs of a sum
        if these are as large as they get."""
        for slot in spec.weight_slots:
            weights, grid = Use(op, slot).tensor, self.plan.constants.grids.get(Use(op, slot))
            if grid is not None and spec.layout is not None and weights.data is not None:
                count = weights.size / max(1, len(grid.scales))
                return math.sqrt(count) * max(grid.scales) * self.ranges.peak(Use(op, spec.layout.data).tensor)
        return 0.0

    def coarsest(self, tensor: Tensor) -> float:
        stored = self.plan.stored.get(tensor)
        return max(self.passed_on.get(tensor, 0.0), 0.0 if stored is None else stored.scale)

    def has_zeros(self, tensor: Tensor, least: float = 0.0) -> bool:
        """Whether rounding, in steps of at least this size, may turn values of the tensor into zeros."""
        return _has_zeros(max(least, self.coarsest(tensor)), self.ranges.bounds(tensor))

    def _is_rounded_to_zero(self, tensor: Tensor) -> bool:
        is_known = self.ranges.knows(tensor) and _excludes_zero(self.ranges.bounds(tensor))
        return is_known and self.has_zeros(tensor)


def _is_held_off_zero(op: Op, spec: OpSpec) -> bool:
    """Whether a constant keeps all results on one side of zero, however far off the other operand is."""
    limits = [t.data for t in spec.read_activations(op) if t.data is not None and t.data.size]
    return any(
        (Trait.GREATEST in spec.traits and limit.min() > 0) or (Trait.LEAST in spec.traits and limit.max() < 0)
        for limit in limits
    )


def _product(a: float, b: float) -> float:
    return a * b if a and b else 0.0  # also if the other is infinite


def _has_zeros(step: float, bounds: Bounds) -> bool:
    nearest = STEPS_OF_ROUNDING * max(step, max(map(abs, bounds)) / 256)
    return bounds[0] < nearest and bounds[1] > -nearest


def _excludes_zero(bounds: Bounds) -> bool:
    return bounds[0] > 0 or bounds[1] < 0
