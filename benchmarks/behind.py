"""Where zeropoint is behind another tool: every case, found in the rows, with the reason that `reasons` has for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from .modes import MODES
from .reasons import reason_for
from .rows import FLOAT, Row
from .tools import OURS, TOOLS

Measure = Literal["coverage", "score", "size", "latency", "memory", "time"]

EQUAL = 0.005
"""Scores closer to each other than this part of the float model's count as equal: on a few hundred samples they move by
as much when a range changes in its last digit."""
LARGER, SLOWER = 1.02, 1.05
"""Files and latencies up to this many times another tool's count as equal."""
MORE, BYTES, SECONDS = 1.25, 8e6, 0.05
"""Memory and time have to be more by this factor, and by this much at least: below that, it is what measuring them is
uncertain by."""


@dataclass(frozen=True)
class Behind:
    """A task in which another tool is better at something, and how: `ours` and `theirs` as they are shown."""

    measure: Measure
    mode: str
    task: str
    tool: str
    ours: str
    theirs: str

    @property
    def reason(self) -> str | None:
        return reason_for(self.measure, self.mode, self.task, self.tool)


def gain(row: Row) -> float | None:
    """The score without what the float model has on the same samples."""
    return None if row.score is None or row.float_score is None else row.score - row.float_score


def _lack(ours: Row, theirs: Row) -> float | None:
    """How much lower the score is; None where that means nothing."""
    mine, other = gain(ours), gain(theirs)
    if mine is None or other is None or other <= mine + EQUAL * abs(ours.float_score or 0.0):
        return None
    return other - mine


def _larger(ours: Row, theirs: Row) -> float | None:
    if not ours.size or not theirs.size or ours.size <= LARGER * theirs.size:
        return None
    return ours.size / theirs.size


def _slower(ours: Row, theirs: Row) -> float | None:
    """Only where the fastest of our runs is slower than the slowest of theirs."""
    mine, other = ours.latency.get("1 of float"), theirs.latency.get("1 of float")
    if not mine or not other or mine <= SLOWER * other:
        return None
    if ours.latency.get("1 lowest", mine) <= theirs.latency.get("1 highest", other):
        return None
    return mine / other


def _more(value: Callable[[Row], float | None], least: float) -> Callable[[Row, Row], float | None]:
    def found(ours: Row, theirs: Row) -> float | None:
        mine, other = value(ours), value(theirs)
        if mine is None or other is None or mine <= MORE * other or mine - other < least:
            return None
        return mine - other

    return found


def _score(row: Row) -> str:
    part = "" if row.limit is None else f" on {row.limit}"
    return f"{row.score:.4f}{part}"


MEASURES: Mapping[Measure, tuple[Callable[[Row, Row], float | None], Callable[[Row], str]]] = {
    "score": (_lack, _score),
    "size": (_larger, lambda row: f"{(row.size or 0) / 1e3:,.0f} kB"),
    "latency": (_slower, lambda row: f"{row.latency['1 of float']:.2f}"),
    "memory": (_more(lambda row: row.peak, BYTES), lambda row: f"{(row.peak or 0) / 1e6:.0f} MB"),
    "time": (_more(lambda row: row.whole, SECONDS), lambda row: f"{row.whole:.2f} s"),
}
"""How far we are behind, if we are, and how rows tell it."""


def behind(rows: Sequence[Row]) -> list[Behind]:
    """All cases, each against the best of the other tools: by measure, mode and task."""
    own = {(row.task, row.mode): row for row in rows if row.tool == OURS and row.variant is None}
    found = []
    for (task, mode), ours in own.items():
        others = [r for r in rows if (r.task, r.mode) == (task, mode) and r.tool not in (OURS, FLOAT) and not r.error]
        if ours.error is not None:
            found += [Behind("coverage", mode, task, row.tool, ours.error, "done") for row in others[:1]]
            continue
        for measure, (lead, told) in MEASURES.items():
            ahead = [(far, row) for row in others if (far := lead(ours, row)) is not None]
            if ahead:
                best = max(ahead, key=lambda pair: pair[0])[1]
                found.append(Behind(measure, mode, task, best.tool, told(ours), told(best)))
    order: Sequence[str] = ("coverage", *MEASURES)
    return sorted(found, key=lambda one: (order.index(one.measure), list(MODES).index(one.mode)))


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """A list for the page: cases with the same measure, mode, tool and reason stand together."""
    cases = behind(rows)
    if not cases:
        yield "Nowhere."
        return
    yield "Every task in which another tool does better than zeropoint by default: zeropoint's figure, and in brackets"
    yield f"that of the best of the others. Better means: a score higher by more than {EQUAL:.1%} of the float model's,"
    yield f"a file smaller by more than {LARGER - 1:.0%}, a latency (one thread, as a ratio to the float model's) lower"
    yield f"by more than {SLOWER - 1:.0%} and by more than runs differ, memory or time to quantize lower by more than"
    yield f"{MORE - 1:.0%} and by at least {BYTES / 1e6:.0f} MB or {SECONDS:.2f} s."
    told: dict[tuple[str, str, str, str], list[str]] = {}
    for one in cases:
        key = (one.measure, one.mode, TOOLS[one.tool].title, one.reason or "**no reason is known yet**")
        told.setdefault(key, []).append(f"{one.task} {one.ours} ({one.theirs})")
    measure = None
    for (name, mode, tool, reason), tasks in told.items():
        if name != measure:
            yield f"\n**{name.capitalize()}**\n"
            measure = name
        yield f"- {mode}, {tool}: {', '.join(tasks)}. {reason}"
