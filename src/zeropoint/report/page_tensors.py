"""Tensors as a report shows them: parameters, histogram, the ranges of weights by channel."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..affine import QuantParams, dequantize
from ..bench.errors import decibels
from ..calibration.expected_error import ExpectedErrors, Grid
from ..calibration.histogram import Histogram
from ..calibration.stats import Stats, TensorStats
from ..dtypes import Array
from ..graph.model import Op, Tensor
from ..ops import OPS
from .inspection import TensorRow
from .page_values import Bins, ChannelRanges, TensorDetail
from .terminal import type_text

DRAWN_BINS = 96
DRAWN_CHANNELS = 256
"""More bars than that cannot be told apart; neighbours share one."""


def tensor_detail(tensor: Tensor, row: TensorRow, name: str, stats: Stats | None) -> TensorDetail:
    """`tensor`, of which `row` tells the parameters; calibration knows it by `name`."""
    seen = None if stats is None else stats.tensors.get(name)
    return TensorDetail(
        name,
        type_text(tensor.dtype.label, tensor.shape_signature or tensor.shape),
        None if row.quantization is None else row.quantization.formula,
        None if tensor.params is None else tensor.params.range(),
        None if seen is None else (seen.low.value, seen.high.value),
        None if seen is None else drawn(seen.histogram),
    )


def drawn(histogram: Histogram) -> Bins | None:
    """The histogram in at most DRAWN_BINS bins, by doubling their width; None if it is empty."""
    if not histogram.counts.size or not histogram.total:
        return None
    coarse = histogram
    while coarse.counts.size > DRAWN_BINS:
        coarse = coarse.coarsened(coarse.exponent + 1)
    return Bins(coarse.first * coarse.width, coarse.width, tuple(map(int, coarse.counts)))


def expected_snr(seen: TensorStats, params: QuantParams) -> float | None:
    """Signal-to-noise in dB that rounding and clipping leaves of values spread as in the histogram."""
    histogram = seen.histogram
    if params.axis is not None or not histogram.counts.size:
        return None
    power = float(histogram.counts @ histogram.centers() ** 2) / max(1, histogram.total)
    low, high = params.range()
    errors = ExpectedErrors([histogram], Grid(params.dtype.bits))
    error = float(errors(np.array([[low]]), np.array([[high]]))[0, 0])
    return decibels(error / power) if power > 0 and error > 0 else None


def clipped_share(seen: TensorStats, params: QuantParams) -> float | None:
    """The share of values that lie beyond the range by more than half a step, from the histogram."""
    histogram = seen.histogram
    if params.axis is not None or not histogram.counts.size:
        return None
    low, high = params.range()
    centers, half = histogram.centers(), params.scale / 2
    beyond = histogram.counts[(centers < low - half) | (centers > high + half)].sum()
    return float(beyond) / max(1, histogram.total)


def weight_ranges(op: Op) -> Iterator[ChannelRanges]:
    """The channels of each weight of `op` that is quantized along an axis."""
    spec = OPS.get(op.kind)
    weights = () if spec is None else (op.inputs[k] for k in spec.weight_slots if k < len(op.inputs))
    for tensor in weights:
        params, data = (None, None) if tensor is None else (tensor.params, tensor.data)
        if tensor is not None and data is not None and data.size and params is not None and params.axis is not None:
            yield _channels(tensor.name, dequantize(data, params), params)


def _channels(name: str, values: Array, params: QuantParams) -> ChannelRanges:
    assert params.axis is not None
    rows = np.moveaxis(values, params.axis, 0).reshape(len(params.scales), -1)
    each = -(-len(rows) // DRAWN_CHANNELS)
    starts = np.arange(0, len(rows), each)
    pairs = zip(params.scales, params.zero_points, strict=True)
    limits = np.array([s * max(params.dtype.max - z, z - params.dtype.min) for s, z in pairs])
    return ChannelRanges(
        name,
        params.axis,
        each,
        tuple(map(float, np.minimum.reduceat(rows.min(axis=1), starts))),
        tuple(map(float, np.maximum.reduceat(rows.max(axis=1), starts))),
        tuple(map(float, np.maximum.reduceat(limits, starts))),
    )
