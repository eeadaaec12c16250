"""Fake quantization: real numbers on the grid of the integers that will represent them, and gradients through it.

The straight-through estimator takes the gradient of rounding to be one. Inside the range the gradient reaches the
input, outside it reaches the end of the range that the value was clipped to. All of it is written in `keras.ops`, so
that every backend can differentiate it; Keras's own `fake_quant_with_min_max_vars` ignores bits and axis on symbolic
tensors (3.15).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from keras import ops

from ..affine import broadcast_shape
from ..errors import InvalidRecipe
from .backend import fused_clip_gradient, has_fused_clip_gradient

RangeSource = Literal["learned", "average", "last"]
ScaleSource = Literal["learned", "last"]
LEAST_BITS, MOST_BITS = 2, 16


@dataclass(frozen=True)
class QuantSettings:
    """How fake quantization is trained.

    Attributes:
        ranges: Ranges of activations: "learned" by gradient descent, the moving "average" of each batch's extremes, or
            the extremes of the "last" batch. All start from calibration.
        decay: The decay of the moving average.
        debias: Whether averages are of batches alone, corrected for there being few of them at first.
        weight_scales: "last" covers the current largest weight, "learned" (LSQ) may clip it; by default "learned" for
            fewer than 8 bits.
        delay: The number of steps trained in float first.
        freeze_after: The step after which ranges are fixed.
        settle: The number of steps over which weights are rounded increasingly sharply; with 0 they are rounded from
            the first step on, with straight-through gradients; None lets `distill` choose: four fifths of its steps for
            4 to 7 bits, a quarter of them for 1 and 2.
        decide: The steps between which ternary weights near a threshold decide for a level; None lets `distill` choose.
        weight_bits: The bits that weights are trained in, if fewer than their type has.
        gradient_bits: The bits that gradients of layers' outputs are stochastically rounded to (DoReFa).
    """

    ranges: RangeSource = "learned"
    decay: float = 0.99
    debias: bool = False
    weight_scales: ScaleSource | None = None
    delay: int = 0
    freeze_after: int | None = None
    settle: int | None = None
    decide: tuple[int, int] | None = None
    weight_bits: int | None = None
    gradient_bits: int | None = None

    def __post_init__(self) -> None:
        if self.ranges not in get_args(RangeSource):
            raise InvalidRecipe(f"ranges cannot be {self.ranges!r}; choose from {', '.join(get_args(RangeSource))}")
        if self.weight_scales not in (None, *get_args(ScaleSource)):
            choices = ", ".join(get_args(ScaleSource))
            raise InvalidRecipe(f"scales of weights cannot be {self.weight_scales!r}; choose from {choices}")
        if not 0 <= self.decay < 1:
            raise InvalidRecipe(f"the decay of an average must be at least 0 and below 1, not {self.decay}")
        if self.weight_bits is not None and not 2 <= self.weight_bits <= 8:
            raise InvalidRecipe(f"weights can be trained in 2 to 8 bits, not {self.weight_bits}")
        if self.gradient_bits is not None and not 1 <= self.gradient_bits <= 16:
            raise InvalidRecipe(f"gradients can be rounded to 1 to 16 bits, not {self.gradient_bits}")
        if self.delay < 0 or (self.freeze_after is not None and self.freeze_after < 0):
            raise InvalidRecipe("steps are counted from 0: delay and freeze_after cannot be negative")
        if self.settle is not None and self.settle < 0:
            raise InvalidRecipe(f"weights must settle over zero or more steps, not {self.settle}")
        if self.decide is not None and not 0 <= self.decide[0] < self.decide[1]:
            raise InvalidRecipe(f"weights must decide between two steps, the earlier one first, not {self.decide}")


@dataclass(frozen=True)
class QuantLevels:
    """The integers of a grid: `narrow` omits the lowest, so that there are as many below zero as above."""

    bits: int = 8
    narrow: bool = False

    def __post_init__(self) -> None:
        if not LEAST_BITS <= self.bits <= MOST_BITS:
            raise ValueError(f"fake quantization is for {LEAST_BITS} to {MOST_BITS} bits, not {self.bits}")

    @property
    def steps(self) -> int:
        return (1 << self.bits) - 1 - int(self.narrow)


INT8 = QuantLevels()


@dataclass(frozen=True)
class ClipBounds:
    """The minimum and maximum whole number of steps, and which of the two need a gradient: each costs time.

    That gradient is computed from the first of `every` parts of the batch, and scaled up. `bits` is set if the bounds
    are those of a grid of this many bits, or start at zero: TensorFlow has a kernel for that gradient.
    """

    low: Any
    high: Any
    learn_low: bool = True
    learn_high: bool = True
    every: int = 1
    bits: int | None = None

    def within(self, low: float, high: float, scale: Any) -> ClipBounds:
        """Return the bounds narrowed to reals between `low` and `high`, as by a fused activation. Ranges include zero,
        so they end where a ReLU starts."""
        bounds = self
        if low == 0:
            bounds = replace(bounds, low=ops.zeros_like(bounds.low), learn_low=False)
        elif low > -math.inf:
            bounds = replace(bounds, low=ops.maximum(bounds.low, ops.round(low / scale)), bits=None)
        if high < math.inf:
            bounds = replace(bounds, high=ops.minimum(bounds.high, ops.round(high / scale)))
        return bounds

    def gradients(self, above: Any, k: Any, low: Any, high: Any) -> tuple[Any, Any, Any]:
        """Return the gradients of `k` and of the two ends, given the gradient `above` of the clipped values."""
        if self.bits is not None and has_fused_clip_gradient():
            inside, to_low, to_high = fused_clip_gradient(above, k, low, high, self.bits)
        else:
            is_low, is_high = k < low, k > high
            inside = ops.where(ops.logical_or(is_low, is_high), ops.zeros_like(above), above)
            to_low = _summed(above, is_low, low, self.every) if self.learn_low else None
            to_high = _summed(above, is_high, high, self.every) if self.learn_high else None
        return (
            inside,
            to_low if self.learn_low else ops.zeros_like(low),
            to_high if self.learn_high else ops.zeros_like(high),
        )


@dataclass(frozen=True)
class NudgedRange:
    """A range that starts and ends on its grid: real = scale * k, from `low` up to `high`, including zero.

    The ends carry gradients, the scale only if it is to be learned.
    """

    scale: Any
    low: Any
    high: Any

    def bounds(self, *, learn: bool = True, bits: int | None = None) -> ClipBounds:
        """Return the ends in steps; for `bits` see `ClipBounds`."""
        inverse = 1.0 / self.scale
        return ClipBounds(self.low * inverse, self.high * inverse, learn, learn, bits=bits)

    def in_steps(self, x: Any, every: int = 1) -> Any:
        """Return how many steps x is from zero. Like kernels, it multiplies by the inverse: pixels often lie halfway
        between two steps, and then the last bit of the result decides which it will be. For `every` see `scaled`."""
        return scaled(x, 1.0 / self.scale, every)


def nudge(low: Any, high: Any, steps: Any, *, learn_scale: bool = False) -> NudgedRange:
    """Return the range moved by less than a step so that zero lies on the grid.

        scale = (high - low) / steps,   below = clamp(round(-low / scale), 0, steps)

    `below` of the steps lie below zero. A range on one side of zero is moved to start or end there, as in TensorFlow;
    to have it stretched instead, do that first. Empty ranges have a scale of one.

    With `learn_scale` the ends also get the gradient of LSQ: values inside move the scale by how far each is from its
    level, round(k) - k with k = x / scale. Without, as in TensorFlow, only clipped values move the ends.
    """
    width = high - low if learn_scale else ops.stop_gradient(high) - ops.stop_gradient(low)
    scale = ops.where(width > 0, width / steps, ops.ones_like(width))
    below = ops.clip(ops.floor(0.5 - ops.stop_gradient(low / scale)), 0.0, steps)
    return NudgedRange(scale, straight_through(low, -below * scale), straight_through(high, (steps - below) * scale))


def straight_through(carrier: Any, value: Any) -> Any:
    """Return `value`, with the gradient of `carrier`."""
    return carrier + ops.stop_gradient(value - carrier)


@dataclass(frozen=True)
class Rounding:
    """Rounds real numbers of steps to whole ones; `detail` is a further argument of the function, as a small tensor."""

    function: Callable[[Any, Any], Any]
    detail: Any = 0.0


def _half_up(k: Any, detail: Any = None) -> Any:  # noqa: ARG001 - one signature
    return ops.floor(k + 0.5)


HALF_UP = Rounding(_half_up)
"""Rounds as TensorFlow's fake quantization does."""

