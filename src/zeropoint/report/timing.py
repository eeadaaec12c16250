"""Latencies as lines of text with bars."""

from __future__ import annotations

from rich.console import Console

from ..bench.latency import Benchmark, Timing
from .terminal import Printer, bytes_text

BAR = 30
"""Columns of the longest bar."""

SHOWN_KINDS = 5


def time_text(seconds: float) -> str:
    for limit, unit, factor in ((1e-3, "µs", 1e6), (1.0, "ms", 1e3)):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def print_benchmark(found: Benchmark, console: Console) -> None:
    printer = Printer(console)
    longest = max((x.high for m in found.models for x in m.latencies), default=1.0)
    first = {x.threads: x.median for x in found.models[0].latencies} if found.models else {}
    width = max((len(m.name) for m in found.models), default=0)
    for threads in first:
        printer.line((f"{threads} thread{'' if threads == 1 else 's'}", "bold"), f"  (of {found.cores} cores)")
        for model in found.models:
            latency = next(x for x in model.latencies if x.threads == threads)
            bar = "█" * max(1, round(BAR * latency.median / longest))
            spread = "─" * max(0, round(BAR * latency.high / longest) - len(bar))
            faster = first[threads] / latency.median if model is not found.models[0] else None
            beside = "" if faster is None else f"  {faster:.2f}x"
            printer.line(
                f"  {model.name:{width}}  ",
                (f"{bar}{spread}".ljust(BAR), "cyan"),
                f"  {time_text(latency.median)}  ({time_text(latency.low)} .. {time_text(latency.high)}){beside}",
            )
    for model in found.models:
        _print_inside(model, printer)
    for note in found.notes:
        printer.line(("Note  ", "bold"), note)


def _print_inside(model: Timing, printer: Printer) -> None:
    memory = "" if model.peak_memory is None else f", peak memory {bytes_text(model.peak_memory)} beyond the file"
    printer.line((model.name, "bold"), f"  {bytes_text(model.bytes)}{memory}")
    if model.undelegated:
        listed = ", ".join(f"{count} {kind}" for kind, count in list(model.undelegated.items())[:SHOWN_KINDS])
        printer.line(f"  {sum(model.undelegated.values())} ops on plain kernels: {listed}")
    if model.kinds:
        listed = ", ".join(f"{k.kind} {k.share:.0%}" for k in model.kinds[:SHOWN_KINDS])
        printer.line(f"  time by kind, estimated: {listed}")
        if model.conversions:
            printer.line(f"  conversions: {model.conversions:.1%} of the time, estimated")
