"""How to calibrate."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InvalidRecipe
from ..parallel import cores


@dataclass(frozen=True)
class Settings:
    """How to calibrate. `limit` counts runs; `workers` None is one for each core; without `histograms` only minima and
    maxima are recorded, and of the rest only what costs nothing."""

    limit: int | None = None
    workers: int | None = None
    histograms: bool = True
    keep_state: bool = False
    allow_nonfinite: bool = False

    def __post_init__(self) -> None:
        for name, value in (("limit", self.limit), ("workers", self.workers)):
            if value is not None and value < 1:
                raise InvalidRecipe(f"{name} must be at least 1, not {value}")

    @property
    def threads(self) -> int:
        return self.workers or cores()
