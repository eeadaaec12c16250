"""The range of each tensor of a model: of constants from their data, of activations from what was given or measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ..affine import QuantParams
from ..calibrate import Grid, Method, Ranges, Stats, TensorStats, choose_range
from ..dtypes import Array
from ..graph.model import Model, Tensor
from ..ops import fused_activation

Bounds = tuple[float, float]

UNBOUNDED = 1e30
"""Constants beyond this stand for infinity: a padding value before a maximum, a mask before a softmax."""


@dataclass
class TensorRanges:
    """Answers for one model.

    `widened` are ranges that a kernel's limits made larger. `masked` tensors hold values that stand for infinity and
    may be clamped, `unbounded` ones such values as may not.
    """

    keys: Mapping[Tensor, str]
    stats: Stats | None
    given: Ranges
    method: Method
    bounded: dict[Tensor, Bounds]
    widened: dict[Tensor, Bounds] = field(default_factory=dict)
    masked: set[Tensor] = field(default_factory=set)
    unbounded: set[Tensor] = field(default_factory=set)
    _chosen: dict[tuple[Tensor, str, Grid], Bounds] = field(default_factory=dict)

    def limit(self, tensor: Tensor, bounds: Bounds) -> None:
        """Values beyond `bounds` need not be told apart."""
        self.bounded[tensor] = _both(self.bounded.get(tensor), bounds)
        self._chosen.clear()

    def mask(self, tensor: Tensor, least: float, greatest: float = math.inf) -> None:
        """The tensor holds values that stand for infinity; its range is what remains for the others."""
        self.bounded[tensor] = (least, min(greatest, self.bounded.get(tensor, (0.0, math.inf))[1]))
        self.masked.add(tensor)
        self._chosen.clear()

    def knows(self, tensor: Tensor) -> bool:
        given = self.keys.get(tensor, "") in self.given.entries
        return tensor.data is not None or given or self.measured(tensor) is not None

    def is_unbounded(self, tensor: Tensor) -> bool:
        """Whether values count that no integer can stand for."""
        return tensor in self.unbounded or max(map(abs, self.bounds(tensor))) >= UNBOUNDED

    def measured(self, tensor: Tensor) -> TensorStats | None:
        return None if self.stats is None else self.stats.tensors.get(self.keys.get(tensor, ""))

    def bounds(self, tensor: Tensor) -> Bounds:
        """All that was seen, or given."""
        return self.choose(tensor, "minmax", Grid())

    def means(self, tensor: Tensor) -> Array | None:
        """The mean of each slice along the last axis, if it was measured."""
        seen = self.measured(tensor)
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
        elif (seen := self.measured(tensor)) is not None:
            # A histogram that spans masked values as well is too coarse for any choice among the others.
            low, high = choose_range(seen, "minmax" if tensor in self.masked else method, grid)  # type: ignore[arg-type]
        else:
            low, high = constant_bounds(tensor)
        least, greatest = self.bounded.get(tensor, (-math.inf, math.inf))
        if tensor in self.masked and key not in self.given.entries:
            low = least
        return min(max(low, least), greatest), max(min(high, greatest), least)


def _both(a: Bounds | None, b: Bounds) -> Bounds:
    return b if a is None else (max(a[0], b[0]), min(a[1], b[1]))


def constant_bounds(tensor: Tensor) -> Bounds:
    """Least and greatest value of a constant; what stands for infinity does not count."""
    data = tensor.data
    if data is None:
        raise KeyError(tensor.name)
    finite = data[np.abs(data) < UNBOUNDED]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)


def fused_bounds(model: Model) -> dict[Tensor, Bounds]:
    """What fused activations limit the outputs of their ops to."""
    ops = (op for graph in model.graphs for op in graph.ops if op.outputs)
    return {op.outputs[0]: bounds for op in ops if (bounds := fused_activation(op).bounds) is not None}
