"""Ranges that do not fit: data unlike those of calibration, stretched or narrow ranges, scales at the edge of float."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

from ..affine import QuantParams
from ..calibration import Method, TensorStats
from ..calibration.range_methods import PERCENTILE
from ..graph.model import Tensor
from ..recipe import FLOAT, Rule
from .evidence import Hypothesis, ModelEvidence, count, listed, numbers, percentile_span, seen_span, span
from .trials import Fix

FAR = 4.0
"""Ranges that differ by this factor are not of the same data."""

PIXELS = (96.0, 300.0)
"""Where the largest value lies of images that nobody normalized."""

NORMALIZED = 12.0
"""Normalized inputs stay below this."""

SHARE = 0.01
"""The share of values beyond the range from which it is no accident any more."""

MOST_INPUTS = 5
"""With more inputs, not all ways to swap them are tried."""

STRETCHED = 4.0
"""From this factor on a range is too wide: two bits of eight are lost."""

FEW_RUNS = 4
"""With fewer runs, no range is usual."""

CLIPPED, STEPS = 0.001, 16.0
"""The share of values that is clipped, and by how many steps at most, from which clipping may matter."""

SMALLEST, LARGEST = 1e-30, 1e30
"""Scales beyond these leave no room for products of two of them in float32."""

CLIPPING_METHODS: tuple[Method, ...] = ("mse", "percentile", "average")


@dataclass(frozen=True)
class CalibratedInput:
    """An input: the range it was calibrated for, and what the data show."""

    tensor: Tensor
    low: float
    high: float
    seen: TensorStats

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def data(self) -> tuple[float, float]:
        return self.seen.low.value, self.seen.high.value

    @property
    def factor(self) -> float:
        """How many times as wide as the data the calibrated range is; 0 if there is nothing to compare."""
        return span(self.low, self.high) / width if (width := span(*self.data)) > 0 else 0.0

    @property
    def ratio(self) -> float:
        return max(self.factor, 1 / self.factor)

    @property
    def is_unnormalized(self) -> bool:
        """Whether one of calibration and data looks like pixels, the other like normalized ones."""
        small, large = sorted(max(map(abs, ends)) for ends in ((self.low, self.high), self.data))
        return self.ratio >= FAR and small <= NORMALIZED and PIXELS[0] <= large <= PIXELS[1]

    @property
    def outside(self) -> float:
        """The share of values beyond the calibrated range."""
        histogram = self.seen.histogram
        if not histogram.total:
            return 0.0
        centers, step = histogram.centers(), span(self.low, self.high) / 255
        beyond = (centers < self.low - step) | (centers > self.high + step)
        return float(histogram.counts[beyond].sum()) / histogram.total

    def distance(self, other: CalibratedInput) -> float:
        """How far this calibrated range is from the data of `other`: 0 is equal, 1 a factor of e or a range apart."""
        wide, narrow = span(self.low, self.high), span(*other.data)
        if wide <= 0 or narrow <= 0:
            return 0.0 if wide == narrow else 10.0
        apart = abs(self.low - other.data[0]) + abs(self.high - other.data[1])
        return abs(math.log(wide / narrow)) + apart / max(wide, narrow)

    def __str__(self) -> str:
        return f"'{self.name}' was calibrated for {_ends(self.low, self.high)}, and its data are {_ends(*self.data)}"


def _ends(low: float, high: float) -> str:
    return f"{low:.4g} .. {high:.4g}"


def _inputs(evidence: ModelEvidence) -> list[CalibratedInput]:
    """Every float input with the range that its first integer form can hold."""
    found = []
    for original in evidence.alignment.float.inputs:
        seen = evidence.seen(original)
        params = next((p for _, o, p in evidence.quantized_tensors() if o is original), None)
        if seen is not None and params is not None:
            found.append(CalibratedInput(original, *params.range(), seen))
    return found


def _swapped_order(inputs: list[CalibratedInput]) -> tuple[int, ...] | None:
    """The order in which the data fit the calibrated ranges, if that is another and far better one."""
    if not 2 <= len(inputs) <= MOST_INPUTS:
        return None

    def worst(order: tuple[int, ...]) -> float:
        return max(inputs[k].distance(inputs[place]) for k, place in enumerate(order))

    as_given = tuple(range(len(inputs)))
    best = min(permutations(as_given), key=worst)
    return best if worst(as_given) > math.log(FAR) and worst(best) < 0.5 * worst(as_given) and worst(best) < 1 else None


def swapped_inputs(evidence: ModelEvidence) -> Hypothesis | None:
    inputs = _inputs(evidence)
    order = _swapped_order(inputs)
    if order is None:
        return None
    wrong = [(inputs[k], inputs[place]) for k, place in enumerate(order) if k != place]
    return Hypothesis(
        f"the inputs {' and '.join(repr(one.name) for one, _ in wrong)} were swapped in calibration",
        tuple(f"{one}; those of '{other.name}' are {_ends(*other.data)}" for one, other in wrong),
        "one input is clipped, and the other uses few of its integers",
        "give calibration data by input name rather than by position, and quantize again",
        numbers(inputs=len(wrong), distance=max(one.distance(one) for one, _ in wrong)),
        tuple(one.name for one, _ in wrong),
    )


def _unlike_inputs(evidence: ModelEvidence) -> list[CalibratedInput]:
    """Inputs whose data may be unlike those of the calibration, the worst first."""
    inputs = _inputs(evidence)
    if _swapped_order(inputs) is not None:
        return []
    unlike = [one for one in inputs if one.factor > 0 and not _is_usual(evidence, one)]
    return sorted(unlike, key=lambda one: -one.ratio)


def _is_usual(evidence: ModelEvidence, one: CalibratedInput) -> bool:
    """Whether most samples of the calibration were like the data: then a few others are to blame, not all of them."""
    calibrated = None if evidence.calibration is None else evidence.seen(one.tensor, calibrated=True)
    if calibrated is None:
        return False
    return 2 / FAR < percentile_span(calibrated, 95.0) / max(percentile_span(one.seen, 95.0), 1e-30) < FAR / 2


def unnormalized_input(evidence: ModelEvidence) -> Hypothesis | None:
    inputs = [one for one in _unlike_inputs(evidence) if one.is_unnormalized]
    if not inputs:
        return None
    worst = inputs[0]
    names = " and ".join(repr(one.name) for one in inputs)
    if worst.factor > 1:
        title, effect = f"calibration data of {names} look un-normalized", _integers_used(worst)
        advice = "normalize the calibration data as the model expects it (--scale, --offset, --mean, --std)"
    else:
        title, effect = f"the data for {names} look un-normalized", f"{worst.outside:.1%} of the values are clipped"
        advice = "normalize the data as in calibration (--scale, --offset, --mean, --std)"
    return Hypothesis(
        title,
        tuple(f"{one}: {one.ratio:.3g} times apart" for one in inputs),
        effect,
        advice,
        numbers(factor=worst.factor, outside=worst.outside, calibrated_low=worst.low, calibrated_high=worst.high),
        tuple(one.name for one in inputs),
    )


def _integers_used(one: CalibratedInput) -> str:
    return f"{256 / one.factor:.1f} of 256 integers are used"


def unlike_data(evidence: ModelEvidence) -> Hypothesis | None:
    inputs = [one for one in _unlike_inputs(evidence) if not one.is_unnormalized]
    inputs = [one for one in inputs if one.ratio >= 2 * FAR or one.outside > SHARE]
    if not inputs:
        return None
    worst = inputs[0]
    return Hypothesis(
        f"the data for {' and '.join(repr(one.name) for one in inputs)} do not look like the calibration data",
        tuple(f"{one}; {one.outside:.2%} of the values lie beyond the calibrated range" for one in inputs),
        "what lies beyond is clipped" if worst.outside > SHARE else _integers_used(worst),
        "calibrate on data like those the model will meet, and quantize again",
        numbers(factor=worst.factor, outside=worst.outside),
        tuple(one.name for one in inputs),
    )


@dataclass(frozen=True)
class StretchedRange:
    """A tensor whose range is wider than most of what it holds."""

    tensor: Tensor
    params: QuantParams
    seen: TensorStats
    usual: float

    @property
    def factor(self) -> float:
        return span(*self.params.range()) / self.usual

    @property
    def samples(self) -> tuple[int, ...]:
        """Samples that had the extremes, where these are far from usual."""
        low, high = self.seen.average.range
        bottom, top = self.seen.low, self.seen.high
        extremes = []
        if bottom.value < 0 and bottom.value < STRETCHED * min(low, 0.0):
            extremes.append(bottom.sample)
        if top.value > 0 and top.value > STRETCHED * max(high, 0.0):
            extremes.append(top.sample)
        return tuple(extremes or (top.sample if top.value > -bottom.value else bottom.sample,))

    def __str__(self) -> str:
        return f"'{self.tensor.name}' reaches {_ends(self.seen.low.value, self.seen.high.value)}"


def _stretched(evidence: ModelEvidence, *, by_samples: bool) -> list[StretchedRange]:
    """Tensors stretched by few samples, or those stretched by few values of every sample; the worst first."""
    found = {}  # conversions make several tensors of one: the last of them stands for all
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
    found = _stretched(evidence, by_samples=True)
    if not found:
        return None
    worst = found[0]
    votes = Counter(sample for s in found for sample in s.samples)
    samples = tuple(sorted(votes))
    most_often = ", ".join(f"{sample} ({times} tensors)" for sample, times in votes.most_common(5))
    noun = "sample" if len(samples) == 1 else "samples"
    return Hypothesis(
        f"{len(samples)} {noun} {'stretches' if len(samples) == 1 else 'stretch'} the ranges of "
        f"{count(len(found), 'tensor')}",
        (
            f"{worst}, in an average sample {_ends(*worst.seen.average.range)}: its range is {worst.factor:.1f} times "
            "as wide as usual",
            f"samples with the extremes: {most_often}",
        ),
        f"all other samples share {256 / worst.factor:.0f} of the 256 integers of '{worst.tensor.name}'",
        f"look at {noun} {listed(samples, 8)}; leave them out if they are not real, or choose ranges with --range mse",
        numbers(factor=worst.factor, tensors=len(found), samples=len(samples)),
        tuple(s.tensor.name for s in found),
        samples,
        tuple(Fix(range=method) for method in CLIPPING_METHODS),
    )


def outlier_values(evidence: ModelEvidence) -> Hypothesis | None:
    found = _stretched(evidence, by_samples=False)
    if not found:
        return None
    worst = found[0]
    return Hypothesis(
        f"a few values stretch the ranges of {count(len(found), 'tensor')}",
        (
            f"{worst}, and {PERCENTILE} % of its values lie within a range {worst.factor:.1f} times as narrow",
            *_largest_channel(worst.seen),
            f"{count(len(found), 'tensor')} of this kind: {listed((repr(s.tensor.name) for s in found), 3)}",
        ),
        f"nearly all values of '{worst.tensor.name}' share {256 / worst.factor:.0f} of 256 integers",
        "cut them off with --range mse or percentile, or compute these ops with 16 bits",
        numbers(factor=worst.factor, tensors=len(found)),
        tuple(s.tensor.name for s in found),
        fixes=tuple(Fix(range=method) for method in CLIPPING_METHODS),
    )


def _largest_channel(seen: TensorStats) -> Iterator[str]:
    """The channel with the extremes, if all others are far smaller."""
    if seen.channels is not None and seen.channels.low.size > 1:
        peaks = abs(seen.channels.low).clip(abs(seen.channels.high), None)
        second, largest = peaks.argsort()[-2:]
        if peaks[largest] >= 2 * peaks[second]:
            yield f"channel {int(largest)} reaches {peaks[largest]:.4g}, the next {peaks[second]:.4g}"


def clipping(evidence: ModelEvidence) -> Hypothesis | None:
    """Tensors in which a good part of the values is cut off."""
    found = []
    for row in evidence.comparison.ops:
        steps = None if row.own is None else row.own.max_ulp
        if row.own is None or row.occupancy is None or steps is None:
            continue
        if row.occupancy.clipped > CLIPPED and steps > STEPS:
            original = evidence.alignment.float.ops[row.float_position].outputs[0]
            if not evidence.has_fixed_range(original):
                found.append((row.occupancy.clipped, steps, row.own.snr, row))
    if not found:
        return None
    found.sort(key=lambda cut: -cut[0])
    share, steps, snr, worst = found[0]
    return Hypothesis(
        f"the ranges of {count(len(found), 'tensor')} cut off values that occur",
        tuple(
            f"{r.label} '{r.name}': {c:.2%} of the values are cut off, by up to {n:.0f} steps"
            for c, n, _, r in found[:3]
        ),
        f"own signal-to-noise of '{worst.name}' is {snr:.1f} dB",
        "give these tensors the whole range that occurs (--range minmax), or calibrate on more data",
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
        f"{count(len(found), 'tensor')} with a scale at the edge of float32",
        (f"'{name}' has the scale {scale:.3g}",),
        "products of such scales are zero or infinite in float32, so kernels compute nonsense or refuse",
        "look for constants or samples that are nearly zero or huge, or keep the op in float",
        numbers(scale=scale, tensors=len(found)),
        (name,),
        fixes=(Fix((Rule(FLOAT, name=name),)),),
        in_recipe=True,
    )
