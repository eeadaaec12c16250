"""Prints the results of `compare` and `doctor` as text."""

from __future__ import annotations

from rich.console import Console

from ..bench.errors import EXACT, snr_text
from ..comparison.values import Comparison, Deviation, Diagnosis, Finding, Occupancy, OpRow, Remedy, Score
from ..display import counted, share_text, size_text
from .terminal import Printer

WORST_SNR, GOOD_SNR = 15.0, 30.0
"""Rows below the first limit are red, rows above the second have no colour."""


def print_comparison(comparison: Comparison, console: Console, top: int | None = 10) -> None:
    printer = Printer(console)
    rows, total = comparison.by_blame[:top], len(comparison.ops)
    count = f"{len(rows)} of {total} ops" if len(rows) < total else counted(total, "op")
    about = f"({count}, {counted(comparison.samples, 'sample')}; SNR in dB: larger is better)"
    printer.line(("Ops by their own SNR ", "bold"), about)
    printer.line("     own   accum.  mean ulp  max ulp   cosine  clipped   used  op")
    for row in rows:
        _print_row(row, printer)
    _print_outputs(comparison, printer)
    if comparison.unaligned:
        shown = ", ".join(comparison.unaligned[:3]) + (" ..." if len(comparison.unaligned) > 3 else "")
        printer.line(("Without a counterpart  ", "bold"), f"{counted(len(comparison.unaligned), 'float op')}: {shown}")
    for note in comparison.notes:
        printer.line(("Note  ", "bold"), note)


def _print_row(row: OpRow, printer: Printer) -> None:
    own, accumulated, occupancy = row.own, row.accumulated, row.occupancy
    local = own or accumulated
    cells = (
        f"{snr_text(getattr(own, 'snr', None), ''):>6}",
        f"{snr_text(getattr(accumulated, 'snr', None), ''):>7}",
        f"{_number(local, 'mean_ulp', '.2f'):>8}",
        f"{_number(local, 'max_ulp', '.0f'):>7}",
        f"{_number(accumulated, 'cosine', '.4f'):>7}",
        f"{_number(occupancy, 'clipped', '.2%'):>7}",
        f"{_number(occupancy, 'used', '.0%'):>5}",
    )
    numbers = f"  {'  '.join(cells)}  "
    snr = EXACT if own is None else own.snr
    style = "red" if snr < WORST_SNR else "yellow" if snr < GOOD_SNR else ""
    name = printer.fit(row.name, len(row.label) + 12)
    printer.row((numbers, style), (row.label, "green"), " ", (name, "cyan"), f" {row.dtype}")
    if row.note:
        printer.line(f"          {row.note}")


def _number(measured: Deviation | Occupancy | None, name: str, format: str) -> str:
    value = getattr(measured, name, None)
    return "-" if value is None else f"{value:{format}}"


def _print_outputs(comparison: Comparison, printer: Printer) -> None:
    printer.line(("Outputs", "bold"))
    for output in comparison.outputs:
        errors = f"error {output.mean:.4g} on average, at most {output.largest:.4g}"
        where = f", measured at {output.where}" if output.where else ""
        words = "" if output.kind is None else f"{output.kind}: {output.text}; "
        about = f"  {words}SNR {snr_text(output.deviation.snr)}{where}; {errors}{_agreement(output.agreement)}"
        printer.line("  ", (printer.fit(output.name, 60), "cyan"), about)
    if comparison.metric is not None:
        printer.line(("Metric  ", "bold"), str(comparison.metric))
    before, after = comparison.float_bytes, comparison.quantized_bytes
    if before is not None and after is not None:
        sizes = f"{size_text(before)} -> {size_text(after)} ({before / max(1, after):.2f}x smaller)"
        printer.line(("Size  ", "bold"), sizes)


def _agreement(share: float | None) -> str:
    return "" if share is None else f", same top-1 in {share_text(share)}"


def print_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    printer = Printer(console)
    compared = diagnosis.comparison
    snr = f"SNR {snr_text(compared.snr)}{f', measured at {compared.where},' if compared.where else ''}"
    agreement = _agreement(compared.agreement)
    printer.line(("Outputs  ", "bold"), f"{snr} on {counted(compared.samples, 'sample')}{agreement}")
    if compared.metric is not None:
        said = compared.metric.beside(diagnosis.verdict.level)
        printer.line(("Metric  ", "bold"), f"{compared.metric}; {said}")
    level = {"good": "good", "doubtful": "look at it"}.get(diagnosis.verdict.level, diagnosis.verdict.level)
    printer.line(("Verdict  ", "bold"), f"{level}: {diagnosis.verdict.summary}")
    if diagnosis.is_healthy:
        printer.line(("Nothing to fix.", "green"))
    elif not diagnosis.findings:
        printer.line(("No cause was found, but the outputs are not close to the float model's.", "red"))
    for number, finding in enumerate(diagnosis.findings, 1):
        _print_finding(number, finding, printer)
    if diagnosis.remedy is not None:
        _print_remedy(diagnosis.remedy, printer)
    for note in diagnosis.notes:
        printer.line(("Note  ", "bold"), note)


def _print_finding(number: int, finding: Finding, printer: Printer) -> None:
    gain = "" if finding.gain is None else f"  {'+' if finding.is_measured else 'about +'}{finding.gain:.1f} dB"
    printer.line("")
    printer.line((f"{number}. {finding.title}", "bold"), (gain, "green"), f"  [{finding.cause}]")
    for line in finding.evidence:
        printer.line(f"   {line}")
    printer.line(f"   Effect: {finding.effect}.")
    printer.line(f"   What to do: {finding.advice}.")


def _print_remedy(remedy: Remedy, printer: Printer) -> None:
    options = ", ".join(f"{name} {value}" for name, value in remedy.options.items())
    proposed = (
        f"{counted(len(remedy.rules), 'rule')}, {options}; {share_text(remedy.moved)} of the arithmetic in more bits"
    )
    printer.line("")
    printer.line(f"Proposed: {proposed}")
    printer.line(f"  before  {_score(remedy.before, remedy.float_metric)}")
    printer.line(f"  after   {_score(remedy.after, remedy.float_metric)}")
    printer.line(f"  {remedy.recovered:.0%} of the squared error of the outputs is gone")


def _score(score: Score, float_metric: float | None) -> str:
    text = f"SNR {snr_text(score.snr)}{_agreement(score.agreement)}"
    if score.metric is not None:
        text += f", metric {score.metric:.6g}" + ("" if float_metric is None else f" (float {float_metric:.6g})")
    return text if score.bytes is None else f"{text}, {size_text(score.bytes)}"
