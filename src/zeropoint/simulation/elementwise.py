"""Element-wise sums, products and comparisons."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..affine import round_half_away
from ..dtypes import Array, DType
from ..fixedpoint import high_product, multiply, shift_right, wrapped
from ..ops.execution import HEADROOM
from .call import Computed, Interim, KernelCall
from .rescaling import FixedPoint, Scales, fixed_points

BinaryFunction = Callable[[Array, Array], Array]
ONE = np.float32(1)


def _to_common_scale(
    call: KernelCall, headroom: int, rescale: Callable[..., Array] = multiply
) -> tuple[Array, Array, np.float64, list[Interim]]:
    """Rescale both inputs to a common scale, twice the larger one, with `headroom` fractional bits."""
    scales = [np.float32(call.scale(slot)) for slot in (0, 1)]
    common = np.float64(np.float32(2) * max(scales))
    made, steps = [], []
    for slot, scale in enumerate(scales):
        multiplier, shift = fixed_points(np.asarray(scale / common))
        made.append(rescale(wrapped(call.centered(slot) << headroom), multiplier, shift))
        steps += [Interim(f"multiplier of input {slot}", multiplier), Interim(f"shift of input {slot}", shift)]
        steps.append(Interim(f"input {slot} rescaled", made[-1]))
    return made[0], made[1], common, steps


def add(call: KernelCall) -> Computed:
    return call.rules.add(call, np.add)


def subtract(call: KernelCall) -> Computed:
    return call.rules.subtract(call, np.subtract)


def fixed_point_sum(
    call: KernelCall, combine: BinaryFunction, rescale_inputs: Callable[..., Array] = multiply
) -> Computed:
    """Simulate ADD and SUB: rescale both inputs to a common scale, combine them, and requantize to the output's."""
    if _is_power_of_two(call):
        return _shifted_sum(call, combine)
    headroom = HEADROOM[call.output.dtype.bits]
    first, second, common, steps = _to_common_scale(call, headroom, rescale_inputs)
    total = wrapped(combine(first, second))
    factor = common / (np.float32(1 << headroom) * np.float32(call.output_scale))
    multiplier, shift = fixed_points(np.asarray(np.float64(factor)))
    steps += [Interim("sum", total), Interim("multiplier", multiplier), Interim("shift", shift)]
    return call.finished(multiply(total, multiplier, shift), steps)


def vectorized_sum(call: KernelCall, combine: BinaryFunction) -> Computed:
    """Simulate LiteRT's optimized kernels without broadcasting: in groups of 16 elements, inputs are rounded only once;
    the remainder is computed as in the reference kernel."""
    plain = fixed_point_sum(call, combine)
    if call.value(0).shape != call.value(1).shape or _is_power_of_two(call):
        return plain
    vectors = fixed_point_sum(call, combine, _multiply_once)
    is_vector = np.arange(call.value(0).size) < call.value(0).size // 16 * 16
    chosen = np.where(is_vector.reshape(call.value(0).shape), vectors.outputs[0], plain.outputs[0])
    return Computed((call.stored(chosen),), vectors.steps)


def _multiply_once(x: Array, multiplier: Array, shift: Array) -> Array:
    """Multiply with a single rounding: the bits that a negative shift would drop are kept until the product is
    rounded."""
    return high_product(x >> -shift, multiplier)


def sum_of_21_bits(call: KernelCall, combine: BinaryFunction) -> Computed:
    """Simulate XNNPACK: both inputs are multiplied by 21-bit multipliers to the output's scale, and rounded once,
    halves up."""
    ratios = [np.float32(call.scale(slot)) / np.float32(call.output_scale) for slot in (0, 1)]
    shift = 20 - (int(np.frexp(max(ratios))[1]) - 1)
    multipliers = [int(np.rint(np.ldexp(ratio, shift))) for ratio in ratios]
    first, second = (call.centered(slot) * multiplier for slot, multiplier in enumerate(multipliers))
    total = combine(first, second)
    steps = [Interim(f"multiplier of input {slot}", np.asarray(m)) for slot, m in enumerate(multipliers)]
    steps += [Interim("sum", total), Interim("shift", np.asarray(-shift))]
    return call.finished((total + (1 << (shift - 1))) >> shift, steps)


def _is_power_of_two(call: KernelCall) -> bool:
    """Whether a 16-bit sum has power-of-two scales, one of which is the output's, unless the op's option forbids it."""
    if call.output.dtype is not DType.INT16 or not call.option("potScaleInt16", True):
        return False
    logs = [np.log2(float(s)) for s in (call.scale(0), call.scale(1), call.output_scale)]
    return all(abs(log - round(log)) < 1e-3 for log in logs)


