"""The measures by which ops of a picture are coloured: each value falls into one of six levels, the last being the
worst."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal


@dataclass(frozen=True)
class OpErrors:
    """How far an op's output is from the float model's: SNR in dB, shares of values; None if not measured."""

    own: float | None = None
    accumulated: float | None = None
    expected: float | None = None  # from the histogram: the error of rounding and clipping the output alone
    cosine: float | None = None
    mean_ulp: float | None = None
    max_ulp: float | None = None
    clipped: float | None = None
    used: float | None = None


DECIBELS = (50.0, 40.0, 30.0, 20.0, 10.0)
CLIPPED = (0.0, 1e-4, 1e-3, 1e-2, 5e-2)
ARITHMETIC = (0.0, 1e-2, 3e-2, 1e-1, 3e-1)


@dataclass(frozen=True)
class Measure:
    """A figure that ops have. `borders` separate the levels, in order."""

    key: str
    title: str
    meaning: str
    unit: Literal["dB", "share"] = "dB"
    borders: tuple[float, ...] = DECIBELS

    def level(self, value: float) -> int:
        if self.unit == "dB":
            return sum(value < border for border in self.borders)
        return sum(value > border for border in self.borders)

    def legend(self) -> tuple[str, ...]:
        """The meaning of each level."""
        texts = [f"{border:g} dB" if self.unit == "dB" else f"{100 * border:g}%" for border in self.borders]
        first, last = ("above", "below") if self.unit == "dB" else ("up to", "above")
        between = [f"{a} to {b}" for a, b in pairwise(texts)]
        return (f"{first} {texts[0]}", *between, f"{last} {texts[-1]}")


MEASURES = (
    Measure("own", "Own SNR", "signal-to-noise of this op alone, fed with the float model's values"),
    Measure("accumulated", "Accumulated SNR", "signal-to-noise with both models run as they are"),
    Measure(
        "expected",
        "Expected SNR",
        "signal-to-noise of rounding and clipping the output, from calibration's histogram",
    ),
    Measure("clipped", "Clipped values", "share of values beyond the range", "share", CLIPPED),
    Measure("arithmetic", "Arithmetic", "share of the model's multiply-accumulates", "share", ARITHMETIC),
)
