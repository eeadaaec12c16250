"""How far a model's outputs are from the float model's; `op_errors` has the same op by op.

There is one measure of error: the power of the difference relative to the power of the float values. Users see it as
signal-to-noise ratio in dB, larger is better.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..affine import dequantize, quantize
from ..dtypes import Array, DType
from ..graph.model import Graph, Op, Tensor
from ..graph.query import Uses
from ..ops import CONVERSIONS, OpSpec, Probabilities
from ..parallel import cached_property
from .alignment import source

EXACT = 200.0
"""SNR in dB assigned to equal values. Float32 itself reaches about 150 dB."""

SQUASHED = 8.0
"""Values this far below the maximum before a softmax, or this far from zero before a sigmoid, make no difference: a
probability of 0.0003."""

FEWEST_ROWS, MOST_CHANNELS, FAR_LONGER = 8, 256, 8
"""Limits on the sizes of an output's axes for one of them to count as channels."""

IN_KIND = 100.0
"""Ratio of powers from which channels count as different quantities."""

WEAKEST = 1e-4
"""Power of a channel relative to the strongest, below which it counts less: it is hardly ever used."""

FAINTEST = 1e-60
"""Power of an output below which its channels are not told apart: float32 does not hold the factors."""

TRANSPARENT = (*CONVERSIONS, "FAKE_QUANT")
"""Ops whose output holds the values of their input."""


def decibels(relative_error: float) -> float:
    """Return the SNR in dB of a relative squared error: 0 dB is noise as strong as the signal. Clamped to ±EXACT."""
    if not math.isfinite(relative_error):
        return -EXACT
    floor = 10 ** (-EXACT / 10)
    return -10 * math.log10(min(max(relative_error, floor), 1 / floor))


def snr_text(snr: float | None, unit: str = " dB") -> str:
    """Format a signal-to-noise ratio; "-" if unknown."""
    if snr is None:
        return "-"
    return "exact" if snr >= EXACT else f"{snr:.1f}{unit}"


def from_decibels(snr: float) -> float:
    """Return the relative squared error of an SNR in dB."""
    return float(10 ** (-snr / 10))


def real(values: Array, tensor: Tensor) -> Array:
    """Return the real values that a tensor's numbers represent."""
    return values if tensor.params is None or not tensor.is_quantized else dequantize(values, tensor.params)


def encoded(real: Array, tensor: Tensor) -> Array:
    """Return real numbers, or indices, as `tensor` stores them."""
    if tensor.params is not None:
        return quantize(real, tensor.params)
    assert tensor.dtype.storage is not None
    return real.astype(tensor.dtype.storage, copy=False)


def as_floats(values: Array) -> Array:
    """Return numbers that can be subtracted: truth values cannot, and integers wrap."""
    numbers = np.asarray(values)
    return numbers if numbers.dtype.kind == "f" else numbers.astype(np.float64)


def as_doubles(values: Array) -> Array:
    """Return the values in double precision. What LiteRT leaves uninitialized may be a signalling NaN: no warning."""
    with np.errstate(invalid="ignore"):
        return np.asarray(values, np.float64)


def dot(a: Array, b: Array) -> float:
    """Return the sum of products. Single precision is four times as fast and accurate enough, unless it overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        quick = float(np.dot(a, b))
    return quick if math.isfinite(quick) else float(np.dot(as_doubles(a), as_doubles(b)))


@dataclass
class ErrorSum:
    """Squared differences and squared values, summed over samples."""

    error: float = 0.0
    power: float = 0.0

    def add(self, wanted: Array, found: Array) -> Array:
        """Add one run's values; return the differences, flattened."""
        flat, own = (as_floats(values).reshape(-1) for values in (wanted, found))
        with np.errstate(invalid="ignore"):
            gap: Array = own - flat
        if np.isinf(flat).any():  # equal infinities are no error, and do not count as power
            agree = np.isinf(flat) & (own == flat)
            gap, flat = np.where(agree, 0, gap), np.where(agree, 0, flat)
        self.error += dot(gap, gap)
        self.power += dot(flat, flat)
        return gap

    def __add__(self, other: ErrorSum) -> ErrorSum:
        return ErrorSum(self.error + other.error, self.power + other.power)

    @property
    def relative(self) -> float:
        """The relative squared error; infinite if any value was NaN."""
        found = self.error / self.power if self.power > 0 else self.error
        return found if math.isfinite(found) else math.inf


