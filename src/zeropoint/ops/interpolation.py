"""Functions by lookup table: the 513-point tables of int16 kernels, and our own tables of all 256 integers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..affine import QuantParams, dequantize, quantize
from ..dtypes import Array
from ..graph.model import Op

Function = Callable[[Array], Array]
FunctionOf = Callable[[Op], Function]
"""Returns the function that an op computes, which may depend on its options."""

SEGMENTS = 512
PLACES, AT_ENDS = 4097, 512
"""The number of points at which the function is evaluated, and that of integers at each end of the inputs: where points
of the table are clamped, the error has a peak of few integers."""

OVERFLOWS = 2.0**31
"""Larger values overflow while the table is built, with undefined results."""

COARSE = 1.5 * 256
"""One and a half int8 steps, in steps of int16: a kernel with a larger error is no better than eight bits."""


def reciprocal_root(x: Array) -> Array:
    return np.asarray(1 / np.sqrt(x))


def always(function: Function) -> FunctionOf:
    return lambda _: function


def gelu(op: Op) -> Function:
    """Return GELU, exact or approximate: both agree to a thousandth, but below -2 that is a large relative
    difference."""
    return gelu_by_tanh if op.option("approximate", False) else gelu_by_erfc


def gelu_by_erfc(x: Array) -> Array:
    return np.asarray(x / 2 * np.vectorize(math.erfc, otypes=[np.float64])(-x * math.sqrt(0.5)))


def gelu_by_tanh(x: Array) -> Array:
    return np.asarray(x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def power_of(op: Op) -> Function | None:
    """Return what POW computes if its exponent is one constant; None otherwise."""
    exponent = constant_exponent(op)
    return None if exponent is None else lambda x: np.asarray(np.power(x, exponent))


def constant_exponent(op: Op) -> float | None:
    base, exponent = op.inputs
    data = None if exponent is None else exponent.data
    if base is None or data is None or data.size != 1 or base.shape != op.outputs[0].shape:
        return None
    return float(data.item())


def table_of(function: Function, read: QuantParams, made: QuantParams) -> Array:
    """Return `function` of every integer of `read`, as integers of `made`. NaN becomes real 0."""
    integers = np.arange(read.dtype.min, read.dtype.max + 1)
    with np.errstate(all="ignore"):
        values = np.nan_to_num(function(dequantize(integers, read).astype(np.float64)), nan=0.0)
    return quantize(np.clip(values, *made.range()), made)


def interpolation_error(function: Function, seen: tuple[float, float], read: QuantParams, made: QuantParams) -> float:
    """Return the largest error of the kernel, in steps of its output, for inputs in the range `seen`, rounded.

    The function is sampled evenly over the whole input range, from the first integer to the last. Each point is shifted
    by half of the interpolation error at the midpoint of its segment, and clamped to the output's integers: so the
    segments at both ends of its range may be bent. The table is read as if its points were 128 integers apart, which is
    a little more than they are.
    """
    ends, units = np.linspace(*read.range(), 2 * SEGMENTS + 1), np.arange(SEGMENTS + 1) * (2**16 // SEGMENTS)
    places = read.scale * (units + read.dtype.min - read.zero_point)
    low, high = seen[0] - read.scale, seen[1] + read.scale
    steps = read.scale * np.arange(AT_ENDS)
    evenly = np.linspace(low, high, PLACES)
    inputs = np.clip(
        np.concatenate([evenly, np.minimum(low + steps, high), np.maximum(high - steps, low)]), *read.range()
    )
    with np.errstate(all="ignore"):
        values, wanted = (np.asarray(function(x)) / made.scale for x in (ends, inputs))
        points, middles = values[::2], values[1::2]
        shifts = np.append(((points[:-1] + points[1:]) / 2 - middles) / 2, 0.0)
        table = np.clip(np.rint(points - shifts), made.dtype.min, made.dtype.max)
        table[~(np.abs(points - shifts) < OVERFLOWS)] = np.nan
        held = np.clip(wanted, made.dtype.min, made.dtype.max)
        off = np.abs(np.interp(inputs, places, table) - held)
        # The slope of a segment is stored in 16 bits, and wraps.
        steep = np.abs(np.diff(table)) > made.dtype.max
        off[steep[np.clip(np.searchsorted(places, inputs) - 1, 0, SEGMENTS - 1)]] = np.inf
    return float(np.nan_to_num(off, nan=np.inf, posinf=np.inf).max())
