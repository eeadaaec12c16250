"""Builds the values of a report from models and measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .. import __version__
from ..bench.errors import snr_text
from ..bench.latency import Benchmark
from ..calibration.stats import Stats, TensorStats
from ..comparison.values import Comparison, Diagnosis, Finding, OpRow
from ..display import counted, share_text, size_text
from ..graph.model import Model, Op, Tensor
from ..graph.names import short_names
from ..graph.query import tensor_keys
from ..improve.pipeline import Result
from ..json_values import json_values
from ..ops.execution import Execution
from ..parallel import cached_property
from ..recipe import Recipe
from ..recipe_files import PlainRules
from ..simulation.trace import Trace
from ..sources.ports import entry
from .inspection import InspectedOp, Inspection, TensorRow, inspect
from .page_measures import MEASURES, OpErrors
from .page_numbers import PickedNumber, picked_numbers
from .page_picture import Picture, pictures_of, require_report
from .page_tensors import ChannelRanges, TensorDetail, expected_errors, tensor_detail, weight_ranges
from .quantization import step_text, target_lines

DIGITS = 5
"""Significant digits, as many as a picture can show."""


@dataclass(frozen=True)
class Card:
    """One figure of the summary."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Bar:
    """A measured duration in milliseconds with its spread."""

    label: str
    value: float
    low: float
    high: float
    threads: int = 1


@dataclass(frozen=True)
class OpDetail:
    """An op of the reported model. `levels` is its colour level by each measure."""

    id: str
    graph: str
    kind: str
    name: str
    short_name: str
    execution: Execution
    macs: int
    inputs: tuple[str | None, ...]  # names in Page.tensors; None: an absent optional input
    outputs: tuple[str, ...]
    errors: OpErrors = field(default_factory=OpErrors)
    weights: tuple[ChannelRanges, ...] = ()
    multiplier: str | None = None
    notes: tuple[str, ...] = ()
    levels: Mapping[str, int] = field(default_factory=dict)
    numbers: tuple[PickedNumber, ...] = ()


