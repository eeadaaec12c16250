"""The summary of a quantization: sizes, what runs in integers, what stayed float and why, how to feed the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from ..bench.errors import decibels, snr_text
from ..bench.verdict import Level, Verdict
from ..display import counted, size_text
from ..errors import argument
from ..files import PathLike
from ..graph.model import Buffer, Op
from ..improve.pipeline import Result
from ..improve.search import StepRecord
from ..json_values import json_values
from ..plan.plan import Form, form_type
from ..plan.rewrite import held_bytes
from ..recipe import INT8
from ..sources.ports import entries
from ..targets import CPU, INTEGER, TypedOp, check_model
from .device_tools import tool_lines
from .inspection import formula, inspect, signed
from .targets import where_text
from .terminal import Printer, few_levels_text

MOST_REASONS, MOST_REPAIRS = 12, 3

SCHEMA_VERSION = 1
"""Of `result_json`."""


@dataclass(frozen=True)
class SavedAs:
    """The file that a result was saved to, if any, with its size in bytes and that of the float model."""

    path: PathLike | None
    bytes: int
    float_bytes: int


def result_json(result: Result, saved: SavedAs) -> dict[str, Any]:
    """Return the summary as JSON values; docs/quantize-json.md describes them."""
    shown = inspect(result.model, saved.bytes)
    about = {
        "schema": SCHEMA_VERSION,
        "output": str(saved.path),
        "float_bytes": saved.float_bytes,
        "bytes": saved.bytes,
        "zip_bytes": shown.zip_bytes,
    }
    skipped = [{"kind": s.op.label, "name": s.op.name, "code": s.code, "reason": s.reason} for s in result.skipped]
    ends = [{"key": s.key, "inputs": s.inputs, "outputs": s.outputs} for s in shown.signatures]
    steps = [
        {
            "what": s.what,
            "seconds": s.seconds,
            "snr": None if s.error is None else decibels(s.error),
            "kept": s.kept,
            "snr_before": None if s.before is None else decibels(s.before),
            "samples": s.samples,
        }
        for s in result.steps
    ]
    worst = [
        {"kind": op.label, "name": op.name, "snr": op.snr, "snr_of_inputs": op.snr_of_inputs} for op in result.worst
    ]
    measured = {"verdict": result.verdict, "steps": steps, "worst": worst, "signatures": ends}
    counts = Counter(op.execution for op in shown.ops)
    made = {
        "drawback": result.drawback,
        "target": result.target.name,
        "integer_share": shown.integer_share,
        "ops": counts,
        "skipped": skipped,
    }
    repairs = [{"name": r.tensor.name, "code": r.code, "text": r.text} for r in result.repairs]
    given = [{"name": name, "by": by} for name, by in result.given.items()]
    told = {"given": given, "unmatched": result.unmatched, "repairs": repairs, "warnings": result.warnings}
    told |= {"notes": (*result.notes, *_sample_notes(result))}
    return {**about, **json_values({**made, **measured, **told})}


def _sample_notes(result: Result) -> tuple[str, ...]:
    """Return what calibration says about the samples, unless the result says the same."""
    told = {*result.notes, *result.warnings}
    return () if result.stats is None else tuple(note for note in result.stats.notes if note not in told)


def print_result(result: Result, saved: SavedAs, console: Console) -> None:
    """Print the summary at the end of `zeropoint quantize`."""
    printer = Printer(console)
    before, after = saved.float_bytes, saved.bytes
    shown = inspect(result.model, after)
    printer.entry("Size", f"{size_text(before)} -> {size_text(after)}  ({after / before:.0%})")
    if (drawback := result.drawback) is not None:
        printer.entry(drawback.title, str(drawback))
    if (few := few_levels_text(shown)) is not None:
        printer.entry("Few levels", few)
    share = "" if shown.integer_share is None else f", {shown.integer_share_text} of the arithmetic"
    counts = Counter(op.execution for op in shown.ops)
    conversions = f", {counted(counts['conversion'], 'conversion')}" if counts["conversion"] else ""
    if any(plan.schemes for plan in result.plans):
        printer.entry("In integers", f"{counted(counts['integer'], 'op')}{share}{conversions}")
    for line in weight_lines(result):
        printer.entry("Weights", line)
    for line in target_lines(result):
        printer.entry("Target", line)
    _print_skipped(result, printer)
    _print_choices(result, printer)
    _print_repairs(result, printer)
    print_warnings(result.warnings, console)
    for line in usage_lines(result):
        printer.line(line)
    if saved.path is not None:
        printer.entry("Wrote", str(saved.path))


def _print_choices(result: Result, printer: Printer) -> None:
    """Print what was tried and chosen, and on which samples."""
    for why, count in Counter(why for plan in result.plans for why in plan.wide_ops.values()).items():
        printer.entry("16 bits", f"{counted(count, 'op')}: {why}")
    for step in result.steps:
        printer.entry("Step", step_text(step))
    for op in result.worst:
        snrs = f"SNR {snr_text(op.snr)}, of its inputs {snr_text(op.snr_of_inputs)}"
        printer.entry("Worst", f"{op.label} ", printer.fit(op.name, 60), f": {snrs}")
    for note in result.notes:
        printer.entry("Chosen", note)
    for note in _sample_notes(result):
        printer.entry("Samples", note)


def _print_repairs(result: Result, printer: Printer) -> None:
    for repair in result.repairs[:MOST_REPAIRS]:
        printer.entry("Repaired", printer.fit(repair.tensor.name, 60), f": {repair.text}")
    if len(result.repairs) > MOST_REPAIRS:
        printer.line(f"            … and {len(result.repairs) - MOST_REPAIRS} more; --dry-run lists them all")


def print_plans(result: Result, console: Console) -> None:
    """Print all decisions, tensor by tensor, and ranges given for tensors that the model does not have."""
    printer = Printer(console)
    for line in (line for plan in result.plans for line in str(plan).split("\n")):
        printer.line(line)
    for name in result.unmatched:
        printer.line(f"given for '{name}', which the model does not have: not used")


def print_warnings(warnings: Iterable[str], console: Console) -> None:
    for warning in warnings:
        Printer(console).line(("Warning     ", "yellow"), warning)


VERDICT_STYLES: Mapping[Level, str] = {"good": "green", "doubtful": "yellow", "broken": "bold red", "unknown": "dim"}


def print_verdict(verdict: Verdict, console: Console) -> None:
    """Print the last line of `zeropoint quantize`."""
    Printer(console).line(("Verdict     ", VERDICT_STYLES[verdict.level]), str(verdict))


def target_lines(result: Result) -> Iterator[str]:
    """Yield what the model was made for, where its ops run there, and what the other usual target would give."""
    check, target = result.check, result.target
    yield where_text(check)
    for (label, verdict), count in sorted(check.reasons.items(), key=lambda item: -item[1])[:MOST_REASONS]:
        yield f"{count:4d} {label} {verdict.speed}: it {verdict.why}"
    if result.tool is not None:
        yield from tool_lines(result.tool)
    if target.name == CPU.name:
        left = [s.op for plan in result.plans for s in plan.skipped if s.code == "target"]
        left += [op for plan in result.plans for op in plan.dynamic]
        slow = sum(CPU.verdict(TypedOp.of_scheme(op, INT8, result.ops)).speed == "slow" for op in left)
        if left:
            more = f"{len(left)} more {'op' if len(left) == 1 else 'ops'}"
            yield f"{argument('target', 'integer')} would compute {more} in integers, {slow} of them on plain kernels"
    elif target.name == INTEGER.name and (slow := len(check_model(result.model, CPU, result.ops).having("slow"))):
        better = argument("target", "cpu")
        runs = "1 of its ops runs" if slow == 1 else f"{slow} of its ops run"
        yield f"on phones and desktops {runs} on plain kernels; {better} leaves such ops float"


def step_text(step: StepRecord) -> str:
    snr = "" if step.error is None else f", SNR of the outputs {snr_text(decibels(step.error))}"
    if step.before is not None and step.samples is not None:
        snr += f" instead of {snr_text(decibels(step.before))} on {counted(step.samples, 'sample')}"
    return f"{step.what}{snr}{'' if step.kept else ', not kept'} ({step.seconds:.1f} s)"


def weight_lines(result: Result) -> Iterator[str]:
    """Yield the constants of float ops that are stored in fewer bits: bytes before and after, by kind of op."""
    seen: set[tuple[Buffer | None, Form]] = set()
    ops: dict[str, set[Op]] = {}
    before, after = Counter[str](), Counter[str]()
    for use, packed in (item for plan in result.plans for item in plan.packed.items()):
        how = f"{use.op.label} {form_type(packed.form).label}{', unpacked before use' if packed.unpacked else ''}"
        ops.setdefault(how, set()).add(use.op)
        constant = (use.tensor.buffer, packed.form)
        if constant not in seen:
            seen.add(constant)
            before[how] += use.tensor.size * 4
            after[how] += held_bytes(use.tensor.size, packed.form)
    for how, users in ops.items():
        yield f"{len(users):4d} {how}: {size_text(before[how])} -> {size_text(after[how])}"


def _print_skipped(result: Result, printer: Printer) -> None:
    if not result.skipped:
        return
    printer.entry("Stayed float", counted(len(result.skipped), "op"))
    reasons = Counter((s.op.label, s.reason) for s in result.skipped)
    for (label, reason), count in list(reasons.items())[:MOST_REASONS]:
        printer.line(f"  {count:3d} {label}: {reason}")
    if len(reasons) > MOST_REASONS:
        printer.line(f"  … and {len(reasons) - MOST_REASONS} more kinds; --dry-run lists every op")


def usage_lines(result: Result) -> Iterator[str]:
    """Yield, for integer inputs and outputs, the formula and the lines of Python that fill and read them."""
    where = entries(result.model)[0]
    for index, port in enumerate(where.ports):
        if (params := port.tensor.params) is not None:
            dtype, name = params.dtype, f'interpreter.get_input_details()[{index}]["index"]'
            offset = signed(params.zero_point)
            clipped = f"np.clip(np.round(x / {params.scale!r}){offset}, {dtype.min}, {dtype.max})"
            yield f"Input '{port.name}' is {dtype.label}: q = round(x / {params.scale:.9g}){offset}"
            yield f"  interpreter.set_tensor({name}, {clipped}.astype(np.{dtype.label}))"
    for index, (tensor, name) in enumerate(zip(where.graph.outputs, where.output_names, strict=True)):
        if (params := tensor.params) is not None:
            value = f'interpreter.get_tensor(interpreter.get_output_details()[{index}]["index"])'
            yield f"Output '{name}' is {params.dtype.label}: real = {formula(params)}"
            yield f"  real = ({value}.astype(np.float32){signed(-params.zero_point)}) * {params.scale!r}"
