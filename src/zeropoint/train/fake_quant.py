"""Fake quantization: real numbers on the grid of the integers that will stand for them, and gradients through it.

The gradient of rounding is taken to be one ("straight through"). Inside the range the gradient reaches the input,
outside it reaches the end of the range that the value was clipped to. All of it is written in `keras.ops`, so that
every backend derives it by itself; Keras's own `fake_quant_with_min_max_vars` drops its bits and axis on symbolic
tensors (3.15).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from keras import ops

LEAST_BITS, MOST_BITS = 2, 16


@dataclass(frozen=True)
class Levels:
    """The integers of a grid: `narrow` leaves out the lowest, so that there are as many below zero as above."""

    bits: int = 8
    narrow: bool = False

    def __post_init__(self) -> None:
        if not LEAST_BITS <= self.bits <= MOST_BITS:
            raise ValueError(f"fake quantization is for {LEAST_BITS} to {MOST_BITS} bits, not {self.bits}")

    @property
    def steps(self) -> int:
        return (1 << self.bits) - 1 - int(self.narrow)


@dataclass(frozen=True)
class Step:
    """A range that starts and ends on its grid: real = scale * k, from `low` up to `high`, zero included.

    The ends carry gradients, the scale does not.
    """

    scale: Any
    low: Any
    high: Any


def nudge(low: Any, high: Any, steps: Any) -> Step:
    """The range moved by less than a step so that zero lies on the grid.

        scale = (high - low) / steps,   below = clamp(round(-low / scale), 0, steps)

    `below` of the steps lie below zero. A range on one side of zero is moved to start or end there, as
    TensorFlow does; whoever wants it stretched instead does so before. Ranges of no width have a scale of one.
    """
    width = ops.stop_gradient(high) - ops.stop_gradient(low)
    scale = ops.where(width > 0, width / steps, ops.ones_like(width))
    below = ops.clip(ops.floor(0.5 - ops.stop_gradient(low) / scale), 0.0, steps)
    return Step(scale, _through(low, -below * scale), _through(high, (steps - below) * scale))


@dataclass(frozen=True)
class Rounding:
    """From real numbers of steps to whole ones; `detail` is what the function needs besides, in few numbers."""

    function: Callable[[Any, Any], Any]
    detail: Any = 0.0


def _half_up(k: Any, detail: Any = None) -> Any:  # noqa: ARG001 - one signature
    return ops.floor(k + 0.5)


def _half_away(k: Any, zero_point: Any) -> Any:
    # Averages of integers that are halves come out of float arithmetic a little to either side.
    q = k + zero_point
    return ops.sign(q) * ops.floor(ops.abs(q) + (0.5 + 2.0**-12)) - zero_point


HALF_UP = Rounding(_half_up)
"""As TensorFlow's fake quantization."""

HALF_TO_EVEN = Rounding(lambda k, _: ops.round(k))
"""As XNNPACK, which computes most integer ops."""


def half_away_from(zero_point: Any) -> Rounding:
    """Away from the integer zero: kernels that average integers know no other."""
    return Rounding(_half_away, zero_point)


def twice(multiplier: Any) -> Rounding:
    """Rounding in two steps, as kernels do that multiply in fixed point.

    With multiplier = m * 2**e and m in [0.5, 1), sums of products are multiplied by m and rounded, then divided by
    2**-e and rounded again.
    """
    exponent = ops.floor(ops.log2(multiplier)) + 1.0
    fine = ops.power(2.0, ops.minimum(exponent, 0.0))
    return Rounding(lambda k, fine: _half_up(_half_up(k / fine) * fine), fine)


@dataclass(frozen=True)
class Bounds:
    """The least and the greatest whole number of steps, and which of the two want a gradient: each costs time."""

    low: Any
    high: Any
    learn_low: bool = True
    learn_high: bool = True


