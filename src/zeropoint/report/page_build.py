"""From models and what was measured of them to the values of a report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from .. import __version__
from ..bench.latency import Benchmark
from ..calibration.stats import Stats
from ..comparison.values import Comparison, Diagnosis, OpRow
from ..graph.model import Model, Op, Tensor
from ..graph.query import tensor_keys
from ..improve.pipeline import Result
from ..recipe import PlainRules, Recipe, recipe_content
from ..sources.ports import entry
from .inspection import InspectedOp, Inspection, inspect
from .page_picture import picture_of
from .page_tensors import clipped_share, expected_snr, tensor_detail, weight_ranges
from .page_values import Bar, Card, FindingDetail, OpDetail, OpErrors, Page, TensorDetail, levels
from .quantization import step_text
from .terminal import size_text, snr_text


@dataclass(frozen=True)
class Evidence:
    """All there is to report on: a model, and whatever else is known about it. Sizes are those of files, in bytes.

    `stats` are of the float model that it was made from, by default those in `result`. `command` is how it was made,
    `data` what it was run on. The last of `bars` is this model's latency, the others are there for comparison.
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

    @property
    def seen(self) -> Stats | None:
        return self.stats if self.stats is not None or self.result is None else self.result.stats

    @property
    def compared(self) -> Comparison | None:
        return self.comparison if self.comparison is not None or self.diagnosis is None else self.diagnosis.comparison


def page_of(evidence: Evidence) -> Page:
    """Everything that is to be shown. Placing the ops takes most of the time: about 0.1 s for thousands of them."""
    shown = inspect(evidence.model, evidence.size)
    keys = tensor_keys(evidence.model)
    details = _op_details(evidence, shown, keys)
    remedy = None if evidence.diagnosis is None else evidence.diagnosis.remedy
    ids = dict(zip(_all_ops(evidence.model), (op.id for op in details), strict=True))
    return Page(
        evidence.title,
        f"{len(details)} ops, {len(shown.tensors)} tensors",
        tuple(_cards(evidence, shown)),
        tuple(picture_of(graph, ids, keys) for graph in evidence.model.graphs if graph.ops),
        details,
        _tensors(evidence, shown, keys),
        None if evidence.diagnosis is None else tuple(_findings(evidence.diagnosis, details)),
        () if evidence.recipe is None else tuple(str(rule) for rule in evidence.recipe.rules),
        None if remedy is None else _recipe(remedy.rules),
        tuple(_making(evidence)),
        tuple(_remarks(evidence)),
        evidence.bars,
    )


def op_details(evidence: Evidence) -> tuple[OpDetail, ...]:
    """The ops of all graphs, in order, with what is known of each."""
    return _op_details(evidence, inspect(evidence.model), tensor_keys(evidence.model))


def _all_ops(model: Model) -> list[Op]:
    return [op for graph in model.graphs for op in graph.ops]


def _measured(evidence: Evidence) -> dict[Op, OpRow]:
    if evidence.compared is None:
        return {}
    ops = entry(evidence.model).graph.ops
    return {ops[row.position]: row for row in evidence.compared.ops}


def _op_details(evidence: Evidence, shown: Inspection, keys: Mapping[Tensor, str]) -> tuple[OpDetail, ...]:
    measured = _measured(evidence)
    reasons = {} if evidence.result is None else {s.op.name: s.reason for s in evidence.result.skipped}
    total = sum(row.macs for row in shown.ops)

    def notes(op: Op, row: InspectedOp) -> Iterator[str]:
        if op.name in reasons and row.execution in ("float", "hybrid"):
            yield reasons[op.name]
        if op in measured and measured[op].note:
            yield measured[op].note

    def detail(number: int, op: Op, row: InspectedOp) -> OpDetail:
        errors = _errors(op, keys, evidence.seen, measured.get(op))
        return OpDetail(
            f"op{number}",
            row.graph,
            row.kind,
            keys[op.outputs[0]] if op.outputs else "",
            row.execution,
            row.macs,
            tuple(None if t is None else keys[t] for t in op.inputs),
            tuple(keys[t] for t in op.outputs),
            errors,
            tuple(weight_ranges(op)),
            _multiplier(row),
            tuple(notes(op, row)),
            levels(errors, row.macs / total if total else None),
        )

    pairs = zip(_all_ops(evidence.model), shown.ops, strict=True)
    return tuple(detail(number, op, row) for number, (op, row) in enumerate(pairs))


def _errors(op: Op, keys: Mapping[Tensor, str], stats: Stats | None, row: OpRow | None) -> OpErrors:
    """What was measured, and what the histogram of the output leads to expect."""
    errors = OpErrors()
    tensor = op.outputs[0] if op.outputs else None
    seen = None if stats is None or tensor is None else stats.tensors.get(keys[tensor])
    if seen is not None and tensor is not None and tensor.params is not None:
        errors = OpErrors(expected=expected_snr(seen, tensor.params), clipped=clipped_share(seen, tensor.params))
    if row is None:
        return errors
    if (occupancy := row.occupancy) is not None:
        errors = replace(errors, clipped=occupancy.clipped, used=occupancy.used)
    if (local := row.own or row.accumulated) is not None:
        errors = replace(errors, cosine=local.cosine, mean_ulp=local.mean_ulp, max_ulp=local.max_ulp)
    own, accumulated = (None if deviation is None else deviation.snr for deviation in (row.own, row.accumulated))
    return replace(errors, own=own, accumulated=accumulated)


