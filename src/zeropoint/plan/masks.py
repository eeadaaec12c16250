"""Values that represent minus infinity: padding before a maximum, masks before a softmax.

They must not widen a range, or nothing is left for the values that matter. Rewriting clamps them to the lowest integer,
which is equivalent as long as that lies below everything that matters: far enough below for its readers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..calibration import Grid, TensorStats
from ..calibration.histogram import Histogram
from ..calibration.stats import stats_of
from ..dtypes import DType
from ..graph.model import Graph, Model, Op, Tensor
from ..graph.query import Use, Uses
from ..ops import OpSpec, Trait, fused_activation, spec_of
from .tensor_ranges import UNBOUNDED, TensorRanges


def limit_to_what_counts(model: Model, ranges: TensorRanges, ops: Mapping[str, OpSpec]) -> TensorRanges:
    """Return the ranges, narrowed for tensors that hold such values."""
    for graph in model.graphs:
        masks, kinds = _Masks(graph, Uses(graph), ops, ranges), {op.kind for op in graph.ops}.intersection(ops)
        masks.follow_infinities()
        if any(ops[kind].negligible is not None for kind in kinds):
            masks.limit()
        if any(ops[kind].traits & (Trait.LEAST | Trait.GREATEST) for kind in kinds):
            masks.limit_ends()
        ranges = masks.ranges
    return ranges


@dataclass
class _Masks:
    """Finds masked values. `floors`: the minimum of the unmasked values of a tensor. `reach`: how far below them values
    matter.

    A mask that is subtracted is large where it hides: `ceilings` and `rise` are the same for values from above.
    """

    graph: Graph
    uses: Uses
    ops: Mapping[str, OpSpec]
    ranges: TensorRanges
    floors: dict[Tensor, float] = field(default_factory=dict)
    reach: dict[Tensor, float] = field(default_factory=dict)
    ceilings: dict[Tensor, float] = field(default_factory=dict)
    rise: dict[Tensor, float] = field(default_factory=dict)

    def follow_infinities(self) -> None:
        """Propagate finite ranges through ops that only move values."""
        infinite: set[Tensor] = set()
        for op in self.graph.ops:
            moved = list(self._moved(op))
            if not any(t in infinite or (t.data is not None and self._is_infinite(t)) for t in moved):
                continue
            known = [self.ranges.choose(t, None, Grid()) for t in moved if self.ranges.knows(t)]
            for tensor in filter(self._is_infinite, op.outputs):
                infinite.add(tensor)
                if self._may_be_clamped(tensor) and not self.ranges.unbounded.intersection(moved):
                    self.floors[tensor] = min(low for low, _ in known)
                    self.ranges = self.ranges.with_mask(tensor, self.floors[tensor], max(high for _, high in known))
                else:
                    self.ranges = replace(self.ranges, unbounded=self.ranges.unbounded | {tensor})

    def _is_infinite(self, tensor: Tensor) -> bool:
        seen = self.ranges.measured(tensor)
        if seen is not None:
            return seen.nonfinite > 0 or max(-seen.low.value, seen.high.value) >= UNBOUNDED
        data = tensor.data if tensor.dtype is DType.FLOAT32 else None
        return data is not None and data.size > 0 and max(-float(data.min()), float(data.max())) >= UNBOUNDED

    def _may_be_clamped(self, tensor: Tensor) -> bool:
        """Whether nothing changes if infinite values become merely lower, or higher, than all others."""
        if self.uses.is_output(tensor):
            return False
        for op in (use.op for use in self.uses.readers(tensor)):
            spec = spec_of(op, self.ops)
            if not (spec.tied or spec.negligible is not None or Trait.RANKS in spec.traits):
                return False
            if spec.tied and any(self._is_infinite(t) and not self._may_be_clamped(t) for t in op.outputs):
                return False
        return True

    def limit(self) -> None:
        """Clamp values that lie further below the rest than their readers distinguish."""
        made, given = [t for op in self.graph.ops for t in op.outputs], self._constants()
        for tensor in (*reversed(made), *self.graph.inputs, *given):
            self._ask_readers(tensor)
        for tensor in (*given, *self.graph.inputs, *made):
            if not self.ranges.knows(tensor):
                continue
            if tensor in self.rise:
                self._limit_from_above(tensor, self.rise[tensor])
            if tensor in self.reach:
                self._limit_from_below(tensor, self.reach[tensor])

    def limit_ends(self) -> None:
        """Clamp constants that only keep results from going far above, or below, where they ever are: the 1e12 of
        MINIMUM(1 / x, 1e12)."""
        for tensor in self._constants():
            readers = [] if self.uses.is_output(tensor) else [use.op for use in self.uses.readers(tensor)]
            if readers and all(op.outputs and self.ranges.knows(op.outputs[0]) for op in readers):
                self._limit_end(tensor, readers)

    def _limit_end(self, tensor: Tensor, readers: Sequence[Op]) -> None:
        made = [self.ranges.bounds(op.outputs[0]) for op in readers]
        if all(self._has(op, Trait.LEAST) for op in readers):
            self.ranges = self.ranges.limited({tensor: (-math.inf, max(high for _, high in made))})
        elif all(self._has(op, Trait.GREATEST) for op in readers):
            self.ranges = self.ranges.limited({tensor: (min(low for low, _ in made), math.inf)})

    def _constants(self) -> list[Tensor]:
        return [t for t in self.graph.tensors if t.dtype is DType.FLOAT32 and t.has_data]

    def _has(self, op: Op, trait: Trait) -> bool:
        return op.kind in self.ops and trait in self.ops[op.kind].traits

    def _ask_readers(self, tensor: Tensor) -> None:
        """Determine how far below and above the others a value matters to any reader of the tensor, if there is a
        limit."""
        readers = [] if self.uses.is_output(tensor) else self.uses.readers(tensor)
        for known, ask in ((self.reach, self._reach), (self.rise, self._rise)):
            found = [ask(use) if use.op.outputs else None for use in readers]  # a stored value may matter anywhere
            distances = [r for r in found if r is not None]
            if found and len(distances) == len(found):
                known[tensor] = max(distances)

    def _limit_from_below(self, tensor: Tensor, reach: float) -> None:
        producer = self.uses.producer(tensor)
        floor = self._floor(tensor, producer, reach)
        if floor == -math.inf:
            return
        self.floors[tensor] = floor
        self.ranges = self.ranges.with_mask(tensor, floor - reach)
        # A constant selected by a condition need not be lower than the clamped value.
        for operand in () if producer is None else self._moved(producer):
            if operand.data is not None and len(self.uses.readers(operand)) == 1:
                self.ranges = self.ranges.with_mask(operand, floor - reach)

    def _limit_from_above(self, tensor: Tensor, rise: float) -> None:
        seen = self._seen(tensor)
        ceiling = math.inf if seen is None else -mask_floor(seen.histogram.mirrored(), rise, _row(tensor))
        if seen is not None and ceiling < math.inf:
            if ceiling - seen.low.value <= seen.histogram.width:
                ceiling = seen.low.value  # one bin holds all unmasked values: next to the mask, they are a single value
            self.ceilings[tensor] = ceiling
            self.ranges = self.ranges.limited({tensor: (-math.inf, ceiling + rise)})

    def _reach(self, use: Use) -> float | None:
        """Return how far below the others a value still matters to this reader; None if it always does."""
        spec = self.ops.get(use.op.kind)
        if spec is None or spec.negligible is not None:
            return None if spec is None else spec.negligible_in(use.op)
        beyond = self.reach.get(use.op.outputs[0])
        if beyond is None:
            return None
        if self._is_plain(use.op, Trait.ADDS) or (self._is_plain(use.op, Trait.SUBTRACTS) and use.slot == 0):
            return self._beside_the_other(use, beyond)
        return beyond if len(list(self._moved(use.op))) == 1 else None

    def _rise(self, use: Use) -> float | None:
        """Return how far above the others a value still matters to this reader; None if it always does."""
        result = use.op.outputs[0]
        if result not in self.reach and result not in self.rise:
            return None
        if self._is_plain(use.op, Trait.SUBTRACTS) and use.slot == 1 and result in self.reach:
            return self._beside_the_other(use, self.reach[result])
        return self.rise.get(result) if len(list(self._moved(use.op))) == 1 else None

    def _beside_the_other(self, use: Use, beyond: float) -> float | None:
        """Return how far one operand of a sum matters if the sum matters that far: the other one may compensate for its
        range."""
        other = use.op.inputs[1 - use.slot]
        if other is None or not self.ranges.knows(other):
            return None
        low, high = self._unmasked(other)
        return beyond + high - low

    def _seen(self, tensor: Tensor) -> TensorStats | None:
        return self.ranges.measured(tensor) if tensor.data is None else stats_of(tensor.data, 0)

    def _floor(self, tensor: Tensor, producer: Op | None, reach: float) -> float:
        """Return the smallest unmasked value; -infinity if no value is masked."""
        seen = self._seen(tensor)
        floor = self.floors.get(tensor, -math.inf)
        if seen is not None:
            floor = max(floor, mask_floor(seen.histogram, reach, _row(tensor)))
        if producer is None:
            return floor
        return -math.inf if self._joins_hidden_rows(producer, floor) else self._raised_floor(producer, floor)

    def _joins_hidden_rows(self, producer: Op, floor: float) -> bool:
        """Whether all values of a joined operand lie below the floor: they would hide each other, and are no masks."""
        if not self._has(producer, Trait.VARIADIC):
            return False
        known = (self.ranges.bounds(t) for t in self._moved(producer) if self.ranges.knows(t))
        return any(low < high < floor for low, high in known)

    def _raised_floor(self, producer: Op, floor: float) -> float:
        """Return the floor of an op's output, as far as those of its operands determine it more precisely."""
        operands = [t for t in producer.inputs if t is not None and self.ranges.knows(t)]
        has_floor = floor > -math.inf
        if self._is_plain(producer, Trait.ADDS) and len(operands) == 2:
            is_masked = has_floor or any(t in self.floors for t in operands)
            return max(floor, sum(self._unmasked(t)[0] for t in operands)) if is_masked else floor
        if self._is_plain(producer, Trait.SUBTRACTS) and len(operands) == 2:
            left, right = operands
            is_masked = has_floor or left in self.floors or right in self.ceilings
            return max(floor, self._unmasked(left)[0] - self._unmasked(right)[1]) if is_masked else floor
        return max(floor, self._least_above(producer, floor)) if has_floor else floor

    def _least_above(self, producer: Op, floor: float) -> float:
        """Return the smallest value above the gap. The histogram shows that there is a gap, the operands where it ends
        exactly."""
        above = [self._unmasked(t) for t in self._moved(producer) if self.ranges.knows(t)]
        return min((low for low, high in above if high >= floor), default=floor)

    def _unmasked(self, tensor: Tensor) -> tuple[float, float]:
        low, high = self.ranges.bounds(tensor)
        return max(low, self.floors.get(tensor, -math.inf)), min(high, self.ceilings.get(tensor, math.inf))

    def _is_plain(self, op: Op, trait: Trait) -> bool:
        """Whether the op adds or subtracts two different tensors and does nothing else."""
        return self._has(op, trait) and fused_activation(op).name == "NONE" and op.inputs[0] is not op.inputs[1]

    def _moved(self, op: Op) -> Iterator[Tensor]:
        """Yield the operands of an op whose outputs contain only values of theirs, or averages."""
        spec = spec_of(op, self.ops)
        if spec.tied:
            yield from spec.read_activations(op)


