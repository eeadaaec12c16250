"""Dynamic-range layers: integer weights on float data. Each run quantizes the data to 8 bits row by row, multiplies
integers, and scales the accumulators back to reals.

Kernels differ in how they round rows, and in the order in which they multiply by the scales.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..affine import round_half_away
from ..dtypes import Array, DType
from ..fixedpoint import wrapped
from ..graph.model import BlockScales, Op, Tensor
from ..ops import OpSpec
from ..ops.layout import convolution_windows
from ..ops.spec import fused_activation
from .call import Computed, Interim, KernelCall
from .weighted import product

F32 = np.float32
LOW, HIGH = -128, 127


@dataclass(frozen=True)
class RoundedRows:
    """Rows of float data in 8 bits: real = scale * (integer - zero point), with one scale and zero point for each
    row."""

    integers: Array
    scales: Array
    zero_points: Array

    @property
    def centered(self) -> Array:
        return np.asarray(self.integers - self.zero_points)


RowRounding = Callable[[Array, bool], RoundedRows]
"""Takes rows, and whether the op asks for zero points."""


def litert_rows(rows: Array, is_asymmetric: bool) -> RoundedRows:
    """Quantize rows as LiteRT's kernels do: to [-127, 127] without a zero point, or to [-128, 127] with one."""
    return _with_zero_points(rows) if is_asymmetric else _without_zero_points(rows)


def _without_zero_points(rows: Array) -> RoundedRows:
    reach = np.abs(rows).max(axis=-1, keepdims=True, initial=F32(0))
    safe = np.where(reach == 0, F32(127), reach)
    integers = np.clip(_to_integers(rows * (F32(127) / safe)), -HIGH, HIGH)
    return RoundedRows(integers, safe / F32(127), np.zeros(safe.shape, np.int64))


def _with_zero_points(rows: Array) -> RoundedRows:
    """Quantize rows with zero points: the width of the range is computed in float32, the zero point in float64."""
    low = rows.min(axis=-1, keepdims=True, initial=F32(0))
    high = rows.max(axis=-1, keepdims=True, initial=F32(0))
    is_empty = low == high
    exact = np.where(is_empty, 1.0, (high - low).astype(np.float64) / (HIGH - LOW))
    below, above = low / exact, high / exact
    is_low_closer = -LOW + np.abs(below) < HIGH + np.abs(above)
    zero_points = round_half_away(np.clip(np.where(is_low_closer, LOW - below, HIGH - above), LOW, HIGH))
    zero_points = np.where(is_empty, 0, zero_points).astype(np.int64)
    scales = exact.astype(F32)
    return RoundedRows(np.clip(_to_integers(rows * (F32(1) / scales)) + zero_points, LOW, HIGH), scales, zero_points)


def _to_integers(scaled: Array) -> Array:
    """Round halves away from zero. In groups of eight, kernels add one half in float32 and truncate, which rounds the
    largest number below one half up to one."""
    together = scaled.shape[-1] // 8 * 8
    cut = np.trunc(scaled[..., :together] + np.copysign(F32(0.5), scaled[..., :together]))
    return np.concatenate([cut, round_half_away(scaled[..., together:])], axis=-1).astype(np.int64)


def xnnpack_rows(rows: Array, is_asymmetric: bool) -> RoundedRows:  # noqa: ARG001 - it always has zero points
    """Quantize rows as XNNPACK does: all in float32, halves to even."""
    low = rows.min(axis=-1, keepdims=True, initial=F32(0))
    high = rows.max(axis=-1, keepdims=True, initial=F32(0))
    span = high - low
    inverse = np.where(span == 0, F32(1), F32(HIGH - LOW) / np.where(span == 0, F32(1), span))
    below, above = low * inverse, high * inverse
    is_low_closer = (F32(LOW) + below) + (F32(HIGH) + above) > 0
    zero_points = np.rint(np.clip(np.where(is_low_closer, F32(LOW) - below, F32(HIGH) - above), LOW, HIGH))
    integers = np.clip(np.rint(rows * inverse) + zero_points, LOW, HIGH).astype(np.int64)
    return RoundedRows(integers, F32(1) / inverse, zero_points.astype(np.int64))


@dataclass(frozen=True)
class Sums:
    """Accumulators in the shape of the output, and what scales them to reals: row scales, weight scales, the bias.

    `data` are the integers without their zero points, [groups, positions, k], and `weights` what they are multiplied
    by, [groups, k, outputs], with `channels` at each tap of a window; for a matrix product, these are the two operands.
    """

    totals: Array
    rows: Array
    zero_points: Array
    columns: Array
    bias: Array
    data: Array
    weights: Array
    channels: int


