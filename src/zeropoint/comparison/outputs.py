"""What callers see of two models: their outputs, and what a function of the user's makes of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..dtypes import Array
from ..errors import InvalidRecipe
from ..graph.model import Graph, Tensor
from ..graph.query import Uses
from ..ops import OPS, fused_activation
from ..sources.data import function_in
from .sums import Sums
from .values import OutputRow

Outputs = Sequence[Sequence[Array]]
"""For each sample the outputs, as reals, in the model's order."""

Metric = Callable[[Outputs], float]
"""A user's own score of a model, higher is better."""


NamedMetric = tuple[str, Metric]


def named(metric: Metric | None) -> NamedMetric | None:
    """A function with what people call it."""
    return None if metric is None else (getattr(metric, "__name__", "metric"), metric)


def load_metric(spec: str) -> NamedMetric:
    """The function that `file.py:function` names: it takes the outputs of all samples and gives a number."""
    script, colon, function = spec.rpartition(":")
    if not colon or not script.endswith(".py") or not Path(script).is_file():
        raise InvalidRecipe(f"--metric {spec}: give file.py:function, a function of the outputs of all samples")
    return function, function_in(Path(script), function, InvalidRecipe)


def score(metric: Metric, outputs: Outputs) -> float:
    """What the user's function says; its own exceptions are shown as such."""
    try:
        return float(metric(outputs))
    except Exception as error:
        raise InvalidRecipe(f"your metric raised {type(error).__name__}: {error}") from error


@dataclass
class OutputSums:
    """One output over all samples."""

    graph: Graph
    tensor: Tensor  # of the float model
    sums: Sums = field(default_factory=Sums)
    agreeing: int = 0
    rows: int = 0
    is_distribution: bool = True

    def add(self, wanted: Array, found: Array, scale: float | None) -> None:
        self.sums.add(wanted, found, scale)
        if wanted.ndim in (1, 2) and wanted.shape[-1] > 1:
            table, other = (a.reshape(-1, wanted.shape[-1]) for a in (wanted, found))
            self.agreeing += int((table.argmax(-1) == other.argmax(-1)).sum())
            self.rows += len(table)
            sums = table.sum(-1)
            self.is_distribution &= bool(table.min() >= -1e-3 and np.all(np.abs(sums - 1) < 0.02))

    def row(self) -> OutputRow:
        agrees = self.rows > 0 and (self.is_distribution or _looks_like_logits(self.graph, self.tensor))
        count = max(1, self.sums.count)
        agreement = self.agreeing / self.rows if agrees else None
        deviation = self.sums.deviation()
        return OutputRow(self.tensor.name, deviation, self.sums.largest, self.sums.absolute / count, agreement)


def _looks_like_logits(graph: Graph, tensor: Tensor) -> bool:
    """Scores before a softmax, a dense layer with fewer outputs than inputs and no activation; or logarithms after it.

    Embeddings and reconstructions have a largest element as well, but nobody asks which one it is.
    """
    op = Uses(graph).producer(tensor)
    spec = None if op is None else OPS.get(op.kind)
    if op is None or spec is None or not op.inputs or op.inputs[0] is None:
        return False
    if spec.probabilities == "row":
        return True
    is_dense = op.kind == "FULLY_CONNECTED" and fused_activation(op).name == "NONE"
    return is_dense and op.outputs[0].shape[-1] < op.inputs[0].shape[-1]
