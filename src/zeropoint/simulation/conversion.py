"""QUANTIZE, DEQUANTIZE and CAST: conversion between reals and integers, and from one scale to another."""

from __future__ import annotations

import numpy as np

from ..affine import dequantize as to_real
from ..affine import quantize as to_integers
from ..affine import round_half_away
from ..dtypes import DType
from .call import Computed, KernelCall
from .rescaling import Scales


def quantize(call: KernelCall) -> Computed:
    """Return round(x / scale) + zero point, halves away from zero; integer inputs are requantized by the ratio of
    scales."""
    if call.tensor(0).dtype.is_float:
        return Computed((call.rules.quantize(call),))
    scales = Scales(call.scale(0), np.asarray(np.float32(1)), call.output_scale)
    units, steps = call.rules.requantize(call.centered(0), scales)
    made = call.output.dtype
    return call.finished(units, steps, (made.min, made.max))


def quantize_half_away(call: KernelCall) -> np.ndarray:
    return call.stored(to_integers(call.value(0).astype(np.float32), call.output))


def quantize_by_reciprocal(call: KernelCall) -> np.ndarray:
    """Quantize as LiteRT's optimized kernels do: groups of eight elements are multiplied by the reciprocal of the
    scale, halves to even; the remainder is divided by the scale in float64, halves away from zero."""
    made = call.output
    values = call.value(0).astype(np.float32).reshape(-1)
    together = values.size // 8 * 8
    if made.axis is not None:
        return quantize_half_away(call)
    scaled = values[:together] * (np.float32(1) / np.float32(made.scale))
    rounded = np.rint(scaled)
    rest = round_half_away(values[together:].astype(np.float64) / made.scale)
    units = np.concatenate([rounded, rest]) + made.zero_point
    return call.stored(np.clip(units, made.dtype.min, made.dtype.max))


def quantize_half_even(call: KernelCall) -> np.ndarray:
    """Quantize as XNNPACK does: multiply by the reciprocal of the scale, halves to even."""
    made = call.output
    scaled = call.value(0).astype(np.float32) * (np.float32(1) / np.float32(made.scale))
    low, high = made.dtype.min - made.zero_point, made.dtype.max - made.zero_point
    return call.stored(np.rint(np.clip(scaled, low, high)) + made.zero_point)


def dequantize(call: KernelCall) -> Computed:
    """Return scale * (q - zero point) as float32; float16 constants are only widened."""
    tensor = call.tensor(0)
    if tensor.dtype is DType.FLOAT16:
        return Computed((call.stored(call.value(0)),))
    return Computed((call.stored(to_real(call.value(0), call.params(0))),))


def cast(call: KernelCall) -> Computed:
    """Convert the integers themselves to another type, for use as indices."""
    return Computed((call.stored(call.value(0)),))
