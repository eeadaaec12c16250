"""Parameters of weights and biases: per-channel, symmetric, and such that every bias fits its integers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ..affine import SMALLEST_SCALE, PerAxis, PerBlock, PerTensor, QuantParams, blocks
from ..dtypes import Array, DType, Levels
from ..graph.model import Op
from ..graph.query import Use
from ..ops import BIAS_TYPE, OpSpec, Weight
from ..parallel import in_parallel
from ..recipe import Scheme

BIAS_LIMIT = {DType.INT8: 2.0**30, DType.UINT8: 2.0**30, DType.INT16: 2.0**44}
"""The largest integer of a bias, by activation type: half of the accumulator's range, so that sums fit too. The
accumulators of int16 have 48 bits."""

FOUR_BIT_BIAS_LIMIT = 2.0**26
"""With 4-bit weights and 8-bit activations, LiteRT's delegate may store weights of dense layers in the upper half of a
byte, so that accumulators are 16 times as large (ai-edge-litert 2.3, on an x86 processor with VNNI)."""

SCALED_DOWN = 2.0**31
"""Kernels treat factors below 2**-32 as zero, so a bias with more integers than that per step of the output would
vanish."""


def scale_axis(op: Op, role: Weight, rank: int, scheme: Scheme) -> int | None:
    """Return the axis of per-channel scales of the op's weights; None for a per-tensor scale."""
    return None if scheme.per_tensor else role.axis_of(op, rank)


def weight_params(data: Array, axis: int | None, levels: Levels, name: str, method: str | None = None) -> QuantParams:
    """Return symmetric parameters in the narrow range, one scale for each slice along `axis`, or one for all.

    `method` is "minmax" (the peak decides) or "mse"; None means mse below 8 bits: with so few steps it pays to clip the
    peaks.
    """
    lows, highs = _extremes(data, axis)
    if levels.dtype is DType.UINT8:  # uint8 kernels have zero points, and multiply faster without a 0
        return QuantParams.from_range(lows, highs, levels, narrow=True, axis=axis, name=name)
    peaks = np.maximum(-lows, highs)
    params = QuantParams.from_range(-peaks, peaks, levels, symmetric=True, narrow=True, axis=axis, name=name)
    scales = np.array(params.scales)
    if method == "mse" or (method is None and levels.bits < 8):
        rows = data.reshape(1, -1) if axis is None else np.moveaxis(data, axis, 0).reshape(peaks.size, -1)
        scales = weighted_scales(rows, np.ones(rows.shape[1]), levels, peaks)
    return with_scales(params, live_scales(scales, peaks))


def unpacked_params(data: Array, axis: int | None, levels: Levels, name: str) -> QuantParams:
    """Return parameters with zero points, for weights that are dequantized before use."""
    lows, highs = _extremes(data, axis)
    return QuantParams.from_range(lows, highs, levels, axis=axis, name=name)


def _extremes(data: Array, axis: int | None) -> tuple[Array, Array]:
    others = tuple(k for k in range(data.ndim) if k != axis)
    return data.min(axis=others, initial=0.0).reshape(-1), data.max(axis=others, initial=0.0).reshape(-1)


def block_params(data: Array, block: int, levels: Levels, method: str | None = None) -> QuantParams:
    """Return one scale for each `block` consecutive weights of a row; files store them as float16."""
    rows = data.reshape(-1, block)
    peaks = np.abs(rows).max(axis=1)
    scales = peaks / levels.max
    if method != "minmax":
        scales = weighted_scales(rows, np.ones(block), levels, peaks)
    # Rounding to float16 may turn a scale into zero, or a huge one into infinity.
    limit = np.finfo(np.float16)
    stored = np.clip(scales, float(limit.tiny), float(limit.max)).astype(np.float16)
    granularity = PerBlock(data.ndim - 1, block)
    scale, zeros = (*stored.astype(float).tolist(),), (0,) * stored.size
    return QuantParams(scale, zeros, levels.dtype, granularity, levels.narrowed)


def live_scales(scales: Array, peaks: Array) -> Array:
    """Return scales in which channels with zero or vanishing weights get the smallest scale of the others.

    Such a channel's scale only matters for its bias: too large and the bias is coarse, too small and it overflows.
    """
    dead = peaks < SMALLEST_SCALE * 2.0**24
    if not dead.any():
        return scales
    return np.where(dead, scales[~dead].min() if (~dead).any() else 2.0**-7, scales)


def bias_use(op: Op, spec: OpSpec) -> Use | None:
    """Return where a layer reads its bias, if it has one."""
    slot = spec.bias_slot
    return None if slot is None or op.input(slot) is None else Use(op, slot)