HALF_TO_EVEN = Rounding(lambda k, _: ops.round(k))
"""Rounds as XNNPACK does, which computes most integer ops."""


def given(whole: Any) -> Rounding:
    """Return a rounding whose result a kernel has already computed, in its own arithmetic."""
    return Rounding(lambda _, whole: whole, ops.stop_gradient(ops.cast(whole, "float32")))


def round_and_clip(k: Any, bounds: ClipBounds, rounding: Rounding = HALF_TO_EVEN) -> Any:
    """Return `k`, a real number of steps from zero, rounded and clipped: whole numbers, exact in float32.

    Its gradient is written out, because automatic differentiation would read and write every activation several times
    more.
    """

    @ops.custom_gradient  # type: ignore[untyped-decorator]  # Keras has no types
    def clipped(k: Any, low: Any, high: Any, detail: Any) -> Any:
        def gradient(*upstream: Any, **named: Any) -> tuple[Any, ...]:
            # PyTorch passes the arguments again, and the gradient by name.
            above = named["upstream"] if named else upstream[0]
            return *bounds.gradients(above, k, low, high), ops.zeros_like(detail)

        # Ends in steps are whole but for float rounding, which values on them share.
        return ops.clip(rounding.function(k, detail), ops.round(low), ops.round(high)), gradient

    return clipped(k, *(ops.convert_to_tensor(v, dtype="float32") for v in (bounds.low, bounds.high, rounding.detail)))


