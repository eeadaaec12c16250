"""Element-wise sums, products and piecewise linear functions; each as its namesake in `zeropoint.simulation`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from keras import ops

from ...ops.execution import HEADROOM
from ...simulation import elementwise as simulated
from ...simulation.weighted import rescaling_of
from .call import IntegerCall, IntegerKernel
from .rescaling import QuantizedMultiplier, half_up, power_of_two, rescale, split

Combine = Callable[[Any, Any], Any]


def add(call: IntegerCall) -> Any:
    return SUMS[call.rules.add](call, ops.add)


def subtract(call: IntegerCall) -> Any:
    return SUMS[call.rules.subtract](call, ops.subtract)


def _to_common_scale(call: IntegerCall, headroom: int, times: Callable[..., Any]) -> tuple[Any, Any, Any]:
    scales = [ops.cast(call.scale(slot), "float32") for slot in (0, 1)]
    common = call.real(2.0 * ops.maximum(*scales))
    made = [
        times(QuantizedMultiplier.of(call.real(scale) / common), call.whole(slot) * 2.0**headroom)
        for slot, scale in enumerate(scales)
    ]
    return made[0], made[1], common


def _fixed_point_sum(call: IntegerCall, combine: Combine) -> Any:
    return _sum_at_common_scale(call, combine, QuantizedMultiplier.times)


def _vectorized_sum(call: IntegerCall, combine: Combine) -> Any:
    """Compute a sum without broadcasting: in groups of 16 elements, inputs are rounded only once."""
    plain = _sum_at_common_scale(call, combine, QuantizedMultiplier.times)
    first, second = call.op.inputs[:2]
    assert first is not None
    assert second is not None
    if first.shape == second.shape:
        together = ops.convert_to_tensor(call.vectorized(0, 16))
        plain = ops.where(together, _sum_at_common_scale(call, combine, QuantizedMultiplier.times_once), plain)
    return plain


def _sum_at_common_scale(call: IntegerCall, combine: Combine, times: Callable[..., Any]) -> Any:
    headroom = HEADROOM[call.output.dtype.bits]
    first, second, common = _to_common_scale(call, headroom, times)
    factor = common / call.real(2.0**headroom * ops.cast(call.output.scale, "float32"))
    return call.finished(QuantizedMultiplier.of(factor).times(combine(first, second)))


def _sum_of_21_bits(call: IntegerCall, combine: Combine) -> Any:
    own = ops.cast(call.output.scale, "float32")
    ratios = [ops.cast(call.scale(slot), "float32") / own for slot in (0, 1)]
    shift = 21.0 - split(ops.maximum(*ratios))[1]
    parts = [
        call.whole(slot) * call.real(ops.round(ratio * power_of_two(shift, "float32")))
        for slot, ratio in enumerate(ratios)
    ]
    return call.finished(half_up(combine(*parts) * power_of_two(-call.real(shift), call.wide)))


SUMS: Mapping[Callable[..., Any], Callable[[IntegerCall, Combine], Any]] = {
    simulated.fixed_point_sum: _fixed_point_sum,
    simulated.vectorized_sum: _vectorized_sum,
    simulated.sum_of_21_bits: _sum_of_21_bits,
}
"""Replacements of the simulation's functions."""


def multiply(call: IntegerCall) -> Any:
    return call.finished(rescale(call.rules.product, call.whole(0) * call.whole(1), call.ratio(0, call.scale(1))))


def squared_difference(call: IntegerCall) -> Any:
    first, second, common = _to_common_scale(call, 7, QuantizedMultiplier.times)
    factor = common * common / call.real(2.0**14 * ops.cast(call.output.scale, "float32"))
    return call.finished(QuantizedMultiplier.of(factor).times(ops.square(first - second)))


def matrix_product(call: IntegerCall) -> Any:
    sums = call.computed(call.whole(0), call.whole(1))
    rule = rescaling_of(call.op, call.rules, call.output.dtype, None)
    return rescale(rule, sums, call.ratio(0, call.scale(1)))


def compare(function: Combine, orders: bool = True) -> IntegerKernel:
    """Return a comparison: both sides as the integers 256 * scale * (q - zero point); for some types, ordering
    comparisons use the integers as they are."""

    def compared(call: IntegerCall) -> Any:
        if orders and call.inputs[0].dtype not in call.rules.ordered_by_scale:
            return function(call.stored(0), call.stored(1))
        sides = [QuantizedMultiplier.of(call.real(call.scale(slot))).times(call.whole(slot) * 256.0) for slot in (0, 1)]
        return function(*sides)

    return compared


def clamp(low: float, high: float) -> IntegerKernel:
    return lambda call: call.clamped(rescale(call.rules.ratio, call.whole(0), call.ratio()), low, high)


def absolute(call: IntegerCall) -> Any:
    return rescale(simulated.RATIO, ops.abs(call.whole(0)), call.ratio())


def leaky_relu(call: IntegerCall) -> Any:
    x, alpha = call.whole(0), float(np.float32(call.option("alpha", 0.0)))
    above, below = (rescale(call.rules.leak, x, call.ratio(0, factor)) for factor in (1.0, abs(alpha)))
    return _by_sign(x, above, math.copysign(1.0, alpha) * below)


def prelu(call: IntegerCall) -> Any:
    x = call.whole(0)
    above = rescale(call.rules.slopes, x, call.ratio())
    return _by_sign(x, above, rescale(call.rules.slopes, x * call.whole(1), call.ratio(0, call.scale(1))))


def _by_sign(x: Any, above: Any, below: Any) -> Any:
    return ops.where(x >= 0, ops.cast(above, x.dtype), ops.cast(below, x.dtype))
