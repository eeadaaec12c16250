"""The ways in which kernels multiply by a real factor (`zeropoint.simulation.rescaling`), in `keras.ops`.

Whole numbers are held in floating point. In float64, products of an accumulator and a 31-bit multiplier round as
integers would: values exactly halfway have few enough bits to be exact. In float32 they are as close as 24 bits allow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops
from keras.backend import standardize_dtype

from ...simulation.rescaling import (
    EightBits,
    FixedPoint,
    FixedPointUpwards,
    Float32,
    Float64,
    Rescaling,
    WideFixedPoint,
)

LEAST_POWER, MOST_POWER = -120, 120
POWERS = np.exp2(np.arange(LEAST_POWER, MOST_POWER + 1, dtype=np.float64))
MULTIPLIER = 2.0**31


def power_of_two(exponent: Any, dtype: Any) -> Any:
    """Return 2**exponent exactly: the backends' `power` is slightly off."""
    place = ops.clip(ops.cast(exponent, "int32") - LEAST_POWER, 0, len(POWERS) - 1)  # NaN needs a valid index, too
    return ops.take(ops.convert_to_tensor(POWERS.astype(standardize_dtype(dtype))), place, axis=0)


def half_up(x: Any) -> Any:
    return ops.floor(x + 0.5)


def half_away(x: Any) -> Any:
    return ops.sign(x) * ops.floor(ops.abs(x) + 0.5)


def toward_zero(x: Any) -> Any:
    return ops.sign(x) * ops.floor(ops.abs(x))


def split(x: Any) -> tuple[Any, Any]:
    """Return x = fraction * 2**exponent with a fraction from 1/2 to 1, for x above zero."""
    dtype = x.dtype
    guess = ops.floor(ops.log2(x)) + 1.0
    fraction = x * power_of_two(-guess, dtype)  # the logarithm may be off near powers of two
    exponent = guess + ops.cast(fraction >= 1.0, dtype) - ops.cast(fraction < 0.5, dtype)
    return x * power_of_two(-exponent, dtype), exponent


@dataclass(frozen=True)
class QuantizedMultiplier:
    """A real factor as kernels store it: `fraction` is a multiple of 2**-31, to be shifted left by `shift`."""

    fraction: Any
    shift: Any

    @classmethod
    def of(cls, factor: Any) -> QuantizedMultiplier:
        fraction, shift = split(factor)
        rounded = half_up(fraction * MULTIPLIER) / MULTIPLIER
        return cls(rounded, shift)

    def times(self, x: Any) -> Any:
        """Shift left, multiply and round up, shift right and round away from zero."""
        return half_away(self._product(x) * self._right)

    def times_upwards(self, x: Any) -> Any:
        """Multiply as `times` does, with halves up in the final rounding."""
        return half_up(self._product(x) * self._right)

    def times_once(self, x: Any) -> Any:
        """Multiply with one rounding; the bits that a right shift would drop were zero before."""
        return half_up(x * power_of_two(self.shift, x.dtype) * self.fraction)

    def times_narrow(self, x: Any) -> Any:
        """Multiply by a 16-bit multiplier, with one rounding, halves up."""
        return half_up(x * self.narrow * power_of_two(self.shift, x.dtype))

    @property
    def narrow(self) -> Any:
        """The fraction in 15 bits."""
        return ops.minimum(half_up(self.fraction * 2.0**15), 2.0**15 - 1) / 2.0**15

    def _product(self, x: Any) -> Any:
        return half_up(x * power_of_two(ops.maximum(self.shift, 0.0), x.dtype) * self.fraction)

    @property
    def _right(self) -> Any:
        return power_of_two(ops.minimum(self.shift, 0.0), self.fraction.dtype)


@dataclass(frozen=True)
class TrainedScales:
    """The requantization factor input scale * weight scale / output scale, each as float32; `wide` is the type for
    reals."""

    inputs: Any
    weights: Any
    output: Any
    wide: str

    def factor(self, product: str, quotient: str) -> Any:
        made = ops.cast(self.inputs, product) * ops.cast(self.weights, product)
        return ops.cast(ops.cast(made, quotient) / ops.cast(self.output, quotient), self.wide)

    def multiplier(self, rule: FixedPoint) -> QuantizedMultiplier:
        several = len(self.weights.shape) > 0 and int(np.prod(self.weights.shape)) > 1
        product, quotient = (self.wide if several else self._type(t) for t in (rule.product, rule.quotient))
        return QuantizedMultiplier.of(self.factor(product, quotient))

    def _type(self, real: type[Any]) -> str:
        return "float32" if real is np.float32 else self.wide


def rescale(rule: Rescaling, sums: Any, scales: TrainedScales) -> Any:
    """Return accumulators requantized to units of the output, as whole numbers."""
    sums = ops.cast(sums, scales.wide)
    match rule:
        case Float32():
            factor = ops.cast(scales.factor("float32", "float32"), "float32")
            return ops.round(ops.cast(sums, "float32") * factor)
        case Float64():
            return half_away(sums * scales.factor(scales.wide, scales.wide))
        case EightBits():
            ratio = ops.cast(scales.inputs, "float32") / ops.cast(scales.output, "float32")
            multiplier = ops.round(256.0 * (ratio * ops.cast(scales.weights, "float32")))
            return half_up(sums * ops.cast(multiplier, scales.wide) / 256.0)
        case WideFixedPoint():
            return scales.multiplier(rule).times_narrow(sums)
        case FixedPointUpwards():
            return scales.multiplier(rule).times_upwards(sums)
        case FixedPoint():
            return scales.multiplier(rule).times(sums)
