"""Case by case: what both trees make of it, how that differs, and a table of all."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from tests.difference import difference
from zeropoint.errors import ZeropointError
from zeropoint.tflite import load

from .cases import Case
from .outcomes import Outcome, differences
from .trees import Trees

ROW = "{:<10}{:>8}{:>8}{:>11}{:>11}{:>11}{:>11}{:>8}{:>8}"
HEADS = "group", "cases", "equal", "different", "no model", "base", "now", "ratio", "median"


@dataclass(frozen=True)
class Comparison:
    """What both trees made of a case, and in what that differs."""

    case: Case
    base: Outcome
    now: Outcome
    differences: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join((str(self.case), *(f"    {line}" for line in self.differences)))


def compared(cases: Sequence[Case], trees: Trees) -> Iterator[Comparison]:
    """Compare case by case; cases of one model stand together, and are made from one set of files."""
    for subject, group in groupby(cases, key=lambda case: case.subject):
        with subject.files() as files:
            for number, case in enumerate(group):
                if not number and not case.searches and (reason := trees.base.calibrate(files)):
                    print(f"{case.group}: {subject.name} has no statistics: {reason.splitlines()[0]}", file=sys.stderr)
                base, now = trees.quantize(case, files)
                lines = [*differences(base, now), *_in_the_graph(base, now, trees)]
                yield Comparison(case, base, now, tuple(lines))


def _in_the_graph(base: Outcome, now: Outcome, trees: Trees) -> Iterator[str]:
    """Yield where two models differ first, as far as they can be read."""
    if base.is_model and now.is_model and base.model != now.model:
        try:
            models = (load(tree.output.read_bytes()) for tree in (trees.base, trees.now))
            yield difference(*models) or "the same graph, written in another way"
        except ZeropointError as error:
            yield f"one of them cannot be read: {error}"


def table(comparisons: Sequence[Comparison]) -> str:
    """A row for each group: how many cases are equal, how many of them are refusals, and the processor time."""
    groups = dict.fromkeys(comparison.case.group for comparison in comparisons)
    rows = [_row(name, [c for c in comparisons if c.case.group == name]) for name in groups]
    total = [_row("all", comparisons)] if len(rows) > 1 else []
    return "\n".join((ROW.format(*HEADS), *rows, *total))


def _row(name: str, comparisons: Sequence[Comparison]) -> str:
    """Cases in which one tree refuses what the other makes take no part in times: less was done there. The ratio is
    that of the sums, which the longest cases decide; the median over cases is less disturbed by a busy machine."""
    different = sum(bool(row.differences) for row in comparisons)
    without_model = sum(not (row.base.is_model or row.now.is_model) for row in comparisons)
    timed = [row for row in comparisons if row.base.is_model and row.now.is_model]
    base, now = sum(row.base.seconds for row in timed), sum(row.now.seconds for row in timed)
    median = statistics.median(row.now.seconds / row.base.seconds for row in timed) if timed else 1.0
    ratios = (f"{now / base:.3f}", f"{median:.3f}") if timed else ("-", "-")
    counts = f"{len(comparisons):,}", f"{len(comparisons) - different:,}", different, without_model
    return ROW.format(name, *counts, f"{base:,.1f} s", f"{now:,.1f} s", *ratios)
