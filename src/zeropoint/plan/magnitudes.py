"""Estimates how large the floats between integer ops can become in the quantized model.

Measured values say little about that: where large values cancel, and some of them are rounded to integers on the way,
what remains may be millions of times larger than it was in float.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..affine import dequantize
from ..dtypes import Array
from ..graph.model import Op, Tensor
from ..graph.query import Use
from ..ops import Activation, OpSpec, Rescale, Trait, fused_activation
from ..ops.interpolation import Function
from ..ops.recurrent import largest_output
from .plan import Plan
from .tensor_ranges import TensorRanges

MOST_BITS = 8
"""Of weights: integers are off by at least 2**-8 of their range, however many bits they have themselves."""

PASSES_STEPS_ON = Trait.TIED | Trait.HOMOGENEOUS | Trait.NO_LARGER | Trait.ADDS | Trait.SUBTRACTS
COMBINES = Trait.ADDS | Trait.SUBTRACTS | Trait.MULTIPLIES

Rule = Callable[[Sequence[float]], float]
"""From the magnitudes of an op's inputs to that of its output."""


@dataclass(frozen=True)
class Magnitude:
    """How large floats can become, as far as it follows from the integers they are computed from, and how much rounding
    these can change them."""

    reach: float = 0.0
    noise: float = 0.0


class Magnitudes:
    """The magnitudes of the floats of a plan, where these cannot exceed a multiple of their inputs; others have 0."""

    def __init__(self, plan: Plan, ops: Mapping[str, OpSpec]) -> None:
        self._plan = plan
        self._made: dict[Tensor, Magnitude] = {}
        for op in _float_ops(plan, ops):
            rule, read = _bound(op, ops[op.kind]), [self.of(t) for t in ops[op.kind].read_activations(op)]
            if rule is not None and read:
                reach = rule([m.reach for m in read])
                found = Magnitude(reach, rule([m.reach + m.noise for m in read]) - reach)
                found = replace(found, reach=min(found.reach, _end(op)))
                self._made |= dict.fromkeys(ops[op.kind].made_activations(op), found)

    def of(self, tensor: Tensor) -> Magnitude:
        if tensor.data is not None:
            return Magnitude(_largest(tensor))
        stored = self._plan.stored.get(tensor)
        if stored is not None:
            return Magnitude(max(map(abs, stored.range())), stored.scale)
        return self._made.get(tensor, Magnitude())


ORDINARY = 64.0
"""A layer passes errors on like numbers if they grow by no more than this beside them. One that cancels large numbers
lets them grow by more."""