def _multiplier(row: InspectedOp) -> str | None:
    """The real factors that the kernel applies, in one line."""
    if not row.multipliers:
        return None
    if len(row.multipliers) <= 3:
        return ", ".join(map(str, row.multipliers))
    reals = [m.real for m in row.multipliers]
    return f"{min(reals):.4g} .. {max(reals):.4g} in {len(reals)} channels"


def _tensors(evidence: Evidence, shown: Inspection, keys: Mapping[Tensor, str]) -> dict[str, TensorDetail]:
    tensors = [tensor for graph in evidence.model.graphs for tensor in graph.tensors]
    return {
        keys[tensor]: tensor_detail(tensor, row, keys[tensor], evidence.seen)
        for tensor, row in zip(tensors, shown.tensors, strict=True)
    }


def _findings(diagnosis: Diagnosis, ops: tuple[OpDetail, ...]) -> Iterator[FindingDetail]:
    ids = {op.name: op.id for op in reversed(ops)}
    for finding in diagnosis.findings:
        how = "measured" if finding.is_measured else "estimated"
        yield FindingDetail(
            finding.title,
            finding.evidence,
            finding.effect,
            finding.advice,
            None if finding.gain is None else f"{finding.gain:+.1f} dB {how}",
            _recipe(finding.rules) if finding.rules else None,
            tuple(ids[name] for name in finding.ops if name in ids),
        )


def _recipe(rules: PlainRules) -> str:
    return json.dumps(recipe_content(rules), indent=1, ensure_ascii=False)


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
        for step in evidence.result.steps:
            yield "Step", step_text(step)
        for note in evidence.result.notes:
            yield "Chosen", note


def _remarks(evidence: Evidence) -> Iterator[str]:
    """What a reader should know about: warnings, repairs, what stayed float, what could not be compared."""
    if evidence.result is not None:
        yield from evidence.result.warnings
        for (label, reason), count in Counter((s.op.label, s.reason) for s in evidence.result.skipped).items():
            yield f"{count} {label} stayed float: {reason}"
        yield from (f"repaired {repair}" for repair in evidence.result.repairs)
    if evidence.compared is not None:
        yield from evidence.compared.notes
        if evidence.compared.unaligned:
            names = ", ".join(evidence.compared.unaligned[:5])
            yield f"{len(evidence.compared.unaligned)} float ops have no counterpart: {names}"
    if evidence.diagnosis is not None:
        yield from evidence.diagnosis.notes


# The figures at the top.


def latency_bars(benchmark: Benchmark) -> tuple[Bar, ...]:
    """Every model with every number of threads, in milliseconds."""
    return tuple(
        Bar(
            f"{timing.name}, {latency.threads} {'thread' if latency.threads == 1 else 'threads'}",
            1000 * latency.median,
            1000 * latency.low,
            1000 * latency.high,
            latency.threads,
        )
        for timing in benchmark.models
        for latency in timing.latencies
    )


def _cards(evidence: Evidence, shown: Inspection) -> Iterator[Card]:
    before = evidence.size_before
    note = "" if not before else f"{evidence.size / before:.0%} of {size_text(before)}"
    yield Card("Size", size_text(evidence.size), note)
    yield from _latency(evidence.bars)
    if evidence.compared is not None:
        yield from _accuracy(evidence.compared)
    counts = Counter(op.execution for op in shown.ops)
    note = ", ".join(f"{count} {execution}" for execution, count in counts.most_common())
    if shown.integer_share is None:
        yield Card("Integer ops", f"{counts['integer'] / max(1, len(shown.ops)):.0%}", note)
    else:
        yield Card("Integer arithmetic", f"{shown.integer_share:.1%}", note)
    if evidence.diagnosis is not None:
        yield _health(evidence.diagnosis)


def _latency(bars: Sequence[Bar]) -> Iterator[Card]:
    """Of the last model, which is the one reported on, compared with the first on as many threads."""
    alike = [bar for bar in bars if bar.threads == bars[0].threads]
    if alike:
        first, last = alike[0], alike[-1]
        note = f"{first.value / last.value:.2f} × as fast as {first.label}" if len(alike) > 1 else "median"
        yield Card("Latency", f"{last.value:.3g} ms", note)


def _accuracy(compared: Comparison) -> Iterator[Card]:
    if (metric := compared.metric) is not None:
        yield Card(metric.name, f"{metric.after:.4g}", f"float model {metric.before:.4g}")
    agreement = next((o.agreement for o in compared.outputs if o.agreement is not None), None)
    if agreement is not None:
        yield Card("Same class", f"{agreement:.1%}", f"of {compared.samples} samples, as the float model")
    if compared.outputs:
        largest = max(output.largest for output in compared.outputs)
        yield Card("Signal to noise", snr_text(compared.snr), f"of the outputs; largest error {largest:.3g}")


def _health(diagnosis: Diagnosis) -> Card:
    count, remedy = len(diagnosis.findings), diagnosis.remedy
    if remedy is None:
        return Card("Findings", str(count) if count else "none", "" if count else "nothing to fix")
    return Card("Findings", str(count), f"the remedy brings {remedy.before.snr:.1f} dB to {remedy.after.snr:.1f} dB")
