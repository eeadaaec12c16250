"""What callers see of two models: their outputs, and what a function of the user's makes of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..bench.bench import Bench
from ..bench.errors import decibels
from ..dtypes import Array
from ..errors import InvalidRecipe
from ..graph.model import Graph, Model, Tensor
from ..graph.query import Uses
from ..ops import OpSpec, fused_activation
from ..ops.layout import DENSE
from ..sources.data import function_in
from ..tflite import to_bytes
from .sums import DeviationSums
from .values import OutputRow, Score

Outputs = Sequence[Sequence[Array]]
"""For each sample the outputs, as real numbers, in the model's order."""

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


def apply_metric(metric: NamedMetric, outputs: Outputs) -> float:
    """What the user's function says; its own exceptions are shown as such."""
    try:
        return float(metric[1](outputs))
    except Exception as error:
        raise InvalidRecipe(f"your metric raised {type(error).__name__}: {error}") from error


def score(bench: Bench, made: Model, metric: NamedMetric | None) -> Score:
    """How good another version of a bench's model is, on all samples that are held."""
    found = bench.outputs(made)
    judged = [OutputSums(bench.entry.graph, bench.entry.graph.outputs[c.place], bench.ops) for c in bench.compared]
    for wanted, own in zip(bench.float_outputs, found, strict=True):
        for compared, sums in zip(bench.compared, judged, strict=True):
            sums.add(wanted[compared.place], own[compared.place], None)
    agreements = [a for sums in judged if (a := sums.row().agreement) is not None]
    return Score(
        decibels(float(np.mean([sums.sums.relative for sums in judged])) if judged else 0.0),
        None if metric is None else apply_metric(metric, found),
        float(np.mean(agreements)) if agreements else None,
        len(to_bytes(made)),
    )


@dataclass
class OutputSums:
    """One output over all samples."""

    graph: Graph
    tensor: Tensor  # of the float model
    ops: Mapping[str, OpSpec]
    sums: DeviationSums = field(default_factory=DeviationSums)
    agreeing: int = 0
    rows: int = 0
    is_distribution: bool = True

    def add(self, wanted: Array, found: Array, scale: float | None) -> None:
        if wanted.shape != found.shape:
            return
        self.sums.add(wanted, found, scale)
        if wanted.ndim in (1, 2) and wanted.shape[-1] > 1:
            table, other = (a.reshape(-1, wanted.shape[-1]) for a in (wanted, found))
            self.agreeing += int((table.argmax(-1) == other.argmax(-1)).sum())
            self.rows += len(table)
            sums = table.sum(-1)
            self.is_distribution &= bool(table.min() >= -1e-3 and np.all(np.abs(sums - 1) < 0.02))

    def row(self) -> OutputRow:
        agrees = self.rows > 0 and (self.is_distribution or self._looks_like_logits())
        mean = self.sums.absolute / max(1, self.sums.count)
        agreement = self.agreeing / self.rows if agrees else None
        return OutputRow(self.tensor.name, self.sums.deviation(), self.sums.largest, mean, agreement)

    def _looks_like_logits(self) -> bool:
        """Scores before a softmax, that is a dense layer with fewer outputs than inputs and no activation; or the
        logarithms after it.

        Embeddings and reconstructions have a largest element as well, but nobody asks which one it is.
        """
        op = Uses(self.graph).producer(self.tensor)
        spec = None if op is None else self.ops.get(op.kind)
        if op is None or spec is None or not op.inputs or op.inputs[0] is None:
            return False
        is_dense = spec.layout == DENSE and fused_activation(op).name == "NONE"
        narrows = is_dense and op.outputs[0].shape[-1] < op.inputs[0].shape[-1]
        return spec.probabilities == "row" or narrows