@dataclass(frozen=True)
class JudgedError:
    """The relative squared error of a model's outputs on some samples, and each sample's contribution."""

    value: float
    parts: tuple[float, ...] = ()

    @classmethod
    def of(cls, samples: Sequence[Sequence[ErrorSum]]) -> JudgedError:
        """Return the error from the sums of each output, by sample: the mean over outputs."""
        each = zip(*samples, strict=True)
        totals = [ErrorSum(sum(one.error for one in own), sum(one.power for one in own)) for own in each]
        if not totals:
            return cls(0.0)
        powers = [total.power if total.power > 0 else 1.0 for total in totals]
        parts = (sum(s.error / power for s, power in zip(own, powers, strict=True)) / len(totals) for own in samples)
        return cls(float(np.mean([total.relative for total in totals])), tuple(parts))

    def beats(self, other: JudgedError, by: float = 1.0) -> bool:
        """Whether this error is smaller than `other`, on the same samples, by more than `by` standard errors of the
        difference.

        So a gain that chance, or a single dominant sample, explains does not count: with differences d over n samples,
        the sum of d has to exceed by * sqrt(n) * std(d).
        """
        gain = other.value - self.value
        if not gain > 0 or not math.isfinite(gain) or len(self.parts) < 2:
            return gain > 0
        gaps = np.subtract(other.parts, self.parts)
        return bool(gain > by * math.sqrt(gaps.size) * float(np.std(gaps, ddof=1)))


@dataclass(frozen=True)
class Reference:
    """The float model's value of an output for one sample. Both sides are multiplied by `scale` before they are
    compared, if its channels are different quantities."""

    values: Array
    scale: Array | None = None

    @cached_property
    def power(self) -> float | None:
        """The power of the values; None if there are infinities, for which it depends on what they are compared
        with."""
        flat = self._scaled(self.values)
        return None if np.isinf(flat).any() else dot(flat, flat)

    def _scaled(self, values: Array) -> Array:
        return np.asarray(values if self.scale is None else values * self.scale).reshape(-1)

    def compare(self, found: Array, total: ErrorSum) -> None:
        """Add the error of another version's values to `total`."""
        if self.power is None:
            total.add(self._scaled(self.values), self._scaled(found))
            return
        gap = np.asarray(found - self.values)
        if self.scale is not None:
            gap = np.multiply(gap, self.scale, out=gap if gap.dtype == self.scale.dtype else None)
        flat = gap.reshape(-1)
        total.error += dot(flat, flat)
        total.power += self.power


def errors_of(wanted: Sequence[Reference], found: Sequence[Array]) -> list[ErrorSum]:
    """Return the error of each output of another version, for one sample."""
    sums = [ErrorSum() for _ in wanted]
    for total, reference, values in zip(sums, wanted, found, strict=True):
        reference.compare(values, total)
    return sums


@dataclass(frozen=True)
class Compared:
    """The output at `place`, or, if it holds `probabilities`, the tensor that an op of `kind` computes them from.

    Probabilities near 0 and 1 hide the differences before them, so that a few uncertain samples would dominate the
    error. A version of the model without that op, which some tools drop, outputs the compared tensor itself.
    """

    place: int
    probabilities: Probabilities | None = None
    kind: str | None = None

    def tensor(self, graph: Graph) -> Tensor:
        """Return the compared tensor in any version of the model."""
        output = graph.outputs[self.place]
        maker = None if self.kind is None else _maker(Uses(graph), output)
        source = maker.inputs[0] if maker is not None and maker.kind == self.kind else None
        return output if source is None else source

    def label(self, graph: Graph) -> str:
        """Return where the SNR is measured, as text."""
        maker = None if self.probabilities is None else _maker(Uses(graph), graph.outputs[self.place])
        return f"'{self.tensor(graph).name}'{f' before {maker.label}' if maker is not None else ''}"

    def is_in(self, graph: Graph, other: Graph) -> bool:
        """Whether another version of `graph` computes its probabilities in the same way."""
        makers = [_maker(Uses(g), g.outputs[self.place]) for g in (graph, other)]
        return self.probabilities is None or len({None if op is None else op.kind for op in makers}) == 1

    def judged(self, values: Array) -> Array:
        """Return the values without differences that do not matter."""
        if self.probabilities is None:
            return values
        if self.probabilities == "each":
            return np.clip(values, -SQUASHED, SQUASHED)
        # A softmax is invariant to a common offset of its inputs.
        below = values.astype(np.float64)
        below -= np.maximum.reduce(values, axis=-1, keepdims=True)  # for few values, half the time of `max` and `mean`
        np.maximum(below, -SQUASHED, out=below)
        below -= np.add.reduce(below, axis=-1, keepdims=True) / below.shape[-1]
        return below


