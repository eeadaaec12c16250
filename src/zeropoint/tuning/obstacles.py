"""What prevents every model from meeting the budget: the heaviest layers, and the cost of each by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from ..dtypes import DType
from ..graph.model import Op
from ..ops.execution import macs_of
from ..recipe import INT8, WEIGHTS, Recipe, Rule, Scheme
from ..targets import INTEGER
from .evaluation import Drop
from .excess import Limit
from .islands import addressable
from .question import Question
from .trial import Configuration, Outcome, Workpiece

SHOWN = 3
"""Number of layers that are listed."""


@dataclass(frozen=True)
class Weighed:
    """Ops by their share of the model's cost: bytes, arithmetic, memory or error, as `what` says."""

    what: str
    burdens: Mapping[tuple[str, str], float]
    alone: Scheme
    """The scheme in which the ops are scored by themselves."""

    def heaviest(self) -> list[tuple[str, str, float]]:
        total = sum(self.burdens.values()) or 1.0
        ranked = sorted(self.burdens.items(), key=lambda item: -item[1])[:SHOWN]
        return [(kind, name, burden / total) for (kind, name), burden in ranked if burden > 0]


def obstacles(
    question: Question, piece: Workpiece, limit: Limit, score: Callable[[Outcome], Drop], shown: Callable[[Drop], str]
) -> Iterator[str]:
    """Yield a line for each of the heaviest ops: what it costs on the samples that guide the search if it alone is
    narrowed."""
    weighed = _weighed(question, limit)
    here = replace(piece, target=INTEGER.name)  # what a target would rather leave in float is measured, too
    for kind, name, share in weighed.heaviest():
        recipe = Recipe((Rule(weighed.alone, ops=kind, name=name),), INTEGER.name)
        outcome = here.carry_out(Configuration(name, recipe, effort="quick"))
        form = "4-bit weights" if weighed.alone.unpacked else "int8"
        cost = outcome.refusal or f"{shown(score(outcome))} if it alone has {form}"
        yield f"in the way: {kind} '{name}': {100 * share:.0f}% of {weighed.what}; {cost}"


def _weighed(question: Question, limit: Limit) -> Weighed:
    if limit in ("drop", "refusal"):
        return Weighed("the error of int8", {(h.kind, h.name): h.error for h in question.harms}, INT8)
    if limit == "size":
        narrow = replace(WEIGHTS, weights=DType.INT4, min_elements=0)
        return Weighed("the weights", _by_op(question, _weights), narrow)
    if limit == "ram":
        return Weighed("the activations", _by_op(question, _activations), INT8)
    return Weighed("the arithmetic", _by_op(question, lambda op: macs_of(op, question.bench.ops)), INT8)


def _by_op(question: Question, burden: Callable[[Op], float]) -> dict[tuple[str, str], float]:
    return {(op.label, op.name): burden(op) for op in addressable(question.bench.entry.graph.ops)}


def _weights(op: Op) -> float:
    return float(sum(t.size for t in op.inputs if t is not None and t.data is not None and t.dtype.is_float))


def _activations(op: Op) -> float:
    return float(sum(t.size for t in (*op.inputs, *op.outputs) if t is not None and t.data is None))
