"""What `compare` and `doctor` found, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from ..comparison.values import EXACT, Comparison, Deviation, Diagnosis, Finding, OpRow, Remedy, Score
from .terminal import Printer, bytes_text

WORST_SNR, GOOD_SNR = 15.0, 30.0
"""Below the first a row is red, above the second it is not worth a colour."""


def db_text(value: float | None) -> str:
    if value is None:
        return "-"
    return "exact" if value >= EXACT else f"{value:.1f}"


def print_comparison(found: Comparison, console: Console, top: int | None = 10) -> None:
    printer = Printer(console)
    rows = found.by_blame if top is None else found.by_blame[:top]
    count = f"{len(rows)} of {len(found.ops)} ops" if len(rows) < len(found.ops) else f"{len(found.ops)} ops"
    printer.line(
        ("Ops by their own error ", "bold"),
        f"({count}, {found.samples} samples; signal-to-noise in dB: higher is better)",
    )
    printer.line("     own   accum.  mean ulp  max ulp   cosine  clipped   used  op")
    for row in rows:
        _print_row(row, printer)
    _print_outputs(found, printer)
    if found.unaligned:
        shown = ", ".join(found.unaligned[:3]) + (" ..." if len(found.unaligned) > 3 else "")
        printer.line(("Without a counterpart  ", "bold"), f"{len(found.unaligned)} float ops: {shown}")
    for note in found.notes:
        printer.line(("Note  ", "bold"), note)


def _print_row(row: OpRow, printer: Printer) -> None:
    own, accumulated, occupancy = row.own, row.accumulated, row.occupancy
    used = "-" if occupancy is None else f"{occupancy.used:.0%}"
    clipped = "-" if occupancy is None else f"{occupancy.clipped:.2%}"
    local = own or accumulated
    numbers = (
        f"  {_snr(own):>6}  {_snr(accumulated):>7}  {_ulp(local, 'mean_ulp', 2):>8}  {_ulp(local, 'max_ulp', 0):>7}  "
        f"{_cosine(accumulated):>7}  {clipped:>7}  {used:>5}  "
    )
    snr = EXACT if own is None else own.snr
    style = "red" if snr < WORST_SNR else "yellow" if snr < GOOD_SNR else ""
    name = printer.fit(row.name, len(numbers) + len(row.label) + 12)
    printer.line((numbers, style), (row.label, "green"), " ", (name, "cyan"), f" {row.dtype}")
    if row.note:
        printer.line(f"          {row.note}")


def _snr(deviation: Deviation | None) -> str:
    return db_text(None if deviation is None else deviation.snr)


def _cosine(deviation: Deviation | None) -> str:
    return "-" if deviation is None or deviation.cosine is None else f"{deviation.cosine:.4f}"


def _ulp(deviation: Deviation | None, which: str, digits: int) -> str:
    value = None if deviation is None else getattr(deviation, which)
    return "-" if value is None else f"{value:.{digits}f}"


def _print_outputs(found: Comparison, printer: Printer) -> None:
    printer.line(("Outputs", "bold"))
    for output in found.outputs:
        agreement = "" if output.agreement is None else f", same top-1 in {output.agreement:.1%}"
        printer.line(
            "  ",
            (printer.fit(output.name, 60), "cyan"),
            f"  {db_text(output.deviation.snr)} dB, error {output.mean:.4g} on average, at most {output.largest:.4g}"
            f"{agreement}",
        )
    if found.metric is not None:
        m = found.metric
        printer.line(("Metric  ", "bold"), f"{m.name}: {m.before:.6g} float, {m.after:.6g} quantized")
    if found.float_bytes is not None and found.quantized_bytes is not None:
        ratio = found.float_bytes / max(1, found.quantized_bytes)
        sizes = f"{bytes_text(found.float_bytes)} -> {bytes_text(found.quantized_bytes)} ({ratio:.2f}x smaller)"
        printer.line(("Size  ", "bold"), sizes)


def print_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    printer = Printer(console)
    found = diagnosis.comparison
    agreement = next((o.agreement for o in found.outputs if o.agreement is not None), None)
    top = "" if agreement is None else f", same top-1 in {agreement:.1%}"
    printer.line(("Outputs  ", "bold"), f"{db_text(found.snr)} dB on {found.samples} samples{top}")
    if diagnosis.is_healthy:
        printer.line(("Nothing to fix.", "green"))
    for number, finding in enumerate(diagnosis.findings, 1):
        _print_finding(number, finding, printer)
    if diagnosis.remedy is not None:
        for line in remedy_lines(diagnosis.remedy):
            printer.line(line)
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


def remedy_lines(remedy: Remedy) -> Iterator[str]:
    options = ", ".join(f"{name} {value}" for name, value in remedy.options.items())
    yield ""
    yield f"Proposed: {len(remedy.rules)} rules, {options}; {remedy.moved:.1%} of the arithmetic in more bits"
    yield f"  before  {_score(remedy.before, remedy.float_metric)}"
    yield f"  after   {_score(remedy.after, remedy.float_metric)}"
    yield f"  {remedy.recovered:.0%} of the squared error of the outputs is gone"


def _score(score: Score, metric: float | None) -> str:
    parts = [f"{db_text(score.snr)} dB"]
    if score.agreement is not None:
        parts.append(f"same top-1 in {score.agreement:.1%}")
    if score.metric is not None:
        parts.append(f"metric {score.metric:.6g}" + ("" if metric is None else f" (float {metric:.6g})"))
    if score.bytes is not None:
        parts.append(bytes_text(score.bytes))
    return ", ".join(parts)
