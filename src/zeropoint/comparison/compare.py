"""A float model and a quantized one, op by op, on the same samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice

import numpy as np

from ..bench.alignment import Alignment, align, computed
from ..bench.isolate import isolate
from ..bench.judge import real
from ..bench.running import Bench, encoded, exposing
from ..dtypes import Array
from ..errors import InvalidSample, RuntimeFailure
from ..graph.model import Graph, Model, Op, Tensor
from ..graph.query import Uses
from ..ops import CONVERSIONS
from ..ops.execution import execution_of, macs_of
from ..sources.models import ModelSource, load
from ..sources.ports import Entry, Row, entry
from ..sources.samples import Notes, Samples, rows
from .counting import Counts, counted
from .outputs import Metric, NamedMetric, OutputSums, named, score
from .sums import Gains, Levels, Sums, scaled
from .values import Comparison, MetricRow, OpRow

LOOKED_AT_FIRST = 4
"""Samples that tell whether channels of a tensor were scaled on purpose."""

OTHER_MODEL = 6.0
"""Own signal-to-noise in dB below which a layer does not have the float model's weights."""

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Asked:
    """How to compare: at most `limit` runs; a user's own score with its name; who to tell how many are done."""

    limit: int | None = None
    metric: NamedMetric | None = None
    progress: Progress | None = None
    signature: str | None = None


