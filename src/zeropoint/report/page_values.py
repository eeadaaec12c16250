"""What a report shows, as plain values: made from models and measurements, turned into HTML elsewhere.

The ops of a picture are coloured by a measure: each value falls into one of six levels, the last one the worst.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from ..json_values import json_values
from ..ops.execution import Execution

DIGITS = 5

Unit = Literal["dB", "share"]


@dataclass(frozen=True)
class Card:
    """One figure of the summary."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Bins:
    """A histogram in few enough bins to be drawn: bin k holds [low + k width, low + (k + 1) width)."""

    low: float
    width: float
    counts: tuple[int, ...]


@dataclass(frozen=True)
class TensorDetail:
    """A tensor that an op reads or makes. `limits` is what its integers can represent; `seen` what calibration saw."""

    name: str
    type: str
    formula: str | None = None
    limits: tuple[float, float] | None = None
    seen: tuple[float, float] | None = None
    bins: Bins | None = None


@dataclass(frozen=True)
class ChannelRanges:
    """The least and greatest weight of each channel, or of `each` neighbouring ones, and what their scale allows."""

    name: str
    axis: int
    each: int
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    limits: tuple[float, ...]  # the greatest magnitude that the scale can represent


@dataclass(frozen=True)
class OpErrors:
    """How far an op is from what it should compute. Signal-to-noise in dB; shares of values; None: not measured."""

    own: float | None = None
    accumulated: float | None = None
    expected: float | None = None  # from the histogram: what rounding and clipping the output alone cost
    cosine: float | None = None
    mean_ulp: float | None = None
    max_ulp: float | None = None
    clipped: float | None = None
    used: float | None = None


@dataclass(frozen=True)
class Measure:
    """A figure that ops have. `borders` lie between the levels, in the order of the levels."""

    key: str
    title: str
    meaning: str
    unit: Unit
    borders: tuple[float, ...]

    def level(self, value: float) -> int:
        if self.unit == "dB":
            return sum(value < border for border in self.borders)
        return sum(value > border for border in self.borders)

    def legend(self) -> tuple[str, ...]:
        """What each level stands for."""
        texts = [f"{border:g} dB" if self.unit == "dB" else f"{100 * border:g}%" for border in self.borders]
        first, last = ("above", "below") if self.unit == "dB" else ("up to", "above")
        between = [f"{a} to {b}" for a, b in pairwise(texts)]
        return (f"{first} {texts[0]}", *between, f"{last} {texts[-1]}")


DECIBELS = (50.0, 40.0, 30.0, 20.0, 10.0)
CLIPPED = (0.0, 1e-4, 1e-3, 1e-2, 5e-2)
ARITHMETIC = (0.0, 1e-2, 3e-2, 1e-1, 3e-1)

MEASURES = (
    Measure("own", "Own error", "signal-to-noise of this op alone, fed with the float model's values", "dB", DECIBELS),
    Measure("accumulated", "Accumulated error", "signal-to-noise with both models run as they are", "dB", DECIBELS),
    Measure(
        "expected",
        "Expected error",
        "signal-to-noise of rounding and clipping the output, from calibration's histogram",
        "dB",
        DECIBELS,
    ),
    Measure("clipped", "Clipped values", "share of values beyond the range", "share", CLIPPED),
    Measure("arithmetic", "Arithmetic", "share of the model's multiply-accumulates", "share", ARITHMETIC),
)


def levels(errors: OpErrors, arithmetic: float | None) -> Mapping[str, int]:
    """The level of each measure that the op has a value for."""
    values = {measure.key: getattr(errors, measure.key, None) for measure in MEASURES} | {"arithmetic": arithmetic}
    return {measure.key: measure.level(v) for measure in MEASURES if (v := values[measure.key]) is not None}


@dataclass(frozen=True)
class OpDetail:
    """An op of the model that is reported. `levels` says how each measure colours it."""

    id: str
    graph: str
    kind: str
    name: str
    execution: Execution
    macs: int
    inputs: tuple[str | None, ...]  # names in Page.tensors; None: an optional input that is left out
    outputs: tuple[str, ...]
    errors: OpErrors = OpErrors()
    weights: tuple[ChannelRanges, ...] = ()
    multiplier: str | None = None
    notes: tuple[str, ...] = ()
    levels: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Box:
    """An op or an end of the graph in the picture, by its centre. `op` is None for ends."""

    op: str | None
    title: str
    subtitle: str
    x: float
    y: float


@dataclass(frozen=True)
class Picture:
    """A graph with places for its ops. `lines` are the points that each edge passes."""

    graph: str
    width: float
    height: float
    boxes: tuple[Box, ...]
    lines: tuple[tuple[tuple[float, float], ...], ...]


@dataclass(frozen=True)
class FindingDetail:
    title: str
    evidence: tuple[str, ...]
    effect: str
    advice: str
    gain: str | None = None
    recipe: str | None = None  # as JSON
    ops: tuple[str, ...] = ()  # ids


@dataclass(frozen=True)
class Bar:
    """A measured duration in milliseconds with its spread."""

    label: str
    value: float
    low: float
    high: float
    threads: int = 1


@dataclass(frozen=True)
class Page:
    """A whole report."""

    title: str
    subtitle: str
    cards: tuple[Card, ...]
    pictures: tuple[Picture, ...]
    ops: tuple[OpDetail, ...]
    tensors: Mapping[str, TensorDetail]
    findings: tuple[FindingDetail, ...] | None = None  # None: nobody looked for any
    recipe: tuple[str, ...] = ()
    remedy: str | None = None  # a recipe as JSON
    making: tuple[tuple[str, str], ...] = ()
    remarks: tuple[str, ...] = ()
    bars: tuple[Bar, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """With the digits that can be seen in a picture."""
        values: dict[str, Any] = json_values(self, DIGITS)
        return values