def fit_bias(
    weights: QuantParams, bias: Array, read: QuantParams, made: QuantParams, limit: float | None = None
) -> tuple[QuantParams, QuantParams, list[int]]:
    """Return parameters of weights and of their bias: bias scale = input scale * weight scale.

    `read` and `made` are those of the layer's input and output. A bias that would not fit, or exceeds a target's
    `limit`, raises its channel's weight scale; these channels are returned third.
    """
    scales = weights.arrays[0].astype(np.float64)  # as stored in a file
    values = np.abs(bias.reshape(-1).astype(np.float64))
    if scales.size == 1:
        values = values.max(initial=0.0, keepdims=True)
    is_shifted = weights.dtype.is_packed and made.dtype.bits == 8
    most: float | Array = FOUR_BIT_BIAS_LIMIT if is_shifted else BIAS_LIMIT[made.dtype]
    if most > SCALED_DOWN:
        most = np.minimum(SCALED_DOWN * np.maximum(values / made.scale, 1.0), most)
    least = values / (read.scale * np.minimum(most, limit or math.inf))
    is_raised = least > scales
    raised = np.flatnonzero(is_raised).tolist() if is_raised.any() else []
    if raised:
        weights = with_scales(weights, np.maximum(scales, least))
        scales = weights.arrays[0].astype(np.float64)
    products = np.maximum(scales * read.scale, SMALLEST_SCALE)
    stored, granularity = products.astype(np.float32).tolist(), PerAxis(0) if products.size > 1 else PerTensor()
    bias_params = QuantParams((*stored,), (0,) * products.size, BIAS_TYPE[made.dtype], granularity)
    return weights, bias_params, raised


def with_scales(params: QuantParams, scales: Array) -> QuantParams:
    return replace(params, scales=(*np.asarray(scales, np.float32).tolist(),))


def spare_bits(coefficients: Array, terms: int) -> int:
    """Return the bits that must stay unused in a 16-bit state, so that sums of `terms` products with these 16-bit
    coefficients fit 32 bits."""
    sums = np.abs(coefficients).sum(axis=-1).max(initial=0.0)
    peak = np.abs(coefficients).max(initial=0.0)
    return 0 if not peak else max(0, math.ceil(math.log2(terms * float(sums / peak))))


def state_params(low: float, high: float, least: int, greatest: int) -> QuantParams:
    """Return int16 parameters with the smallest power-of-two scale that covers the range, within the kernel's
    limits."""
    peak = max(-low, high, 2.0**-20)
    exponent = int(np.ceil(np.log2(peak / 32768)))
    return QuantParams((2.0 ** min(max(exponent, least), greatest),), (0,), DType.INT16)


CLIPPINGS, LLOYD_ROUNDS = 16, 3
"""The number of clipping thresholds tried for a row's weights, and of Lloyd iterations that then alternate between the
best scale for the integers and the best integers for the scale."""

LEAST_CLIP, CLIP_PER_BIT, LEAST_SHARE = 0.7, 0.3, 0.02
"""Thresholds range from the peak down to this multiple of the root mean square, plus this much per bit: for a normal
distribution the optimum is at 1.2 with 2 bits and at 2.5 with 4. The last number is the minimum share of the peak."""


def weighted_scales(weights: Array, importance: Array, levels: Levels, peaks: Array) -> Array:
    """Return scales that minimize the rounding error of each row of `weights`, inputs weighted by their power.

    With 8 bits the peak decides; with 4 bits it pays to clip it, and with 2 most of the weights are beyond the clipping
    threshold.
    """

    def best(rows: slice) -> Array:
        return _best_scales(weights[rows].astype(np.float32), importance.astype(np.float32), levels.max, peaks[rows])

    return np.concatenate([np.empty(0), *in_parallel(best, list(blocks(weights)))])


def _best_scales(weights: Array, importance: Array, limit: int, peaks: Array) -> Array:
    """Return the scale of each row with the least sum(h * (w - scale * q)**2). For given q it is sum(h w q) / sum(h
    q**2)."""
    least, best, fitted = np.full(len(weights), np.inf), peaks / limit, peaks / limit

    def attempt(scales: Array) -> None:
        nonlocal least, best, fitted
        steps = np.maximum(scales, SMALLEST_SCALE).astype(np.float32)[:, None]
        q = np.rint(weights / steps)
        np.clip(q, -limit, limit, out=q)
        error = q * steps
        error -= weights
        error *= error
        found = error @ importance
        better = found < least
        power = np.square(q) @ importance
        own = ((weights * q) @ importance) / np.where(power > 0, power, 1.0)
        fitted = np.where(better, np.where(power > 0, own, scales), fitted)
        least, best = np.where(better, found, least), np.where(better, scales, best)

    squares = np.square(weights) @ importance / max(float(importance.sum()), SMALLEST_SCALE)
    closest = np.sqrt(squares) * (LEAST_CLIP + CLIP_PER_BIT * math.log2(limit + 1))
    lowest = np.clip(closest / np.maximum(peaks, SMALLEST_SCALE), LEAST_SHARE, 1.0)
    for power in np.linspace(0.0, 1.0, CLIPPINGS):
        attempt(peaks * lowest**power / limit)
    for _ in range(LLOYD_ROUNDS):
        attempt(fitted)
    return np.maximum(best, SMALLEST_SCALE)
