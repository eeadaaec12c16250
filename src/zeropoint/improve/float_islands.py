"""Float islands: the few ops that cause most of the error stay in float.

The first layers of a detector, or the gates of a recurrent cell, can cost more accuracy than all other ops together. To
find them, the graph is cut into stretches, and each is quantized by itself while all others stay float. Errors of
different stretches nearly add up, so those that cost most are known after one run of each; leaving one stretch float
at a time would show little as long as another one does harm as well. The worst are left float together, as many as it
takes, and then shortened as long as that costs little. What the sum of errors rules out clearly is not run, nor is what
holds more work than may be left float. Where the harm is done all over the graph by ops that hardly compute anything,
such as sums and gates, these are left float and only the layers compute in integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..bench.errors import from_decibels
from ..calibration.collect import Progress
from ..graph.model import Op

GOOD_ENOUGH = 20.0
"""SNR of the outputs in dB above which no islands are searched for."""

GOOD_IN_LOOPS = 30.0
"""The same limit for models whose outputs are fed back as states: there errors accumulate from run to run."""

GAIN = 1.5
"""dB that an island has to bring."""

RETAINED = 0.8
"""Share of its gain that an island must keep when it is shortened."""

STRETCHES, SHORTEST, HALVINGS = 8, 2, 2
"""Number of stretches, the length below which none is halved, and how often one that is too large is halved."""

MOST_STRETCHES, MINOR = 4, 0.05
"""Most stretches that are left float, and the share of the summed error below which one is no culprit."""

MOST_WORK, RESCUE_WORK = 0.25, 0.75
"""Share of the multiply-accumulates that may be left in float, and that of models which are POOR otherwise."""

POOR = 15.0
"""SNR of the outputs in dB below which the verdict on a model is not good."""

WORTH_SHORTENING = 0.01
"""Share of the work below which a stretch costs too little to try parts of it."""

ADDITIVE = 1.3
"""Factor within which the error of several stretches is the sum of their own."""

UNLIKELY = 4.0
"""Ratio of the harm of a stretch to what may be added from which on half of it is likely to do too much."""

MOST_RUNS = 3 * STRETCHES
"""About how many models a search runs, for progress."""

Ops = tuple[Op, ...]


@dataclass(frozen=True)
class FloatShare:
    """The share of the work that an island may hold: `most`, or `rescue` if the model stays poor otherwise."""

    most: float = MOST_WORK
    rescue: float = 0.0


@dataclass(frozen=True)
class Harms:
    """The stretches of a graph, and the harm done by those parts that were measured: the relative squared error of the
    outputs if nothing else is quantized. It stays the same when other parts are left float. `measure` gives that of a
    part, if there is a faster way to it than to leave all others float. `of_others` is what ops that hardly compute
    anything add to the error."""

    stretches: tuple[Ops, ...]
    measure: Callable[[Ops], float] | None = None
    measured: dict[Ops, float] = field(default_factory=dict)
    of_others: dict[Ops, float] = field(default_factory=dict)

    @classmethod
    def of(cls, ops: Ops, measure: Callable[[Ops], float] | None = None) -> Harms:
        size = max(SHORTEST, -(-len(ops) // STRETCHES))
        return cls(tuple(ops[k : k + size] for k in range(0, len(ops), size)), measure)

    def left_in(self, work: Mapping[Op, int]) -> list[Ops]:
        """The stretches of those ops that are not float yet; what is left of one may be too short to stand alone."""
        found: list[Ops] = []
        for stretch in self.stretches:
            part = tuple(op for op in stretch if op in work)
            if found and len(found[-1]) < SHORTEST:
                found[-1] += part
            elif part:
                found.append(part)
        return found


def find_island(
    work: Mapping[Op, int],
    snr_without: Callable[[Ops], float],
    before: float,
    report: Progress,
    share: FloatShare = FloatShare(),
    harms: Harms | None = None,
) -> Ops:
    """The ops to leave float; none if that does not help enough.

    `work` maps the ops, in order, to their multiply-accumulates. `snr_without` gives the SNR of the outputs with some
    ops left float; `before` is the SNR with none. The island may hold a `share` of the work. `harms` has what an
    earlier search in the same graph measured.
    """
    search = _IslandSearch(work, snr_without, before, report, harms or Harms.of(tuple(work)))
    chosen = search.culprits(share)
    whole = search.gain(search.joined(chosen))
    # Shortening retains enough of the whole island's gain that others have to bring more than that, if it is enough.
    others = search.others(whole if RETAINED * whole >= GAIN else GAIN)
    if others and search.gain(others) >= max(GAIN, whole / RETAINED):
        return others  # even beside the whole island
    island = search.shortened(chosen)
    found = [part for part in (island, others) if part and search.gain(part) >= GAIN]
    # The island, unless the others bring more than can be made up for.
    return max(found, key=lambda part: (search.gain(part) > search.gain(island) / RETAINED, part is island), default=())


@dataclass(frozen=True)
class _IslandSearch:
    """Measures parts of a graph, each only once."""

    work: Mapping[Op, int]
    snr_without: Callable[[Ops], float]
    before: float
    report: Progress
    harms: Harms
    measured: dict[Ops, float] = field(default_factory=dict)

    def culprits(self, share: FloatShare) -> list[Ops]:
        """The worst stretches, the one that does most harm first."""
        chosen, may_rescue = list[Ops](), share.rescue > share.most
        useful = max(POOR, self.before + GAIN)
        if not may_rescue or self._may_reach(useful, share.most):
            chosen = self._culprits(share.most)
        if may_rescue and (not chosen or self._snr(self.joined(chosen)) < useful):
            chosen = self._culprits(share.rescue)
        return chosen

    def shortened(self, chosen: list[Ops]) -> Ops:
        """These stretches together, shortened as far as that costs little; none if they bring nothing."""
        whole = self.gain(self.joined(chosen))
        if whole <= 0:
            return ()
        for place in range(len(chosen) - 1, -1, -1):  # those that do the least harm first
            chosen = self._shortened(chosen, place, RETAINED * whole)
        return self.joined(chosen)

    def others(self, least: float) -> Ops:
        """The ops that hardly compute anything; none if an earlier search shows that leaving them float brings less
        than `least` dB."""
        part, error = tuple(op for op in self.work if not self.work[op]), from_decibels(self.before)
        harms = [harm for known, harm in self.harms.of_others.items() if part and set(known).issuperset(part)]
        if error - ADDITIVE * min(harms, default=error) > from_decibels(self.before + least):
            return ()
        if part:
            self.harms.of_others[part] = error - from_decibels(self._snr(part))
        return part

    def _share(self, part: Iterable[Op]) -> float:
        """The share of the work that a part holds."""
        return sum(self.work[op] for op in part) / max(1, sum(self.work.values()))

    def gain(self, part: Ops) -> float:
        """By how many dB the outputs are better if `part` is left float."""
        return self._snr(part) - self.before

    def _culprits(self, most: float) -> list[Ops]:
        """The stretches that do most of the harm, the worst first: as many as it takes, and as fit."""
        harm = {part: self._harm(part) for part in self.harms.left_in(self.work)}
        left = sum(harm.values())
        least, chosen = MINOR * left, list[Ops]()
        for part in sorted(harm, key=harm.__getitem__, reverse=True):
            if harm[part] < least or len(chosen) == MOST_STRETCHES:
                break
            if fitting := self._fitting(part, chosen, most):
                chosen.append(fitting)
                left -= harm[part]
                may_do = left <= ADDITIVE * from_decibels(GOOD_ENOUGH)
                if may_do and self._snr(self.joined(chosen)) >= GOOD_ENOUGH:
                    break
        return chosen

    def _may_reach(self, least: float, most: float) -> bool:
        """Whether the sum of errors leaves open that the culprits with `most` of the work bring `least` dB: as if the
        smallest piece of a stretch that does not fit did all of its harm."""
        harm = {part: self._harm(part) for part in self.harms.left_in(self.work)}
        left = sum(harm.values())
        for part in sorted(harm, key=harm.__getitem__, reverse=True)[:MOST_STRETCHES]:
            whole, smallest = self._share(part), self._smallest_share(part)
            if smallest <= most:
                left, most = left - harm[part], most - (whole if whole <= most else smallest)
        return left <= ADDITIVE * from_decibels(least)

    def _smallest_share(self, part: Ops, halvings: int = HALVINGS) -> float:
        """The share of the work of the smallest piece that halving leads to."""
        half = len(part) // 2
        if not halvings or half < SHORTEST:
            return self._share(part)
        return min(self._smallest_share(piece, halvings - 1) for piece in (part[:half], part[half:]))

    def _fitting(self, part: Ops, chosen: Sequence[Ops], most: float) -> Ops:
        """The part of a stretch that does most of the harm in it and leaves the work below `most`, by halving it."""
        room = most - self._share(self.joined(chosen))
        for halvings in range(HALVINGS, 0, -1):
            if self._share(part) <= room:
                return part
            half = len(part) // 2
            if half < SHORTEST or self._smallest_share(part, halvings) > room:
                return ()
            is_first = 2 * self._harm(part[:half]) >= self._harm(part)
            part = part[:half] if is_first else part[half:]
        return part if self._share(part) <= room else ()

    def _shortened(self, chosen: list[Ops], place: int, least: float) -> list[Ops]:
        """With one of the stretches left out or halved, as long as the others and what is left of it gain `least`."""

        def with_part(part: Ops) -> list[Ops]:
            return [*chosen[:place], *([part] if part else []), *chosen[place + 1 :]]

        def error_with(part: Ops) -> float:
            return from_decibels(self._snr(self.joined(with_part(part))))

        part, most = chosen[place], from_decibels(self.before + least)
        error, harm = error_with(part), self.harms.measured.get(part, 0.0)
        if self._share(part) < WORTH_SHORTENING:
            return chosen
        if len(chosen) > 1 and error + harm <= ADDITIVE * most and error_with(()) <= most:
            return with_part(())
        while len(part) > SHORTEST and self._share(part) >= WORTH_SHORTENING:
            first, second = part[: len(part) // 2], part[len(part) // 2 :]
            # Measuring the harm of a half by itself is faster than trying without it, if that will hardly do.
            is_unlikely = self.harms.measure is not None and harm > UNLIKELY * (most - error)
            of_second = self._harm(second) if is_unlikely else 0.0
            if error + of_second <= ADDITIVE * most:
                of_second = error_with(first) - error
                if error + of_second <= most:
                    part, error, harm = first, error + of_second, harm - of_second
                    continue
            if error + harm - of_second > ADDITIVE * most or (found := error_with(second)) > most:
                break
            part, error, harm = second, found, of_second
        return with_part(part)

    def _harm(self, part: Ops) -> float:
        """Relative squared error of the outputs if nothing but `part` is quantized."""
        known = self.harms.measured
        if part not in known and self.harms.measure is not None:
            known[part] = self.harms.measure(part)
            self.report(min(len(known) + len(self.measured), MOST_RUNS))
        elif part not in known:
            own = set(part)
            known[part] = from_decibels(self._snr(tuple(op for op in self.work if op not in own)))
        return known[part]

    def joined(self, parts: Iterable[Ops]) -> Ops:
        """The ops of several parts, in the order of the graph."""
        own = {op for part in parts for op in part}
        return tuple(op for op in self.work if op in own)

    def _snr(self, left_float: Ops) -> float:
        if left_float not in self.measured:
            self.measured[left_float] = self.snr_without(left_float)
            self.report(min(len(self.measured), MOST_RUNS))
        return self.measured[left_float]
