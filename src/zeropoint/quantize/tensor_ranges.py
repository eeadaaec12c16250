"""The range of each tensor of a model: of constants from their data, of activations from what was given or measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ..affine import QuantParams
from ..calibrate import Grid, Method, Ranges, Stats, TensorStats, choose_range
from ..dtypes import Array
from ..graph.model import Model, Op, Tensor
from ..graph.query import Uses, tensor_keys
from ..ops import OPS, fused_activation

Bounds = tuple[float, float]

UNBOUNDED = 1e30
"""Constants beyond this stand for infinity: a padding value before a maximum, a mask before a softmax."""


@dataclass
class TensorRanges:
    """Answers for one model. `widened` are ranges that a kernel's limits made larger."""

    keys: Mapping[Tensor, str]
    stats: Stats | None
    given: Ranges
    method: Method
    bounded: dict[Tensor, Bounds]
    widened: dict[Tensor, Bounds] = field(default_factory=dict)
    _chosen: dict[tuple[Tensor, str, Grid], Bounds] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Model, stats: Stats | None, given: Ranges, method: Method) -> TensorRanges:
        bounded = {op.outputs[0]: b for g in model.graphs for op in g.ops if (b := output_bounds(op)) is not None}
        keys = tensor_keys(model)
        if stats is not None:
            for tensor, distance in _masked(model):
                if (seen := stats.tensors.get(keys[tensor])) is not None:
                    bounded[tensor] = _both(bounded.get(tensor), (mask_floor(seen, distance), math.inf))
        return cls(keys, stats, given, method, bounded)

    def limit(self, tensor: Tensor, bounds: Bounds) -> None:
        """Values beyond `bounds` need not be told apart."""
        self.bounded[tensor] = _both(self.bounded.get(tensor), bounds)
        self._chosen.clear()

    def knows(self, tensor: Tensor) -> bool:
        key = self.keys.get(tensor, "")
        measured = self.stats is not None and key in self.stats.tensors
        return tensor.data is not None or key in self.given.entries or measured

    def bounds(self, tensor: Tensor) -> Bounds:
        """All that was seen, or given."""
        return self.choose(tensor, "minmax", Grid())

    def means(self, tensor: Tensor) -> Array | None:
        """The mean of each slice along the last axis, if it was measured."""
        seen = None if self.stats is None else self.stats.tensors.get(self.keys.get(tensor, ""))
        return None if seen is None or seen.channels is None else seen.channels.mean

    def params(self, tensor: Tensor) -> QuantParams | None:
        """Parameters that a user gave outright."""
        entry = self.given.entries.get(self.keys.get(tensor, ""))
        return None if entry is None else entry.params

    def choose(self, tensor: Tensor, method: str | None, grid: Grid) -> Bounds:
        """The tensor's range by `method` (None: the model's), for this grid of integers."""
        how = method or self.method
        spot = (tensor, how, grid)
        if spot not in self._chosen:
            self._chosen[spot] = self._choose(tensor, how, grid)
        low, high = self._chosen[spot]
        if tensor in self.widened:
            low, high = min(low, self.widened[tensor][0]), max(high, self.widened[tensor][1])
        return low, high

    def _choose(self, tensor: Tensor, method: str, grid: Grid) -> Bounds:
        key = self.keys.get(tensor, "")
        if key in self.given.entries:
            low, high = self.given.entries[key].low, self.given.entries[key].high
        elif self.stats is not None and key in self.stats.tensors:
            low, high = choose_range(self.stats.tensors[key], method, grid)  # type: ignore[arg-type]
        else:
            return constant_bounds(tensor)
        least, greatest = self.bounded.get(tensor, (-math.inf, math.inf))
        return min(max(low, least), greatest), max(min(high, greatest), least)


def _masked(model: Model) -> Iterator[tuple[Tensor, float]]:
    """Tensors that only ops read which ignore whatever lies far below the greatest value."""
    for graph in model.graphs:
        uses = Uses(graph)
        for tensor in graph.tensors:
            specs = [OPS.get(use.op.kind) for use in uses.readers(tensor)]
            distances = [spec.negligible for spec in specs if spec is not None and spec.negligible is not None]
            if specs and len(distances) == len(specs) and not uses.is_output(tensor):
                yield tensor, max(distances)


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
    return float(floor) - distance if far and share >= 0.005 else -math.inf


def _both(a: Bounds | None, b: Bounds) -> Bounds:
    return b if a is None else (max(a[0], b[0]), min(a[1], b[1]))


def constant_bounds(tensor: Tensor) -> Bounds:
    """Least and greatest value of a constant; what stands for infinity does not count."""
    data = tensor.data
    if data is None:
        raise KeyError(tensor.name)
    finite = data[np.abs(data) < UNBOUNDED]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)


def output_bounds(op: Op) -> Bounds | None:
    """What a fused activation limits an op's output to."""
    return fused_activation(op).bounds if op.outputs else None
