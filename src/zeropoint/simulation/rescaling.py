"""From a sum of products to the output's integers: the ways in which kernels multiply by a real factor.

Each is a value. A kernel that differs from another only in this has another value, not another function.
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
    """Multipliers and shifts of real factors."""
    pairs = [to_fixed_point(float(factor)) for factor in np.ravel(factors)]
    multipliers, shifts = np.array(pairs, np.int64).reshape(-1, 2).T
    return multipliers.reshape(np.shape(factors)), shifts.reshape(np.shape(factors))


@dataclass(frozen=True)
class Scales:
    """The factor of a product, inputs * weights / output; each as float32, `weights` perhaps one for each channel."""

    inputs: Array
    weights: Array
    output: Array

    def factor(self, product: type[Real] = np.float64, quotient: type[Real] = np.float64) -> Array:
        """Multiplied and divided in these types."""
        made = self.inputs.astype(product) * self.weights.astype(product)
        return np.asarray(made.astype(quotient) / self.output.astype(quotient)).astype(np.float64)


@dataclass(frozen=True)
class FixedPoint:
    """A 32-bit sum times a 32-bit multiplier, rounded twice. `product` and `quotient`: the types that the factor is
    computed in, where there is one for all channels; of several, each is computed in float64."""

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
    """The same with halves upwards in the second rounding: ruy, in LiteRT's optimized kernels."""

    def __call__(self, sums: Array, scales: Scales) -> tuple[Array, list[Interim]]:
        multiplier, shift = fixed_points(self.factor(scales))
        left, right = np.maximum(shift, 0), np.maximum(-shift, 0)
        high = high_product(wrapped(sums << left), multiplier)
        units = (high + ((np.int64(1) << right) >> 1)) >> right
        return np.asarray(units), [Interim("multiplier", multiplier), Interim("shift", shift)]


@dataclass(frozen=True)
class EightBits:
    """Times a multiplier with eight bits behind the point, rounded once, halves upwards: XNNPACK where no sum is
    involved."""

    def __call__(self, sums: Array, scales: Scales) -> tuple[Array, list[Interim]]:
        ratio = scales.inputs.astype(np.float32) / scales.output.astype(np.float32)
        multiplier = np.rint(np.float32(256) * (ratio * scales.weights.astype(np.float32))).astype(np.int64)
        return np.asarray((sums * multiplier + 128) >> 8), [Interim("multiplier / 256", multiplier)]


@dataclass(frozen=True)
class WideFixedPoint(FixedPoint):
    """A 64-bit sum times a 16-bit multiplier, rounded once."""

    def __call__(self, sums: Array, scales: Scales) -> tuple[Array, list[Interim]]:
        multiplier, shift = fixed_points(self.factor(scales))
        steps = [Interim("multiplier", multiplier), Interim("shift", shift)]
        return multiply_wide(sums, multiplier, shift), steps


@dataclass(frozen=True)
class Float64:
    """A sum times a float64, rounded once, halves away from zero."""

    def __call__(self, sums: Array, scales: Scales) -> tuple[Array, list[Interim]]:
        factor = scales.factor()
        return round_half_away(sums * factor).astype(np.int64), [Interim("factor", factor)]


@dataclass(frozen=True)
class Float32:
    """A sum as float32 times a float32, rounded once, halves to even: XNNPACK."""

    def __call__(self, sums: Array, scales: Scales) -> tuple[Array, list[Interim]]:
        factor = scales.factor(np.float32, np.float32).astype(np.float32)
        return np.rint(wrapped(sums).astype(np.float32) * factor).astype(np.int64), [Interim("factor", factor)]


Rescaling = FixedPoint | EightBits | WideFixedPoint | Float64 | Float32
