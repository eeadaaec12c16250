"""What a model may lose and cost: the limits that a search must respect."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import InvalidRecipe, argument

Objective = Literal["smallest", "fastest", "front"]
"""What to optimize within the budget; "front" measures size and latency of all models."""

OBJECTIVES: tuple[Objective, ...] = get_args(Objective)

SIZES = {"": 1, "b": 1, "kb": 1000, "mb": 1000**2, "kib": 1024, "mib": 1024**2}
TIMES = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}

LARGEST_SHARE = 0.5
"""A drop of this share of the float model's score is not a budget, but a mistake of units."""


@dataclass(frozen=True)
class Budget:
    """What a model may lose and cost; None means no limit.

    Attributes:
        max_drop: The allowed drop of the score, in points of the metric (percentage points for a share such as top-1,
            otherwise the metric's own unit), or, as "1%", relative to the float model's score.
        min_metric: The lowest acceptable score.
        max_size: The file size in bytes, or such as "200kB".
        max_latency: Seconds, or such as "5ms", of one run on one thread of this machine.
        max_ram: Memory as reported by the target's own tool.
        max_cycles: Cycles as reported by the target's own tool.
    """

    max_drop: float | str | None = None
    min_metric: float | None = None
    max_size: int | str | None = None
    max_latency: float | str | None = None
    max_ram: int | str | None = None
    max_cycles: int | None = None

    def __post_init__(self) -> None:
        _ = self.drop, self.size, self.seconds, self.ram
        if self.min_metric is not None and not math.isfinite(self.min_metric):
            raise InvalidRecipe(f"{argument('min_metric')} is {self.min_metric}; give a score that a model can reach")
        if not any(value is not None for value in vars(self).values()):
            raise InvalidRecipe(f"the budget is empty; set a limit, such as {argument('max_drop', 0.5)}")

    @property
    def drop(self) -> tuple[float, bool] | None:
        """The allowed drop, and whether it is relative to the float model's score."""
        if self.max_drop is None:
            return None
        text = str(self.max_drop).strip()
        try:
            value = float(text.removesuffix("%"))
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= 0):
            form = "points, such as 0.5, or percent of the score, such as 1%"
            raise InvalidRecipe(f"{argument('max_drop')} is {text!r}; give {form}")
        return value, text.endswith("%")

    @property
    def size(self) -> float | None:
        return _quantity("max_size", self.max_size, SIZES, "bytes, or such as 200kB")

    @property
    def seconds(self) -> float | None:
        return _quantity("max_latency", self.max_latency, TIMES, "seconds, or such as 5ms")

    @property
    def ram(self) -> float | None:
        return _quantity("max_ram", self.max_ram, SIZES, "bytes, or such as 64kB")

    @property
    def needs_latency(self) -> bool:
        return self.max_latency is not None

    def allowed_drop(self, score: float, point: float, higher_is_better: bool) -> float:
        """Return by how much a score may be worse than the float model's, in the metric's own unit; infinite without a
        limit."""
        allowed = math.inf
        if self.drop is not None:
            value, is_relative = self.drop
            allowed = abs(score) * value / 100 if is_relative else value * point
            is_share = point != 1 or not higher_is_better  # an error may be close to 0
            if not is_relative and not is_share and allowed >= LARGEST_SHARE * abs(score) > 0:
                raise InvalidRecipe(
                    f"a drop of {value:g} is half of the float model's own score, {score:.6g}, or more; it is in "
                    f"the unit of your metric: give such as {abs(score) / 200:.2g}, or percent of the score, such as 1%"
                )
        if self.min_metric is not None:
            room = score - self.min_metric if higher_is_better else self.min_metric - score
            if room < 0:
                raise InvalidRecipe(
                    f"the float model itself scores {score:.6g}, and {argument('min_metric', self.min_metric)} is "
                    "better; no quantized version can be expected to reach it: ask for less, or train a better model"
                )
            allowed = min(allowed, room)
        return allowed

    def __str__(self) -> str:
        drop, sizes = self.max_drop, {"size": self.max_size, "RAM": self.max_ram}
        parts = [] if drop is None else [f"a drop of at most {drop}{'' if str(drop).endswith('%') else ' points'}"]
        parts += [] if self.min_metric is None else [f"a score of at least {self.min_metric:g}"]
        parts += [f"{what} at most {value}" for what, value in sizes.items() if value is not None]
        parts += [] if self.max_latency is None else [f"latency at most {self.max_latency}"]
        parts += [] if self.max_cycles is None else [f"at most {self.max_cycles} cycles"]
        return ", ".join(parts)


def _quantity(name: str, given: float | str | None, units: Mapping[str, float], form: str) -> float | None:
    if given is None:
        return None
    match = re.fullmatch(r"\s*([0-9.]+(?:e[-+]?[0-9]+)?)\s*([a-zA-Z]*)\s*", str(given))
    try:
        value = float(match[1]) * units[match[2].lower()] if match else math.nan
    except (ValueError, KeyError):
        value = math.nan
    if not value > 0:
        raise InvalidRecipe(f"{argument(name)} is {given!r}; give {form}")
    return value