def _shifted_sum(call: KernelCall, combine: BinaryFunction) -> Computed:
    shifts = [round(float(np.log2(call.output_scale / call.scale(slot)))) for slot in (0, 1)]
    first, second = (shift_right(call.value(k).astype(np.int64), shift) for k, shift in enumerate(shifts))
    steps = [Interim("input 0 rescaled", first), Interim("input 1 rescaled", second)]
    return call.finished(combine(first, second), steps)


def multiply_elements(call: KernelCall) -> Computed:
    """Simulate MUL: (x - zero point) * (y - zero point), requantized."""
    product = call.centered(0) * call.centered(1)
    units, steps = call.rules.product(product, Scales(call.scale(0), call.scale(1), call.output_scale))
    return call.finished(units, [Interim("product", product), *steps])


def squared_difference(call: KernelCall) -> Computed:
    first, second, common, steps = _to_common_scale(call, 7)
    square = wrapped((first - second) ** 2)
    factor = common * common / (np.float32(1 << 14) * np.float32(call.output_scale))
    multiplier, shift = fixed_points(np.asarray(np.float64(factor)))
    steps += [Interim("square", square), Interim("multiplier", multiplier), Interim("shift", shift)]
    return call.finished(multiply(square, multiplier, shift), steps)


def choose(function: BinaryFunction) -> Callable[[KernelCall], Computed]:
    """Simulate MAXIMUM and MINIMUM, on the integers as they are."""

    def chosen(call: KernelCall) -> Computed:
        return Computed((call.stored(function(call.value(0), call.value(1))),))

    return chosen


def compare(function: BinaryFunction, orders: bool = True) -> Callable[[KernelCall], Computed]:
    """Simulate comparisons: both sides are rescaled to the integers 256 * scale * (q - zero point); for some types,
    ordering comparisons use the integers as they are."""

    def compared(call: KernelCall) -> Computed:
        if orders and call.tensor(0).dtype not in call.rules.ordered_by_scale:
            return Computed((call.stored(function(call.value(0), call.value(1))),))
        sides = []
        for slot in (0, 1):
            multiplier, shift = fixed_points(np.asarray(call.scale(slot), np.float64))
            sides.append(multiply(call.centered(slot) << 8, multiplier, shift))
        steps = (Interim("input 0 rescaled", sides[0]), Interim("input 1 rescaled", sides[1]))
        return Computed((call.stored(function(*sides)),), steps)

    return compared


# Functions that are linear on each side of zero.

RATIO = FixedPoint(np.float32, np.float32)


def clamp(low: float, high: float) -> Callable[[KernelCall], Computed]:
    """Simulate RELU and its variants: requantize and clamp."""

    def clamped(call: KernelCall) -> Computed:
        units, steps = call.rules.ratio(call.centered(0), Scales(call.scale(0), np.asarray(ONE), call.output_scale))
        return call.finished(units, steps, call.bounds_of(low, high))

    return clamped


def clamp_unscaled(high: float) -> Callable[[KernelCall], Computed]:
    """Clamp the integers of the input, ignoring the output's scale."""

    def clamped(call: KernelCall) -> Computed:
        read = call.params(0)
        top = read.zero_point + int(round_half_away(np.float32(high) / np.float32(read.scale)))
        top = min(max(top, read.dtype.min), read.dtype.max)
        return Computed((call.stored(np.clip(call.value(0).astype(np.int64), read.zero_point, top)),))

    return clamped


def absolute(call: KernelCall) -> Computed:
    x = np.abs(call.centered(0))
    if call.scale(0) == call.output_scale:
        return call.finished(x)
    return call.finished(*RATIO(x, Scales(call.scale(0), np.asarray(ONE), call.output_scale)))


def leaky_relu(call: KernelCall) -> Computed:
    """Simulate LEAKY_RELU with two factors: the ratio of scales above zero, alpha times that below."""
    x, alpha, rescale = call.centered(0), np.float32(call.option("alpha", 0.0)), call.rules.leak
    above, steps = rescale(x, Scales(call.scale(0), np.asarray(ONE), call.output_scale))
    below, others = rescale(x, Scales(call.scale(0), np.asarray(abs(alpha)), call.output_scale))
    steps += [Interim(f"{step.name} below zero", step.values) for step in others]
    return call.finished(np.where(x >= 0, above, -below if alpha < 0 else below), steps)


def prelu(call: KernelCall) -> Computed:
    """Simulate PRELU: as LEAKY_RELU, with an alpha for each channel or element."""
    x, alpha, rescale = call.centered(0), call.centered(1), call.rules.slopes
    above, steps = rescale(x, Scales(call.scale(0), np.asarray(ONE), call.output_scale))
    below, others = rescale(x * alpha, Scales(call.scale(0), call.scale(1), call.output_scale))
    steps += [Interim(f"{step.name} below zero", step.values) for step in others]
    return call.finished(np.where(x >= 0, above, below), steps)
