"""Compares a float model with its quantized version, op by op, on the same samples."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice

import numpy as np

from ..bench.alignment import Alignment, align_models, computed
from ..bench.errors import Compared, compared_outputs, encoded, real
from ..bench.isolate import constant_parts, isolate
from ..bench.judged_outputs import PLAIN, JudgedOutputs
from ..bench.yardsticks import at
from ..calibration import Settings
from ..display import counted, notebook_line
from ..dtypes import Array
from ..errors import InvalidModel, InvalidSample, RuntimeFailure
from ..graph.model import Model, Op, Tensor
from ..graph.query import Uses
from ..ops import OPS, OpSpec
from ..ops.check import check_runnable
from ..ops.execution import execution_of, macs_of
from ..runtime import Runner, Runtime, trusting
from ..runtime.runner import right_kernels
from ..sources.data import DataSource, samples_from
from ..sources.models import ModelSource, load
from ..sources.ports import Entry, Row, entry
from ..sources.samples import Notes, Samples, rows
from ..tflite.provenance import Provenance, provenance
from .metrics import Metric, NamedMetric, apply_metric, named
from .sums import (
    ChannelGains,
    DeviationSums,
    OutputSums,
    RelevantRange,
    TensorSums,
    along,
    broadcasts,
    relevant_ranges,
    unit_of,
)
from .values import Comparison, MetricRow, OpRow

LOOKED_AT_FIRST = 4
"""Number of samples used to detect whether channels of a tensor were scaled on purpose."""

DOUBTFUL = 1.0
"""An op's own SNR may be this many dB below its accumulated SNR; beyond that, the measurement is doubtful."""

UNRELIABLE = "own SNR below the accumulated one: unreliable"

OTHER_MODEL = 6.0
"""Own SNR in dB below which a layer cannot have the float model's weights."""

Progress = Callable[[int], None]


@dataclass(frozen=True)
class ComparisonOptions:
    """Options of a comparison: at most `limit` runs are made; `progress` is called with the number of samples done;
    `keep_state` says whether the state of a run is kept for the next, as in calibration; `runtime` runs the quantized
    model; `outputs` are as in `quantize`."""

    limit: int | None = None
    metric: NamedMetric | None = None
    progress: Progress | None = None
    signature: str | None = None
    keep_state: bool | None = None
    ops: Mapping[str, OpSpec] = field(default_factory=lambda: OPS)
    runtime: Runtime = "delegate"
    outputs: JudgedOutputs = PLAIN


def compare(
    model: ModelSource,
    quantized: ModelSource,
    data: DataSource,
    *,
    limit: int | None = None,
    metric: Metric | None = None,
    signature: str | None = None,
    keep_state: bool | None = None,
    progress: Progress | None = None,
    ops: Mapping[str, OpSpec] = OPS,
    trusted: bool = True,
    runtime: Runtime = "delegate",
    outputs: JudgedOutputs | None = None,
) -> Comparison:
    """Compare a quantized model with its float model, op by op, on the same samples.

    For each op, the result has the accumulated error (the models as they run) and the op's own error (this op alone,
    fed with the float model's values), so that the op that causes a loss can be found.

    Args:
        model: The float model.
        quantized: The quantized model.
        data: Samples, as for `calibrate`.
        limit: The maximum number of runs.
        metric: A function that takes the outputs (a list of arrays for each sample) and returns a score.
        signature: The signature to run, if the model has several.
        keep_state: Whether each run starts from the state that the previous one left; by default decided from the
            model, as in calibration.
        progress: Called with the number of samples done.
        ops: The op table, if not the package's own.
        trusted: If false, models run in a child process, so that a damaged or hostile file cannot crash or hang
            this one.
        runtime: What runs the quantized model: "delegate", "optimized" or "reference" kernels of LiteRT, or "tflm"
            (TensorFlow Lite Micro).
        outputs: What the outputs are (classes, points, mask ...) if that is not recognized, and how much each counts.

    Returns:
        The signal-to-noise ratio of every output and op, and the scores of both models if there is a metric.
    """
    progress = progress or notebook_line("comparing, samples:")
    options = ComparisonOptions(limit, named(metric), progress, signature, keep_state, ops, runtime, outputs or PLAIN)
    with trusting(trusted):
        wanted = load(model)
        return compare_models(wanted, load(quantized), samples_from(data, entry(wanted, signature)), options)


