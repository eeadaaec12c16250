"""The ranges of all groups of a plan, as vectors: a few small computations for each step, however many tensors.

They are either learned, or follow the extremes of what flows through. Learned ends are kept as multiples of what they
were at first, so that one learning rate suits them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from keras import ops

from ..affine import SMALLEST_SCALE, QuantParams
from ..dtypes import Array
from ..plan.plan import Group
from .backend import AddWeight, array_of, new_variable
from .fake_quant import NudgedRange, QuantSettings, nudge

SLOWNESS = 2.0**-5
"""Relative to their size, ranges move by this share of what weights move by: they are nearly right from the start, and
every value that flows depends on them."""

NARROWEST = 2.0**-12
"""The least width of a range, as a share of what it was at first: a width of nothing has no scale."""


@dataclass(frozen=True)
class GroupVectors:
    """What the plan says of its groups, one element for each. `low` and `high` are where ranges start."""

    low: Array
    high: Array
    unit: Array
    steps: Array
    symmetric: Array
    movable: Array
    nonnegative: Array
    least: Array
    greatest: Array

    @classmethod
    def of(cls, groups: Sequence[Group]) -> GroupVectors:
        ends = np.array([g.params.range() for g in groups], np.float32).reshape(-1, 2)
        size = np.maximum(np.abs(ends).max(axis=1, initial=0.0), SMALLEST_SCALE * 2.0**20)
        unit = np.exp2(np.round(np.log2(size * SLOWNESS))).astype(np.float32)  # powers of two: multiples are exact
        limits = np.clip(np.array([g.limits for g in groups], np.float64), -3e38, 3e38).reshape(-1, 2)
        return cls(
            ends[:, 0],
            ends[:, 1],
            unit,
            np.array([2.0**g.params.dtype.bits - 1 for g in groups], np.float32),
            np.array([g.symmetric and not g.fixed for g in groups], bool),
            np.array([not g.fixed for g in groups], bool),
            np.array([g.nonnegative for g in groups], bool),
            limits[:, 0].astype(np.float32),
            limits[:, 1].astype(np.float32),
        )

    def tensors(self) -> GroupVectors:
        """The same as tensors of the backend, to be computed with: PyTorch does not mix with NumPy."""
        return GroupVectors(*(ops.convert_to_tensor(getattr(self, f.name)) for f in fields(self)))


class ActivationRanges:
    """Variables of the ranges, what they stand for at this step, and their update."""

    def __init__(self, groups: Sequence[Group], settings: QuantSettings, add_weight: AddWeight) -> None:
        self.groups, self.settings = tuple(groups), settings
        known = self.known = GroupVectors.of(groups)
        self.learned = settings.ranges == "learned"
        # What is used once frozen, and what averages and last values are kept in.
        self.low = new_variable(add_weight, "range_low", known.low)
        self.high = new_variable(add_weight, "range_high", known.high)
        self.frozen = new_variable(add_weight, "ranges_frozen", np.zeros((), np.float32))
        self.updates = new_variable(add_weight, "range_updates", np.zeros((), np.float32))
        self.multiples: Any = None
        if self.learned and groups:
            multiples = np.stack([known.low / known.unit, known.high / known.unit])
            self.multiples = new_variable(add_weight, "range_multiples", multiples, trainable=True)

    def freeze(self) -> None:
        """From now on ranges stay as they are."""
        if self.multiples is not None:
            for variable, end in zip((self.low, self.high), self._learned_ends(), strict=True):
                variable.assign(array_of(end))
        self.frozen.assign(np.float32(1.0))

    def is_frozen(self, step: Any) -> Any:
        """1 where ranges stay as they are from now on."""
        after = self.settings.freeze_after
        flag = ops.convert_to_tensor(self.frozen)
        return flag if after is None else ops.maximum(flag, ops.cast(step >= after, "float32"))

    def ends(self, step: Any) -> tuple[Any, Any]:
        """Low and high of each group at this step, before zero is put on the grid."""
        low, high = ops.convert_to_tensor(self.low), ops.convert_to_tensor(self.high)
        if self.multiples is not None:
            frozen, (learned_low, learned_high) = self.is_frozen(step) > 0, self._learned_ends()
            low, high = ops.where(frozen, low, learned_low), ops.where(frozen, high, learned_high)
        return self._legal(low, high)

    def _learned_ends(self) -> tuple[Any, Any]:
        multiples, unit = ops.convert_to_tensor(self.multiples), ops.convert_to_tensor(self.known.unit)
        return multiples[0] * unit, multiples[1] * unit

    def _legal(self, low: Any, high: Any) -> tuple[Any, Any]:
        """Zero in the range, symmetric ones symmetric, fixed ones as prescribed, none without a width."""
        known = self.known.tensors()
        low = ops.where(known.nonnegative, 0.0, ops.minimum(ops.maximum(low, known.least), 0.0))
        high = ops.maximum(ops.minimum(high, known.greatest), 0.0)
        peak = ops.maximum(high, -low)
        below = (known.steps + 1.0) / (known.steps - 1.0)  # 128 / 127 in 8 bits
        low, high = ops.where(known.symmetric, -peak * below, low), ops.where(known.symmetric, peak, high)
        high = ops.maximum(high, low + known.unit * (NARROWEST / SLOWNESS))
        return ops.where(known.movable, low, known.low), ops.where(known.movable, high, known.high)

    def nudged(self, step: Any) -> list[NudgedRange]:
        """The grid of each group at this step."""
        if not self.groups:
            return []
        all_groups = nudge(*self.ends(step), ops.convert_to_tensor(self.known.steps))
        parts = (ops.unstack(v, num=len(self.groups)) for v in (all_groups.scale, all_groups.low, all_groups.high))
        return [NudgedRange(*of_group) for of_group in zip(*parts, strict=True)]

    def update(self, lows: Sequence[Any], highs: Sequence[Any], step: Any) -> None:
        """After a training step: `lows` and `highs` are the extremes of each group in this batch."""
        if not self.groups:
            return
        frozen = self.is_frozen(step)
        old_low, old_high = ops.convert_to_tensor(self.low), ops.convert_to_tensor(self.high)
        if self.learned:
            low, high = self._learned_ends()
        else:
            low, high = ops.stack(list(lows)), ops.stack(list(highs))
            low, high = self._averaged(old_low, low), self._averaged(old_high, high)
        self.low.assign(ops.where(frozen > 0, old_low, low))
        self.high.assign(ops.where(frozen > 0, old_high, high))
        self.updates.assign(self.updates + 1.0 - frozen)

    def _averaged(self, before: Any, now: Any) -> Any:
        """before + (now - before) * share; without calibration to start from, the share is larger at first."""
        if self.settings.ranges == "last":
            return now
        share = 1.0 - self.settings.decay
        if self.settings.debias:
            count = self.updates + 1.0
            share = (1.0 - self.settings.decay) / (1.0 - ops.power(self.settings.decay, count))
        return before + (now - before) * share

    def deployed(self, step: Any) -> list[QuantParams]:
        """The parameters that each group is deployed with: those that `nudged` gives, as integers and scales.

        A range that has not moved has those that it started with, to the last bit.
        """
        if not self.groups:
            return []
        made = []
        low, high = (array_of(end) for end in self.ends(step))
        moved = (low != self.known.low) | (high != self.known.high)
        for group, nudged, has_moved in zip(self.groups, self.nudged(step), moved, strict=True):
            if group.fixed or not has_moved:
                made.append(group.params)
                continue
            dtype, scale = group.params.dtype, max(float(array_of(nudged.scale)), SMALLEST_SCALE)
            below = round(-float(array_of(nudged.low)) / scale)
            made.append(QuantParams((scale,), (min(max(dtype.min + below, dtype.min), dtype.max),), dtype))
        return made
