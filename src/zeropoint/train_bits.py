"""The bits that weights and activations are trained in: `w2a8`, `ternary`, `binary`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import InvalidRecipe

FEWEST_BITS = 2
"""Weights of up to this many bits have to be learned anew: at first, rounding leaves hardly anything of a network."""

_TEXT = re.compile(r"(?:w([1-8])|(ternary)|(binary))(?:a([1-8]))?")


@dataclass(frozen=True)
class TrainBits:
    """The bit widths of quantization-aware training. Weights of 1 bit are binary, -1 and 1 times a scale. Ternary
    weights are -1, 0 and 1, with a threshold in addition to the scale. Activations of k bits have 2**k levels."""

    weights: int = 8
    activations: int = 8
    ternary: bool = False

    @classmethod
    def parse(cls, text: str, where: str = "") -> TrainBits:
        """Parse `w4a8`, `w4`, `ternary`, `ternarya4` or `binary`."""
        found = _TEXT.fullmatch(text.strip().lower())
        if found is None:
            raise InvalidRecipe(
                f"{where}unknown training bits {text!r}; choose w8a8 down to w1a1, w4 (activations in 8 bits), "
                "ternary or binary"
            )
        bits, ternary, _, activations = found.groups()
        weights = int(bits) if bits else 2 if ternary else 1
        return cls(weights, int(activations or 8), bool(ternary))

    @property
    def is_binary(self) -> bool:
        return self.weights == 1

    @property
    def weight_type(self) -> str:
        """The narrowest weight type of a rule that can hold the weights."""
        return f"int{max(2, self.weights)}"

    def at_least(self, other: TrainBits | None) -> TrainBits:
        """Return the wider of both, for weights and for activations."""
        if other is None:
            return self
        wider = self if self.weights >= other.weights else other
        return TrainBits(wider.weights, max(self.activations, other.activations), wider.ternary)

    def __str__(self) -> str:
        weights = "ternary" if self.ternary else "binary" if self.is_binary else f"w{self.weights}"
        return f"{weights}a{self.activations}"
