"""How kinds of outputs are recognized: from shapes, the ops before them, and the float model's values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..dtypes import Array
from ..graph.model import Graph, Op
from ..graph.query import Uses
from ..ops import OpSpec, fused_activation
from ..ops.layout import DENSE
from ..parallel import cached_property
from .errors import Compared
from .judged_outputs import OutputKind
from .measure import MOST_ELEMENTS, Yardstick, quantile
from .output_kinds import SURE, are_probabilities, blank_of, probabilities, text_of

NORM_OFF = 0.01
"""How far unit vectors may be from length 1."""

SMALLEST_EMBEDDING, WIDE_EMBEDDING, SMALLEST_PICTURE, FEWEST_TOKENS = 16, 64, 8, 32
"""Least elements of an embedding of length 1, and of another one; height and width of a picture; number of different
tokens."""

FEWEST_LETTERS, MOSTLY_BLANK, LONGEST_LETTER = 8, 0.4, 3.0
"""A sequence is read as text if it has so many classes, at least this share of its places says nothing, and a letter
takes no more places than this."""


@dataclass(frozen=True)
class OutputSeen:
    """What a kind is recognized by: the graph, and the float model's values of an output on some samples."""

    compared: Compared
    graph: Graph
    ops: Mapping[str, OpSpec]
    values: Sequence[Array]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values[0].shape

    @property
    def positions(self) -> int:
        return max(1, self.values[0].size // max(1, self.shape[-1])) if self.shape else 1

    @property
    def size(self) -> int:
        return self.values[0].size

    @property
    def is_vector(self) -> bool:
        return self.positions == 1 or len(self.shape) < 3

    @property
    def is_picture(self) -> bool:
        """Whether it has a height and a width."""
        return len(self.shape) == 4 and min(self.shape[1:3]) >= SMALLEST_PICTURE

    @cached_property
    def is_probabilities(self) -> bool:
        """Whether each row holds the probabilities of classes."""
        return self.compared.decides == "row" or (self.shape[-1:] > (1,) and all(map(are_probabilities, self.values)))

    @property
    def is_decisions(self) -> bool:
        """Whether each value is a decision of its own."""
        return self.compared.decides in ("each", "logits")

    @property
    def is_like_an_input(self) -> bool:
        return any(t.shape[1:] == self.shape[1:] and t.size > 1 for t in self.graph.inputs if t.dtype.is_float)

    @property
    def reads_tokens(self) -> bool:
        return any(t.dtype.is_integer and not t.is_quantized for t in self.graph.inputs)

    @property
    def reads_as_text(self) -> bool:
        """Whether most places of a sequence say nothing, and what others say is short, as CTC teaches."""
        if self.is_vector or self.is_picture or self.reads_tokens or self.shape[-1] < FEWEST_LETTERS:
            return False
        rows = [values.reshape(-1, values.shape[-1]).argmax(axis=-1) for values in self.values]
        blanks = [blank_of(values) for values in self.values]
        if len(set(blanks)) > 1:
            return False
        said = sum(int(np.count_nonzero(one != blanks[0])) for one in rows)
        letters = sum(len(text_of(values, blanks[0])) for values in self.values)
        return 0 < said <= (1 - MOSTLY_BLANK) * sum(map(len, rows)) and said <= LONGEST_LETTER * letters

    @property
    def is_beside_scores(self) -> bool:
        """Whether another output has one number for each of its positions."""
        others = (t.shape for k, t in enumerate(self.graph.outputs) if k != self.compared.place)
        return any(other[:-1] == self.shape[:-1] and other[-1:] == (1,) for other in others)

    @property
    def has_unit_length(self) -> bool:
        return max(abs(float(np.linalg.norm(values)) - 1) for values in self.values) < NORM_OFF

    @cached_property
    def lies_apart_from_zero(self) -> bool:
        """Whether a vector is mostly the same for all samples, as coordinates are beside class scores."""
        table = np.array([np.asarray(one, np.float64).reshape(-1) for one in self.values if one.size == self.size])
        mean = table.mean(axis=0)
        return len(table) > 1 and float((mean**2).mean()) > float(table.var(axis=0).mean())

    @property
    def is_confident(self) -> bool:
        """Whether class scores tell one class from the others, at least for half of the samples."""
        return float(quantile(np.array([probabilities(one).max() for one in self.values]), 0.5)) >= SURE

    @property
    def maker(self) -> tuple[Op | None, OpSpec | None]:
        """The op that computes it, and its row in the op table."""
        op = Uses(self.graph).producer(self.graph.outputs[self.compared.place])
        return op, None if op is None else self.ops.get(op.kind)

    @cached_property
    def narrows_to_logits(self) -> bool:
        """Whether a dense layer without an activation makes it, with fewer outputs than inputs."""
        op, spec = self.maker
        if op is None or spec is None or not op.inputs or op.inputs[0] is None:
            return False
        is_dense = spec.layout == DENSE and fused_activation(op).name == "NONE"
        return is_dense and op.outputs[0].shape[-1:] < op.inputs[0].shape[-1:]


RECOGNIZED: Sequence[tuple[OutputKind, Callable[[OutputSeen], bool]]] = (
    ("values", lambda seen: not seen.size),
    ("text", lambda seen: seen.reads_as_text),
    ("mask", lambda seen: seen.is_picture and (seen.is_probabilities or seen.is_decisions)),
    ("classes", lambda seen: seen.is_probabilities and seen.positions == 1),
    ("tokens", lambda seen: seen.is_probabilities),
    ("scores", lambda seen: seen.is_decisions),
    ("signal", lambda seen: seen.is_vector and (seen.is_like_an_input or seen.size > MOST_ELEMENTS)),
    ("embedding", lambda seen: seen.is_vector and seen.size >= SMALLEST_EMBEDDING and seen.has_unit_length),
    (
        "embedding",
        lambda seen: (
            seen.is_vector and seen.size >= WIDE_EMBEDDING and not (seen.narrows_to_logits or seen.lies_apart_from_zero)
        ),
    ),
    (
        "points",
        lambda seen: (
            seen.is_vector and seen.size >= 4 and 0 in (seen.size % 2, seen.size % 3) and seen.lies_apart_from_zero
        ),
    ),
    ("classes", lambda seen: seen.is_vector and seen.size > 1 and seen.narrows_to_logits and seen.is_confident),
    ("values", lambda seen: seen.is_vector),
    ("signal", lambda seen: seen.is_picture),
    ("tokens", lambda seen: seen.shape[-1] >= FEWEST_TOKENS and seen.reads_tokens),
    ("points", lambda seen: seen.is_beside_scores),
    ("signal", lambda seen: seen.is_like_an_input),
    ("detections", lambda seen: Yardstick.of_values(seen.values).quantity.max() > 0),
    ("values", lambda _: True),
)
"""How a kind is recognized: the first that holds."""


def kind_of(seen: OutputSeen) -> OutputKind:
    """Return what an output looks like."""
    return next(kind for kind, holds in RECOGNIZED if holds(seen))
