"""Finds where the readers of a tensor stop distinguishing its values, so that no integers are spent beyond.

The op table states this for single kernels (`OpSpec.saturates`). Networks compute most such functions with several ops:
SiLU is LOGISTIC and MUL, GELU and Mish are written out in many ways, and a convolution before one may reach -46
although nothing below -6 matters. So functions of one tensor are found in the graph, whatever they consist of, and
sampled in LiteRT.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeGuard

import numpy as np

from ..calibration.range_methods import Bounds
from ..dtypes import Array, DType
from ..graph.model import Graph, Model, Op, Tensor
from ..graph.query import Uses
from ..ops import OpSpec, Trait, fused_activation, spec_of
from ..recipe import Scheme
from ..runtime.runner import Runner
from .plan import Plan
from .tensor_ranges import UNBOUNDED, TensorRanges

LONGEST = 16
"""Maximum number of ops of a function."""

NEAR, FAR = np.sinh(np.linspace(-10.0, 10.0, 8193)), np.geomspace(1.2e4, UNBOUNDED, 1600)
POINTS = np.concatenate([-FAR[::-1], NEAR, FAR]).astype(np.float32)
"""Points at which functions are sampled: dense around zero, out to about ±11,000; further out in steps of 4 %."""

TOLERANCE = 0.25
"""Differences below this share of a step of the result do not matter."""

WORTH = 0.95
"""Maximum share of the range that may remain: the gain has to be worthwhile."""

SLACK = 0.02
"""Part of its range by which a tensor may exceed its limit before what is made of it has to follow."""

REACH = 30
"""Bits that values, in units of the scale, may have before they are clamped to a range."""

LINEAR = Trait.ADDS | Trait.SUBTRACTS | Trait.MULTIPLIES


@dataclass(frozen=True)
class Curve:
    """A function of `tensor` alone: the tensors that it `made`, in order, with their values at POINTS.

    All readers of the tensor go through one of `results`, the last tensors of such a chain. `reach` is how far the
    integers of the tensor reach in any case.
    """

    tensor: Tensor
    made: Mapping[Tensor, Array]
    results: tuple[Tensor, ...]
    reach: Bounds = (0.0, 0.0)
    _known: dict[object, dict[Tensor, Bounds]] = field(init=False, default_factory=dict, compare=False, repr=False)

    def limits(self, seen: Mapping[Tensor, Bounds], bits: int, *, symmetric: bool = False) -> dict[Tensor, Bounds]:
        """Return the interval of the tensor that matters, and of the tensors between it and a result that no longer
        changes. Computed once, as candidates ask for the same repeatedly.

        `seen` are the ranges of tensors; `bits` are those of integers that could hold the result, symmetric around zero
        if `symmetric`.
        """
        key = tuple(seen.items()), bits, symmetric
        if key not in self._known:
            self._known[key] = self._limits(seen, bits, symmetric=symmetric)
        return self._known[key]

    def _limits(self, seen: Mapping[Tensor, Bounds], bits: int, *, symmetric: bool) -> dict[Tensor, Bounds]:
        low, high = seen[self.tensor]
        first, end = np.searchsorted(POINTS, (low, high))
        for result in (t for t in reversed(self.results) if t in seen):
            step = TOLERANCE * (seen[result][1] - seen[result][0]) / (2**bits - 1)
            values = self.made[result]
            left, right = flat_ends(values[first:end], step)
            # An end of the range may itself lie after a jump: FLOOR maps only the value 1 to 1.
            left *= not _jumps(values, first, step)
            right *= not _jumps(values, end, step)
            least = float(POINTS[first + left]) if left else low
            most = float(POINTS[end - right - 1]) if right else high
            if most - least < WORTH * (high - low):
                # Integers hold 0, and may hold more of the tensor than they need: what is made of it has to match.
                peak = max(abs(least), abs(most)) if symmetric else 0.0
                held = max(low, min(least, -peak, self.reach[0])), min(high, max(most, peak, self.reach[1]))
                start, stop = np.searchsorted(POINTS, held[0]), np.searchsorted(POINTS, held[1], side="right")
                # One point more at each end, so that no value of a tensor on the way is left out.
                kept = slice(max(0, start - 1), stop + 1)
                between = list(self.made)[: list(self.made).index(result)]
                passed = {t: (float(self.made[t][kept].min()), float(self.made[t][kept].max())) for t in between}
                return {self.tensor: (least, most), **passed}
        return {}


def _jumps(values: Array, place: int, step: float) -> bool:
    """Whether the point at `place` differs from the one before it."""
    return 0 < place < values.size and not abs(float(values[place]) - float(values[place - 1])) <= step


def flat_ends(values: Array, step: float) -> tuple[int, int]:
    """Return how many points before one near the beginning, and after one near the end, are within a step of its
    value."""
    if not values.size or not np.isfinite(values).all():
        return 0, 0

    def flat(ahead: Array) -> int:
        with np.errstate(over="ignore"):  # values may represent infinity; such a difference is not flat
            spread = np.maximum(np.maximum.accumulate(ahead) - ahead, ahead - np.minimum.accumulate(ahead))
        return int(np.flatnonzero(spread <= step)[-1])

    left, right = flat(values), flat(values[::-1])
    return (left, right) if left + right < len(values) - 1 else (0, 0)


def curves(graph: Graph, ops: Mapping[str, OpSpec]) -> tuple[Curve, ...]:
    """Return the functions of one tensor that the graph computes, the longest one for each tensor."""
    uses, sampled, found = Uses(graph), dict[str, list[Array]](), []
    order = {op: k for k, op in enumerate(graph.ops)}
    for tensor in graph.tensors:
        if tensor.dtype is not DType.FLOAT32 or tensor.data is not None or uses.is_output(tensor):
            continue
        part = _Function(order, uses, ops, tensor)
        if not part.results or all(map(part.is_linear, part.ops)):
            continue
        model = part.model()
        key = str(model)
        if key not in sampled:
            sampled[key] = [values.reshape(-1) for values in Runner(model).run([POINTS])]
        made = [op.outputs[0] for op in part.ops]
        found.append(Curve(tensor, dict(zip(made, sampled[key], strict=True)), tuple(part.results)))
    return tuple(found)


class _Function:
    """The ops that compute element-wise functions of one tensor and constants, up to the last `results`.

    `order` holds the positions of the graph's ops.
    """

    def __init__(self, order: Mapping[Op, int], uses: Uses, ops: Mapping[str, OpSpec], tensor: Tensor) -> None:
        self.table, self.uses, self.tensor = ops, uses, tensor
        self.ops: list[Op] = []
        self.results: list[Tensor] = []
        reached, waiting = {tensor}, [use.op for use in uses.readers(tensor)]
        while waiting and len(self.ops) < LONGEST:
            op = min(waiting, key=order.__getitem__)
            if not self._extends(op, reached):
                break
            self.ops.append(op)
            reached.add(op.outputs[0])
            waiting = [use.op for t in reached for use in uses.readers(t) if use.op not in self.ops]
            if self._is_closed(reached - {op.outputs[0]}):
                self.results.append(op.outputs[0])
        while self.ops and self.ops[-1].outputs[0] not in self.results:
            self.ops.pop()

    def _extends(self, op: Op, reached: set[Tensor]) -> bool:
        spec = spec_of(op, self.table)
        operands = [t for t in op.inputs if t is not None]
        is_scalar = all(t in reached or (t.data is not None and t.size == 1) for t in operands)
        is_float = all(t.dtype is DType.FLOAT32 for t in (*operands, *op.outputs))
        return spec.is_pointwise and is_scalar and is_float and len(op.outputs) == 1

    def _is_closed(self, inner: set[Tensor]) -> bool:
        readers = (use.op for t in inner for use in self.uses.readers(t))
        return not any(map(self.uses.is_output, inner)) and all(op in self.ops for op in readers)

    def is_linear(self, op: Op) -> bool:
        has_constant = any(t is not None and t.data is not None for t in op.inputs)
        is_plain = fused_activation(op).name == "NONE"
        return has_constant and is_plain and bool(self.table[op.kind].traits & LINEAR)

    def model(self) -> Model:
        """Return its ops alone, on a vector; names are normalized, so that equal functions are equal as text."""
        twins = {self.tensor: Tensor("x", POINTS.shape, DType.FLOAT32)}
        outputs = [Tensor(f"y{k}", POINTS.shape, DType.FLOAT32) for k in range(len(self.ops))]
        for op, made in zip(self.ops, outputs, strict=True):
            twins[op.outputs[0]] = made
            for tensor in op.inputs:
                if tensor is not None and tensor.data is not None:
                    twins[tensor] = Tensor.constant(f"c{len(twins)}", tensor.data.reshape(()), tensor.dtype)
        ops = [
            replace(op, inputs=[None if t is None else twins[t] for t in op.inputs], outputs=[twins[op.outputs[0]]])
            for op in self.ops
        ]
        return Model([Graph("function", list(twins.values()), ops, [twins[self.tensor]], outputs)])


def saturation(
    graph: Graph, schemes: Mapping[Op, Scheme], ops: Mapping[str, OpSpec], known: Sequence[Curve], ranges: TensorRanges
) -> dict[Tensor, Bounds]:
    """Return the interval of each tensor beyond which its values need not be distinguished."""
    if not schemes:
        return {}
    uses, found, by_tensor = Uses(graph), dict[Tensor, Bounds](), {curve.tensor: curve for curve in known}
    for tensor in graph.tensors:
        readers = [use.op for use in uses.readers(tensor)]
        around = [*filter(None, (uses.producer(tensor),)), *readers]
        held = next((schemes[op] for op in around if op in schemes), None)
        dtype = None if held is None else held.activations
        if held is None or dtype is None or uses.is_output(tensor):
            continue
        ends, curve = _common_ends(readers, schemes, ops, dtype), by_tensor.get(tensor)
        if ends is not None:
            limits = {tensor: ends}
        elif curve is not None and ranges.knows(tensor) and _is_read_in_one_form(tensor, uses, schemes):
            limits = _curve_limits(curve, ranges, held)
        else:
            continue
        if limits and _is_tied(around, ops):
            # It may share its range with others, and reach further than its results.
            limits = {tensor: limits[tensor]}
        found |= _reachable(limits, ranges, dtype)
    return _with_moved_values(found, graph.ops, uses, schemes, ops)


def _reachable(limits: Mapping[Tensor, Bounds], ranges: TensorRanges, dtype: DType) -> dict[Tensor, Bounds]:
    """Return the limits of tensors whose ranges are known, as wide as kernels need them."""
    known = {tensor: bounds for tensor, bounds in limits.items() if ranges.knows(tensor)}
    return {tensor: within_reach(bounds, ranges.bounds(tensor), dtype.bits) for tensor, bounds in known.items()}


def _is_tied(around: Sequence[Op], ops: Mapping[str, OpSpec]) -> bool:
    """Whether one of these ops demands the same parameters for its inputs and its output."""
    return any(op.kind in ops and ops[op.kind].tied for op in around)


def _with_moved_values(
    limits: Mapping[Tensor, Bounds],
    made_by: Sequence[Op],
    uses: Uses,
    schemes: Mapping[Op, Scheme],
    ops: Mapping[str, OpSpec],
) -> dict[Tensor, Bounds]:
    """Return the limits with those of tensors that are only moved before they are read, which are the same."""
    found = {**limits}
    for op in reversed(made_by):
        source, result = op.inputs[0] if op.inputs else None, op.outputs[0] if op.outputs else None
        if result in found and source not in found and op in schemes and _only_moved(source, op, uses, ops):
            found[source] = found[result]
    return found


def reaching(plan: Plan, known: Sequence[Curve], limits: Mapping[Tensor, Bounds]) -> tuple[Curve, ...]:
    """Return the functions with the reach of their tensors, if integers reach further than the limits that were set.

    Kernels may demand wider ranges, and what is made of such a tensor has to match. The reach of a tensor is set once;
    empty if there is none to set.
    """
    uses, found = Uses(plan.graph), dict[Tensor, Bounds]()
    for tensor in (c.tensor for c in known if c.tensor in limits and c.reach == (0.0, 0.0)):
        forms = [plan.stored.get(tensor), *map(plan.wanted.get, uses.readers(tensor))]
        spans = [form.range() for form in forms if form is not None]
        low, high = min((s[0] for s in spans), default=0.0), max((s[1] for s in spans), default=0.0)
        least, most = limits[tensor]
        if any(form is not None and form.dtype is DType.INT16 for form in forms):  # symmetric, which is no surprise
            least, most = min(least, -most), max(most, -least)
        slack = SLACK * (high - low)
        if low < min(least, 0.0) - slack or high > max(most, 0.0) + slack:
            found[tensor] = low, high
    return tuple(replace(c, reach=found.get(c.tensor, c.reach)) for c in known) if found else ()


def _only_moved(source: Tensor | None, op: Op, uses: Uses, ops: Mapping[str, OpSpec]) -> TypeGuard[Tensor]:
    """Whether `op` alone reads the tensor, and returns its values and no others."""
    spec = ops[op.kind]
    is_mover = spec.moves_values and len(list(spec.read_activations(op))) == 1
    is_alone = source is not None and len(uses.readers(source)) == 1 and not uses.is_output(source)
    return is_mover and is_alone and len(op.outputs) == 1


def _is_read_in_one_form(tensor: Tensor, uses: Uses, schemes: Mapping[Op, Scheme]) -> bool:
    """Whether what the range of a tensor clips is clipped for all of its readers.

    A function may take differences of their results: x - relu(x) is no longer 0 if only one of them reads x unclipped.
    """
    maker, readers = uses.producer(tensor), [use.op for use in uses.readers(tensor)]
    forms = {schemes.get(op) for op in readers}
    if maker is not None and maker in schemes:  # floats are converted from these integers
        forms = {*forms, schemes[maker]} - {None}
    return len(readers) < 2 or len({form and (form.activations, form.symmetric) for form in forms}) == 1


def _curve_limits(curve: Curve, ranges: TensorRanges, scheme: Scheme) -> dict[Tensor, Bounds]:
    """Return where the function of a tensor no longer changes, also for its intermediate tensors."""
    if scheme.activations is None:
        return {}
    seen = {t: ranges.bounds(t) for t in (curve.tensor, *curve.results) if ranges.knows(t)}
    return curve.limits(seen, scheme.activations.bits, symmetric=scheme.symmetric)


def _common_ends(
    readers: Sequence[Op], schemes: Mapping[Op, Scheme], ops: Mapping[str, OpSpec], dtype: DType
) -> Bounds | None:
    """Return the bounds beyond which the results of no reader change any more, if all of them saturate.

    Those of a sigmoid follow from the fixed steps of its integers. One that stays float, because all of its results are
    below 1e-30 for example, tells more of its inputs apart.
    """
    rows = [ops[op.kind] for op in readers if op.kind in ops and (op in schemes or not ops[op.kind].fixed)]
    intervals = [ends for row in rows if (ends := row.saturates.get(dtype)) is not None]
    if not intervals or len(intervals) < len(readers):
        return None
    return min(low for low, _ in intervals), max(high for _, high in intervals)


def within_reach(bounds: Bounds, seen: Bounds, bits: int) -> Bounds:
    """Return `bounds`, widened so that the range `seen` fits into 32 bits in units of the range: kernels wrap beyond
    that."""
    span = max(min(bounds[1], seen[1]), 0.0) - min(max(bounds[0], seen[0]), 0.0)
    factor = max(map(abs, seen)) * 2.0 ** (bits - REACH) / span if span > 0 else 1.0
    return bounds if not 1 < factor < math.inf else (bounds[0] * factor, bounds[1] * factor)
