"""What the ops of a picture can be coloured by, and which colour a value gets: six levels, the last one the worst."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from .page_values import OpErrors

Unit = Literal["dB", "share"]


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
        texts = [text(border, self.unit) for border in self.borders]
        first, last = ("above", "below") if self.unit == "dB" else ("up to", "above")
        between = [f"{a} to {b}" for a, b in pairwise(texts)]
        return (f"{first} {texts[0]}", *between, f"{last} {texts[-1]}")


def text(value: float, unit: Unit) -> str:
    if unit == "dB":
        return f"{value:.1f} dB" if value % 1 else f"{value:.0f} dB"
    return f"{value:.3g}" if value in (0, 1) else f"{100 * value:.3g}%"


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
