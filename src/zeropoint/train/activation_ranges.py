"""The ranges of all groups of a plan, as vectors: a few small computations per step, however many tensors.

They are either learned, or follow the extremes of the activations. Learned ends are stored relative to their initial
values, so that one learning rate suits them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from keras import ops

from ..affine import SMALLEST_SCALE, QuantParams
from ..dtypes import Array, DType
from ..plan.plan import Group
from .backend import AddWeight, array_of, new_variable
from .fake_quant import NudgedRange, QuantSettings, nudge, straight_through

SLOWNESS = 2.0**-5
"""Learning rate of ranges relative to that of weights: they are nearly right from the start, and every activation
depends on them."""

SLOWNESS_OF_CHANGING = 2.0**-2
"""The same if the weights change so much that activations do as well."""

SLOWNESS_OF_FEW = 2.0**-1
"""The same for ranges with few levels: training has to find where the highest should be."""

NARROWEST = 2.0**-12
"""Minimum width of a range, relative to its initial width: an empty range has no scale."""

NARROWEST_OF_FEW = 2.0**-5


@dataclass(frozen=True)
class GroupVectors:
    """What the plan says about its groups, one column each: `ends` are the initial low and high of the ranges."""

    ends: Array
    limits: Array
    unit: Array
    steps: Array
    symmetric: Array
    movable: Array
    few: Array
    scales: Array

    @classmethod
    def of(cls, groups: Sequence[Group], bits: Sequence[int], slowness: float) -> GroupVectors:
        ends = np.array([g.params.range() for g in groups], np.float32).reshape(-1, 2).T
        few = np.array([b < g.params.dtype.bits for b, g in zip(bits, groups, strict=True)], bool)
        limits = np.clip(np.array([g.limits for g in groups], np.float64), -3e38, 3e38).reshape(-1, 2).T
        size = np.maximum(np.abs(ends).max(axis=0, initial=0.0), SMALLEST_SCALE * 2.0**20)
        return cls(
            ends,
            limits.astype(np.float32),
            # powers of two: multiples are exact
            np.exp2(np.round(np.log2(size * np.where(few, SLOWNESS_OF_FEW, slowness)))).astype(np.float32),
            np.array([2.0**b - 1 for b in bits], np.float32),
            np.array([g.symmetric and not g.fixed for g in groups], bool),
            np.array([not g.fixed for g in groups], bool),
            few,
            np.array([g.params.scale for g in groups], np.float32),
        )

    def tensors(self) -> GroupVectors:
        """Return the vectors as backend tensors: PyTorch does not mix with NumPy."""
        return GroupVectors(*(ops.convert_to_tensor(getattr(self, f.name)) for f in fields(self)))


class ActivationRanges:
    """The variables of the ranges, their values at the current step, and their update."""

    def __init__(
        self,
        groups: Sequence[Group],
        bits: Sequence[int],
        settings: QuantSettings,
        add_weight: AddWeight,
        *,
        fast: bool = False,
    ) -> None:
        self.groups, self.bits, self.settings = tuple(groups), tuple(bits), settings
        self.slowness = SLOWNESS_OF_CHANGING if fast else SLOWNESS
        self.known = GroupVectors.of(groups, bits, self.slowness)
        self.learned = settings.ranges == "learned"
        # Lows and highs that are used once frozen, and that hold averages and last values.
        self.tracked = new_variable(add_weight, "range_ends", self.known.ends)
        self.frozen = new_variable(add_weight, "ranges_frozen", np.zeros((), np.float32))
        self.updates = new_variable(add_weight, "range_updates", np.zeros((), np.float32))
        self.multiples: Any = None
        if self.learned and groups:
            multiples = self.known.ends / self.known.unit
            self.multiples = new_variable(add_weight, "range_multiples", multiples, trainable=True)

    def lowest(self, group: int) -> int:
        """Return the integer of the lowest level; the highest is that of the type, where kernels saturate."""
        return self.groups[group].params.dtype.max - int(self.known.steps[group])

    def freeze(self) -> None:
        """Keep the ranges fixed from now on."""
        if self.multiples is not None:
            self.tracked.assign(array_of(self._learned_ends()))
        self.frozen.assign(np.float32(1.0))

    def is_frozen(self, step: Any) -> Any:
        """Return 1 if ranges are fixed at this step, otherwise 0."""
        after = self.settings.freeze_after
        flag = ops.convert_to_tensor(self.frozen)
        return flag if after is None else ops.maximum(flag, ops.cast(step >= after, "float32"))

    def ends(self, step: Any) -> tuple[Any, Any]:
        """Return low and high of each group at this step, before zero is put on the grid."""
        ends = ops.convert_to_tensor(self.tracked)
        if self.multiples is not None:
            ends = ops.where(self.is_frozen(step) > 0, ends, self._learned_ends())
        return self._legal(ends[0], ends[1])

    def _learned_ends(self) -> Any:
        return ops.multiply(ops.convert_to_tensor(self.multiples), ops.convert_to_tensor(self.known.unit))

    def _legal(self, low: Any, high: Any) -> tuple[Any, Any]:
        """Return ranges that include zero, are symmetric or fixed where prescribed, and are never empty."""
        known = self.known.tensors()
        low = ops.where(known.few, 0.0, ops.minimum(ops.maximum(low, known.limits[0]), 0.0))
        high = ops.maximum(ops.minimum(high, known.limits[1]), 0.0)
        peak = ops.maximum(high, -low)
        below = (known.steps + 1.0) / ops.maximum(known.steps - 1.0, 1.0)  # 128 / 127 in 8 bits
        low, high = ops.where(known.symmetric, -peak * below, low), ops.where(known.symmetric, peak, high)
        high = ops.maximum(high, low + known.unit * ops.where(known.few, NARROWEST_OF_FEW, NARROWEST / self.slowness))
        return ops.where(known.movable, low, known.ends[0]), ops.where(known.movable, high, known.ends[1])

    def nudged(self, step: Any) -> list[NudgedRange]:
        """Return the grid of each group at this step. A range that has not moved has exactly its initial scale."""
        if not self.groups:
            return []
        known, (low, high) = self.known.tensors(), self.ends(step)
        all_groups = nudge(low, high, known.steps, learn_scale=self.learned)
        stays = ops.logical_and(ops.equal(low, known.ends[0]), ops.equal(high, known.ends[1]))
        stays = ops.logical_and(stays, ops.logical_not(known.few))
        scale = straight_through(all_groups.scale, ops.where(stays, known.scales, all_groups.scale))
        all_groups = replace(all_groups, scale=scale)
        parts = (ops.unstack(v, num=len(self.groups)) for v in (all_groups.scale, all_groups.low, all_groups.high))
        return [NudgedRange(*of_group) for of_group in zip(*parts, strict=True)]

    def update(self, extremes: Sequence[Any], step: Any) -> None:
        """Update the ranges after a training step: `extremes` are the low and high of each group in this batch."""
        if not self.groups:
            return
        frozen, before = self.is_frozen(step), ops.convert_to_tensor(self.tracked)
        now = self._learned_ends() if self.learned else self._averaged(before, ops.stack(list(extremes), axis=1))
        self.tracked.assign(ops.where(frozen > 0, before, now))
        self.updates.assign(self.updates + 1.0 - frozen)

    def _averaged(self, before: Any, now: Any) -> Any:
        """Return before + (now - before) * share; without calibration to start from, the share is larger at first."""
        if self.settings.ranges == "last":
            return now
        share = 1.0 - self.settings.decay
        if self.settings.debias:
            share = share / (1.0 - ops.power(self.settings.decay, self.updates + 1.0))
        return before + (now - before) * share

    def deployed(self, step: Any) -> list[QuantParams]:
        """Return the parameters that each group is deployed with: those of `nudged`, as integers and scales.

        A range that has not moved has its initial parameters, to the last bit.
        """
        moved = (np.stack([array_of(end) for end in self.ends(step)]) != self.known.ends).any(axis=0)
        return [
            _deployed_params(grid, group.params.dtype, self.lowest(k)) if changed and not group.fixed else group.params
            for k, (group, grid, changed) in enumerate(
                zip(self.groups, self.nudged(step), moved | self.known.few, strict=True)
            )
        ]


def _deployed_params(grid: NudgedRange, dtype: DType, lowest: int) -> QuantParams:
    scale = max(float(array_of(grid.scale)), SMALLEST_SCALE)
    zero_point = lowest + round(-float(array_of(grid.low)) / scale)
    return QuantParams((scale,), (min(max(zero_point, dtype.min), dtype.max),), dtype)
