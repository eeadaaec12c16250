"""Tensors as a report shows them: parameters, histogram, per-channel ranges of weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..affine import QuantParams, dequantize
from ..bench.errors import decibels
from ..calibration.histogram import Histogram
from ..calibration.range_methods import ExpectedErrors, Grid
from ..calibration.stats import TensorStats
from ..graph.model import Op, Tensor
from .inspection import TensorRow
from .terminal import type_text

DRAWN_BINS = 96
DRAWN_CHANNELS = 256
"""Maximum number of bars: more cannot be told apart, so neighbours are merged."""


@dataclass(frozen=True)
class Bins:
    """A histogram in few enough bins to draw: bin k holds [low + k width, low + (k + 1) width)."""

    low: float
    width: float
    counts: tuple[int, ...]


@dataclass(frozen=True)
class TensorDetail:
    """A tensor that an op reads or produces. `limits` is the representable range; `seen` the range observed in
    calibration; `given` who gave its parameters, if they were given."""

    name: str
    type: str
    formula: str | None = None
    limits: tuple[float, float] | None = None
    seen: tuple[float, float] | None = None
    bins: Bins | None = None
    given: str | None = None


@dataclass(frozen=True)
class ChannelRanges:
    """The minimum and maximum weight of each channel, or of `each` neighbouring channels, and what their scale can
    represent."""

    name: str
    axis: int
    each: int
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    limits: tuple[float, ...]  # the largest magnitude that the scale can represent


def tensor_detail(name: str, tensor: Tensor, row: TensorRow, stats: TensorStats | None) -> TensorDetail:
    """Return the details of `tensor`, from its `row` and its calibration statistics."""
    return TensorDetail(
        name,
        type_text(row.dtype, row.shape_signature or row.shape),
        None if row.quantization is None else row.quantization.formula,
        None if tensor.params is None else tensor.params.range(),
        None if stats is None else (stats.low.value, stats.high.value),
        None if stats is None else drawn(stats.histogram),
    )


def drawn(histogram: Histogram) -> Bins | None:
    """Return the histogram in at most DRAWN_BINS bins, by doubling their width; None if it is empty."""
    if not histogram.counts.size or not histogram.total:
        return None
    coarse = histogram
    while coarse.counts.size > DRAWN_BINS:
        coarse = coarse.coarsened(coarse.exponent + 1)
    return Bins(coarse.first * coarse.width, coarse.width, tuple(map(int, coarse.counts)))


def expected_errors(seen: TensorStats, params: QuantParams) -> tuple[float | None, float | None]:
    """Return the SNR in dB that rounding and clipping leave for values distributed as in the histogram, and the share
    of values that lie beyond the range by more than half a step."""
    histogram = seen.histogram
    if params.axis is not None or not histogram.counts.size:
        return None, None
    low, high = params.range()
    centers, half, total = histogram.centers(), params.scale / 2, max(1, histogram.total)
    power = float(histogram.counts @ centers**2) / total
    error = float(ExpectedErrors([histogram], Grid(params.dtype.bits))(np.array([[low]]), np.array([[high]]))[0, 0])
    beyond = histogram.counts[(centers < low - half) | (centers > high + half)].sum()
    return decibels(error / power) if power > 0 and error > 0 else None, float(beyond) / total


def weight_ranges(op: Op) -> Iterator[ChannelRanges]:
    """Yield the channel ranges of each per-channel weight of `op`."""
    for tensor in op.inputs:
        params, data = (None, None) if tensor is None else (tensor.params, tensor.data)
        if tensor is None or params is None or params.axis is None or data is None or not data.size:
            continue
        if params.dtype.bits > 8:  # a bias
            continue
        rows = np.moveaxis(dequantize(data, params), params.axis, 0).reshape(len(params.scales), -1)
        each = -(-len(rows) // DRAWN_CHANNELS)
        starts = np.arange(0, len(rows), each)
        zeros = np.array(params.zero_points)
        limits = np.array(params.scales) * np.maximum(params.dtype.max - zeros, zeros - params.dtype.min)
        lows = np.minimum.reduceat(rows.min(axis=1), starts)
        highs, limits = (np.maximum.reduceat(values, starts) for values in (rows.max(axis=1), limits))
        yield ChannelRanges(tensor.name, params.axis, each, *(tuple(v.tolist()) for v in (lows, highs, limits)))
