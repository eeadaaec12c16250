"""Prints the report of a device's own tool."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from ..display import size_text
from ..errors import printable
from ..runtime.device_tools import ToolReport
from .terminal import Printer, duration_text

SHOWN = 8
"""The maximum number of ops left to the CPU that are listed."""


def tool_lines(report: ToolReport) -> Iterator[str]:
    """Yield memory, cycles and time in one line; then the ops that a compiler left to the CPU, with its reasons."""
    memories = ((report.ram, "of RAM"), (report.flash, "of flash"))
    facts = [f"{size_text(size)} {name}" for size, name in memories if size]
    if report.cycles is not None and report.seconds is not None:
        facts.append(f"{report.cycles:,} cycles, about {duration_text(report.seconds)}")
    yield f"{report.tool} takes it: {', '.join(facts)}"
    left = report.left_to_cpu
    if left:
        yield f"{len(left)} {'op is' if len(left) == 1 else 'ops are'} left to the CPU:"
    yield from (f"  {op.kind} '{printable(op.output)}': {printable(op.reason)}" for op in left[:SHOWN])
    if len(left) > SHOWN:
        yield f"  and {len(left) - SHOWN} more"
    yield from report.notes


def print_tool(report: ToolReport, console: Console) -> None:
    printer = Printer(console)
    first, *more = tool_lines(report)
    printer.line(("Tool  ", "bold"), first)
    for line in more:
        printer.line(f"      {line}")
