"""Scores versions of a model on all samples: their outputs, and the user's metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..bench.bench import Bench
from ..bench.errors import Compared, decibels
from ..bench.loaded import Loaded
from ..bench.yardsticks import at
from ..comparison.metrics import NamedMetric, apply_metric
from ..comparison.sums import DeviationSums, OutputSums, unit_of
from ..comparison.values import Comparison, MetricRow, OutputRow, Score, error_of_outputs
from ..dtypes import Array
from ..graph.model import Model
from ..parallel import cached_property
from ..sources.ports import entry
from ..tflite import to_bytes

Values = Sequence[Sequence[Array]]


@dataclass(frozen=True)
class Scores:
    """Runs versions of a bench's model on all samples that it holds."""

    bench: Bench
    metric: NamedMetric | None = None

    @cached_property
    def _asked(self) -> tuple[Compared, ...]:
        """The outputs, followed by what is judged of them instead."""
        places = range(len(self.bench.entry.graph.outputs))
        judged = (one for one in self.bench.outputs_that_count if one.is_other)
        return (*(Compared(place) for place in places), *judged)

    @cached_property
    def _wanted(self) -> Values:
        return self.bench.held_values(self._asked)

    @cached_property
    def float_metric(self) -> float | None:
        return self._score(self._wanted)

    def _score(self, values: Values) -> float | None:
        places = len(self.bench.entry.graph.outputs)
        return None if self.metric is None else apply_metric(self.metric, [list(one[:places]) for one in values])

    def outputs(self, made: Model) -> tuple[tuple[OutputRow, ...], float | None]:
        """Return each output compared with the float model's, and the metric."""
        graph, found = self.bench.entry.graph, Loaded(self.bench, made, self._asked).values(self.bench.rows)
        plain = len(graph.outputs)
        judged = {one.place: (one, k) for k, one in enumerate(self._asked) if k >= plain}
        sums = []
        for place, tensor in enumerate(entry(made).graph.outputs):
            compared, behind = judged.get(place, (None, None))
            unit, said = DeviationSums(scale=unit_of(tensor)), self.bench.judged_outputs
            sums.append(OutputSums(graph, place, self.bench.ops, unit, compared, said))
            scored_by = None if compared is None else compared.scored_by
            scores = None if scored_by is None else judged.get(scored_by, (None, scored_by))[1]
            for wanted, own in zip(self._wanted, found, strict=True):
                values = None if behind is None else (wanted[behind], own[behind])
                if values is not None and scores is not None:
                    values = at(values[0], wanted[scores]), at(values[1], wanted[scores])
                sums[-1].add(wanted[place], own[place], values)
        names = self.bench.entry.output_names
        return tuple(one.row(names[one.place]) for one in sums if one.sums.count), self._score(found)

    def of(self, made: Model) -> Score:
        outputs, metric = self.outputs(made)
        agreements = [output.agreement for output in outputs if output.agreement is not None]
        return Score(
            decibels(error_of_outputs(outputs)),
            metric,
            float(np.mean(agreements)) if agreements else None,
            len(to_bytes(made)),
        )

    def on_all_samples(self, comparison: Comparison, made: Model) -> Comparison:
        """Return the comparison with outputs measured on all samples; its ops were compared on some of them."""
        outputs, after = self.outputs(made)
        metric = None
        if self.metric is not None and self.float_metric is not None and after is not None:
            metric = MetricRow(self.metric[0], self.float_metric, after)
        samples, looked_at = len(self.bench.rows), comparison.samples
        note = (f"individual ops were compared on {looked_at} of {samples} samples",) if looked_at < samples else ()
        return replace(comparison, samples=samples, outputs=outputs, metric=metric, notes=(*comparison.notes, *note))
