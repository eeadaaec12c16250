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
from .fake_quant import QuantLevels, QuantSettings, straight_through, symmetric_scale, symmetric_steps

NARROW = 8
"""Below this many bits the scales of weights are learned by default: clipping peaks pays."""

THRESHOLD = 0.7
"""The initial threshold of ternary weights, relative to their mean magnitude: near the optimum for normal as well as
uniform distributions (Li et al., Ternary Weight Networks)."""

REACH = 4.0
"""Binary weights beyond this multiple of the initial mean magnitude get no gradient: they stay what they are."""


class WeightQuantizer:
    """Symmetric levels for the weights at one use, with a scale for each slice along an axis, or one for all.

    Scales either cover the current largest weight, or are learned (LSQ): as the initial ones times exp(exponents).
    """

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

    def steps(self, weights: Any, scale: Any, slope: Any = None) -> Any:
        """Return the weights in whole steps of `scale`; see `symmetric_steps` for the slope."""
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
        scales = live_scales(scales, peaks)
        stored = tuple(map(float, np.asarray(scales, np.float32)))
        return replace(self.start, scales=stored, zero_points=(0,) * len(stored))

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


class TernaryQuantizer(WeightQuantizer):
    """-1, 0 or 1 times a scale. The threshold between them is learned along with the scale; both start from the
    weights.

        q = sign(w) where |w| > threshold, else 0

    Its straight-through gradient is that of rounding w / (2 threshold), clipped to [-1, 1].
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

    def steps(self, weights: Any, scale: Any, slope: Any = None) -> Any:
        del scale
        return symmetric_steps(weights, 2.0 * _learned(self.first_threshold, self.threshold), self.levels, slope)

    def deployed(self, weights: Array, params: QuantParams) -> Array:
        scales, _ = params.along(weights.ndim)
        step = 2.0 * self.first_threshold * np.exp(array_of(self.threshold))
        return (np.clip(round_half_away(weights / step), -1, 1) * scales).astype(np.float32)


class BinaryQuantizer(WeightQuantizer):
    """-1 or 1 times a scale, which starts as the mean magnitude of the weights and is learned."""

    def __init__(
        self, start: QuantParams, data: Array, settings: QuantSettings, bits: int | None, add: LearnedScales
    ) -> None:
        del settings, bits
        self.start, self.bits, self.learned = start, 1, True
        self.levels = QuantLevels(2, narrow=True)
        means = _rows(data, start.axis).mean(axis=1)
        means = np.where(means > SMALLEST_SCALE * 2.0**20, means, 2.0**-7)
        self.first, self.exponents = add.variable("scale", means, start.axis, data.ndim)
        self.reach = REACH * self.first

    def steps(self, weights: Any, scale: Any, slope: Any = None) -> Any:
        del scale, slope
        k = ops.clip(weights / ops.convert_to_tensor(self.reach), -1.0, 1.0)
        return straight_through(k * REACH, ops.where(weights >= 0, 1.0, -1.0))

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
        return WeightQuantizer(start, data, settings, min(settings.weight_bits, start.levels.bits), add)
    if trained is None:
        return WeightQuantizer(start, data, settings, None, add)
    kind = TernaryQuantizer if trained.ternary else BinaryQuantizer if trained.is_binary else WeightQuantizer
    return kind(start, data, settings, trained.weights, add)
