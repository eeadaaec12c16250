"""What a report shows, as plain values: made from models and measurements, turned into HTML elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..ops.execution import Execution
from ..plain import plain

DIGITS = 5


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
class OpDetail:
    """An op of the model that is reported. `levels` says how each measure colours it, see page_measures."""

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
        """Plain values; nobody reads more digits off a picture."""
        values: dict[str, Any] = plain(self, DIGITS)
        return values
