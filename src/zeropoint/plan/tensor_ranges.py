"""The range of each tensor of a model: of constants from their data, of activations as given or measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from ..affine import QuantParams
from ..calibration import Grid, Method, Range, Ranges, Stats, TensorStats, choose_ranges
from ..calibration.range_methods import PERCENTILE, Bounds, cached_range
from ..dtypes import Array, Levels
from ..errors import InvalidStats
from ..graph.model import Model, Tensor
from ..ops import fused_activation
from .qdq import Trained

UNBOUNDED = 1e30
"""Constants beyond this represent infinity: a padding value before a maximum, a mask before a softmax."""


@dataclass(frozen=True)
class TensorRanges:
    """The ranges of one model's tensors; limiting them further gives a new value.

    `given` ranges come before measured ones; `prescribed` are those that a user gave as parameters. Values beyond the
    `bounded` interval of a tensor need not be distinguished. `masked` tensors hold values that represent infinity and
    may be clamped, `unbounded` ones such values that may not.
    """

    keys: Mapping[Tensor, str]
    stats: Stats | None
    given: Ranges
    method: Method
    bounded: Mapping[Tensor, Bounds]
    trained: Trained = field(default_factory=Trained)
    methods: Mapping[str, Method] = field(default_factory=dict)  # by key, in place of `method`
    prescribed: frozenset[str] = frozenset()  # by key
    masked: frozenset[Tensor] = frozenset()
    unbounded: frozenset[Tensor] = frozenset()
    percentile: float = PERCENTILE
    _whole: dict[Tensor, Bounds] = field(default_factory=dict, init=False, repr=False, compare=False)

    def limited(self, bounds: Mapping[Tensor, Bounds]) -> TensorRanges:
        """Return the ranges with tensors also limited to these intervals."""
        return replace(self, bounded={**self.bounded, **{t: _both(self.bounded.get(t), b) for t, b in bounds.items()}})

    def with_mask(self, tensor: Tensor, least: float, greatest: float = math.inf) -> TensorRanges:
        """Return the ranges with this tensor marked as holding values that represent infinity; its range is that of the
        others."""
        bounds = (least, min(greatest, self.bounded.get(tensor, (0.0, math.inf))[1]))
        return replace(self, bounded={**self.bounded, tensor: bounds}, masked=self.masked | {tensor})

    def knows(self, tensor: Tensor) -> bool:
        return tensor.has_data or self.entry(tensor) is not None or self.measured(tensor) is not None

    def is_unbounded(self, tensor: Tensor) -> bool:
        """Whether values matter that no integer can represent."""
        return tensor in self.unbounded or max(map(abs, self.bounds(tensor))) >= UNBOUNDED

    def is_cut_short(self, tensor: Tensor) -> bool:
        """Whether a constant holds values that represent infinity, which its range excludes."""
        return tensor.data is not None and float(np.abs(tensor.data).max(initial=0.0)) >= UNBOUNDED

    def measured(self, tensor: Tensor) -> TensorStats | None:
        return None if self.stats is None else self.stats.tensors.get(self.keys.get(tensor, ""))

    def bounds(self, tensor: Tensor) -> Bounds:
        """Return the full observed or given range."""
        if tensor not in self._whole:
            self._whole[tensor] = self.choose(tensor, "minmax", Grid())
        return self._whole[tensor]

    def peak(self, tensor: Tensor) -> float:
        """Return the largest magnitude in the full range; 0 if that is not known."""
        return max(map(abs, self.bounds(tensor))) if self.knows(tensor) else 0.0

    def means(self, tensor: Tensor) -> Array | None:
        """Return the mean of each slice along the last axis, if it was measured."""
        seen = self.measured(tensor)
        return None if seen is None or seen.channels is None else seen.channels.mean

    def params(self, tensor: Tensor) -> QuantParams | None:
        """Return parameters that were given explicitly, or trained."""
        if tensor.has_data:
            grid = self.trained.constants.get(tensor)
            return grid if grid is not None and len(grid.scales) == 1 else None
        entry = self.entry(tensor)
        return None if entry is None else entry.params

    def weights(self, tensor: Tensor, axis: int | None, levels: Levels) -> QuantParams | None:
        """Return the grid that was given for a constant, or that it was trained on, if kernels accept it: symmetric,
        with scales along `axis` or a single one."""
        if self.is_given(tensor):
            return given_weights(tensor, self.given.entries[self.keys[tensor]], axis, levels)
        grid, data = self.trained.constants.get(tensor), tensor.data
        if grid is None or data is None or not grid.is_symmetric or grid.axis not in (None, axis):
            return None
        scales, _ = grid.along(data.ndim)
        if np.rint(np.abs(data) / scales).max(initial=0) > levels.max:
            return None
        return QuantParams(grid.scales, grid.zero_points, levels.dtype, grid.granularity, levels.narrowed)

    def entry(self, tensor: Tensor) -> Range | None:
        """Return the given range, or one implied by given ranges where nothing was measured."""
        key = self.keys.get(tensor, "")
        if key in self.given.entries:
            return self.given.entries[key]
        if tensor.has_data or self.measured(tensor) is not None:
            return None
        return self.trained.implied.entries.get(key, self.given.default)

    def anticipate(self, wanted: Iterable[tuple[Tensor, str | None, Grid]]) -> None:
        """Choose the ranges that `choose` will be asked for; together, this is faster than one by one."""
        together: dict[tuple[Method, Grid], dict[Tensor, TensorStats]] = {}
        for tensor, method, grid in wanted:
            if not self.is_given(tensor) and (seen := self.measured(tensor)) is not None:
                together.setdefault((self._method(tensor, method), grid), {})[tensor] = seen
        for (how, grid), found in together.items():
            choose_ranges(list(found.values()), how, grid, self.percentile)

    def choose(self, tensor: Tensor, method: str | None, grid: Grid) -> Bounds:
        """Return the tensor's range by `method` (None: the model's), for this integer grid."""
        entry = self.entry(tensor)
        if entry is not None:
            low, high = entry.low, entry.high
        elif (measured := self.measured(tensor)) is not None:
            low, high = cached_range(measured, self._method(tensor, method), grid, self.percentile)
        else:
            low, high = constant_bounds(tensor)
        least, greatest = self.bounded.get(tensor, (-math.inf, math.inf))
        if tensor in self.masked and entry is None:
            low = least
        return min(max(low, least), greatest), max(min(high, greatest), least)

    def _method(self, tensor: Tensor, method: str | None) -> Method:
        # A histogram that also spans masked values is too coarse for any choice among the others.
        usual = self.methods.get(self.keys.get(tensor, ""), self.method)
        return "minmax" if tensor in self.masked else cast("Method", method) or usual

    def is_given(self, tensor: Tensor) -> bool:
        return self.keys.get(tensor, "") in self.given.entries

    @property
    def has_given(self) -> bool:
        """Whether any parameters were given, in whatever way."""
        return not (self.given.is_empty and not self.trained.constants)

    def is_default(self, tensor: Tensor) -> bool:
        """Whether only the default range is known."""
        entry = self.entry(tensor)
        return entry is not None and entry is self.given.default

    def is_prescribed(self, tensor: Tensor) -> bool:
        return self.keys.get(tensor, "") in self.prescribed


def _both(a: Bounds | None, b: Bounds) -> Bounds:
    return b if a is None else (max(a[0], b[0]), min(a[1], b[1]))


def given_weights(tensor: Tensor, given: Range, axis: int | None, levels: Levels) -> QuantParams:
    """Return parameters of weights that cover the given range, as kernels take them: symmetric, in the narrow range."""
    if given.params is not None and given.params.levels == levels:
        if not given.params.is_symmetric:
            raise InvalidStats(f"'{tensor.name}' is given the zero point {given.params.zero_point}; weights need 0")
        peaks = np.array([given.params.scale * levels.max])
    else:
        peaks = np.array([max(-low, high) for low, high in given.channels or ((given.low, given.high),)])
    count = 1 if axis is None else tensor.shape[axis]
    if peaks.size not in (1, count):
        raise InvalidStats(f"'{tensor.name}' is given ranges of {peaks.size} channels; here it has {count} scales")
    peaks = np.broadcast_to(peaks, (count,))
    return QuantParams.from_range(-peaks, peaks, levels, symmetric=True, narrow=True, axis=axis, name=tensor.name)


def constant_bounds(tensor: Tensor) -> Bounds:
    """Return the minimum and maximum of a constant, ignoring values that represent infinity."""
    data = tensor.data
    if data is None:
        raise KeyError(tensor.name)
    if not data.size:
        return 0.0, 0.0
    low, high = float(data.min()), float(data.max())
    if max(-low, high) < UNBOUNDED:
        return low, high
    finite = data[np.abs(data) < UNBOUNDED]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)


def fused_bounds(model: Model) -> dict[Tensor, Bounds]:
    """Return the limits that fused activations impose on the outputs of their ops."""
    ops = (op for graph in model.graphs for op in graph.ops if op.outputs)
    return {op.outputs[0]: bounds for op in ops if (bounds := fused_activation(op).bounds) is not None}