def references(wanted: Sequence[Sequence[Array]]) -> list[list[Reference]]:
    """Return the float model's values of each output for comparison, by sample."""
    scales = [channel_scales(values) for values in zip(*wanted, strict=True)]
    return [[Reference(*one) for one in zip(values, scales, strict=True)] for values in wanted]


def where_measured(compared: Sequence[Compared], graph: Graph) -> str:
    """Return where the SNR of all compared outputs is measured, as text."""
    labels = [one.label(graph) for one in compared]
    return labels[0] if len(labels) == 1 else f"{len(labels)} outputs ({', '.join(labels[:2])} ...)"


def channel_axis(shape: tuple[int, ...]) -> int | None:
    """Return the axis of an output that may hold channels, each a quantity of its own.

    That is the last axis, or the one after the batch if the last is far longer: 84 channels of 8,400 boxes.
    """
    if len(shape) < 3:
        return None
    if 2 <= shape[-1] <= MOST_CHANNELS and math.prod(shape[:-1]) >= FEWEST_ROWS:
        return len(shape) - 1
    return 1 if 2 <= shape[1] <= min(MOST_CHANNELS, shape[-1] // FAR_LONGER) else None


def channels_last(values: Array, axis: int) -> Array:
    """Return the values as [rows, channels]."""
    return np.moveaxis(as_doubles(values), axis, -1).reshape(-1, values.shape[axis])


def total_powers(samples: Sequence[Sequence[Reference]]) -> list[float]:
    """Return the power of each output over these samples; infinite if it is not known before the comparison."""
    each = ([math.inf if one.power is None else one.power for one in own] for own in zip(*samples, strict=True))
    return [sum(powers) or 1.0 for powers in each]


def channel_scales(values: Sequence[Array]) -> Array | None:
    """Return factors that give the channels of an output equal power, if they are different quantities; None otherwise.

    A detector puts coordinates, scores and classes side by side: by power, only the coordinates would count. The
    factors broadcast against the output.
    """
    axis = channel_axis(values[0].shape) if values else None
    if axis is None:
        return None
    scales = scales_of_powers(np.asarray(sum((channels_last(v, axis) ** 2).sum(axis=0) for v in values)))
    return None if scales is None else scales.reshape(-1, *(1 for _ in values[0].shape[axis + 1 :]))


def scales_of_powers(power: Array) -> Array | None:
    """Return factors that equalize the power of channels, from the power of each; None if they are the same
    quantity."""
    if not np.isfinite(power).all() or power.max() < FAINTEST or power.max() < IN_KIND * power.min():
        return None
    return np.asarray(1 / np.sqrt(np.maximum(power, WEAKEST * power.max())), np.float32)


def compared_outputs(graph: Graph, ops: Mapping[str, OpSpec]) -> Iterator[Compared]:
    """Yield the float outputs of the float model."""
    uses = Uses(graph)
    for place, tensor in enumerate(graph.outputs):
        if tensor.dtype is DType.FLOAT32:
            maker = _maker(uses, tensor)
            spec = None if maker is None else ops.get(maker.kind)
            if maker is None or spec is None or spec.probabilities is None:
                yield Compared(place)
            else:
                yield Compared(place, spec.probabilities, maker.kind)


def _maker(uses: Uses, tensor: Tensor) -> Op | None:
    """Return the op that computes the tensor, looking through conversions."""
    return uses.producer(source(tensor, uses, TRANSPARENT))