MASKED_WITHIN = 1.5
"""Masked values differ by no more than this multiple of their distance from the others: some may be masked twice."""


def _row(tensor: Tensor) -> int:
    """Return the number of elements of which at least one is not masked."""
    return tensor.shape[-1] if tensor.shape and tensor.shape[-1] > 1 else max(1, tensor.size)


def mask_floor(histogram: Histogram, distance: float, row: int) -> float:
    """Return the smallest value that matters if some are masked by a large negative number; -infinity if none are.

    Masked values lie below an empty interval of at least `distance`, several times as long as the range above it. They
    are close to each other, since a mask moves them all by the same amount, and what lies above is not a mere outlier,
    but at least one value in each `row`. Without this, a mask of -10000 would leave a softmax two or three steps.
    """
    occupied = np.flatnonzero(histogram.counts)
    if occupied.size < 2:
        return -math.inf
    k = int(np.argmax(np.diff(occupied)))
    edges = histogram.edges()
    floor, below, top = edges[occupied[k + 1]], edges[occupied[k] + 1], edges[occupied[-1] + 1]
    share = histogram.counts[occupied[k + 1] :].sum() / histogram.counts.sum()
    far = floor - below >= max(distance, 4 * (top - floor))
    close = below - edges[occupied[0]] <= MASKED_WITHIN * (floor - below) + 2 * histogram.width
    return float(floor) if far and close and share >= max(0.005, 1 / row) else -math.inf
