"""How far a student's tensors are from the teacher's, and from labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from keras import ops

from ..graph.model import Graph, Op, Tensor
from ..graph.query import Uses
from ..ops import OPS, Probabilities
from ..recipe import keep_float

SMALLEST = 1e-12


@dataclass(frozen=True)
class Aim:
    """A tensor to compare student and teacher by; `head` says which probabilities are made of it, if any are."""

    tensor: Tensor
    head: Probabilities | None = None
    weight: float = 1.0

    def loss(self, student: Any, teacher: Any) -> Any:
        if self.head == "row":
            return divergence(student, teacher)
        if self.head == "each":
            return binary_divergence(student, teacher)
        return relative_error(student, teacher)


def divergence(student: Any, teacher: Any) -> Any:
    """Kullback-Leibler divergence of the student's distribution from the teacher's, of logits; the mean over rows."""
    wanted = ops.log_softmax(teacher, axis=-1)
    return ops.mean(ops.sum(ops.exp(wanted) * (wanted - ops.log_softmax(student, axis=-1)), axis=-1))


def binary_divergence(student: Any, teacher: Any) -> Any:
    """The same for logits that each stand for a probability of their own."""
    wanted = ops.sigmoid(teacher)
    return ops.mean(_cross(student, wanted) - _cross(teacher, wanted))


def _cross(logits: Any, wanted: Any) -> Any:
    return ops.relu(logits) - logits * wanted + ops.softplus(-ops.abs(logits))


def relative_error(student: Any, teacher: Any) -> Any:
    """Squared error relative to how much the teacher's values vary."""
    spread = ops.mean(ops.square(teacher - ops.mean(teacher)))
    return ops.mean(ops.square(student - teacher)) / ops.maximum(spread, SMALLEST)


def aims_of(graph: Graph, inner: Sequence[str] = (), inner_weight: float = 1.0) -> tuple[Aim, ...]:
    """The graph's float outputs, taken in front of a softmax or sigmoid, and the outputs of ops that fit a pattern.

    Inner tensors share `inner_weight` among them.
    """
    uses = Uses(graph)
    aims = []
    for tensor in dict.fromkeys(graph.outputs):
        if not tensor.dtype.is_float:
            continue
        maker = uses.producer(tensor)
        head = OPS[maker.kind].probabilities if maker is not None and maker.kind in OPS else None
        before = None if maker is None or head is None else maker.inputs[0]
        aims.append(Aim(tensor) if before is None else Aim(before, head))
    chosen = [t for op in graph.ops for t in _inner(op, inner) if t not in {a.tensor for a in aims}]
    return (*aims, *(Aim(t, weight=inner_weight / len(chosen)) for t in chosen))


def _inner(op: Op, patterns: Sequence[str]) -> list[Tensor]:
    fits = any(keep_float(p).matches(op) for p in patterns)
    return [t for t in op.outputs if fits and t.dtype.is_float]