class Errors:
    """The errors that floats of a plan have because some of their inputs were integers.

    Unlike magnitudes, these can be estimated for all ops: in layers, for example, the largest sums that are
    possible say little about those that occur, but how errors add up is known.
    """

    def __init__(self, plan: Plan, ops: Mapping[str, OpSpec], ranges: TensorRanges) -> None:
        self._plan, self._ranges = plan, ranges
        bits = (scheme.levels.bits for scheme in plan.schemes.values() if scheme.levels is not None)
        self._finest = 2.0 ** -min([MOST_BITS, *bits])
        self._made: dict[Tensor, float] = {}
        self._least: dict[Tensor, float] = {}
        self._step: dict[Tensor, float] = {}
        for op in _float_ops(plan, ops):
            spec = ops[op.kind]
            if any(self.of(t) for t in spec.read_activations(op)):
                error = min(self._result(op, spec), 2 * _end(op))
                self._made |= dict.fromkeys(spec.made_activations(op), error)
                self._follow(op, spec)

    def of(self, tensor: Tensor) -> float:
        if tensor.data is not None:
            return 0.0
        stored = self._plan.stored.get(tensor)
        if stored is not None:
            return max(stored.scale, self._finest * max(map(abs, stored.range())))
        return self._made.get(tensor, 0.0)

    def _follow(self, op: Op, spec: OpSpec) -> None:
        """Note the step of the integers that floats were before, and what keeps them from zero: a number that was
        added, or a maximum with one."""
        read = list(spec.read_activations(op))
        if spec.traits & PASSES_STEPS_ON:
            self._step |= dict.fromkeys(spec.made_activations(op), max(map(self._step_of, read), default=0.0))
        if spec.traits & (Trait.ADDS | Trait.TIED):
            least = [self._least_of(t) for t in read] or [0.0]
            combine = sum if Trait.ADDS in spec.traits else max if Trait.GREATEST in spec.traits else min
            found = combine(least)
            self._least |= dict.fromkeys(spec.made_activations(op), found)

    def _size(self, tensor: Tensor) -> float:
        """Return the largest measured magnitude."""
        return self._ranges.peak(tensor) if tensor.data is None else _largest(tensor)

    def _result(self, op: Op, spec: OpSpec) -> float:
        rule, read = _bound(op, spec), list(spec.read_activations(op))
        if rule is not None and (spec.rescale is Rescale.SQUARE or spec.traits & COMBINES):
            return self._combined(op, spec, rule, read)
        if rule is not None:
            return min(max(map(self.of, read)), 2 * rule([math.inf for _ in read]))
        flowing = [t for t in read if t.data is None]
        if (gain := gain_of(op, spec)) is not None:
            return self._of_layer(op, flowing, gain * self._change(math.prod, flowing))
        function = _function(op, spec) if len(flowing) == 1 and self._ranges.knows(flowing[0]) else None
        if function is not None:
            return _changed(function, self._ranges.bounds(flowing[0]), self.of(flowing[0]))
        return self._relative(op, spec)

    def _of_layer(self, op: Op, flowing: Sequence[Tensor], error: float) -> float:
        """Return the error of a layer's result, of which `error` is an estimate. In a chain these multiply; so a layer
        that passes errors on like numbers makes none that is larger than its result."""
        sizes = math.prod(map(self._size, flowing)), self._size(op.outputs[0])
        shares = [self.of(t) / self._size(t) for t in flowing if self._size(t) > 0]
        if 0 in sizes or len(shares) != len(flowing) or error > ORDINARY * max(shares) * sizes[1]:
            return error
        return min(error, max(1.0, *shares) * sizes[1])

    def _combined(self, op: Op, spec: OpSpec, rule: Rule, read: Sequence[Tensor]) -> float:
        change = self._change(rule, read)
        is_product = Trait.MULTIPLIES in spec.traits and all(self.of(t) <= self._size(t) for t in read)
        # Factors that are large where the other is small, as in a normalization, remain so.
        return min(change, self._size(op.outputs[0])) if is_product else change

    def _change(self, rule: Rule, tensors: Sequence[Tensor]) -> float:
        """Return how much a result changes with its inputs, by a rule for values that do not cancel."""
        return rule([self._size(t) + self.of(t) for t in tensors]) - rule([self._size(t) for t in tensors])

    def _relative(self, op: Op, spec: OpSpec) -> float:
        """Return the error of other functions: relative to the result, as large as those of the inputs.

        That errors do not move a divisor to zero is the concern of `poles`; but they may bring it as close as what is
        added to it.
        """
        total = 0.0
        for slot, tensor in enumerate(op.inputs):
            role = spec.input_role(slot)
            if tensor is not None and isinstance(role, Activation) and (size := self._size(tensor)) > 0:
                share = self.of(tensor) / size
                if role.pole and share > 0 and 2 * self._step_of(tensor) >= self._nearest(tensor):
                    return self._near_pole(op, spec, self._least_of(tensor))
                total += min(1.0, share) if role.pole else max(share, share * share)
        return total * self._size(op.outputs[0])

    def _nearest(self, tensor: Tensor) -> float:
        """Return how close to zero measured values come."""
        low, high = self._ranges.bounds(tensor)
        return max(low, -high, 0.0)

    def _step_of(self, tensor: Tensor) -> float:
        stored = self._plan.stored.get(tensor)
        return self._step.get(tensor, 0.0) if stored is None else stored.scale

    def _least_of(self, tensor: Tensor) -> float:
        """Return a number that rounding brings no value of the tensor below: where nothing else is known, 0 if none was
        negative when it was measured."""
        if tensor.data is not None:
            values = _values(tensor)
            return float(values.min()) if values is not None and values.size else -math.inf
        is_positive = self._ranges.knows(tensor) and self._ranges.bounds(tensor)[0] >= 0
        return self._least.get(tensor, 0.0 if is_positive else -math.inf)

    def _near_pole(self, op: Op, spec: OpSpec, least: float) -> float:
        """Return the largest result where a divisor, or the argument of a root or logarithm, is as small as this."""
        if least <= 0:
            return math.inf
        source = spec.interpolated or spec.table
        function = None if source is None else source(op)
        if function is not None:
            return float(np.abs(function(np.array([least]))).max())
        return (self._size(Use(op, 0).tensor) + self.of(Use(op, 0).tensor)) / least


