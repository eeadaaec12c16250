"""Causes in the ranges: data unlike the calibration data, ranges too wide or too narrow, scales at the limits of
float."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import permutations

from ..affine import QuantParams
from ..calibration import TensorStats
from ..calibration.range_methods import PERCENTILE
from ..display import counted
from ..errors import argument
from ..graph.model import Tensor
from ..recipe import FLOAT, Rule
from .evidence import Fix, Hypothesis, ModelEvidence, listed, numbers, percentile_span, seen_span, span

FAR = 4.0
"""Ranges that differ by this factor do not come from the same data."""

PIXELS = (96.0, 300.0)
"""The range in which the maximum of un-normalized images lies."""

NORMALIZED = 12.0
"""Normalized inputs stay below this."""

SHARE = 0.01
"""The share of values beyond the range above which it is no accident."""

MOST_INPUTS = 5
"""With more inputs, not all permutations are tried."""

STRETCHED = 4.0
"""Ranges too wide by this factor or more are reported: two of eight bits are lost."""

FEW_RUNS = 4
"""The minimum number of runs from which the usual range can be told."""

CLIPPED, STEPS = 0.001, 16.0
"""Clipping may matter above this share of clipped values and this maximum error in steps."""

SMALLEST, LARGEST = 1e-30, 1e30
"""Beyond these limits, products of two scales underflow or overflow in float32."""

CLIPPING_RANGES = Fix(range="mse"), Fix(range="percentile"), Fix(range="average")


@dataclass(frozen=True)
class CalibratedInput:
    """An input: the range it was calibrated for, and the range of the data."""

    tensor: Tensor
    calibrated: tuple[float, float]
    seen: TensorStats

    @property
    def data(self) -> tuple[float, float]:
        return self.seen.low.value, self.seen.high.value

    @property
    def factor(self) -> float:
        """The ratio of the calibrated range to that of the data; 0 if there is nothing to compare."""
        return span(*self.calibrated) / width if (width := span(*self.data)) > 0 else 0.0

    @property
    def ratio(self) -> float:
        return max(self.factor, 1 / self.factor)

    @property
    def is_unnormalized(self) -> bool:
        """Whether one of calibration and data looks like raw pixels, and the other like normalized ones."""
        small, large = sorted(max(map(abs, ends)) for ends in (self.calibrated, self.data))
        return self.ratio >= FAR and small <= NORMALIZED and PIXELS[0] <= large <= PIXELS[1]

    @property
    def outside(self) -> float:
        """The share of values beyond the calibrated range."""
        histogram = self.seen.histogram
        if not histogram.total:
            return 0.0
        centers, step, (low, high) = histogram.centers(), span(*self.calibrated) / 255, self.calibrated
        beyond = (centers < low - step) | (centers > high + step)
        return float(histogram.counts[beyond].sum()) / histogram.total

    @property
    def effect(self) -> str:
        if self.outside > SHARE:
            return f"{self.outside:.1%} of the values are clipped"
        return f"{256 / self.factor:.1f} of 256 integers are used"

    def distance(self, other: CalibratedInput) -> float:
        """Return how far this calibrated range is from the data of `other`: 0 is equal, 1 a factor of e or one range
        apart."""
        wide, narrow = span(*self.calibrated), span(*other.data)
        if wide <= 0 or narrow <= 0:
            return 0.0 if wide == narrow else 10.0
        apart = sum(abs(a - b) for a, b in zip(self.calibrated, other.data, strict=True))
        return abs(math.log(wide / narrow)) + apart / max(wide, narrow)

    def __str__(self) -> str:
        name, calibrated, data = self.tensor.name, _ends(*self.calibrated), _ends(*self.data)
        return f"'{name}' was calibrated for {calibrated}, and its data are {data}"


def _ends(low: float, high: float) -> str:
    return f"{low:.4g} .. {high:.4g}"


def _quoted(inputs: Iterable[CalibratedInput]) -> str:
    return " and ".join(repr(one.tensor.name) for one in inputs)


def _inputs(evidence: ModelEvidence) -> list[CalibratedInput]:
    """Return every float input with the range that its first quantized form covers."""
    found = []
    for original in evidence.alignment.float.inputs:
        seen = evidence.seen(original)
        params = next((p for _, o, p in evidence.quantized_tensors() if o is original), None)
        if seen is not None and params is not None:
            found.append(CalibratedInput(original, params.range(), seen))
    return found


def _swapped_order(inputs: list[CalibratedInput]) -> tuple[int, ...] | None:
    """Return the order of inputs in which the data fit the calibrated ranges far better; None if it is the present
    one."""
    if not 2 <= len(inputs) <= MOST_INPUTS:
        return None

    def worst(order: tuple[int, ...]) -> float:
        return max(inputs[k].distance(inputs[place]) for k, place in enumerate(order))

    as_given = tuple(range(len(inputs)))
    best = min(permutations(as_given), key=worst)
    return best if worst(as_given) > math.log(FAR) and worst(best) < 0.5 * worst(as_given) and worst(best) < 1 else None


def swapped_inputs(evidence: ModelEvidence) -> Hypothesis | None:
    inputs = _inputs(evidence)
    if (order := _swapped_order(inputs)) is None:
        return None
    wrong = [(inputs[k], inputs[place]) for k, place in enumerate(order) if k != place]
    return Hypothesis(
        f"the inputs {_quoted(one for one, _ in wrong)} were swapped in calibration",
        tuple(f"{one}; those of '{other.tensor.name}' are {_ends(*other.data)}" for one, other in wrong),
        "one input is clipped, and the other uses few of its integers",
        "give calibration data by input name rather than by position, and quantize again",
        numbers(inputs=len(wrong), distance=max(one.distance(one) for one, _ in wrong)),
        tuple(one.tensor.name for one, _ in wrong),
    )


def _unlike_inputs(evidence: ModelEvidence) -> list[CalibratedInput]:
    """Return inputs whose data may differ from the calibration data, worst first."""
    inputs = _inputs(evidence)
    if _swapped_order(inputs) is not None:
        return []
    unlike = [one for one in inputs if one.factor > 0 and not _is_usual(evidence, one)]
    return sorted(unlike, key=lambda one: -one.ratio)


def _is_usual(evidence: ModelEvidence, one: CalibratedInput) -> bool:
    """Whether most calibration samples were like the data: then a few other samples are the cause."""
    if evidence.calibration is None or (calibrated := evidence.seen(one.tensor, calibrated=True)) is None:
        return False
    return 2 / FAR < percentile_span(calibrated, 95.0) / max(percentile_span(one.seen, 95.0), 1e-30) < FAR / 2


def unnormalized_input(evidence: ModelEvidence) -> Hypothesis | None:
    if not (inputs := [one for one in _unlike_inputs(evidence) if one.is_unnormalized]):
        return None
    worst = inputs[0]
    low, high = worst.calibrated
    return Hypothesis(
        f"{'calibration data of' if worst.factor > 1 else 'the data for'} {_quoted(inputs)} look un-normalized",
        tuple(f"{one}: {one.ratio:.3g} times apart" for one in inputs),
        worst.effect,
        "normalize the data as the model expects it, the same way in calibration "
        f"({', '.join(map(argument, ('scale', 'offset', 'mean', 'std')))})",
        numbers(factor=worst.factor, outside=worst.outside, calibrated_low=low, calibrated_high=high),
        tuple(one.tensor.name for one in inputs),
    )


def unlike_data(evidence: ModelEvidence) -> Hypothesis | None:
    inputs = [one for one in _unlike_inputs(evidence) if not one.is_unnormalized]
    inputs = [one for one in inputs if one.ratio >= 2 * FAR or one.outside > SHARE]
    if not inputs:
        return None
    worst = inputs[0]
    return Hypothesis(
        f"the data for {_quoted(inputs)} do not look like the calibration data",
        tuple(f"{one}; {one.outside:.2%} of the values lie beyond the calibrated range" for one in inputs),
        worst.effect,
        "calibrate on data like those the model will see in use, and quantize again",
        numbers(factor=worst.factor, outside=worst.outside),
        tuple(one.tensor.name for one in inputs),
    )


@dataclass(frozen=True)
class StretchedRange:
    """A tensor whose range is much wider than most of its values need."""

    tensor: Tensor
    params: QuantParams
    seen: TensorStats
    usual: float

    @property
    def factor(self) -> float:
        return span(*self.params.range()) / self.usual

    @property
    def samples(self) -> tuple[int, ...]:
        """The samples that contain the extremes, if these are unusual."""
        bottom, top, (low, high) = self.seen.low, self.seen.high, self.seen.average.range
        ends = (-bottom.value, -low, bottom.sample), (top.value, high, top.sample)
        extremes = tuple(sample for peak, usual, sample in ends if peak > STRETCHED * max(usual, 0.0))
        return extremes or (max(ends, key=lambda end: end[0])[2],)

    def __str__(self) -> str:
        return f"'{self.tensor.name}' reaches {_ends(self.seen.low.value, self.seen.high.value)}"


def _stretched(evidence: ModelEvidence, *, by_samples: bool) -> list[StretchedRange]:
    """Return tensors stretched by a few samples, or by a few values of every sample; worst first."""
    found = {}  # conversions turn one tensor into several: the last one represents all
    for _, original, params in evidence.quantized_tensors():
        seen = evidence.seen(original, calibrated=True)
        if seen is None or evidence.has_fixed_range(original):
            continue
        width = min(span(*params.range()), seen_span(seen))
        usual = span(*seen.average.range)
        is_by_samples = seen.runs >= FEW_RUNS and 0 < usual * STRETCHED < width
        if is_by_samples == by_samples:
            usual = usual if by_samples else percentile_span(seen, PERCENTILE)
            if 0 < usual * STRETCHED < width:
                found[original] = StretchedRange(original, params, seen, usual)
    return sorted(found.values(), key=lambda s: -s.factor)


def outlier_samples(evidence: ModelEvidence) -> Hypothesis | None:
    if not (found := _stretched(evidence, by_samples=True)):
        return None
    worst = found[0]
    votes = Counter(sample for s in found for sample in s.samples)
    samples = tuple(sorted(votes))
    most_often = ", ".join(f"{sample} ({times} tensors)" for sample, times in votes.most_common(5))
    usual = f"in an average sample {_ends(*worst.seen.average.range)}"
    return Hypothesis(
        f"the ranges of {counted(len(found), 'tensor')} are stretched by {counted(len(samples), 'sample')}",
        (
            f"{worst}, {usual}: its range is {worst.factor:.1f} times as wide as usual",
            f"samples with the extremes: {most_often}",
        ),
        f"all other samples share {256 / worst.factor:.0f} of the 256 integers of '{worst.tensor.name}'",
        f"leave these samples out if they are not real ({listed(samples, 8)}), or choose ranges with "
        f"{argument('range', 'mse')}",
        numbers(factor=worst.factor, tensors=len(found), samples=len(samples)),
        tuple(s.tensor.name for s in found),
        samples,
        CLIPPING_RANGES,
    )


def outlier_values(evidence: ModelEvidence) -> Hypothesis | None:
    if not (found := _stretched(evidence, by_samples=False)):
        return None
    worst = found[0]
    return Hypothesis(
        f"a few values stretch the ranges of {counted(len(found), 'tensor')}",
        (
            f"{worst}, and {PERCENTILE} % of its values lie within a range {worst.factor:.1f} times as narrow",
            *_largest_channel(worst.seen),
            f"{counted(len(found), 'tensor')} of this kind: {listed((repr(s.tensor.name) for s in found), 3)}",
        ),
        f"nearly all values of '{worst.tensor.name}' share {256 / worst.factor:.0f} of 256 integers",
        f"clip them with {argument('range', 'mse')} or percentile, or compute these ops with 16 bits",
        numbers(factor=worst.factor, tensors=len(found)),
        tuple(s.tensor.name for s in found),
        fixes=CLIPPING_RANGES,
    )


def _largest_channel(seen: TensorStats) -> Iterator[str]:
    """Yield a sentence about the channel with the extremes, if all others are far smaller."""
    if seen.channels is not None and seen.channels.low.size > 1:
        peaks = abs(seen.channels.low).clip(abs(seen.channels.high), None)
        second, largest = peaks.argsort()[-2:]
        if peaks[largest] >= 2 * peaks[second]:
            yield f"channel {int(largest)} reaches {peaks[largest]:.4g}, the next {peaks[second]:.4g}"


def clipping(evidence: ModelEvidence) -> Hypothesis | None:
    """Tensors in which a considerable share of the values is clipped."""
    found = []
    for row in evidence.comparison.ops:
        if row.own is None or row.own.max_ulp is None or row.occupancy is None:
            continue
        original = evidence.alignment.float.ops[row.float_position].outputs[0]
        is_cut = row.occupancy.clipped > CLIPPED and row.own.max_ulp > STEPS
        if is_cut and not evidence.has_fixed_range(original):
            found.append((row.occupancy.clipped, row.own.max_ulp, row.own.snr, row))
    if not found:
        return None
    found.sort(key=lambda cut: -cut[0])
    share, steps, snr, worst = found[0]
    return Hypothesis(
        f"the ranges of {counted(len(found), 'tensor')} clip values that occur in the data",
        tuple(
            f"{r.label} '{r.name}': {c:.2%} of the values are clipped, by up to {n:.0f} steps"
            for c, n, _, r in found[:3]
        ),
        f"the own SNR of '{worst.name}' is {snr:.1f} dB",
        f"give these tensors the whole range that occurs ({argument('range', 'minmax')}), or calibrate on more data",
        numbers(clipped=share, steps=steps, tensors=len(found)),
        tuple(row.name for *_, row in found),
        fixes=(Fix(range="minmax"), Fix(range="mse")),
    )


def extreme_scale(evidence: ModelEvidence) -> Hypothesis | None:
    found = [(p.scale, t.name) for t, _, p in evidence.quantized_tensors() if not SMALLEST < p.scale < LARGEST]
    if not found:
        return None
    scale, name = min(found)
    return Hypothesis(
        f"{counted(len(found), 'tensor')} with a scale at the edge of float32",
        (f"'{name}' has the scale {scale:.3g}",),
        "products of such scales are zero or infinite in float32, so kernels compute nonsense or refuse",
        "look for constants or samples that are nearly zero or huge, or keep the op in float",
        numbers(scale=scale, tensors=len(found)),
        (name,),
        fixes=(Fix((Rule(FLOAT, name=name),)),),
        in_recipe=True,
    )
