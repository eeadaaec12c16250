"""From models and what was measured of them to the values of a report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from .. import __version__
from ..calibration.stats import Stats
from ..comparison.values import Comparison, Diagnosis, Finding, OpRow
from ..graph.model import Model, Op, Tensor
from ..graph.query import tensor_keys
from ..plan.pipeline import Result
from ..recipe import PlainRules, Recipe, recipe_content
from ..sources.ports import entry
from .inspection import Inspection, inspect
from .inspection import OpRow as InspectedOp
from .page_cards import cards_of
from .page_measures import levels
from .page_picture import picture_of
from .page_tensors import clipped_share, expected_snr, tensor_detail, weight_ranges
from .page_values import Bar, FindingDetail, OpDetail, OpErrors, Page, TensorDetail
from .quantization import step_text


@dataclass(frozen=True)
class Evidence:
    """All there is to report on: a model, and whatever else is known of it. Sizes are those of files, in bytes.

    `stats` are of the float model that it was made from, by default those in `result`. `command` is how it was made,
    `data` what it was shown. The last of `bars` is this model's latency, the others are there to compare it with.
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
    """Everything that is to be shown. Layout takes most of the time: about 0.1 s for thousands of ops."""
    shown = inspect(evidence.model, evidence.size)
    keys = tensor_keys(evidence.model)
    details = _op_details(evidence, shown, keys)
    ids = dict(zip(_all_ops(evidence.model), (op.id for op in details), strict=True))
    return Page(
        evidence.title,
        f"{len(details)} ops, {len(shown.tensors)} tensors",
        tuple(cards_of(shown, evidence.size_before, evidence.compared, evidence.diagnosis, evidence.bars)),
        tuple(picture_of(graph, ids, keys) for graph in evidence.model.graphs if graph.ops),
        details,
        _tensors(evidence, shown, keys),
        None if evidence.diagnosis is None else tuple(_findings(evidence.diagnosis, details)),
        () if evidence.recipe is None else tuple(str(rule) for rule in evidence.recipe.rules),
        _remedy(evidence.diagnosis),
        tuple(_making(evidence)),
        tuple(_remarks(evidence)),
        evidence.bars,
    )


def op_details(evidence: Evidence) -> tuple[OpDetail, ...]:
    """The ops of all graphs, in order, with what is known of each."""
    return _op_details(evidence, inspect(evidence.model), tensor_keys(evidence.model))


def _all_ops(model: Model) -> list[Op]:
    return [op for graph in model.graphs for op in graph.ops]


def _op_details(evidence: Evidence, shown: Inspection, keys: Mapping[Tensor, str]) -> tuple[OpDetail, ...]:
    measured: dict[Op, OpRow] = {}
    if evidence.compared is not None:
        ops = entry(evidence.model).graph.ops
        measured = {ops[row.position]: row for row in evidence.compared.ops}
    reasons = {} if evidence.result is None else {s.op.name: s.reason for s in evidence.result.skipped}
    total = sum(row.macs for row in shown.ops)
    found = []
    for k, (op, row) in enumerate(zip(_all_ops(evidence.model), shown.ops, strict=True)):
        errors = _errors(op, keys, evidence.seen, measured.get(op))
        notes = [reasons[op.name]] if op.name in reasons and row.execution in ("float", "hybrid") else []
        if op in measured and measured[op].note:
            notes.append(measured[op].note)
        detail = OpDetail(
            f"op{k}",
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
            tuple(notes),
            levels(errors, row.macs / total if total else None),
        )
        found.append(detail)
    return tuple(found)


def _errors(op: Op, keys: Mapping[Tensor, str], stats: Stats | None, row: OpRow | None) -> OpErrors:
    """Measured, and what the histogram of the output leads to expect."""
    found = OpErrors()
    tensor = op.outputs[0] if op.outputs else None
    seen = None if stats is None or tensor is None else stats.tensors.get(keys[tensor])
    if seen is not None and tensor is not None and tensor.params is not None:
        found = OpErrors(expected=expected_snr(seen, tensor.params), clipped=clipped_share(seen, tensor.params))
    if row is None:
        return found
    measured = row.own or row.accumulated
    if row.occupancy is not None:
        found = replace(found, clipped=row.occupancy.clipped, used=row.occupancy.used)
    if measured is not None:
        found = replace(found, cosine=measured.cosine, mean_ulp=measured.mean_ulp, max_ulp=measured.max_ulp)
    return replace(
        found,
        own=None if row.own is None else row.own.snr,
        accumulated=None if row.accumulated is None else row.accumulated.snr,
    )


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
        yield FindingDetail(
            finding.title,
            finding.evidence,
            finding.effect,
            finding.advice,
            _gain(finding),
            _recipe(finding.rules) if finding.rules else None,
            tuple(ids[name] for name in finding.ops if name in ids),
        )


def _gain(finding: Finding) -> str | None:
    if finding.gain is None:
        return None
    return f"{finding.gain:+.1f} dB {'measured' if finding.is_measured else 'estimated'}"


def _recipe(rules: PlainRules) -> str:
    return json.dumps(recipe_content(rules), indent=1, ensure_ascii=False)


def _remedy(diagnosis: Diagnosis | None) -> str | None:
    return None if diagnosis is None or diagnosis.remedy is None else _recipe(diagnosis.remedy.rules)


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
