"""How good a model is: its outputs against the float model's, on samples that are kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..bench.alignment import input_order
from ..bench.judge import real, relative_error, run_all
from ..bench.running import encoded
from ..dtypes import Array, DType
from ..graph.model import Model
from ..sources.ports import Row, entry
from ..tflite import to_bytes
from .outputs import Metric, OutputSums
from .outputs import score as metric_score
from .values import Score, decibels


@dataclass(frozen=True)
class Scorer:
    """Numbered samples for a float model."""

    model: Model
    samples: Sequence[tuple[int, Row]]
    metric: Metric | None = None

    @cached_property
    def outputs(self) -> list[list[Array]]:
        return run_all(self.model, [row for _, row in self.samples])

    @cached_property
    def float_outputs(self) -> list[int]:
        return [k for k, t in enumerate(entry(self.model).graph.outputs) if t.dtype is DType.FLOAT32]

    def first(self, count: int) -> Scorer:
        """The same with fewer samples."""
        return replace(self, samples=self.samples[:count])

    def outputs_of(self, made: Model) -> list[list[Array]]:
        """What another version of the model computes, as reals."""
        ends = entry(self.model), entry(made)
        order = input_order(*ends)
        graph = ends[1].graph
        fed = [tuple(encoded(row[k], t) for k, t in zip(order, graph.inputs, strict=True)) for _, row in self.samples]
        return [[real(a, t) for a, t in zip(row, graph.outputs, strict=True)] for row in run_all(made, fed)]

    def error(self, made: Model, without: frozenset[int] = frozenset()) -> float:
        """Squared error of the outputs relative to their power, averaged over outputs; samples `without` left out."""
        return self._error(self.outputs_of(made), without)

    def _error(self, found: list[list[Array]], without: frozenset[int] = frozenset()) -> float:
        kept = [k for k, (number, _) in enumerate(self.samples) if number not in without]
        errors = [
            relative_error([self.outputs[k][n] for k in kept], [found[k][n] for k in kept]) for n in self.float_outputs
        ]
        mean = float(np.mean(errors)) if errors else 0.0
        return mean if math.isfinite(mean) else math.inf

    def score(self, made: Model) -> Score:
        found = self.outputs_of(made)
        graph = entry(self.model).graph
        sums = [OutputSums(graph, graph.outputs[n]) for n in self.float_outputs]
        for wanted, got in zip(self.outputs, found, strict=True):
            for n, one in zip(self.float_outputs, sums, strict=True):
                one.add(wanted[n], got[n], None)
        agreements = [a for one in sums if (a := one.row().agreement) is not None]
        return Score(
            decibels(self._error(found)),
            None if self.metric is None else metric_score(self.metric, found),
            float(np.mean(agreements)) if agreements else None,
            len(to_bytes(made)),
        )

    def float_metric(self) -> float | None:
        return None if self.metric is None else metric_score(self.metric, self.outputs)
