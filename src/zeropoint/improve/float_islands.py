"""Float islands: the few ops that do most of the harm, left in float.

The first layers of a detector, or the gates of a recurrent cell, can cost more accuracy than all other ops together. A
stretch of the graph is left float and the outputs are compared; the stretch that helps most is halved as long as a half
helps nearly as much. Where the harm is done all over the graph by ops that hardly compute anything, such as sums and
gates, these are left float and only the layers compute in integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..calibration.collect import Progress
from ..graph.model import Op

GOOD_ENOUGH = 20.0
"""SNR of the outputs in dB from which on nothing is searched for."""

GOOD_IN_LOOPS = 30.0
"""The same for models that get back what they returned as a state: there errors add up from run to run."""

GAIN = 3.0
"""dB that an island has to bring."""

RETAINED = 0.8
"""Part of a stretch's gain that a half of it must bring to take its place."""

STRETCHES, SHORTEST = 8, 2
"""Parts of the graph that are tried first, and ops of a stretch that is not halved again."""

MOST_WORK = 0.25
"""Part of the multiply-accumulates that may be left in float."""

Ops = tuple[Op, ...]


def find_island(
    work: Mapping[Op, int],
    snr_without: Callable[[Ops], float],
    before: float,
    report: Progress,
    most: float = MOST_WORK,
) -> Ops:
    """The ops to leave float; none if that does not help enough.

    `work` are the ops, in order, with what each computes; `snr_without` is the outputs' SNR with some of them left
    float, `before` with none. They may hold the share `most` of the work.
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
    # The shorter one, unless the other brings more than can be made up for.
    return max(found, key=lambda part: (gain(part) > gain(island) / RETAINED, part is island), default=())


def _narrowed(stretch: Ops, gain: Callable[[Ops], float]) -> Ops:
    """The shortest part of the stretch that brings nearly as much."""
    while len(stretch) > SHORTEST and gain(stretch) > 0:
        half, least = len(stretch) // 2, RETAINED * gain(stretch)
        better = next((part for part in (stretch[:half], stretch[half:]) if gain(part) >= least), None)
        if better is None:
            break
        stretch = better
    return stretch
