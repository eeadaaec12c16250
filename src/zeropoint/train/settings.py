"""How fake quantization goes along with training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import InvalidRecipe

RangeSource = Literal["learned", "average", "last"]
ScaleSource = Literal["learned", "last"]


@dataclass(frozen=True)
class QuantSettings:
    """`ranges` of activations are learned by gradient descent, moving averages of each batch's extremes, or the
    extremes of the last batch. All start from calibration; with `debias` averages are of batches alone, corrected for
    there being few of them at first. `weight_scales`: "last" holds the greatest weight there is now, "learned" may cut
    it off; None is "learned" for fewer than 8 bits. Training starts in float for `delay` steps; after `freeze_after`
    steps ranges stay as they are. Over the first `settle` steps weights are rounded more and more; with none they are
    from the first step on, with straight-through gradients, and None leaves it to who knows the number of steps: four
    fifths of them for 4 to 7 bits. `weight_bits`: fewer than the type has that weights are stored in.
    """

    ranges: RangeSource = "learned"
    decay: float = 0.99
    debias: bool = False
    weight_scales: ScaleSource | None = None
    delay: int = 0
    freeze_after: int | None = None
    settle: int | None = None
    weight_bits: int | None = None

    def __post_init__(self) -> None:
        if self.ranges not in get_args(RangeSource):
            raise InvalidRecipe(f"ranges cannot be {self.ranges!r}; choose from {', '.join(get_args(RangeSource))}")
        if self.weight_scales not in (None, *get_args(ScaleSource)):
            choices = ", ".join(get_args(ScaleSource))
            raise InvalidRecipe(f"scales of weights cannot be {self.weight_scales!r}; choose from {choices}")
        if not 0 <= self.decay < 1:
            raise InvalidRecipe(f"the decay of an average is at least 0 and below 1, not {self.decay}")
        if self.weight_bits is not None and not 2 <= self.weight_bits <= 8:
            raise InvalidRecipe(f"weights can be trained in 2 to 8 bits, not {self.weight_bits}")
        if self.delay < 0 or (self.freeze_after is not None and self.freeze_after < 0):
            raise InvalidRecipe("steps are counted from 0: the delay and the step to freeze at cannot be negative")
        if self.settle is not None and self.settle < 0:
            raise InvalidRecipe(f"weights settle over zero steps or more, not over {self.settle}")
