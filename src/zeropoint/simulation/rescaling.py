"""Requantization: the ways in which kernels multiply an accumulator by a real factor to get the output's integers.

Each is a value. Kernels that differ only in this have different values, not different functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..affine import round_half_away
from ..dtypes import Array
from ..fixedpoint import high_product, multiply, multiply_wide, to_fixed_point, wrapped
from .call import Interim

Real = np.floating[Any]


def fixed_points(factors: Array) -> tuple[Array, Array]:
    """Return multipliers and shifts of real factors."""
    pairs = [to_fixed_point(float(factor)) for factor in np.ravel(factors)]
    multipliers, shifts = np.array(pairs, np.int64).reshape(-1, 2).T
    return multipliers.reshape(np.shape(factors)), shifts.reshape(np.shape(factors))


@dataclass(frozen=True)
class Scales:
    """The requantization factor input scale * weight scale / output scale; all float32, `weights` possibly one per
    channel."""

    inputs: Array
    weights: Array
    output: Array

    def factor(self, product: type[Real] = np.float64, quotient: type[Real] = np.float64) -> Array:
        """Compute the factor, with product and quotient in these types."""
        made = self.inputs.astype(product) * self.weights.astype(product)
        return np.asarray(made.astype(quotient) / self.output.astype(quotient)).astype(np.float64)


@dataclass(frozen=True)
class FixedPoint:
    """Multiply a 32-bit accumulator by a 32-bit multiplier, with two roundings. `product` and `quotient` are the types
    in which a per-tensor factor is computed; per-channel factors are computed in float64."""

    product: type[Real] = np.float64
    quotient: type[Real] = np.float64

    def factor(self, scales: Scales) -> Array:
        return scales.factor() if scales.weights.ndim else scales.factor(self.product, self.quotient)

    def __call__(self, sums: Array, scales: Scales) -> tuple[Array, list[Interim]]:
        multiplier, shift = fixed_points(self.factor(scales))
        steps = [Interim("multiplier", multiplier), Interim("shift", shift)]
        return multiply(wrapped(sums), multiplier, shift), steps


@dataclass(frozen=True)
class FixedPointUpwards(FixedPoint):
    """As `FixedPoint`, with halves up in the second rounding: ruy, in LiteRT's optimized kernels."""

    def __call__(self, sums: Array, scales: Scales) -> tuple[Array, list[Interim]]:
        multiplier, shift = fixed_points(self.factor(scales))
        left, right = np.maximum(shift, 0), np.maximum(-shift, 0)
        high = high_product(wrapped(sums << left), multiplier)
        units = (high + ((np.int64(1) << right) >> 1)) >> right
        return np.asarray(units), [Interim("multiplier", multiplier), Interim("shift", shift)]


@dataclass(frozen=True)
class EightBits:
    """Multiply by a multiplier with eight fractional bits, with one rounding, halves up: XNNPACK, for ops without an
    accumulator."""

    def __call__(self, sums: Array, scales: Scales) -> tuple[Array, list[Interim]]:
        ratio = scales.inputs.astype(np.float32) / scales.output.astype(np.float32)
        multiplier = np.rint(np.float32(256) * (ratio * scales.weights.astype(np.float32))).astype(np.int64)
        return np.asarray((sums * multiplier + 128) >> 8), [Interim("multiplier / 256", multiplier)]


@dataclass(frozen=True)
class WideFixedPoint(FixedPoint):
    """Multiply a 64-bit accumulator by a 16-bit multiplier, with one rounding."""

    def __call__(self, sums: Array, scales: Scales) -> tuple[Array, list[Interim]]:
        multiplier, shift = fixed_points(self.factor(scales))
        steps = [Interim("multiplier", multiplier), Interim("shift", shift)]
        return multiply_wide(sums, multiplier, shift), steps


@dataclass(frozen=True)
class Float64:
    """Multiply an accumulator by a float64, with one rounding, halves away from zero."""

    def __call__(self, sums: Array, scales: Scales) -> tuple[Array, list[Interim]]:
        factor = scales.factor()
        return round_half_away(sums * factor).astype(np.int64), [Interim("factor", factor)]


@dataclass(frozen=True)
class Float32:
    """Multiply an accumulator, converted to float32, by a float32, with one rounding, halves to even: XNNPACK."""

    def __call__(self, sums: Array, scales: Scales) -> tuple[Array, list[Interim]]:
        factor = scales.factor(np.float32, np.float32).astype(np.float32)
        return np.rint(wrapped(sums).astype(np.float32) * factor).astype(np.int64), [Interim("factor", factor)]


Rescaling = FixedPoint | EightBits | WideFixedPoint | Float64 | Float32