def whole_steps(k: Any, bounds: Bounds, rounding: Rounding = HALF_TO_EVEN) -> Any:
    """`k`, a real number of steps from zero, rounded and clipped: whole numbers, exact in float32.

    Written out with its gradient, because deriving it would read and write every activation several times more.
    """

    @ops.custom_gradient  # type: ignore[untyped-decorator]  # Keras has no types
    def clipped(k: Any, low: Any, high: Any, detail: Any) -> Any:
        def gradient(*upstream: Any, **named: Any) -> tuple[Any, ...]:
            # PyTorch gives the arguments once more, and the gradient by name.
            above = named["upstream"] if named else upstream[0]
            nothing = ops.zeros_like(above)
            is_low, is_high = k < low, k > high
            inside = ops.where(ops.logical_or(is_low, is_high), nothing, above)
            to_low = _summed(ops.where(is_low, above, nothing), low) if bounds.learn_low else ops.zeros_like(low)
            to_high = _summed(ops.where(is_high, above, nothing), high) if bounds.learn_high else ops.zeros_like(high)
            return inside, to_low, to_high, ops.zeros_like(detail)

        return ops.clip(rounding.function(k, detail), low, high), gradient

    return clipped(k, *(ops.convert_to_tensor(v, dtype="float32") for v in (bounds.low, bounds.high, rounding.detail)))


def _summed(gradient: Any, end: Any) -> Any:
    """The gradient of an end that was broadcast."""
    if len(end.shape) == 0:
        return ops.sum(gradient)
    return ops.sum(gradient, axis=tuple(k for k, n in enumerate(end.shape) if n == 1), keepdims=True)


def bounds_of(step: Step, *, learn: bool = True) -> Bounds:
    """The ends of a range in steps."""
    inverse = 1.0 / step.scale
    return Bounds(step.low * inverse, step.high * inverse, learn, learn)


def in_steps(x: Any, step: Step) -> Any:
    """How many steps x is from zero. Kernels multiply by the inverse as well: pixels often lie halfway between two
    steps, and then the last bit of the result tells which it will be."""
    return x * (1.0 / step.scale)


INT8 = Levels()


def fake_quant(x: Any, low: Any, high: Any, levels: Levels = INT8, *, axis: int | None = None) -> Any:
    """x as integers of `levels` between `low` and `high` would hold it; with `axis` these are one for each slice.

    The same as `tf.quantization.fake_quant_with_min_max_vars` and `..._per_channel`, gradients included: for the range
    [0, 0] the result is 0, and the gradient passes through to x.
    """
    low, high = (_along(ops.convert_to_tensor(end), axis, len(x.shape)) for end in (low, high))
    step = nudge(low, high, float(levels.steps))
    is_empty = ops.logical_and(ops.equal(low, 0.0), ops.equal(high, 0.0))
    return ops.where(
        is_empty, _through(x, ops.zeros_like(x)), whole_steps(in_steps(x, step), bounds_of(step), HALF_UP) * step.scale
    )


def symmetric_scale(x: Any, levels: Levels, axis: int | None) -> Any:
    """The scale that just holds the greatest magnitude, of all or of each slice along `axis`; it has no gradient."""
    others = None if axis is None else tuple(k for k in range(len(x.shape)) if k != axis)
    peak = ops.max(ops.abs(ops.stop_gradient(x)), axis=others, keepdims=axis is not None)
    return peak / (levels.steps // 2)


def whole_symmetric_steps(x: Any, scale: Any, levels: Levels, slope: Any = None) -> Any:
    """How many times `scale` (which broadcasts against it) x is once rounded, symmetric about zero.

    A scale that is learned gets its share of the rounding error for a gradient once the steps are multiplied by it:
    with k = x / scale, d/dscale = round(k) - k inside, and the greatest level outside. With a `slope`, see `gradual`.
    """
    most = float(levels.steps // 2)
    k = ops.clip(x / scale, -most, most)
    return _through(k, _half_up(k)) if slope is None else gradual(k, slope)


def gradual(k: Any, slope: Any) -> Any:
    """A staircase with sloping risers: `slope` is how much of each step they take, 1 being a straight line, 0 rounding.

    Its gradient is its own. On a tread it is zero: a weight that has come to rest on an integer stays there, and those
    that are still on a riser learn to make up for it. Straight-through gradients never let a weight rest; where the
    best place is between two integers, it goes back and forth, and the loss with it.
    """
    below = ops.stop_gradient(ops.floor(k))
    return below + ops.clip((k - below - 0.5) / slope + 0.5, 0.0, 1.0)


def _through(carrier: Any, value: Any) -> Any:
    """`value`, with the gradient of `carrier`."""
    return carrier + ops.stop_gradient(value - carrier)


def _along(end: Any, axis: int | None, rank: int) -> Any:
    if axis is None:
        return end
    shape = [1] * rank
    shape[axis] = -1
    return ops.reshape(end, shape)
