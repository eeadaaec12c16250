"""Float islands: the few ops that cause most of the error stay in float.

The first layers of a detector, or the gates of a recurrent cell, can cost more accuracy than all other ops together. A
stretch of the graph is left float and the outputs are compared; the stretch that helps most is halved as long as a half
helps nearly as much. If the error comes from ops all over the graph that hardly compute anything, such as sums and
gates, these stay float and only the layers compute in integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..calibration.collect import Progress
from ..graph.model import Op

GOOD_ENOUGH = 20.0
"""SNR of the outputs in dB above which the search is skipped."""

GOOD_IN_LOOPS = 30.0
"""The same limit for models whose outputs are fed back as states: there errors accumulate from run to run."""

GAIN = 3.0
"""Minimum gain of an island in dB."""

RETAINED = 0.8
"""Share of a stretch's gain that a half must reach to replace it."""

STRETCHES, SHORTEST = 8, 2
"""Number of parts of the graph that are tried first, and of ops below which a stretch is not halved again."""

MOST_WORK = 0.25
"""Maximum share of the multiply-accumulates left in float."""

Ops = tuple[Op, ...]


def find_island(
    work: Mapping[Op, int],
    snr_without: Callable[[Ops], float],
    before: float,
    report: Progress,
    most: float = MOST_WORK,
) -> Ops:
    """Return the ops to leave float; none if that does not help enough.

    `work` are the ops, in order, with the amount of computation of each; `snr_without` returns the outputs' SNR with
    some of them left float, `before` is the SNR with none. They may hold the share `most` of the work.
    """
    ops, limit = tuple(work), most * sum(work.values())
    tried: dict[Ops, float] = {}

    def gain(part: Ops) -> float:
        if part not in tried:
            tried[part] = snr_without(part) - before
            report(len(tried))
        return tried[part]

    size = max(SHORTEST, -(-len(ops) // STRETCHES))
    stretches = [ops[k : k + size] for k in range(0, len(ops), size)]
    island = _narrowed(max(stretches, key=gain), gain)
    others = tuple(op for op in ops if not work[op])
    found = [part for part in (island, others) if part and sum(work[op] for op in part) <= limit and gain(part) >= GAIN]
    # The shorter one, unless the other gains clearly more.
    return max(found, key=lambda part: (gain(part) > gain(island) / RETAINED, part is island), default=())


def _narrowed(stretch: Ops, gain: Callable[[Ops], float]) -> Ops:
    """Return the shortest part of the stretch that gains nearly as much."""
    while len(stretch) > SHORTEST and gain(stretch) > 0:
        half, least = len(stretch) // 2, RETAINED * gain(stretch)
        better = next((part for part in (stretch[:half], stretch[half:]) if gain(part) >= least), None)
        if better is None:
            break
        stretch = better
    return stretch
