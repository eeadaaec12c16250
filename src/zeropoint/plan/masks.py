"""Values that stand for minus infinity: padding before a maximum, masks before a softmax.

They must not widen a range, or nothing is left of the values that count. Rewriting clamps them to the lowest integer,
which is as good, as long as that lies below all that counts: far enough below for what reads it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ..calibration import Grid, TensorStats
from ..calibration.histogram import Histogram
from ..calibration.stats import stats_of
from ..dtypes import DType
from ..graph.model import Graph, Model, Op, Tensor
from ..graph.query import Use, Uses
from ..ops import OPS, fused_activation
from .tensor_ranges import UNBOUNDED, TensorRanges


def limit_to_what_counts(model: Model, ranges: TensorRanges) -> None:
    """Narrow the ranges of tensors that hold such values."""
    for graph in model.graphs:
        masks = _Masks(graph, Uses(graph), ranges)
        masks.follow_infinities()
        masks.limit()


@dataclass
class _Masks:
    """`floors`: of tensors with masked values, the least of the others. `reach`: how far below them values count.

    A mask that is subtracted is large where it hides: `ceilings` and `rise` are the same for values from above.
    """

    graph: Graph
    uses: Uses
    ranges: TensorRanges
    floors: dict[Tensor, float] = field(default_factory=dict)
    reach: dict[Tensor, float] = field(default_factory=dict)
    ceilings: dict[Tensor, float] = field(default_factory=dict)
    rise: dict[Tensor, float] = field(default_factory=dict)

    def follow_infinities(self) -> None:
        """Where an op only moves values, the finite ones among its operands are those of its outputs."""
        infinite: set[Tensor] = set()
        for op in self.graph.ops:
            moved = list(_moved(op))
            if not any(t in infinite or (t.data is not None and self._is_infinite(t)) for t in moved):
                continue
            known = [self.ranges.choose(t, None, Grid()) for t in moved if self.ranges.knows(t)]
            for tensor in filter(self._is_infinite, op.outputs):
                infinite.add(tensor)
                if self._may_be_clamped(tensor) and not self.ranges.unbounded.intersection(moved):
                    self.floors[tensor] = min(low for low, _ in known)
                    self.ranges.mask(tensor, self.floors[tensor], max(high for _, high in known))
                else:
                    self.ranges.unbounded.add(tensor)

    def _is_infinite(self, tensor: Tensor) -> bool:
        seen = self.ranges.measured(tensor)
        if seen is not None:
            return seen.nonfinite > 0 or max(-seen.low.value, seen.high.value) >= UNBOUNDED
        data = tensor.data if tensor.dtype is DType.FLOAT32 else None
        return data is not None and data.size > 0 and max(-float(data.min()), float(data.max())) >= UNBOUNDED

    def _may_be_clamped(self, tensor: Tensor) -> bool:
        """Whether all that comes of its infinite values is the same if they are merely below, or above, all others."""
        if self.uses.is_output(tensor):
            return False
        for op in (use.op for use in self.uses.readers(tensor)):
            spec = OPS.get(op.kind)
            if spec is None or not (spec.tied or spec.negligible is not None or op.kind in ("ARG_MAX", "ARG_MIN")):
                return False
            if spec.tied and any(self._is_infinite(t) and not self._may_be_clamped(t) for t in op.outputs):
                return False
        return True

    def limit(self) -> None:
        """Clamp what lies further below the rest than its readers look."""
        made = [t for op in self.graph.ops for t in op.outputs]
        given = [t for t in self.graph.tensors if t.dtype is DType.FLOAT32 and t.data is not None]
        for tensor in (*reversed(made), *self.graph.inputs, *given):
            readers = [] if self.uses.is_output(tensor) else self.uses.readers(tensor)
            for known, ask in ((self.reach, self._reach), (self.rise, self._rise)):
                found = [ask(use) if use.op.outputs else None for use in readers]  # what is stored may count anywhere
                if found and all(r is not None for r in found):
                    known[tensor] = max(r for r in found if r is not None)
        for tensor in (*given, *self.graph.inputs, *made):
            reach, rise = self.reach.get(tensor), self.rise.get(tensor)
            if rise is not None and self.ranges.knows(tensor):
                self._limit_from_above(tensor, rise)
            if reach is None or not self.ranges.knows(tensor):
                continue
            floor = self._floor(tensor, self.uses.producer(tensor), reach)
            if floor is not None:
                self.floors[tensor] = floor
                self.ranges.mask(tensor, floor - reach)
                self._limit_constants(self.uses.producer(tensor), floor - reach)

    def _limit_from_above(self, tensor: Tensor, rise: float) -> None:
        seen = self._seen(tensor)
        ceiling = math.inf if seen is None else -mask_floor(seen.histogram.mirrored(), rise)
        if seen is not None and ceiling < math.inf:
            if ceiling - seen.low.value <= seen.histogram.width:
                ceiling = seen.low.value  # one bin holds all that is not masked: beside the mask it is one value
            self.ceilings[tensor] = ceiling
            self.ranges.limit(tensor, (-math.inf, ceiling + rise))

    def _limit_constants(self, producer: Op | None, least: float) -> None:
        """A constant that is chosen where a condition says so need not be lower than what it becomes."""
        for operand in () if producer is None else _moved(producer):
            if operand.data is not None and len(self.uses.readers(operand)) == 1:
                self.ranges.mask(operand, least)

    def _reach(self, use: Use) -> float | None:
        """How far below the others a value still counts for this reader; None if it always does."""
        spec = OPS.get(use.op.kind)
        if spec is None or spec.negligible is not None:
            return None if spec is None else spec.negligible
        beyond = self.reach.get(use.op.outputs[0])
        if beyond is None:
            return None
        if _adds(use.op) or (_subtracts(use.op) and use.slot == 0):
            return self._beside_the_other(use, beyond)
        return beyond if spec.tied and len(list(_moved(use.op))) == 1 else None

    def _rise(self, use: Use) -> float | None:
        """How far above the others a value still counts for this reader; None if it always does."""
        spec, result = OPS.get(use.op.kind), use.op.outputs[0]
        if _subtracts(use.op) and use.slot == 1 and result in self.reach:
            return self._beside_the_other(use, self.reach[result])
        moves = spec is not None and spec.tied and len(list(_moved(use.op))) == 1
        return self.rise.get(result) if moves else None

    def _beside_the_other(self, use: Use, beyond: float) -> float | None:
        """How far one operand of a sum counts if the sum counts so far: the other one may make up for its range."""
        other = use.op.inputs[1 - use.slot]
        if other is None or not self.ranges.knows(other):
            return None
        low, high = self._unmasked(other)
        return beyond + high - low

    def _seen(self, tensor: Tensor) -> TensorStats | None:
        return self.ranges.measured(tensor) if tensor.data is None else stats_of(tensor.data, 0)

    def _floor(self, tensor: Tensor, producer: Op | None, reach: float) -> float | None:
        """The least value that is not masked; None if no value is."""
        seen = self._seen(tensor)
        floor = self.floors.get(tensor, -math.inf)
        if seen is not None:
            floor = max(floor, mask_floor(seen.histogram, reach))
        operands = [] if producer is None else [t for t in producer.inputs if t is not None and self.ranges.knows(t)]
        if producer is not None and _adds(producer) and len(operands) == 2:
            if floor > -math.inf or any(t in self.floors for t in operands):
                floor = max(floor, sum(self._unmasked(t)[0] for t in operands))
        elif producer is not None and _subtracts(producer) and len(operands) == 2:
            if floor > -math.inf or operands[0] in self.floors or operands[1] in self.ceilings:
                floor = max(floor, self._unmasked(operands[0])[0] - self._unmasked(operands[1])[1])
        elif producer is not None and floor > -math.inf:
            # The histogram says that there is a gap; how the operands lie above it, it cannot say as exactly.
            above = [self._unmasked(t) for t in _moved(producer) if self.ranges.knows(t)]
            floor = max(floor, min((low for low, high in above if high >= floor), default=floor))
        return floor if floor > -math.inf else None

    def _unmasked(self, tensor: Tensor) -> tuple[float, float]:
        low, high = self.ranges.bounds(tensor)
        return max(low, self.floors.get(tensor, -math.inf)), min(high, self.ceilings.get(tensor, math.inf))


def _adds(op: Op) -> bool:
    return op.kind == "ADD" and _of_two(op)


def _subtracts(op: Op) -> bool:
    return op.kind == "SUB" and _of_two(op)


def _of_two(op: Op) -> bool:
    return fused_activation(op).name == "NONE" and op.inputs[0] is not op.inputs[1]


def _moved(op: Op) -> Iterator[Tensor]:
    """The operands of an op whose outputs hold nothing but values of theirs, or averages."""
    spec = OPS.get(op.kind)
    if spec is not None and spec.tied:
        yield from spec.read_activations(op)


def mask_floor(histogram: Histogram, distance: float) -> float:
    """The least value that counts where some are masked out by a large negative number; -infinity if none are.

    Masked values lie below an empty stretch of at least `distance`, several times as long as all that lies above it,
    and what lies above is no mere outlier. Without this, a mask of -10000 would leave a softmax two or three steps.
    """
    occupied = np.flatnonzero(histogram.counts)
    if occupied.size < 2:
        return -math.inf
    k = int(np.argmax(np.diff(occupied)))
    edges = histogram.edges()
    floor, below, top = edges[occupied[k + 1]], edges[occupied[k] + 1], edges[occupied[-1] + 1]
    share = histogram.counts[occupied[k + 1] :].sum() / histogram.counts.sum()
    far = floor - below >= max(distance, 4 * (top - floor))
    return float(floor) if far and share >= 0.005 else -math.inf
