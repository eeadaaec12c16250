"""Samples that do not look like those that the ranges came from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

from ..calibration import TensorStats
from ..comparison.values import Finding
from ..graph.model import Tensor
from .facts import Facts, Suspect, central_span, numbers, span

FAR = 4.0
"""Ranges that differ by this factor are not of the same data."""

PIXELS = (96.0, 300.0)
"""Where the largest value of images lies that nobody normalized."""

NORMALIZED = 12.0
"""Normalized inputs stay below this."""

SHARE = 0.01
"""Values beyond the range from which it is no accident any more."""

MOST_INPUTS = 5
"""With more inputs, not all ways to swap them are tried."""


@dataclass(frozen=True)
class Fed:
    """An input: the range it was calibrated for, and what the data show."""

    tensor: Tensor
    low: float
    high: float
    seen: TensorStats

    @property
    def data(self) -> tuple[float, float]:
        return self.seen.low.value, self.seen.high.value

    def distance(self, other: Fed) -> float:
        """How far this calibrated range is from the data of `other`: 0 is equal, 1 a factor of e or a range apart."""
        wide, narrow = span(self.low, self.high), span(*other.data)
        if wide <= 0 or narrow <= 0:
            return 0.0 if wide == narrow else 10.0
        apart = abs(self.low - other.data[0]) + abs(self.high - other.data[1])
        return abs(math.log(wide / narrow)) + apart / max(wide, narrow)

    @property
    def outside(self) -> float:
        """The share of values beyond the calibrated range."""
        histogram = self.seen.histogram
        if not histogram.total:
            return 0.0
        centers, step = histogram.centers(), span(self.low, self.high) / 255
        beyond = (centers < self.low - step) | (centers > self.high + step)
        return float(histogram.counts[beyond].sum()) / histogram.total


def suspect_inputs(facts: Facts) -> Iterator[Suspect]:
    fed = list(_inputs(facts))
    order = _swapped(fed)
    if order is not None:
        yield _swap(fed, order)
        return
    for one in fed:
        wide, narrow = span(one.low, one.high), span(*one.data)
        if wide <= 0 or narrow <= 0 or _is_usual(facts, one):
            continue
        larger = max(wide, narrow) / min(wide, narrow)
        tops = sorted(max(map(abs, ends)) for ends in ((one.low, one.high), one.data))
        if larger >= FAR and tops[0] <= NORMALIZED and PIXELS[0] <= tops[1] <= PIXELS[1]:
            yield _unnormalized(one, wide > narrow)
        elif larger >= 2 * FAR or one.outside > SHARE:
            yield _unlike(one)


def _is_usual(facts: Facts, one: Fed) -> bool:
    """Whether most samples of the calibration were like the data: then a few others are to blame, not all of them."""
    calibrated = None if facts.calibration is None else facts.seen(one.tensor, calibrated=True)
    if calibrated is None:
        return False
    return 2 / FAR < central_span(calibrated) / max(central_span(one.seen), 1e-30) < FAR / 2


def _inputs(facts: Facts) -> Iterator[Fed]:
    """Every float input with the range that its first integer form can hold."""
    for original in facts.alignment.float.inputs:
        seen = facts.seen(original)
        params = next((p for _, o, p in facts.held() if o is original), None)
        if seen is not None and params is not None:
            yield Fed(original, *params.range(), seen)


def _swapped(fed: list[Fed]) -> tuple[int, ...] | None:
    """The order of the data in which they fit the calibrated ranges, if that is another and far better one."""
    if not 2 <= len(fed) <= MOST_INPUTS:
        return None

    def worst(order: tuple[int, ...]) -> float:
        return max(fed[k].distance(fed[place]) for k, place in enumerate(order))

    as_given = tuple(range(len(fed)))
    best = min(permutations(as_given), key=worst)
    return best if worst(as_given) > math.log(FAR) and worst(best) < 0.5 * worst(as_given) and worst(best) < 1 else None


def _ends(low: float, high: float) -> str:
    return f"{low:.4g} .. {high:.4g}"


def _swap(fed: list[Fed], order: tuple[int, ...]) -> Suspect:
    wrong = [(k, place) for k, place in enumerate(order) if k != place]
    evidence = tuple(
        f"'{fed[k].tensor.name}' was calibrated for {_ends(fed[k].low, fed[k].high)}, and its data are "
        f"{_ends(*fed[k].data)}; those of '{fed[place].tensor.name}' are {_ends(*fed[place].data)}"
        for k, place in wrong
    )
    names = " and ".join(f"'{fed[k].tensor.name}'" for k, _ in wrong)
    finding = Finding(
        "swapped_inputs",
        f"the inputs {names} were swapped in calibration",
        evidence,
        "one input is clipped, and the other uses few of its integers",
        "give calibration data by input name rather than by position, and quantize again",
        numbers=numbers(inputs=len(wrong), distance=max(fed[k].distance(fed[k]) for k, _ in wrong)),
        ops=tuple(fed[k].tensor.name for k, _ in wrong),
    )
    return Suspect(finding)


def _unnormalized(one: Fed, calibrated_raw: bool) -> Suspect:
    factor = span(one.low, one.high) / span(*one.data)
    text = (
        f"calibrated for {_ends(one.low, one.high)}, the data are {_ends(*one.data)}: "
        f"{max(factor, 1 / factor):.3g} times apart"
    )
    if calibrated_raw:
        title, effect = (
            f"calibration data of '{one.tensor.name}' look un-normalized",
            f"the data reach {256 / factor:.1f} of 256 integers",
        )
        advice = "normalize the calibration data as the model expects it (--scale, --offset, --mean, --std)"
    else:
        title, effect = (
            f"the data for '{one.tensor.name}' look un-normalized",
            f"{one.outside:.1%} of the values are clipped",
        )
        advice = "normalize the data as in calibration (--scale, --offset, --mean, --std)"
    values = numbers(factor=factor, outside=one.outside, calibrated_low=one.low, calibrated_high=one.high)
    return Suspect(
        Finding("unnormalized_input", title, (text,), effect, advice, numbers=values, ops=(one.tensor.name,))
    )


def _unlike(one: Fed) -> Suspect:
    factor = span(one.low, one.high) / span(*one.data)
    evidence = (
        f"'{one.tensor.name}' was calibrated for {_ends(one.low, one.high)}, the data are {_ends(*one.data)}",
        f"{one.outside:.2%} of the values lie beyond the calibrated range",
    )
    effect = "what lies beyond is clipped" if one.outside > SHARE else f"{256 / factor:.1f} of 256 integers are used"
    finding = Finding(
        "unlike_data",
        f"the data for '{one.tensor.name}' do not look like the calibration data",
        evidence,
        effect,
        "calibrate on data like those the model will meet, and quantize again",
        numbers=numbers(factor=factor, outside=one.outside),
        ops=(one.tensor.name,),
    )
    return Suspect(finding)