def compare_models(
    wanted: Model,
    made: Model,
    samples: Samples,
    options: ComparisonOptions | None = None,
    alignment: Alignment | None = None,
) -> Comparison:
    """Run both models on every sample, and each op of `made` by itself on the float model's values of its inputs."""
    options = options or ComparisonOptions()
    for model in (wanted, made):
        check_runnable(model)
    where, notes = entry(wanted, options.signature), Notes()
    alignment = alignment or align_models(wanted, made, options.signature)
    numbered = islice((_defined(number, row, where) for number, row in rows(samples, where, notes)), options.limit)
    comparer = _Comparer(wanted, made, alignment, options)
    first = list(islice(numbered, LOOKED_AT_FIRST))
    if not first:
        raise InvalidSample("there are no samples to compare the models on; give at least one")
    comparer.look_for_gains(first)
    runs, kept = 0, []
    for runs, row in enumerate(chain(first, numbered), 1):
        outputs = comparer.add(row)
        if options.metric is not None:
            kept.append(outputs)
        if options.progress is not None:
            options.progress(runs)
    metric = None
    if options.metric is not None:
        scores = (apply_metric(options.metric, list(side)) for side in zip(*kept, strict=True))
        metric = MetricRow(options.metric[0], *scores)
    found = comparer.comparison(runs, where.output_names)
    return replace(found, metric=metric, notes=(*found.notes, *notes.lines))


def _defined(number: int, row: Row, where: Entry) -> Row:
    """Return the row; raises if it contains NaN, because nothing computed from NaN can be compared."""
    for values, port in zip(row, where.ports, strict=True):
        if values.dtype.kind == "f" and np.isnan(values).any():
            raise InvalidSample(f"sample {number}, input {port}: contains NaN; leave that sample out")
    return row


def _differ(wanted: Tensor, made: Tensor) -> bool:
    """Whether no array fits both, apart from its first axis, which may count samples."""
    shapes = [t.shape_signature or t.shape for t in (wanted, made)]
    pairs = zip(*(shape[1:] for shape in shapes), strict=False)
    return len(shapes[0]) != len(shapes[1]) or any(a != b and min(a, b) >= 0 for a, b in pairs)


def _doubted(row: OpRow) -> OpRow:
    """Mark the row as unreliable if the op's own error is larger than the accumulated one."""
    both = row.own, row.accumulated
    if both[0] is None or both[1] is None or both[0].snr > both[1].snr - DOUBTFUL:
        return row
    return replace(row, note=UNRELIABLE)


