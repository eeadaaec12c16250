"""What a user may say about a model's outputs: what each of them is, and how much it counts."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from ..errors import InvalidRecipe
from ..sources.ports import Entry

OutputKind = Literal[
    "classes", "scores", "points", "mask", "embedding", "signal", "tokens", "text", "detections", "values"
]
"""Classes: one answer for each sample. Scores: one for each of many positions. Points: coordinates, also of boxes.
Mask: one answer for each pixel. Embedding: a direction. Signal: sound or a picture. Tokens: one answer for each place
of a sequence. Text: the same, read as CTC does. Detections: boxes and scores side by side. Values: numbers of any other
kind."""

KINDS: tuple[OutputKind, ...] = get_args(OutputKind)


@dataclass(frozen=True)
class JudgedOutputs:
    """What the outputs of a model are (`kinds`) and how much each counts (`weights`), by name. An output that is not
    named counts 1, and is what it looks like; an output of weight 0 is not compared."""

    kinds: Mapping[str, OutputKind] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, kind in self.kinds.items():
            if kind not in KINDS:
                raise InvalidRecipe(f"unknown kind {kind!r} of the output '{name}'; choose {', '.join(KINDS)}")
        for name, weight in self.weights.items():
            if not 0 <= weight < float("inf"):
                raise InvalidRecipe(f"the weight of the output '{name}' must be 0 or more, not {weight}")

    def kind(self, name: str) -> OutputKind | None:
        return self.kinds.get(name)

    def weight(self, name: str) -> float:
        return self.weights.get(name, 1.0)

    def of(self, where: Entry) -> JudgedOutputs:
        """Return the same by the names of tensors. Raises for names that the model does not have, and if no output
        would count."""
        aliases = dict(zip(where.output_names, (tensor.name for tensor in where.graph.outputs), strict=True))
        known = {**{name: name for name in aliases.values()}, **aliases}
        for name in (*self.kinds, *self.weights):
            if name not in known:
                raise InvalidRecipe(f"the model has no output '{name}'{_choices(name, aliases)}")
        weights = {known[name]: weight for name, weight in self.weights.items()}
        if aliases and not any(weights.get(name, 1.0) for name in aliases.values()):
            raise InvalidRecipe("every output has the weight 0, so nothing would be compared; give one of them more")
        return JudgedOutputs({known[name]: kind for name, kind in self.kinds.items()}, weights)


def _choices(name: str, aliases: Collection[str]) -> str:
    near = difflib.get_close_matches(name, aliases, 1)
    return f"; did you mean '{near[0]}'?" if near else f"; it has {', '.join(repr(known) for known in aliases)}"


PLAIN = JudgedOutputs()
