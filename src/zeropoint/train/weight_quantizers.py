"""Quantizers from weights to integers: uniform levels of k bits, ternary and binary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from keras import ops

from ..affine import SMALLEST_SCALE, QuantParams, round_half_away
from ..dtypes import Array, DType, Levels
from ..plan.weights import live_scales, weight_params
from ..train_bits import TrainBits
from .backend import AddWeight, array_of, new_variable
from .fake_quant import (
    QuantLevels,
    QuantSettings,
    clip_with_return,
    soft_round,
    straight_through,
    straight_through_rounding,
    symmetric_scale,
    symmetric_steps,
)

LAST_SLOPE = 0.02
"""The final share of the risers in each step of soft rounding: almost nothing."""

NARROW = 8
"""Below this many bits the scales of weights are learned by default: clipping peaks pays."""

THRESHOLD = 0.7
"""The initial threshold of ternary weights, relative to their mean magnitude: near the optimum for normal as well as
uniform distributions (Li et al., Ternary Weight Networks)."""

THRESHOLD_RATE = 2.0**-4
"""The rate at which thresholds of ternary weights are learned, relative to that of scales: a lower threshold makes
weights jump more often, see `clip_with_return`."""

UNDECIDED = 0.3
"""The width of the band around a threshold whose weights have yet to decide, relative to twice the threshold, when
deciding begins."""

REACH = 4.0
"""Binary weights beyond this multiple of the initial mean magnitude only get gradients that lead back to it."""

VANISHING = 2.0**-8
"""The scale of a channel without weights, relative to the smallest of the others, if there is no level zero."""


class WeightQuantizer:
    """Symmetric levels for the weights at one use, with a scale for each slice along an axis, or one for all.

    Scales either cover the current largest weight, or are learned (LSQ): as the initial ones times exp(exponents).
    """

    has_zero = True
    """Whether zero is one of the levels."""

    has_own_scale = False
    """Whether the scale is a factor behind the levels, which does not move the borders between them."""

    def __init__(
        self, start: QuantParams, data: Array, settings: QuantSettings, bits: int | None, add: LearnedScales
    ) -> None:
        self.start, given = start, start.levels.bits
        self.bits = given if bits is None else bits
        self.levels = QuantLevels(self.bits, narrow=True)
        self.learned = (settings.weight_scales or ("learned" if self.bits < NARROW else "last")) == "learned"
        if self.learned:
            scales = np.array(start.scales, np.float32)
            if self.bits != given:
                levels = Levels(DType.INT8, self.bits)
                scales = np.array(weight_params(data, start.axis, levels, add.name, "mse").scales, np.float32)
            self.first, self.exponents = add.variable("scale", scales, start.axis, data.ndim)

    def scale(self, weights: Any) -> Any:
        if self.learned:
            return _learned(self.first, self.exponents)
        scale = symmetric_scale(weights, self.levels, self.start.axis)
        # Channels with zero weights get the smallest scale of the others, as in `live_scales`.
        alive = scale * (self.levels.steps // 2) >= SMALLEST_SCALE * 2.0**24
        others = ops.min(ops.where(alive, scale, 3e38))
        return ops.where(alive, scale, ops.where(others < 3e38, others, 2.0**-7))

    def steps(self, weights: Any, scale: Any, softness: Any = None, deciding: Any = None) -> Any:
        """Return the weights in whole steps of `scale`; narrow ones only partly rounded, with a `softness` up to 1.
        `deciding` is how much of the time is left in which those near a threshold decide, if that time has begun."""
        del deciding
        is_soft = softness is not None and self.bits < NARROW
        slope = LAST_SLOPE + (1.0 - LAST_SLOPE) * softness if is_soft else None
        return symmetric_steps(weights, scale, self.levels, slope)

    def params(self, weights: Array) -> QuantParams:
        """Return the parameters that the weights are deployed with: `scale`, computed to the last bit as without
        training."""
        others = None if self.start.axis is None else tuple(k for k in range(weights.ndim) if k != self.start.axis)
        peaks = np.abs(weights).max(axis=others, initial=0.0).reshape(-1)
        if self.learned:
            scales = self.first.reshape(-1) * np.exp(array_of(self.exponents)).reshape(-1)
        else:
            scales = peaks.astype(np.float64) / (self.levels.steps // 2)
        if self.has_zero:
            scales = live_scales(scales, peaks)
        stored = tuple(map(float, np.asarray(scales, np.float32)))
        return replace(self.start, scales=stored, zero_points=(0,) * len(stored))

    def effective(self, weights: Any) -> Any:
        """Return the weights at the size that they have behind their scales, to continue with in other bits.

        With LSQ that is their own size: levels follow the scale. Elsewhere the scale is a factor of its own.
        """
        return weights

    def deployed(self, weights: Array, params: QuantParams) -> Array:
        """Return the weights clipped to the grid, beyond which the stored type may reach."""
        scales, _ = params.along(weights.ndim)
        most = scales * (self.levels.steps // 2)
        return np.clip(weights, -most, most).astype(np.float32)


class LearnedScales:
    """Creates variables for numbers that stay positive: the initial ones times exp(exponents)."""

    def __init__(self, add_weight: AddWeight, name: str) -> None:
        self.add_weight, self.name = add_weight, name

    def variable(self, what: str, first: Array, axis: int | None, rank: int) -> tuple[Array, Any]:
        """Return the initial values, shaped to broadcast against weights, and the exponents."""
        shape = [] if axis is None else [-1 if k == axis else 1 for k in range(rank)]
        first = np.asarray(first, np.float32).reshape(shape)
        return first, new_variable(self.add_weight, f"{self.name}_{what}", np.zeros_like(first), trainable=True)


def _learned(first: Array, exponents: Any) -> Any:
    return ops.multiply(ops.convert_to_tensor(first), ops.exp(ops.convert_to_tensor(exponents)))


class _OwnScale(WeightQuantizer):
    """Levels whose scale does not move the borders between them."""

    has_own_scale = True

    def _blended(self, weights: Any, whole: Any, softness: Any) -> Any:
        """Return a mean of weights as they are, of which `softness` is the share, and of rounded ones, in steps.

        Rounded to two or three levels all at once, a network loses what it has learned; this way it adapts while the
        levels come in.
        """
        if softness is None:
            return whole
        return whole + softness * (weights / ops.convert_to_tensor(self.first) - whole)

    def effective(self, weights: Any) -> Any:
        return weights * ops.exp(ops.convert_to_tensor(self.exponents))


class TernaryQuantizer(_OwnScale):
    """-1, 0 or 1 times a scale. The threshold between them is learned along with the scale; both start from the
    weights.

        q = sign(w) where |w| > threshold, else 0

    Its straight-through gradient is that of rounding w / (2 threshold), clipped to [-1, 1].

    With that gradient many weights gather at the threshold and oscillate: the optimum is between two levels, and each
    level drives them to the other. At the end of training they have to decide: those within a narrowing band around the
    threshold get values between the two levels (`soft_round`), and all others keep theirs.
    """

    def __init__(
        self, start: QuantParams, data: Array, settings: QuantSettings, bits: int | None, add: LearnedScales
    ) -> None:
        del settings, bits
        self.start, self.bits, self.learned = start, 2, True
        self.levels = QuantLevels(2, narrow=True)
        rows = _rows(data, start.axis)
        threshold = np.maximum(THRESHOLD * rows.mean(axis=1), SMALLEST_SCALE * 2.0**20)
        beyond = rows > threshold[:, None]
        scales = (rows * beyond).sum(axis=1) / np.maximum(beyond.sum(axis=1), 1)
        scales = np.where(scales > 0, scales, 2.0**-7)
        self.first, self.exponents = add.variable("scale", scales, start.axis, data.ndim)
        self.first_threshold, self.threshold = add.variable("threshold", threshold, start.axis, data.ndim)

    def steps(self, weights: Any, scale: Any, softness: Any = None, deciding: Any = None) -> Any:
        del scale
        step = 2.0 * _learned(self.first_threshold, self.threshold * THRESHOLD_RATE)
        whole = straight_through_rounding(clip_with_return(weights, step, 1.0))
        if deciding is not None:
            slope = LAST_SLOPE + (UNDECIDED - LAST_SLOPE) * ops.minimum(deciding, 1.0)
            whole = ops.where(deciding < 1.0, soft_round(ops.clip(weights / step, -1.0, 1.0), slope), whole)
        return self._blended(weights, whole, softness)

    def deployed(self, weights: Array, params: QuantParams) -> Array:
        scales, _ = params.along(weights.ndim)
        step = 2.0 * self.first_threshold * np.exp(array_of(self.threshold) * THRESHOLD_RATE)
        return (np.clip(round_half_away(weights / step), -1, 1) * scales).astype(np.float32)


class MidriseQuantizer(_OwnScale):
    """-3, -1, 1 or 3 times a scale, which is learned: all four levels of 2 bits, with zero between two of them.

    Compared with -1, 0, 1, the mean squared error of normally distributed weights is lower by a third.

        q = clip(floor(w / (2 first)) + 1/2, -3/2, 3/2),   whole = 2 q,   real = whole scale

    The borders between levels stay those of the initial scale `first`: weights move relative to them. If they followed
    the scale (LSQ), training at the rate that 2 bits need would diverge, see `clip_with_return`. The straight-through
    gradient reaches to the outer ends of the outermost cells, w = ±4 first.
    """

    has_zero = False

    def __init__(
        self, start: QuantParams, data: Array, settings: QuantSettings, bits: int | None, add: LearnedScales
    ) -> None:
        del settings, bits
        self.start, self.bits, self.learned = replace(start, narrowed=3), 2, True
        self.levels = QuantLevels(3, narrow=True)
        scales = _without_zero(_midrise_scales(_rows(data, start.axis)))
        self.first, self.exponents = add.variable("scale", scales, start.axis, data.ndim)

    def steps(self, weights: Any, scale: Any, softness: Any = None, deciding: Any = None) -> Any:
        del scale, deciding
        k = clip_with_return(weights, 2.0 * ops.convert_to_tensor(self.first), 2.0)
        return self._blended(weights, 2.0 * straight_through(k, ops.clip(ops.floor(k) + 0.5, -1.5, 1.5)), softness)

    def deployed(self, weights: Array, params: QuantParams) -> Array:
        scales, _ = params.along(weights.ndim)
        whole = 2.0 * np.clip(np.floor(weights / (2.0 * self.first)) + 0.5, -1.5, 1.5)
        return (whole * scales).astype(np.float32)


MIDRISE_TRIED, MIDRISE_ROUNDS = np.linspace(0.3, 0.8, 11), 4
"""Scales to start from, relative to the root mean square of a channel's weights, and rounds of Lloyd's algorithm. For
normally distributed weights 0.498 is best."""


def _midrise_scales(rows: Array) -> Array:
    """Return the scale of each row of magnitudes with the least squared error at levels of 1 and 3 scales."""
    sizes = np.sqrt(np.mean(np.square(rows), axis=1))
    best: Array = np.zeros_like(sizes)
    least = np.full_like(sizes, np.inf)
    for tried in MIDRISE_TRIED:
        scales = np.maximum(sizes * tried, SMALLEST_SCALE)
        for _ in range(MIDRISE_ROUNDS):
            whole = np.where(rows < 2.0 * scales[:, None], 1.0, 3.0)
            scales = np.maximum((rows * whole).sum(axis=1) / np.square(whole).sum(axis=1), SMALLEST_SCALE)
        whole = np.where(rows < 2.0 * scales[:, None], 1.0, 3.0)
        errors = np.square(rows - whole * scales[:, None]).sum(axis=1)
        best, least = np.where(errors < least, scales, best), np.minimum(errors, least)
    return best


def _without_zero(scales: Array) -> Array:
    """Return scales for levels without a zero: those of channels without weights vanish against the others."""
    alive = scales > SMALLEST_SCALE * 2.0**20
    return np.where(alive, scales, VANISHING * scales[alive].min() if alive.any() else 2.0**-7)


class BinaryQuantizer(_OwnScale):
    """-1 or 1 times a scale, which starts as the mean magnitude of the weights and is learned."""

    has_zero = False

    def __init__(
        self, start: QuantParams, data: Array, settings: QuantSettings, bits: int | None, add: LearnedScales
    ) -> None:
        del settings, bits
        self.start, self.bits, self.learned = start, 1, True
        self.levels = QuantLevels(2, narrow=True)
        scales = _without_zero(_rows(data, start.axis).mean(axis=1))
        self.first, self.exponents = add.variable("scale", scales, start.axis, data.ndim)

    def steps(self, weights: Any, scale: Any, softness: Any = None, deciding: Any = None) -> Any:
        del scale, deciding
        k = clip_with_return(weights, ops.convert_to_tensor(self.first), REACH)
        return self._blended(weights, straight_through(k, ops.where(weights >= 0, 1.0, -1.0)), softness)

    def deployed(self, weights: Array, params: QuantParams) -> Array:
        scales, _ = params.along(weights.ndim)
        return (np.where(weights >= 0, 1.0, -1.0) * scales).astype(np.float32)


def _rows(data: Array, axis: int | None) -> Array:
    """Return magnitudes, with a row for each scale."""
    values = np.abs(data.astype(np.float64))
    return values.reshape(1, -1) if axis is None else np.moveaxis(values, axis, 0).reshape(data.shape[axis], -1)


def quantizer_for(
    start: QuantParams, data: Array, settings: QuantSettings, trained: TrainBits | None, add: LearnedScales
) -> WeightQuantizer:
    """Return the quantizer for training at one use; without bits of its own, that of the plan's levels."""
    if settings.weight_bits is not None:
        trained = TrainBits(min(settings.weight_bits, start.levels.bits))
    if trained is None:
        return WeightQuantizer(start, data, settings, None, add)
    return _kind(trained, start)(start, data, settings, trained.weights, add)


def _kind(trained: TrainBits, start: QuantParams) -> type[WeightQuantizer]:
    if trained.ternary:
        return TernaryQuantizer
    if trained.is_binary:
        return BinaryQuantizer
    return MidriseQuantizer if trained.weights == 2 and start.dtype.bits > 2 else WeightQuantizer