def _summed(above: Any, chosen: Any, end: Any, every: int) -> Any:
    """Return the gradient of a broadcast end: the sum over the values that it clipped."""
    (part, is_cut), times = _first_part((above, chosen), every)
    cut = ops.where(is_cut, part, ops.zeros_like(part))
    axes = tuple(k for k, n in enumerate(end.shape) if n == 1) if len(end.shape) else None
    total = ops.sum(cut, axis=axes, keepdims=axes is not None)
    return total if every == 1 else total * times


def _first_part(values: tuple[Any, Any], every: int) -> tuple[tuple[Any, Any], Any]:
    """Return the first of `every` parts of a batch, and by how much to scale it up to the whole."""
    if every == 1:
        return values, 1.0
    count = ops.shape(values[0])[0]
    taken = -(-count // every)
    first, second = (value[:taken] for value in values)
    return (first, second), ops.cast(count, "float32") / ops.cast(taken, "float32")


def scaled(x: Any, scale: Any, every: int) -> Any:
    """Return x * scale, with the gradient of the scale from the first of `every` parts of the batch, scaled up."""

    @ops.custom_gradient  # type: ignore[untyped-decorator]  # Keras has no types
    def product(x: Any, scale: Any) -> Any:
        def gradient(*upstream: Any, **named: Any) -> tuple[Any, Any]:
            above = named["upstream"] if named else upstream[0]
            (part, own), times = _first_part((above, x), every)
            return above * scale, ops.sum(part * own) * times

        return x * scale, gradient

    return x * scale if every == 1 else product(x, scale)


def fake_quant(x: Any, low: Any, high: Any, levels: QuantLevels = INT8, *, axis: int | None = None) -> Any:
    """Return x as integers of `levels` between `low` and `high` would represent it; with `axis`, one pair for each
    slice.

    Equivalent to `tf.quantization.fake_quant_with_min_max_vars` and `..._per_channel`, including gradients: for the
    range [0, 0] the result is 0, and the gradient passes through to x.
    """
    low, high = (ops.convert_to_tensor(end) for end in (low, high))
    if axis is not None:
        low, high = (ops.reshape(end, broadcast_shape(axis, len(x.shape))) for end in (low, high))
    nudged = nudge(low, high, float(levels.steps))
    is_empty = ops.logical_and(ops.equal(low, 0.0), ops.equal(high, 0.0))
    rounded = round_and_clip(nudged.in_steps(x), nudged.bounds(), HALF_UP) * nudged.scale
    return ops.where(is_empty, straight_through(x, ops.zeros_like(x)), rounded)


def symmetric_scale(x: Any, levels: QuantLevels, axis: int | None) -> Any:
    """Return the scale that just covers the largest magnitude, of all or of each slice along `axis`; it has no
    gradient."""
    others = None if axis is None else tuple(k for k in range(len(x.shape)) if k != axis)
    peak = ops.max(ops.abs(ops.stop_gradient(x)), axis=others, keepdims=axis is not None)
    return peak / (levels.steps // 2)


def symmetric_steps(x: Any, scale: Any, levels: QuantLevels, slope: Any = None) -> Any:
    """Return x in whole multiples of `scale` (which broadcasts against it), symmetric about zero.

    A learned scale gets the gradient of LSQ once the steps are multiplied by it: with k = x / scale, d/dscale =
    round(k) - k inside, and the largest level outside. With a `slope`, see `soft_round`.
    """
    most = float(levels.steps // 2)
    k = ops.clip(x / scale, -most, most)
    return straight_through_rounding(k) if slope is None else soft_round(k, slope)


def straight_through_rounding(k: Any) -> Any:
    """Return k rounded, with a straight-through gradient.

    Halves are rounded away from zero, as for stored weights: a single weight that differs is visible in 16 bits.
    """
    return straight_through(k, ops.sign(k) * ops.floor(ops.abs(k) + 0.5))


def clip_with_return(x: Any, scale: Any, most: float) -> Any:
    """Return x / scale clipped to ±`most`. Beyond that, x still gets a gradient that leads back inside.

    If it got none there, a weight that training moved too far would keep its level forever: with few levels a growing
    share of the weights would stop learning. The scale only gets the gradient of values inside.

    This is not for scales that are learned by LSQ. Jumps of weights from level to level act as noise, against which
    smaller scales help; but with a smaller scale, weights jump more often, and so on. Weights that are stuck outside
    stop that.
    """

    @ops.custom_gradient  # type: ignore[untyped-decorator]  # Keras has no types
    def returning(k: Any) -> Any:
        def gradient(*upstream: Any, **named: Any) -> Any:
            above = named["upstream"] if named else upstream[0]
            leads_back = ops.logical_and(ops.abs(k) > most, above * k > 0)
            return ops.where(leads_back, above, ops.zeros_like(above))

        return ops.zeros_like(k), gradient

    return ops.clip(x / scale, -most, most) + returning(x / ops.stop_gradient(scale))


def soft_round(k: Any, slope: Any) -> Any:
    """Round softly: a staircase with sloping risers, where `slope` is their share of each step, 1 being a straight
    line, 0 rounding.

    It has its true gradient. On a tread that is zero: a weight that has settled on an integer stays there, and those
    still on a riser learn to compensate for it. With straight-through gradients a weight never settles; if the optimum
    is between two integers, it oscillates, and the loss with it.
    """
    below = ops.stop_gradient(ops.floor(k))
    return below + ops.clip((k - below - 0.5) / slope + 0.5, 0.0, 1.0)


def with_gradient_bits(x: Any, bits: int, step: Any) -> Any:
    """Return x, with its gradient g rounded to `bits` bits (DoReFa), separately for each sample of the batch:

        2 max|g| (quantize(g / (2 max|g|) + 1/2 + noise) - 1/2),   noise uniform in ±1/2 of a level

    Without the noise, small gradients would always vanish instead of mostly.
    """

    @ops.custom_gradient  # type: ignore[untyped-decorator]  # Keras has no types
    def identity(x: Any, step: Any) -> Any:
        def gradient(*upstream: Any, **named: Any) -> tuple[Any, ...]:
            above = named["upstream"] if named else upstream[0]
            others = tuple(range(1, len(above.shape)))
            most = ops.maximum(2.0 * ops.max(ops.abs(above), axis=others, keepdims=True), 1e-30)
            steps = 2.0**bits - 1
            k = (above / most + 0.5) * steps + _noise(above, step)
            rounded = ops.clip(ops.round(k), 0.0, steps) / steps
            return most * (rounded - 0.5), ops.zeros_like(step)

        return x, gradient

    return identity(x, ops.cast(ops.convert_to_tensor(step), "float32"))


def _noise(like: Any, step: Any) -> Any:
    """Return pseudo-random numbers in ±1/2, different at each step; stateless, so that every backend can compute it."""
    count = ops.cast(ops.arange(ops.size(like)), "float32")
    spread = ops.sin(count * 12.9898 + step * 78.233) * 43758.5453
    return ops.reshape(spread - ops.floor(spread) - 0.5, ops.shape(like))
