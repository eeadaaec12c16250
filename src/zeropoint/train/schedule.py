"""How to train: steps, batches, the learning rate over time, and random changes of the samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import keras

from ..errors import InvalidRecipe
from ..train_bits import FEWEST_BITS

RATE, RATE_OF_FEW_BITS, RATE_OF_FEWEST_BITS = 3e-4, 1e-3, 6e-3
"""Learning rates relative to the magnitude of the weights: 8-bit weights are nearly right from the start, 4-bit ones
have further to go, and with fewer bits a weight must move by its own magnitude before its level changes."""

SETTLED = 0.8
"""The share of the steps after which every weight has settled on an integer."""

DECIDED = 0.3, 0.9
"""The shares of the steps between which ternary weights near a threshold decide for a level."""

BLENDED = 0.25
"""The share of the steps after which weights of 1 and 2 bits are rounded completely."""


@dataclass(frozen=True)
class Schedule:
    """How to train: steps of Adam on random batches.

    Attributes:
        steps: The number of training steps.
        batch: The batch size.
        learning_rate: By default one that suits the weights' bits; it rises over the first twentieth of the steps and
            then falls along a cosine. A Keras schedule is used as it is.
        held_back: The share of samples held back; the loss is evaluated on them `checks` times.
        restarts: How often the cosine is restarted.
        patience: Stop after this many checks without improvement.
        mirror: Flip half of the images of a batch left to right.
        shift: Shift each image by up to this many pixels, repeating the border; (5, 0) for up to five down or up and
            none across, as for sounds whose rows are points in time.
        mix: The share of samples that are mixed with another one (mixup). Only the teacher provides a target for a
            mixture; labels count for the other samples.
        optimizer: A Keras optimizer to use instead of Adam.
    """

    steps: int = 500
    batch: int = 32
    learning_rate: float | Any | None = None
    held_back: float = 0.2
    checks: int = 20
    seed: int = 0
    mirror: bool = False
    shift: int | tuple[int, int] = 0
    mix: float = 0.0
    patience: int | None = None
    restarts: int = 0
    optimizer: Any = None

    def __post_init__(self) -> None:
        if min(self.shifts) < 0:
            raise InvalidRecipe(f"images must be shifted by zero or more pixels, not {self.shift}")
        if not 0 <= self.mix <= 1:
            raise InvalidRecipe(f"the share of mixed samples must be between 0 and 1, not {self.mix}")
        if self.steps < 1 or self.batch < 1 or self.checks < 1:
            raise InvalidRecipe("training needs at least one step, one sample per batch, and one check")
        rate = self.learning_rate
        if isinstance(rate, int | float) and not (math.isfinite(rate) and rate > 0):
            raise InvalidRecipe(f"the learning rate must be greater than zero, not {rate}")
        if not 0 <= self.held_back < 1:
            raise InvalidRecipe(f"the share of held-back samples must be at least 0 and below 1, not {self.held_back}")
        if (self.patience is not None and self.patience < 1) or self.restarts < 0:
            raise InvalidRecipe("patience must be at least one check, and restarts zero or more")

    def rate(self, bits: int) -> Any:
        """Return the learning rate over the steps, for weights of this many bits."""
        peak = self.learning_rate
        if peak is None:
            peak = RATE if bits >= 8 else RATE_OF_FEW_BITS if bits >= 4 else RATE_OF_FEWEST_BITS
        if not isinstance(peak, int | float):
            return peak
        if self.restarts:
            length = max(1, -(-self.steps // (self.restarts + 1)))
            return keras.optimizers.schedules.CosineDecayRestarts(peak, length, t_mul=1.0, m_mul=0.7, alpha=0.01)
        warmup = max(1, self.steps // 20)
        return keras.optimizers.schedules.CosineDecay(
            peak / 10, max(1, self.steps - warmup), alpha=0.01, warmup_target=peak, warmup_steps=warmup
        )

    def settling(self, bits: int) -> int:
        """Return over how many steps weights of this many bits settle; 0 if they are rounded from the first step on.

        With 8 bits there is hardly anything to compensate. With 3, weights have far to go, and those that settle early
        are in the way. With fewer, rounded weights take the place of the others bit by bit, and none of them settles.
        """
        if bits <= FEWEST_BITS:
            return round(BLENDED * self.steps)
        return round(SETTLED * self.steps) if 4 <= bits < 8 else 0

    @property
    def deciding(self) -> tuple[int, int]:
        """The steps between which ternary weights near a threshold decide for a level."""
        first, last = (round(share * self.steps) for share in DECIDED)
        return first, max(last, first + 1)

    @property
    def shifts(self) -> tuple[int, int]:
        """The largest shifts down and across."""
        return (self.shift, self.shift) if isinstance(self.shift, int) else self.shift

    @property
    def every(self) -> int:
        """The number of steps between checks."""
        return max(1, self.steps // self.checks)