@dataclass(frozen=True)
class Page:
    """The content of a whole report."""

    title: str
    subtitle: str
    cards: tuple[Card, ...]
    pictures: tuple[Picture, ...]
    ops: tuple[OpDetail, ...]
    tensors: Mapping[str, TensorDetail]
    findings: tuple[Finding, ...] | None = None  # None: not looked for
    recipe: tuple[str, ...] = ()
    remedy: PlainRules | None = None
    making: tuple[tuple[str, str], ...] = ()
    remarks: tuple[str, ...] = ()
    bars: tuple[Bar, ...] = ()
    trace_command: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the page as JSON values, with as many digits as a picture can show."""
        values: dict[str, Any] = json_values(self, DIGITS)
        return values


@dataclass(frozen=True)
class Evidence:
    """What a report is based on: a model, and whatever else is known about it. Sizes are those of files, in bytes.

    `stats` are those of the float model it was made from, by default those in `result`. `command` is how it was made,
    `data` what it was run on. `trace` is one sample in integers, from which numbers are explained; `trace_command`
    shows others. The last of `bars` is this model's latency; the others are for comparison.
    """

    title: str
    model: Model
    size: int
    size_before: int | None = None
    result: Result | None = None
    stats: Stats | None = None
    comparison: Comparison | None = None
    diagnosis: Diagnosis | None = None
    recipe: Recipe | None = None
    command: str | None = None
    data: str | None = None
    bars: tuple[Bar, ...] = ()
    trace: Trace | None = None
    trace_command: str | None = None

    @cached_property
    def seen(self) -> Stats | None:
        return self.stats if self.stats is not None or self.result is None else self.result.stats

    @cached_property
    def compared(self) -> Comparison | None:
        return self.comparison if self.comparison is not None or self.diagnosis is None else self.diagnosis.comparison

    @cached_property
    def inspection(self) -> Inspection:
        return inspect(self.model, self.size)

    @cached_property
    def names(self) -> Mapping[Tensor, str]:
        """Distinct names of all tensors, as used by calibration."""
        return tensor_keys(self.model)

    @cached_property
    def short_names(self) -> Mapping[str, str]:
        """The display names."""
        return short_names(self.model)

    @property
    def ops(self) -> list[Op]:
        return [op for graph in self.model.graphs for op in graph.ops]

    def stats_of(self, tensor: Tensor) -> TensorStats | None:
        return None if self.seen is None else self.seen.tensors.get(self.names[tensor])

    def detail(self, tensor: Tensor, row: TensorRow) -> TensorDetail:
        """Return all that is known of a tensor. A converted one has the name of its float, followed by the type."""
        name = self.names[tensor]
        given = None if tensor.params is None else self._given.get(name.removesuffix(f"/{tensor.dtype.label}"))
        return replace(tensor_detail(name, tensor, row, self.stats_of(tensor)), given=given)

    @cached_property
    def _given(self) -> Mapping[str, str]:
        return {} if self.result is None else self.result.given


def page_of(evidence: Evidence) -> Page:
    """Return the content of the report. The graph layout takes most of the time: about 0.1 s for thousands of ops."""
    require_report()
    model, names, diagnosis, shown = evidence.model, evidence.names, evidence.diagnosis, evidence.inspection
    details = op_details(evidence)
    ids = dict(zip(evidence.ops, (op.id for op in details), strict=True))
    tensors = zip((t for graph in model.graphs for t in graph.tensors), shown.tensors, strict=True)
    return Page(
        evidence.title,
        f"{counted(len(details), 'op')}, {counted(len(shown.tensors), 'tensor')}",
        tuple(_cards(evidence)),
        _pictures(model, ids, {tensor: evidence.short_names[name] for tensor, name in names.items()}),
        details,
        {names[t]: evidence.detail(t, row) for t, row in tensors},
        None if diagnosis is None else diagnosis.findings,
        () if evidence.recipe is None else tuple(str(rule) for rule in evidence.recipe.rules),
        None if diagnosis is None or diagnosis.remedy is None else diagnosis.remedy.rules,
        tuple(_making(evidence)),
        tuple(_remarks(evidence)),
        evidence.bars,
        evidence.trace_command,
    )


def _pictures(model: Model, ids: Mapping[Op, str], names: Mapping[Tensor, str]) -> tuple[Picture, ...]:
    found: list[Picture] = []
    for graph in model.graphs:
        if graph.ops:
            found += pictures_of(graph, ids, names, len(found))
    return tuple(found)


def op_details(evidence: Evidence) -> tuple[OpDetail, ...]:
    """Return the ops of all graphs, in order, with what is known about each."""
    names, rows, measured = evidence.names, evidence.inspection.ops, _measured_ops(evidence)
    reasons = {} if evidence.result is None else {s.op.name: s.reason for s in evidence.result.skipped}
    total = sum(row.macs for row in rows)
    numbers = _numbers(evidence)
    placed = {} if evidence.result is None else {c.op: f"runs {c.verdict}" for c in evidence.result.check.ops}

    def detail(number: int, op: Op, row: InspectedOp) -> OpDetail:
        found = measured.get(op)
        errors = _errors(evidence, op, found)
        values = vars(errors) | {"arithmetic": row.macs / total if total else None}
        reason = reasons.get(op.name) if row.execution in ("float", "hybrid") else None
        notes = (reason, found.note if found else None, placed.get(op))
        return OpDetail(
            f"op{number}",
            row.graph,
            row.kind,
            names[op.outputs[0]] if op.outputs else "",
            row.short_name,
            row.execution,
            row.macs,
            tuple(None if t is None else names[t] for t in op.inputs),
            tuple(names[t] for t in op.outputs),
            errors,
            tuple(weight_ranges(op)),
            _multiplier(row),
            tuple(filter(None, notes)),
            {m.key: m.level(v) for m in MEASURES if (v := values[m.key]) is not None},
            numbers.get(op, ()),
        )

    return tuple(detail(k, op, row) for k, (op, row) in enumerate(zip(evidence.ops, rows, strict=True)))


def _measured_ops(evidence: Evidence) -> dict[Op, OpRow]:
    if evidence.compared is None:
        return {}
    ops = entry(evidence.model).graph.ops
    return {ops[row.position]: row for row in evidence.compared.ops}


def _numbers(evidence: Evidence) -> dict[Op, tuple[PickedNumber, ...]]:
    """Return, by op, some elements of its output with how they were computed."""
    if evidence.trace is None:
        return {}
    ops = entry(evidence.model, evidence.trace.entry.key).graph.ops
    return dict(zip(ops, picked_numbers(evidence.trace), strict=True))


def _errors(evidence: Evidence, op: Op, row: OpRow | None) -> OpErrors:
    """Return the measured errors, and those estimated from the histogram of the output."""
    expected = clipped = None
    if op.outputs and (params := op.outputs[0].params) and (seen := evidence.stats_of(op.outputs[0])):
        expected, clipped = expected_errors(seen, params)
    if row is None:
        return OpErrors(expected=expected, clipped=clipped)
    own, accumulated, occupancy = row.own, row.accumulated, row.occupancy
    local = own or accumulated
    return OpErrors(
        own.snr if own else None,
        accumulated.snr if accumulated else None,
        expected,
        *((local.cosine, local.mean_ulp, local.max_ulp) if local else (None, None, None)),
        *((occupancy.clipped, occupancy.used) if occupancy else (clipped, None)),
    )


def _multiplier(row: InspectedOp) -> str | None:
    """Return the real factors that the kernel applies, in one line."""
    if not row.multipliers:
        return None
    if len(row.multipliers) <= 3:
        return ", ".join(map(str, row.multipliers))
    reals = [m.real for m in row.multipliers]
    return f"{min(reals):.4g} .. {max(reals):.4g} in {counted(len(reals), 'channel')}"


def _making(evidence: Evidence) -> Iterator[tuple[str, str]]:
    if evidence.command is not None:
        yield "Command", evidence.command
    yield "Version", f"zeropoint {__version__}"
    if evidence.data is not None:
        yield "Data", evidence.data
    if evidence.seen is not None:
        yield "Calibrated on", f"{evidence.seen.samples} samples"
    if evidence.compared is not None:
        yield "Compared on", f"{evidence.compared.samples} samples"
    if evidence.result is not None:
        if (drawback := evidence.result.drawback) is not None:
            yield drawback.title, str(drawback)
        yield from (("Target", line) for line in target_lines(evidence.result))
        for step in evidence.result.steps:
            yield "Step", step_text(step)
        for note in evidence.result.notes:
            yield "Chosen", note


def _remarks(evidence: Evidence) -> Iterator[str]:
    """Yield what a reader should know: warnings, repairs, what stayed float, what could not be compared."""
    if evidence.result is not None:
        yield from evidence.result.warnings
        for (label, reason), count in Counter((s.op.label, s.reason) for s in evidence.result.skipped).items():
            yield f"{count} {label} stayed float: {reason}"
        yield from (f"repaired {repair}" for repair in evidence.result.repairs)
        if unmatched := evidence.result.unmatched:
            yield f"given for tensors that the model does not have, and not used: {', '.join(unmatched)}"
    if evidence.compared is not None:
        yield from evidence.compared.notes
        if evidence.compared.unaligned:
            names = ", ".join(evidence.compared.unaligned[:5])
            yield f"{len(evidence.compared.unaligned)} float ops have no counterpart: {names}"
    if evidence.diagnosis is not None:
        yield from evidence.diagnosis.notes


# The figures at the top.


def latency_bars(benchmark: Benchmark) -> tuple[Bar, ...]:
    """Return a bar for every model and number of threads, in milliseconds."""
    return tuple(
        Bar(f"{timing.name}, {counted(x.threads, 'thread')}", 1000 * x.median, 1000 * x.low, 1000 * x.high, x.threads)
        for timing in benchmark.models
        for x in timing.latencies
    )


def _cards(evidence: Evidence) -> Iterator[Card]:
    shown, before = evidence.inspection, evidence.size_before
    note = "" if not before else f"{evidence.size / before:.0%} of {size_text(before)}"
    yield Card("Size", size_text(evidence.size), note)
    if shown.few_levels is not None and shown.zip_bytes is not None:
        yield Card("Zipped", size_text(shown.zip_bytes), f"few levels in {shown.few_levels}")
    yield from _latency(evidence.bars)
    if evidence.compared is not None:
        yield from _accuracy(evidence.compared)
    counts = Counter(op.execution for op in shown.ops)
    note = ", ".join(f"{count} {execution}" for execution, count in counts.most_common())
    if shown.integer_share is None:
        yield Card("Integer ops", share_text(counts["integer"] / max(1, len(shown.ops))), note)
    else:
        yield Card("Integer arithmetic", shown.integer_share_text, note)
    if evidence.diagnosis is not None:
        yield _health(evidence.diagnosis)


def _latency(bars: Sequence[Bar]) -> Iterator[Card]:
    """Yield the latency of the last model, the reported one, compared with the first on as many threads."""
    alike = [bar for bar in bars if bar.threads == bars[0].threads]
    if alike:
        first, last = alike[0], alike[-1]
        note = f"{first.value / last.value:.2f} × as fast as {first.label}" if len(alike) > 1 else "median"
        yield Card("Latency", f"{last.value:.3g} ms", note)


def _accuracy(compared: Comparison) -> Iterator[Card]:
    if (metric := compared.metric) is not None:
        yield Card(metric.name, f"{metric.after:.4g}", f"float model {metric.before:.4g}")
    if (agreement := compared.agreement) is not None:
        yield Card("Same class", share_text(agreement), f"of {counted(compared.samples, 'sample')}, as the float model")
    if compared.outputs:
        largest = max(output.largest for output in compared.outputs)
        where = compared.where or "the outputs"
        yield Card("SNR", snr_text(compared.snr), f"measured at {where}; largest error of the outputs {largest:.3g}")


def _health(diagnosis: Diagnosis) -> Card:
    count, remedy = len(diagnosis.findings), diagnosis.remedy
    if remedy is None:
        return Card(
            "Findings",
            str(count) if count else "none",
            "" if count else "nothing to fix" if diagnosis.is_healthy else "not close, for unknown reasons",
        )
    return Card("Findings", str(count), f"the remedy brings {remedy.before.snr:.1f} dB to {remedy.after.snr:.1f} dB")