ScaledSums = Callable[[Sums], Array]
"""Converts integer accumulators to real numbers."""


def factor_first(sums: Sums) -> Array:
    """Return accumulator * (row scale * weight scale) + bias."""
    return np.asarray(sums.totals.astype(F32) * (sums.rows * sums.columns) + sums.bias)


def factor_first_on_x86(sums: Sums) -> Array:
    """Return `factor_first` as LiteRT's vectorized x86 kernels compute it."""
    (data,), (weights,) = sums.data, sums.weights
    wrong = signs_lost(data + sums.zero_points.reshape(-1, 1), weights)
    return factor_first(replace(sums, totals=sums.totals + wrong.reshape(sums.totals.shape)))


def signs_lost(integers: Array, weights: Array) -> Array:
    """Return the error of LiteRT's vectorized x86 kernels: in groups of sixteen columns, the product of the weight -128
    and a negative number gets the wrong sign."""
    together = len(weights) // 16 * 16
    negative = np.minimum(integers[..., :together], 0)
    return 256 * product(negative, (weights[:together] == LOW).astype(np.int64))


def weights_first(sums: Sums) -> Array:
    """Return (accumulator * weight scale) * row scale + bias."""
    return np.asarray(sums.totals.astype(F32) * sums.columns * sums.rows + sums.bias)


def weights_first_if_several(sums: Sums) -> Array:
    """Return `weights_first` for per-channel weights or groups, otherwise `factor_first`: CONV_2D in LiteRT's reference
    kernels."""
    has_one = len(sums.data) == 1 and len(np.unique(sums.columns)) == 1
    return factor_first(sums) if has_one else weights_first(sums)


def weights_first_if_grouped(sums: Sums) -> Array:
    """Return `weights_first` for grouped convolutions, otherwise `factor_first`: CONV_2D in LiteRT's optimized kernels,
    which leave groups to the reference kernel."""
    return factor_first(sums) if len(sums.data) == 1 else weights_first(sums)


def weights_first_by_fours(sums: Sums) -> Array:
    """Return `weights_first` for groups of four channels, and (accumulator * row scale) * weight scale + bias for the
    remainder."""
    rest = sums.totals.astype(F32) * sums.rows * sums.columns + sums.bias
    is_rest = np.arange(rest.shape[-1]) >= rest.shape[-1] // 4 * 4
    return np.asarray(np.where(is_rest, rest, weights_first(sums)))


def rows_first_fused(sums: Sums) -> Array:
    """Return (accumulator * row scale) * weight scale + bias, the last two operations fused: XNNPACK on processors with
    FMA."""
    return fused_multiply_add(sums.totals.astype(F32) * sums.rows, sums.columns, sums.bias)


def zero_points_in_float(sums: Sums) -> Array:
    """Return `factor_first` with the zero-point correction subtracted in float32: BATCH_MATMUL in LiteRT."""
    share = sums.weights.sum(axis=-2, keepdims=True)
    whole = (sums.totals + share * sums.zero_points).astype(F32)
    totals = np.trunc(whole - share.astype(F32) * sums.zero_points.astype(F32))
    return np.asarray(totals * (sums.rows * sums.columns) + sums.bias)


def term_by_term(sums: Sums) -> Array:
    """Scale every product to real and accumulate in float32: TRANSPOSE_CONV in LiteRT. The kernel iterates over the
    input image, so an output accumulates the taps of its window in reverse order, with all channels at each tap."""
    (data,), (weights,) = sums.data, sums.weights
    total = np.zeros(sums.totals.shape, F32)
    for k in np.arange(len(weights)).reshape(-1, sums.channels)[::-1].ravel():
        term = (data[:, k, None] * weights[k]).astype(F32).reshape(total.shape)
        total += term * sums.columns * sums.rows
    return np.asarray(total + sums.bias)


