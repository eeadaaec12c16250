"""Values that stand for minus infinity: padding before a maximum, masks before a softmax.

They must not widen a range, or nothing is left of the values that count. Rewriting clamps them to the lowest integer,
which is as good, as long as that lies below all that counts: far enough below for what reads it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ..calibrate import Grid, TensorStats
from ..graph.model import Graph, Model, Op, Tensor
from ..graph.query import Use, Uses
from ..ops import OPS, Activation, fused_activation
from .tensor_ranges import UNBOUNDED, TensorRanges


def limit_to_what_counts(model: Model, ranges: TensorRanges) -> None:
    """Narrow the ranges of tensors that hold such values."""
    for graph in model.graphs:
        masks = _Masks(graph, ranges)
        masks.follow_infinities()
        masks.limit()


@dataclass
class _Masks:
    """`floors`: of tensors with masked values, the least of the others. `reach`: how far below them values count."""

    graph: Graph
    ranges: TensorRanges
    floors: dict[Tensor, float] = field(default_factory=dict)
    reach: dict[Tensor, float] = field(default_factory=dict)

    def follow_infinities(self) -> None:
        """Where an op only moves values, the finite ones among its operands are those of its outputs."""
        for op in self.graph.ops:
            moved = list(_moved(op))
            if any(t in self.floors or _holds_infinity(t) for t in moved):
                known = [self.ranges.choose(t, None, Grid()) for t in moved if self.ranges.knows(t)]
                for tensor in op.outputs:
                    self.floors[tensor] = min(low for low, _ in known)
                    self.ranges.mask(tensor, self.floors[tensor], max(high for _, high in known))

    def limit(self) -> None:
        uses = Uses(self.graph)
        made = [t for op in self.graph.ops for t in op.outputs]
        for tensor in (*reversed(made), *self.graph.inputs):
            reach = [self._reach(use) for use in uses.readers(tensor)]
            if reach and not uses.is_output(tensor) and all(r is not None for r in reach):
                self.reach[tensor] = max(r for r in reach if r is not None)
        for tensor in (*self.graph.inputs, *made):
            reach_below = self.reach.get(tensor)
            if reach_below is None or not self.ranges.knows(tensor):
                continue
            floor = self._floor(tensor, uses.producer(tensor), reach_below)
            if floor is not None:
                self.floors[tensor] = floor
                self.ranges.mask(tensor, floor - reach_below)
                self._limit_constants(uses, tensor, floor - reach_below)

    def _limit_constants(self, uses: Uses, tensor: Tensor, least: float) -> None:
        """A mask that is chosen where a condition says so need not be lower than what it becomes."""
        producer = uses.producer(tensor)
        for operand in () if producer is None else _moved(producer):
            if operand.data is not None and len(uses.readers(operand)) == 1:
                self.ranges.mask(operand, least)

    def _reach(self, use: Use) -> float | None:
        """How far below the others a value still counts for this reader; None if it always does."""
        spec, result = OPS.get(use.op.kind), use.op.outputs[0]
        if spec is None or spec.negligible is not None:
            return None if spec is None else spec.negligible
        beyond = self.reach.get(result)
        if beyond is None:
            return None
        if _adds(use.op):
            other = use.op.inputs[1 - use.slot]
            if other is None or not self.ranges.knows(other):
                return None
            low, high = self._unmasked(other)
            return beyond + high - low
        return beyond if spec.tied and len(list(_moved(use.op))) == 1 else None

    def _floor(self, tensor: Tensor, producer: Op | None, reach: float) -> float | None:
        """The least value that is not masked; None if no value is."""
        seen = self.ranges.measured(tensor)
        floor = max(self.floors.get(tensor, -math.inf), -math.inf if seen is None else mask_floor(seen, reach))
        operands = [] if producer is None else [t for t in producer.inputs if t is not None and self.ranges.knows(t)]
        if producer is not None and _adds(producer) and len(operands) == 2:
            if floor > -math.inf or any(t in self.floors for t in operands):
                floor = max(floor, sum(self._unmasked(t)[0] for t in operands))
        elif producer is not None and floor > -math.inf:
            # The histogram says that there is a gap; how the operands lie above it, it cannot say as exactly.
            above = [self._unmasked(t) for t in _moved(producer) if self.ranges.knows(t)]
            floor = max(floor, min((low for low, high in above if high >= floor), default=floor))
        return floor if floor > -math.inf else None

    def _unmasked(self, tensor: Tensor) -> tuple[float, float]:
        low, high = self.ranges.bounds(tensor)
        return max(low, self.floors.get(tensor, -math.inf)), high


def _adds(op: Op) -> bool:
    return op.kind == "ADD" and fused_activation(op).name == "NONE" and op.inputs[0] is not op.inputs[1]


def _moved(op: Op) -> Iterator[Tensor]:
    """The operands of an op whose outputs hold nothing but values of theirs."""
    spec = OPS.get(op.kind)
    if spec is not None and spec.tied:
        for slot, tensor in enumerate(op.inputs):
            if tensor is not None and isinstance(spec.input_role(slot), Activation):
                yield tensor


def _holds_infinity(tensor: Tensor) -> bool:
    data = tensor.data
    return data is not None and data.size > 0 and max(-float(data.min()), float(data.max())) >= UNBOUNDED


def mask_floor(stats: TensorStats, distance: float) -> float:
    """The least value that counts where some are masked out by a large negative number; -infinity if none are.

    Masked values lie below an empty stretch of at least `distance`, several times as long as all that lies above it,
    and what lies above is no mere outlier. Without this, a mask of -10000 would leave a softmax two or three steps.
    """
    histogram = stats.histogram
    occupied = np.flatnonzero(histogram.counts)
    if occupied.size < 2:
        return -math.inf
    k = int(np.argmax(np.diff(occupied)))
    edges = histogram.edges()
    floor, below, top = edges[occupied[k + 1]], edges[occupied[k] + 1], edges[occupied[-1] + 1]
    share = histogram.counts[occupied[k + 1] :].sum() / histogram.counts.sum()
    far = floor - below >= max(distance, 4 * (top - floor))
    return float(floor) if far and share >= 0.005 else -math.inf