class _Comparer:
    """Runs both models, and every op of the quantized one by itself, and accumulates errors.

    Tensors are read in LiteRT's own memory: no reference to them may remain when the next sample is run.
    """

    def __init__(self, wanted: Model, made: Model, alignment: Alignment, options: ComparisonOptions) -> None:
        self.ops, self.alignment = options.ops, alignment
        kernels = options.runtime
        self.exact, self.quantized = alignment.float, alignment.quantized
        self.provenance = provenance(made)
        self.gains: dict[Tensor, Array] = {}  # by tensor of the float model
        self.notes: list[str] = []
        flowing = [
            t for t in alignment.partner.values() if t.size and t.dtype.storage is not None
        ]  # no resource handles
        inner = [t for t in flowing if t not in self.exact.inputs]
        known = {*self.exact.inputs, *self.exact.outputs, *inner}
        self.sums = self._tensor_sums(known)
        said = options.outputs.of(entry(wanted, options.signature))
        self.compared = [
            one if one.is_in(self.exact, self.quantized) else Compared(one.place)
            for one in compared_outputs(self.exact, self.ops, said)
        ]
        self.outputs = self._output_sums(said)
        ends = [[*graph.outputs, *(c.tensor(graph) for c in self.compared)] for graph in (self.exact, self.quantized)]
        self.runners = (
            Runner.exposing(wanted, self.exact, [*ends[0], *inner], kernels=right_kernels(wanted), strict=False),
            Runner.exposing(made, self.quantized, [*ends[1], *self.sums], kernels=kernels, strict=False),
        )
        measured = [op for op in self.quantized.ops if any(t in self.sums for t in op.outputs)]
        self.isolated = isolate(self.quantized, measured, lambda t: alignment.partner.get(t) in known)
        self.alone = self._alone(kernels)
        self.in_sequence = Settings(keep_state=options.keep_state).in_sequence(self.exact)
        if self.in_sequence:
            self.notes.append("the samples were run as one sequence: each run starts from the state of the last")
        for runner in (*self.runners, *(() if self.alone is None else (self.alone,))):
            runner.keeping_state(self.in_sequence)

    def _tensor_sums(self, known: Collection[Tensor]) -> dict[Tensor, TensorSums]:
        """Return accumulators for the tensors of the quantized model whose counterparts are `known`."""
        relevant = relevant_ranges(self.quantized, self.ops)
        unpacked = constant_parts(self.quantized)  # dequantized weights, which delegates may not even materialize
        numbers = [t for t in computed(self.quantized) if t.size and (t.dtype.is_float or t.is_quantized)]
        held = [t for t in numbers if t not in unpacked and self.alignment.partner.get(t) in known]
        return {t: TensorSums(t, relevant.get(t, RelevantRange())) for t in held}

    def _output_sums(self, said: JudgedOutputs) -> list[OutputSums]:
        by_place = {one.place: one for one in self.compared}
        return [
            OutputSums(self.exact, k, self.ops, DeviationSums(scale=unit_of(tensor)), by_place.get(k), said)
            for k, tensor in enumerate(self.quantized.outputs)
        ]

    def _alone(self, kernels: Runtime) -> Runner | None:
        """Return a runner for the isolated ops, if LiteRT can run them."""
        try:
            return Runner(self.isolated.model, kernels=kernels, strict=False) if self.isolated.ops else None
        except RuntimeFailure as error:
            self.notes.append(f"own errors were not measured: {error}")
            return None

    def look_for_gains(self, samples: Sequence[Row]) -> None:
        """Find tensors whose channels the quantizer scaled on purpose; comparisons then compensate for that.

        Files made by zeropoint record what was scaled. For others it is estimated from the samples.
        """
        if self.provenance is not None and self.provenance.is_complete:
            self.gains = dict(self._recorded_gains(self.provenance))
        else:
            seen: dict[Tensor, ChannelGains] = {}
            for row in samples:
                self._look_at_channels(row, seen)
            for runner in self.runners:
                runner.restart()
            found = {t: gains.factors() for t, gains in seen.items()}
            self.gains = {t: along(*axis_and_factors, t) for t, axis_and_factors in found.items() if axis_and_factors}
        if self.gains:
            self.notes.append(
                f"channels of {counted(len(self.gains), 'tensor')} were scaled on purpose; this is not counted as error"
            )

    def _recorded_gains(self, known: Provenance) -> Iterator[tuple[Tensor, Array]]:
        for tensor, original in self.alignment.partner.items():
            factors = known.factors_of(tensor.name)
            if factors is not None and broadcasts(factors.shape, original.shape):
                yield original, factors

    def _look_at_channels(self, row: Row, seen: dict[Tensor, ChannelGains]) -> None:
        wanted, made = self._run(row)
        for tensor, sums in self.sums.items():
            original = self.alignment.partner[tensor]
            sums.add(seen.setdefault(original, ChannelGains()), wanted[original], made[tensor])

    def add(self, row: Row) -> tuple[list[Array], list[Array]]:
        """Run one sample and accumulate its errors; return the outputs of both models as real numbers."""
        wanted, made = self._run(row)
        exact_outputs = [np.array(wanted[t]) for t in self.exact.outputs]
        outputs = [np.array(real(made[t], t)) for t in self.quantized.outputs]
        for sums_of_output, exact, own in zip(self.outputs, exact_outputs, outputs, strict=True):
            sums_of_output.add(exact, own, self._judged(sums_of_output.compared, wanted, made))
        wanted |= {t: np.asarray(wanted[t] * gains, np.float32) for t, gains in self.gains.items() if t in wanted}
        partner = self.alignment.partner
        for tensor, sums in self.sums.items():
            sums.add(sums.accumulated, wanted[partner[tensor]], made[tensor])
            if sums.use is not None:
                sums.use.add(sums.relevant.of(wanted[partner[tensor]]), made[tensor])
        if self.alone is not None:
            try:
                self._add_alone(self.alone, wanted)
            except RuntimeFailure as error:
                self.alone = None
                self.notes.append(f"own errors were not measured: {error}")
        return exact_outputs, outputs

    def _judged(
        self, compared: Compared | None, wanted: Mapping[Tensor, Array], made: Mapping[Tensor, Array]
    ) -> tuple[Array, Array] | None:
        """Return what is judged of an output in both models, if that is not the output itself."""
        if compared is None or not compared.is_other:
            return None
        exact, own = compared.tensor(self.exact), compared.tensor(self.quantized)
        judged = compared.judged(wanted[exact]), compared.judged(real(made[own], own))
        scores = next((one for one in self.compared if one.place == compared.scored_by), None)
        if scores is None:
            return judged
        said = scores.judged(wanted[scores.tensor(self.exact)])
        return at(judged[0], said), at(judged[1], said)

    def _add_alone(self, runner: Runner, wanted: Mapping[Tensor, Array]) -> None:
        """Run each op of the quantized model on the float model's values of its inputs."""
        partner = self.alignment.partner
        fed = [encoded(wanted[partner[t]], t) for t in self.isolated.fed]
        for tensor, found in runner.viewed_values(fed).items():
            if tensor in self.sums:
                self.sums[tensor].add(self.sums[tensor].own, wanted[partner[tensor]], found)

    def _run(self, row: Row) -> tuple[dict[Tensor, Array], dict[Tensor, Array]]:
        """Run both models; return their values by tensor."""
        given = dict(zip(self.exact.inputs, row, strict=True))
        own = [encoded(given[self.alignment.partner[t]], t) for t in self.quantized.inputs]
        wanted = given | self.runners[0].viewed_values(row)
        try:
            return wanted, self.runners[1].viewed_values(own)
        except RuntimeFailure:
            self._require_like_inputs()  # rather say that than what LiteRT says
            raise

    def _require_like_inputs(self) -> None:
        """Raise if the quantized model takes inputs of other shapes."""
        both = [(self.alignment.partner[made], made) for made in self.quantized.inputs]
        shapes = [
            f"'{wanted.name}' {list(wanted.shape)} and {list(made.shape)}"
            for wanted, made in both
            if _differ(wanted, made)
        ]
        if shapes:
            what = f"the shapes of their inputs differ: {'; '.join(shapes)}"
            raise InvalidModel(f"the models cannot be compared: {what}; give two versions of one model")

    def comparison(self, samples: int, names: Sequence[str]) -> Comparison:
        """Return the result over `samples` samples, with outputs under the given names."""
        compared = list(self._rows())
        layers = [row.own.snr for row in compared if row.macs and row.own is not None]
        if sum(snr < OTHER_MODEL for snr in layers) > len(layers) / 2:
            self.notes.append("most layers are far off: was the quantized model made from this float model?")
        if self.provenance is None or not self.provenance.is_complete:
            compared = list(map(_doubted, compared))
        if doubtful := sum(row.note == UNRELIABLE for row in compared):
            why = "the quantizer may have scaled channels, or fitted weights to errors before them"
            self.notes.append(
                f"the own SNR of {counted(doubtful, 'op')} is unreliable, being below the accumulated SNR: {why}"
            )
        unaligned = tuple(f"{op.label} '{op.name}'" for op in self.alignment.unaligned())
        outputs = tuple(sums.row(names[sums.place]) for sums in self.outputs if sums.sums.count)
        self._require_compared()
        return Comparison(samples, tuple(compared), outputs, None, unaligned, tuple(self.notes))

    def _rows(self) -> Iterator[OpRow]:
        """Yield a row for each op that has a counterpart."""
        makers, positions = Uses(self.exact), {op: k for k, op in enumerate(self.exact.ops)}
        for position, op in enumerate(self.quantized.ops):
            tensor = next((t for t in op.outputs if t in self.sums), None)
            maker = None if tensor is None else makers.producer(self.alignment.partner[tensor])
            if tensor is not None and maker is not None:
                yield self._row(op, self.sums[tensor], position, positions[maker])

    def _require_compared(self) -> None:
        """Add a note for outputs that could not be compared; raise if there are no others."""
        apart = [sums.place for sums in self.outputs if not sums.runs]
        both = ((self.exact.outputs[k], self.quantized.outputs[k]) for k in apart)
        shapes = [f"'{wanted.name}' {list(wanted.shape)} and {list(made.shape)}" for wanted, made in both]
        if len(apart) == len(self.outputs):
            what = f"the shapes of their outputs differ: {'; '.join(shapes)}" if shapes else "they have no outputs"
            raise InvalidModel(f"the models cannot be compared: {what}; give two versions of one model")
        self.notes += [f"an output was not compared, because its shapes differ: {shape}" for shape in shapes]

    def _row(self, op: Op, sums: TensorSums, position: int, float_position: int) -> OpRow:
        tensor, is_alone = sums.tensor, sums.own.count > 0
        no_counterpart = self.alone is not None and not is_alone
        return OpRow(
            op.label,
            self.alignment.partner[tensor].name,
            position,
            float_position,
            tensor.name,
            tensor.dtype.label,
            execution_of(op, self.ops),
            macs_of(op, self.ops),
            sums.accumulated.deviation() if sums.accumulated.count else None,
            sums.own.deviation() if is_alone else None,
            None if sums.use is None else sums.use.occupancy(),
            None if tensor.params is None else str(tensor.params),
            "one of its inputs has no counterpart in the float model" if no_counterpart else "",
        )