def fused_multiply_add(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c in float32 with a single rounding.

    The product is exact in float64. Rounding the sum to float64 matters only if the result lies exactly between two
    float32 numbers; so the last bit of the float64 sum is set wherever it was inexact ("round to odd").
    """
    exact = a.astype(np.float64) * b.astype(np.float64)
    other = np.broadcast_to(c, exact.shape).astype(np.float64)
    total = exact + other
    back = total - exact
    lost = (exact - (total - back)) + (other - back)
    is_even = (total.view(np.int64) & 1) == 0
    odd = np.nextafter(total, np.where(lost > 0, np.inf, -np.inf))
    return np.asarray(np.where((lost != 0) & is_even, odd, total).astype(F32))


@dataclass(frozen=True)
class DynamicRange:
    """How kernels quantize rows of float data and scale their accumulators, by kind of layer. In a convolution with a
    window of one pixel, a row may be the pixel rather than the image. `block_scales` converts the scales of blockwise
    weights; None if the kernels do not support blocks."""

    rows: RowRounding
    scaled: Mapping[str, ScaledSums]
    has_pixel_rows: bool = False
    block_scales: Callable[[Array], Array] | None = None


IMAGES = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV"})
"""Layers that quantize a whole image as one row. With per-channel weights they always use zero points."""

MATRICES, DENSE = "BATCH_MATMUL", "FULLY_CONNECTED"


def has_layer(op: Op, arithmetic: DynamicRange, spec: OpSpec | None) -> bool:
    """Whether this dynamic-range layer is simulated: not with zero points of weights, nor with a fused activation that
    does more than clamp the output."""
    layout, function = None if spec is None else spec.layout, fused_activation(op)
    weights = None if layout is None else op.inputs[layout.weights]
    if weights is None or not (function.bounds is not None or function.name == "NONE"):
        return False
    if weights.params is None:
        return op.kind == DENSE and arithmetic.block_scales is not None and block_scales(weights) is not None
    if arithmetic is OPTIMIZED and op.kind == DENSE and weights.dtype is DType.INT4 and weights.shape[-1] % 2 == 0:
        return False  # LiteRT has its own packing for these; XNNPACK takes nearly all of them
    return not any(weights.params.zero_points)


def hybrid(call: KernelCall) -> Computed:
    """Simulate CONV_2D, DEPTHWISE_CONV_2D, TRANSPOSE_CONV, FULLY_CONNECTED and BATCH_MATMUL on float data."""
    if call.tensor(call.layout.weights).params is None:
        return _blockwise(call)
    sums = _sums(call)
    values = _arithmetic(call).scaled[call.op.kind](sums)
    steps = (
        Interim("input scale", sums.rows),
        Interim("input zero point", sums.zero_points),
        Interim("sum of products", sums.totals),
        Interim("weight scale", sums.columns),
        Interim("bias", sums.bias),
        Interim("before the activation", values),
    )
    return Computed((_limited(call, values),), steps)


def _limited(call: KernelCall, values: Array) -> Array:
    low, high = fused_activation(call.op).bounds or (-math.inf, math.inf)
    return call.stored(np.clip(values, F32(low), F32(high)))


BLOCKS_NOTE = "within a millionth of the greatest output: the order in which blocks are added depends on the processor"


def _blockwise(call: KernelCall) -> Computed:
    """Simulate FULLY_CONNECTED with blockwise weights: the sum over each block is scaled to real, and these are
    added."""
    weights, held, rounding = call.value(1).astype(np.int64), block_scales(call.tensor(1)), _arithmetic(call)
    assert held is not None
    assert rounding.block_scales is not None
    rows = rounding.rows(call.value(0).astype(F32).reshape(*call.op.outputs[0].shape[:-1], weights.shape[-1]), True)
    scales = rounding.block_scales(held)
    outputs, blocks = scales.shape
    data = rows.centered.reshape(-1, blocks, weights.shape[1] // blocks).swapaxes(0, 1)
    sums = product(data, weights.reshape(outputs, blocks, -1).transpose(1, 2, 0))  # [blocks, positions, outputs]
    total = np.add.accumulate(sums.astype(F32) * scales.T[:, None], axis=0, dtype=F32)[-1]
    bias = call.value(2).astype(F32) if call.has(2) else np.zeros(1, F32)
    values = total.reshape(call.op.outputs[0].shape) * rows.scales + bias
    steps = (
        Interim("input scale", rows.scales),
        Interim("input zero point", rows.zero_points),
        Interim("scaled sums of blocks", total.reshape(values.shape)),
        Interim("bias", bias),
        Interim("before the activation", values),
    )
    return Computed((_limited(call, values),), steps, BLOCKS_NOTE)


def _arithmetic(call: KernelCall) -> DynamicRange:
    assert call.rules.dynamic is not None
    return call.rules.dynamic


def rounded_rows(call: KernelCall) -> RoundedRows:
    """Return the layer's data quantized to 8 bits, in the shape of the data; each row has its own scale."""
    layout, op = call.layout, call.op
    x, weights = call.value(layout.data).astype(F32), call.value(layout.weights)
    if op.kind in IMAGES:
        has_scales = op.kind != "CONV_2D" or len(set(call.params(layout.weights).scales)) > 1
        has_groups = x.shape[-1] != weights.shape[-1]
        shape = x.shape if _arithmetic(call).has_pixel_rows and _is_pointwise(op) else (len(x), 1, 1, -1)
        found = _arithmetic(call).rows(x.reshape(shape), has_scales or has_groups)
        return RoundedRows(found.integers.reshape(x.shape), found.scales, found.zero_points)
    rows = np.swapaxes(x, -1, -2) if op.option("adjX") else x
    rows = rows if op.kind == MATRICES else rows.reshape(*op.outputs[0].shape[:-1], weights.shape[-1])
    return _arithmetic(call).rows(rows, bool(op.option("asymmetricQuantizeInputs")))


def _is_pointwise(op: Op) -> bool:
    """Whether a convolution is a dense layer on each pixel."""
    if op.kind != "CONV_2D" or any((window.taps, window.stride) != (1, 1) for window in convolution_windows(op)):
        return False
    data, weights = op.inputs[:2]
    return data is not None and weights is not None and data.shape[-1] == weights.shape[-1]


def _sums(call: KernelCall) -> Sums:
    op, layout, rows = call.op, call.layout, rounded_rows(call)
    weights, outputs = call.value(layout.weights).astype(np.int64), op.outputs[0]
    if op.kind == MATRICES:
        data, matrix = rows.centered, np.swapaxes(weights, -1, -2) if op.option("adjY") else weights
        totals = product(data, matrix)
    else:
        data, matrix = layout.patches(op, rows.centered, rows.integers.size + outputs.size), layout.matrix(op, weights)
        matrix = matrix.swapaxes(1, 2)
        totals = product(data, matrix).transpose(1, 0, 2)
    slot = call.bias_slot
    bias = call.value(slot).astype(F32) if slot is not None and call.has(slot) else np.zeros(1, F32)
    scales = rows.scales, rows.zero_points, call.scale(layout.weights).astype(F32)
    return Sums(wrapped(totals.reshape(outputs.shape)), *scales, bias, data, matrix, weights.shape[-1])


def embedding_lookup(call: KernelCall) -> Computed:
    """Return rows of an integer table, each multiplied by its scale, or each block by its own."""
    chosen, table = np.ravel(call.value(0)), call.tensor(1)
    integers = call.value(1)[chosen].astype(F32)
    scales = block_scales(table)
    if scales is None:
        scales = np.broadcast_to(call.scale(1), len(call.value(1)))[chosen]
        scales = scales.reshape(-1, *(1 for _ in integers.shape[1:])).astype(F32)
    else:
        scales = np.repeat(scales[chosen], integers.shape[-1] // scales.shape[-1], axis=-1)
    steps = (
        Interim("integer", integers.reshape(call.op.outputs[0].shape)),
        Interim("scale", np.broadcast_to(scales, integers.shape)),
    )
    return Computed((call.stored(integers * scales),), steps)


def bfloat16(x: Array) -> Array:
    """Round to bfloat16, halves to even."""
    bits = x.astype(F32).view(np.uint32).astype(np.uint64)
    return np.asarray(((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(F32))


def block_scales(tensor: Tensor) -> Array | None:
    """Return one scale for each block of a row, as float32; None for any other granularity."""
    details = None if tensor.quantization is None else tensor.quantization.details
    return (
        details.scales.data.astype(F32)
        if isinstance(details, BlockScales) and details.scales.data is not None
        else None
    )


LITERT = {
    "CONV_2D": weights_first_if_several,
    "DEPTHWISE_CONV_2D": factor_first,
    "TRANSPOSE_CONV": term_by_term,
    DENSE: factor_first_on_x86,
    MATRICES: zero_points_in_float,
}
REFERENCE = DynamicRange(litert_rows, LITERT)
OPTIMIZED = DynamicRange(
    litert_rows,
    {**LITERT, "CONV_2D": weights_first_if_grouped, "DEPTHWISE_CONV_2D": weights_first_by_fours},
    block_scales=lambda scales: scales,
)
XNNPACK = DynamicRange(
    xnnpack_rows, dict.fromkeys(LITERT, rows_first_fused), has_pixel_rows=True, block_scales=bfloat16
)