def _float_ops(plan: Plan, ops: Mapping[str, OpSpec]) -> list[Op]:
    return [op for op in plan.graph.ops if op not in plan.schemes and op.kind in ops]


def _largest(constant: Tensor) -> float:
    values = _values(constant)
    return 0.0 if values is None else float(np.abs(values).max(initial=0.0))


def _values(constant: Tensor) -> Array | None:
    """Return the real numbers that a constant stands for."""
    data, params = constant.data, constant.params
    return data if data is None or params is None else dequantize(data, params)


def _end(op: Op) -> float:
    """Return the largest magnitude that the op's fused activation lets through."""
    return max(map(abs, fused_activation(op).bounds or (math.inf,)))


def _bound(op: Op, spec: OpSpec) -> Rule | None:
    """Return a rule for the largest results that are possible; None if there is none."""
    if spec.fixed:
        end = max(abs(end) for dtype, fixed in spec.fixed.items() for end in fixed.params(dtype).range())
        return (lambda _: end) if end <= 1 else lambda read: 2 * max(read) + end  # logarithms of probabilities
    if Trait.RECURRENT in spec.traits:
        largest = largest_output(op) if fused_activation(op).name == "TANH" else None
        return None if largest is None else lambda _: largest
    if spec.saturates:  # activation functions: no larger than their input, nor than where they end
        furthest = max(abs(end) for ends in spec.saturates.values() for end in ends)
        return lambda read: min(max(read), furthest)
    if spec.rescale is Rescale.SQUARE:
        return lambda read: sum(read) * sum(read)  # infinite where ** would raise
    if spec.traits & (Trait.ADDS | Trait.SUBTRACTS):
        return sum
    if Trait.MULTIPLIES in spec.traits:
        return math.prod
    if spec.traits & (Trait.LEAST | Trait.GREATEST):
        counts = [not _only_reduces(t, spec) for t in spec.read_activations(op)]
        return lambda read: max((m for m, does in zip(read, counts, strict=True) if does), default=0.0)
    return max if spec.traits & (Trait.TIED | Trait.HOMOGENEOUS | Trait.NO_LARGER) else None


def _only_reduces(operand: Tensor, spec: OpSpec) -> bool:
    """Whether an operand of MINIMUM or MAXIMUM makes no result larger than the other operand is: a constant that is not
    below zero, or not above it."""
    values = _values(operand)
    if values is None or not values.size:
        return False
    return bool(values.min() >= 0 if Trait.LEAST in spec.traits else values.max() <= 0)


def gain_of(op: Op, spec: OpSpec) -> float | None:
    """Return by how much a sum of products exceeds its factors if these are independent: sqrt(sum of w**2) for a layer,
    sqrt(n) for a sum or a product of matrices. None for other ops."""
    if Trait.SUMS in spec.traits:
        source, result = Use(op, 0).tensor, op.outputs[0]
        return math.sqrt(source.size / result.size if 0 < result.size < source.size else max((1, *source.shape)))
    if spec.layout is None:
        return None
    weights, role = Use(op, spec.layout.weights).tensor, spec.held(spec.layout.weights)
    values = _values(weights)
    if values is None:
        return math.sqrt(max((1, *weights.shape, *Use(op, spec.layout.data).tensor.shape)))
    axis = None if role is None else role.axis_of(op, values.ndim)
    rows = np.moveaxis(values, axis or 0, 0)
    rows = rows.reshape(max(1, len(rows)), -1)
    return math.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64).max(initial=0.0))


def _function(op: Op, spec: OpSpec) -> Function | None:
    """Return the function of one value that an op computes, if the op table has it, and it has no poles."""
    source = spec.interpolated or spec.table
    return None if source is None or Trait.HAS_POLES in spec.traits else source(op)


def _changed(function: Function, ends: tuple[float, float], error: float) -> float:
    """Return how much a monotonic function changes with its input."""
    with np.errstate(all="ignore"):
        off = function(np.array([ends[0] - error, ends[1] + error])) - function(np.array(ends))
    return float(np.nan_to_num(np.abs(off), nan=math.inf).max())
