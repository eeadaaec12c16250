"""Functions of which int16 kernels hold a table of 513 points, and what these lose between them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..affine import QuantParams
from ..dtypes import Array

Function = Callable[[Array], Array]

SEGMENTS = 512
PLACES = 4097
"""At which the function is looked at."""

OVERFLOWS = 2.0**31
"""What becomes of larger numbers of units, on their way into the table, is anything."""

COARSE = 1.5 * 256
"""Units of int16 that are one and a half of int8: a kernel that is further off is no better than eight bits."""


def reciprocal_root(x: Array) -> Array:
    return np.asarray(1 / np.sqrt(x))


def gelu(x: Array) -> Array:
    """By its usual approximation, which bends as the function itself does."""
    return np.asarray(x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def interpolation_error(function: Function, seen: tuple[float, float], read: QuantParams, made: QuantParams) -> float:
    """How far the kernel is off at most, in units of its output, for inputs as they were `seen`.

    The points lie evenly over all that the input can hold. Each is shifted by half of what the middle of its segment
    would be off, and clamped to the output's integers: so the segments at both ends of its range may be bent.
    """
    ends = np.linspace(*read.range(), 2 * SEGMENTS + 1)
    inputs = np.linspace(*seen, PLACES)
    with np.errstate(all="ignore"):
        values, wanted = (np.asarray(function(x)) / made.scale for x in (ends, inputs))
        points, middles = values[::2], values[1::2]
        shifts = np.append(((points[:-1] + points[1:]) / 2 - middles) / 2, 0.0)
        table = np.clip(np.rint(points - shifts), made.dtype.min, made.dtype.max)
        table[~(np.abs(points - shifts) < OVERFLOWS)] = np.nan
        held = np.clip(wanted, made.dtype.min, made.dtype.max)
        off = np.abs(np.interp(inputs, ends[::2], table) - held)
    return float(np.nan_to_num(off, nan=np.inf).max())
