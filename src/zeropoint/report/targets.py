"""Prints targets, and where the ops of a model run on one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rich.console import Console

from ..display import counted, share_text
from ..targets import TARGETS, Check, Speed
from .terminal import Printer, count_text

STYLES: Mapping[Speed, str] = {"fast": "green", "slow": "yellow", "refused": "red"}


def print_targets(console: Console) -> None:
    printer = Printer(console)
    for target in TARGETS.values():
        printer.line((target.name, "bold"), f"  {target.about}")
        version = f", {target.version}" if target.version else ""
        printer.line(f"    from {target.source}{version}")


def print_check(check: Check, title: str, console: Console, *, every: bool = False) -> None:
    """Print totals, then what is not fast, or every op, with the reason and what would change it."""
    printer = Printer(console)
    printer.line((title, "bold"), f"  on {check.target.name}: {counted(len(check.ops), 'op')}")
    whole = sum(check.macs.values())
    for speed, style in STYLES.items():
        if count := check.counts[speed]:
            macs = check.macs[speed]
            share = share_text(macs / whole, count == len(check.ops)) if whole else ""
            work = f", {share} of the arithmetic ({count_text(macs)} MAC)" if whole else ""
            printer.line("  ", (f"{speed:8}", style), f"{count:5d} {'op' if count == 1 else 'ops'}{work}")
    for checked in check.ops if every else (*check.having("refused"), *check.having("slow")):
        verdict = checked.verdict
        place = f"  {verdict.place}" if verdict.place else ""
        name = printer.fit(checked.op.name, 40)
        printer.line("  ", (f"{verdict.speed:8}", STYLES[verdict.speed]), f"{checked.op.label} ", (name, "cyan"), place)
        if verdict.why:
            printer.line(f"            it {verdict.why}")
    for note in check.notes:
        printer.line(("Note  ", "bold"), note)


def where_text(check: Check) -> str:
    """Return how many ops of a model run where, in one line."""
    places = Counter(c.verdict.place or c.verdict.speed for c in check.ops)
    listed = ", ".join(f"{counted(count, 'op')} on {place}" for place, count in places.most_common())
    return f"{check.target.name}: {listed}"