def compare(
    model: ModelSource,
    quantized: ModelSource,
    data: Samples,
    *,
    limit: int | None = None,
    metric: Metric | None = None,
    signature: str | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Where a quantized model departs from the float `model` it was made of, op by op, on the samples of `data`.

    At most `limit` runs are made. `metric` is a function of the outputs (a list, for each sample a list of arrays) that
    gives a score. `progress` is called with the number of samples done.
    """
    return compare_models(load(model), load(quantized), data, Asked(limit, named(metric), progress, signature))


def compare_models(wanted: Model, made: Model, samples: Samples, asked: Asked | None = None) -> Comparison:
    """Run both on every sample, and each op of `made` on what the float model has for its inputs."""
    asked = asked or Asked()
    ends = entry(wanted, asked.signature), entry(made, asked.signature if made.signatures else None)
    notes = Notes()
    numbered = islice((_defined(number, row, ends[0]) for number, row in rows(samples, ends[0], notes)), asked.limit)
    meter = Meter.of((wanted, made), ends)
    first = list(islice(numbered, LOOKED_AT_FIRST))
    if not first:
        raise InvalidSample("there are no samples to compare the models on; give at least one")
    meter.look_for_gains(first)
    runs = 0
    kept: tuple[list[list[Array]], list[list[Array]]] = ([], [])
    for runs, row in enumerate(chain(first, numbered), 1):
        outputs = meter.add(row)
        if asked.metric is not None:
            for side, arrays in zip(kept, outputs, strict=True):
                side.append([np.array(a) for a in arrays])
        if asked.progress is not None:
            asked.progress(runs)
    metric = None
    if asked.metric is not None:
        name, function = asked.metric
        metric = MetricRow(name, *(score(function, side) for side in kept))
    found = meter.comparison(runs)
    return replace(found, metric=metric, notes=(*found.notes, *notes.lines))


def _defined(number: int, row: Row, where: Entry) -> Row:
    """The row, if there is no NaN in it: of what follows from that, nothing can be compared."""
    for values, port in zip(row, where.ports, strict=True):
        if values.dtype.kind == "f" and np.isnan(values).any():
            raise InvalidSample(f"sample {number}, input {port}: there is NaN in it; leave that sample out")
    return row


@dataclass
class Measured:
    """What is summed up of one tensor of the quantized model, as far as it counts."""

    counts: Counts
    accumulated: Sums = field(default_factory=Sums)
    own: Sums = field(default_factory=Sums)
    levels: Levels | None = None


@dataclass
class Meter:
    """Both models loaded, with the ops of the quantized one also each by itself."""

    alignment: Alignment
    benches: tuple[Bench, Bench]
    alone: Bench | None
    measured: dict[Tensor, Measured]
    outputs: list[OutputSums]
    gains: dict[Tensor, tuple[int, Array]] = field(default_factory=dict)  # by tensor of the float model
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, models: tuple[Model, Model], ends: tuple[Entry, Entry]) -> Meter:
        alignment = align(ends)
        wanted, made = alignment.float, alignment.quantized
        compared = [t for t in _computed_reals(made) if t in alignment.partner]
        counts = counted(made)
        measured = {t: Measured(counts.get(t, Counts()), levels=_levels(t)) for t in compared}
        inner = [t for t in alignment.partner.values() if t not in wanted.inputs and t.size]
        benches = (
            exposing(models[0], wanted, [*wanted.outputs, *inner]),
            exposing(models[1], made, [*made.outputs, *(t for t in compared if t not in made.inputs)]),
        )
        known = set(wanted.inputs) | set(benches[0].tensors)
        ops = [op for op in made.ops if op.kind not in CONVERSIONS and any(t in measured for t in op.outputs)]
        notes, alone = [], None
        isolated = isolate(models[1], made, ops, lambda t: alignment.partner.get(t) in known)
        if isolated.ops:
            try:
                alone = Bench(isolated.model, isolated.fed, isolated.outputs)
            except RuntimeFailure as error:
                notes.append(f"own errors were not measured: {error}")
        return cls(alignment, benches, alone, measured, [OutputSums(wanted, t) for t in wanted.outputs], notes=notes)

    def look_for_gains(self, samples: Sequence[Row]) -> None:
        """Find tensors whose channels the quantizer scaled; from then on they are compared with that taken out."""
        seen: dict[Tensor, Gains] = {}
        for row in samples:
            wanted, made = self._run(row)
            for tensor in self.measured:
                original = self.alignment.partner[tensor]
                if original in wanted and tensor in made and wanted[original].shape == made[tensor].shape:
                    found, counts = real(made[tensor], tensor), self.measured[tensor].counts
                    seen.setdefault(original, Gains()).add(counts.of(wanted[original]), counts.of(found))
        self.gains = {t: scale for t, gains in seen.items() if (scale := gains.found()) is not None}
        if self.gains:
            self.notes.append(
                f"channels of {len(self.gains)} tensors were scaled before quantizing; that is taken out here"
            )

    def add(self, row: Row) -> tuple[list[Array], list[Array]]:
        """Take in one sample; the outputs of both models as reals."""
        wanted, made = self._run(row)
        partner = self.alignment.partner
        for tensor, measured in self.measured.items():
            if tensor in made and partner[tensor] in wanted:
                exact = scaled(wanted[partner[tensor]], self.gains.get(partner[tensor]))
                self._add(measured.accumulated, tensor, exact, made[tensor])
                if measured.levels is not None:
                    measured.levels.add(measured.counts.of(exact), made[tensor])
        if self.alone is not None:
            fed = {t: encoded(scaled(wanted[partner[t]], self.gains.get(partner[t])), t) for t in self.alone.fed}
            for tensor, found in self.alone.run(fed).items():
                if tensor in self.measured and partner[tensor] in wanted:
                    exact = scaled(wanted[partner[tensor]], self.gains.get(partner[tensor]))
                    self._add(self.measured[tensor].own, tensor, exact, found)
        outputs: tuple[list[Array], list[Array]] = [wanted[t] for t in self.alignment.float.outputs], []
        for tensor, sums, exact in zip(self.alignment.quantized.outputs, self.outputs, outputs[0], strict=True):
            outputs[1].append(real(made[tensor], tensor))
            if exact.shape == outputs[1][-1].shape:
                sums.add(exact, outputs[1][-1], _unit(tensor))
        return outputs

    def _run(self, row: Row) -> tuple[dict[Tensor, Array], dict[Tensor, Array]]:
        given = dict(zip(self.alignment.float.inputs, row, strict=True))
        ports = {t: encoded(given[self.alignment.partner[t]], t) for t in self.alignment.quantized.inputs}
        return {**given, **self.benches[0].run(given)}, {**ports, **self.benches[1].run(ports)}

    def _add(self, sums: Sums, tensor: Tensor, exact: Array, found: Array) -> None:
        counts = self.measured[tensor].counts
        if exact.shape == found.shape:
            sums.add(counts.of(exact), counts.of(real(found, tensor)), _unit(tensor))

    def comparison(self, samples: int) -> Comparison:
        makers, positions = Uses(self.alignment.float), {op: k for k, op in enumerate(self.alignment.float.ops)}
        found = []
        for position, op in enumerate(self.alignment.quantized.ops):
            tensor = next((t for t in op.outputs if t in self.measured), None)
            maker = None if tensor is None else makers.producer(self.alignment.partner[tensor])
            if tensor is not None and maker is not None and op.kind not in CONVERSIONS:
                found.append(self._row(op, tensor, position, positions[maker]))
        layers = [row.own.snr for row in found if row.macs and row.own is not None]
        if sum(snr < OTHER_MODEL for snr in layers) > len(layers) / 2:
            self.notes.append(
                f"most layers are below {OTHER_MODEL:.0f} dB by themselves, which no rounding does: was the quantized "
                "model made from this float model?"
            )
        unaligned = tuple(f"{op.label} '{op.name}'" for op in self.alignment.unaligned())
        rows_of_outputs = tuple(sums.row() for sums in self.outputs if sums.sums.count)
        return Comparison(samples, tuple(found), rows_of_outputs, None, unaligned, tuple(self.notes))

    def _row(self, op: Op, tensor: Tensor, position: int, float_position: int) -> OpRow:
        measured = self.measured[tensor]
        alone = measured.own.count > 0
        note = "" if alone or self.alone is None else "an input of it has no counterpart in the float model"
        return OpRow(
            op.label,
            self.alignment.partner[tensor].name,
            position,
            float_position,
            tensor.name,
            tensor.dtype.label,
            execution_of(op),
            macs_of(op),
            measured.accumulated.deviation() if measured.accumulated.count else None,
            measured.own.deviation() if alone else None,
            None if measured.levels is None else measured.levels.occupancy(),
            None if tensor.params is None else str(tensor.params),
            note,
        )


def _computed_reals(graph: Graph) -> list[Tensor]:
    return [t for t in computed(graph) if t.size and (t.dtype.is_float or t.is_quantized)]


def _unit(tensor: Tensor) -> float | None:
    """What a unit of the last place stands for; None for floats, and where each channel has its own."""
    params = tensor.params
    return None if params is None or params.axis is not None else params.scale


def _levels(tensor: Tensor) -> Levels | None:
    params = tensor.params
    return None if params is None or params.axis is not None else Levels(params)
