"""Searches from one candidate to a better one: effort by effort, step by step.

What a step proposes is built and run, and kept if it beats the best so far by more than chance explains. Each effort
continues from what the one below it found, and held-back samples decide in the end whether it gained anything.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..bench.bench import Bench
from ..bench.errors import decibels
from ..bench.judged import JUDGED, Judged
from ..recipe import EFFORTS, Effort, reaches
from .candidate import Candidate, Lab, ProposalOutcome, Proposals, Stage, Step, no_progress
from .rounding_steps import learning_split, rounded_for_all_samples
from .steps import CLOSE_ENOUGH, STEPS, WITHOUT_LOUD

MOST_JUDGED, JUDGED_SHARE = 64, 0.4
DECIDES = 6.0
"""dB that ranges without loud samples gain at most for others to be tried: more is not made up for later."""

FEWEST_JUDGED, JUDGING_MACS = 16, 2e9
"""Models are compared on up to this many samples, this share of them, as weights are fitted to the others, or `JUDGED`;
at standard effort on fewer, but not fewer than this, if the model is large and that takes more work."""


@dataclass(frozen=True)
class StepRecord:
    """Something that was tried, the time it took, and the outputs' relative squared error with it. If it was not kept,
    `before` is the error without it on the same few samples, of which there may be fewer than for what was kept."""

    what: str
    seconds: float
    error: float | None = None
    kept: bool = True
    before: float | None = None
    samples: int | None = None


@dataclass(frozen=True)
class Found:
    """A candidate, its error if measured, and how many dB of SNR each step gained on the way to it; the candidate with
    weights rounded for all samples, if that was done already."""

    candidate: Candidate
    judged: Judged | None = None
    gains: dict[str, float] = field(default_factory=dict)
    finished: Candidate | None = None

    @property
    def error(self) -> float:
        return math.inf if self.judged is None else self.judged.on_enough


def judged_samples(bench: Bench, effort: Effort) -> int:
    """Return the number of samples on which models are compared."""
    most = max(JUDGED, min(MOST_JUDGED, JUDGED_SHARE * len(bench.rows)))
    if not reaches(effort, "high"):
        most = min(most, max(FEWEST_JUDGED, JUDGING_MACS // max(1, bench.macs)))
    return int(most)


@dataclass
class StepSearch:
    """Tries all steps up to `effort` on the samples of `bench`."""

    bench: Bench
    effort: Effort
    stage: Stage = no_progress
    trials: list[StepRecord] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def best(self, first: Candidate) -> Found:
        efforts = EFFORTS[1 : 1 + EFFORTS.index(self.effort)]
        if len(efforts) > 1 and first.request.chooses_ranges:
            start = time.perf_counter()
            quick = replace(first, request=replace(first.request, method="minmax", effort="quick"))
            error = self.bench.error(quick.model())  # the result of quick effort, for comparison
            self.trials.append(StepRecord("nearest rounding, minmax ranges", time.perf_counter() - start, error))
        found, chooses = Found(first), first.request.chooses_ranges
        for effort in efforts:
            steps = [step for step in STEPS if effort in step.efforts and (chooses or not step.ranges)]
            found = self._improved(effort, steps, found)
        return found

    def _improved(self, effort: Effort, steps: Sequence[Step], below: Found) -> Found:
        """Return the best that `effort` finds; what the effort below found, unless this is also better on other
        samples."""
        judge = self._judge(effort)
        if below.judged is None:
            return self._with_or_without_loud(effort, steps, judge, below)
        known = judge.judged(below.candidate.model())
        below = replace(below, judged=known)
        start = below.candidate if effort == "max" else below.candidate.unrefined()
        judged = known if start is below.candidate else judge.judged(start.model())
        found = self._stepped(effort, steps, judge, Found(start, judged, below.gains))
        if start is below.candidate or not self.bench.unseen_rows:
            is_better = found.judged is not None and found.judged.beats(known)
        else:  # both efforts round the same weights, each in its own way: neither has to prove more than the other
            is_better = judge.error(found.candidate.model()) < judge.error(below.candidate.model())
        return self._better_on_unseen(effort, below, found) if is_better else below

    def _with_or_without_loud(self, effort: Effort, steps: Sequence[Step], judge: Bench, first: Found) -> Found:
        """Return what the steps find. If ranges without loud samples are part of it, did not decide it, and it is not
        close enough, the steps after these ranges are also taken without them: islands, or other ranges, may do more
        against loud samples."""
        place = next((k for k, step in enumerate(steps) if step.name == WITHOUT_LOUD), len(steps))
        before = self._stepped(effort, steps[:place], judge, first)
        if place == len(steps):
            return before
        start = len(self.trials)
        found = self._stepped(effort, steps[place:], judge, before)
        split = judge.loud if found.candidate.without_loud else None
        if split is None or decibels(found.error) >= CLOSE_ENOUGH or found.gains[WITHOUT_LOUD] >= DECIDES:
            return found
        between = len(self.trials)
        other = self._stepped(effort, steps[place + 1 :], judge, before)
        with_loud, without = (split.error(judge, one.candidate.model()) for one in (other, found))
        names = (f"{trial.what}, ranges with loud samples" for trial in self.trials[between:])
        self.trials[between:] = [replace(t, what=what) for t, what in zip(self.trials[between:], names, strict=True)]
        dropped = slice(start, between) if with_loud < without else slice(between, None)
        self.trials[dropped] = [replace(trial, kept=False) for trial in self.trials[dropped]]
        return other if with_loud < without else found

    def _better_on_unseen(self, effort: Effort, below: Found, found: Found) -> Found:
        """Return what `effort` found, unless held-back samples, if any, find it worse than what the one below did; a
        note says so if they do. They are among those that have judged max effort (`_judge`), so there, as a part of
        these, they have to find it clearly worse."""
        if not self.bench.unseen_rows:
            return found
        # Compare what each would return in the end.
        finished = below.finished or rounded_for_all_samples(self.bench, below.candidate, _effort_below(effort))
        found = replace(found, finished=rounded_for_all_samples(self.bench, found.candidate, effort))
        others = self.bench.on(self.bench.unseen_rows)
        ends = finished, found.finished or found.candidate
        before, after = (others.judged(one.model(), at_once=True) for one in ends)
        is_worse = before.beats(after) if effort == "max" else before.value < after.value
        if is_worse:
            lost = decibels(before.value) - decibels(after.value)
            self.notes.append(f"{effort} effort gave nothing: {lost:.1f} dB less on held-back samples")
            return below
        return found

    def _judge(self, effort: Effort) -> Bench:
        """Return the bench for judging. What max effort learns is judged by all samples that it does not learn from:
        those held back are too few to tell a gain of a decibel from chance."""
        if effort == "max":
            return self.bench.on([*self.bench.unseen_rows, *learning_split(self.bench).checked])
        # What standard effort finds on the way is what it would return by itself.
        bench = self.bench.in_given_order() if effort == "standard" else self.bench
        count = judged_samples(bench, effort)
        return bench if count == bench.judged_count else bench.judging(count)

    def _stepped(self, effort: Effort, steps: Sequence[Step], judge: Bench, found: Found) -> Found:
        """Return what all steps of one effort find, one after the other."""
        lab_bench = self.bench if effort == "max" else judge
        for step in steps:
            lab = Lab(lab_bench, effort, self.stage, found.error, self.notes)
            found = self._tried(step, lab, judge, found)
        return found

    def _tried(self, step: Step, lab: Lab, judge: Bench, before: Found) -> Found:
        """Return the best candidate after `step`."""
        start = time.perf_counter()
        first = before.candidate.in_8_bits() if step.activations else before.candidate
        in_other_bits, is_known = first is not before.candidate, before.judged is not None
        judged = judge.judged(first.model()) if in_other_bits and is_known else before.judged
        # First looks save runs, which are nothing beside what it takes to learn.
        trials = Trials(judge, first, judged, step.presumed and not in_other_bits, at_once=lab.effort == "max")
        trials.run(step.propose(replace(lab, error=Found(first, judged).error), first))
        if trials.reached == math.inf and is_known:
            return before
        found = Found(trials.best, trials.judged)
        if in_other_bits:
            found = before if trials.best is first else self._in_asked_bits(trials.best, judge, before)
        what, seconds = self._named(step, lab, in_other_bits), time.perf_counter() - start
        self.trials.append(trials.record(what, seconds, kept=found.candidate is not before.candidate))
        gain = decibels(found.error) - decibels(before.error)
        return replace(found, gains={**before.gains, step.name: gain})

    def _in_asked_bits(self, best: Candidate, judge: Bench, before: Found) -> Found:
        """Return what was found with 8-bit weights, unless it is clearly worse in the requested bits."""
        best = best.in_asked_bits()
        judged = judge.judged(best.model())
        return before if before.judged is not None and before.judged.beats(judged) else Found(best, judged)

    def _named(self, step: Step, lab: Lab, in_other_bits: bool) -> str:
        """Return the step's name, and how its error was measured if that is unusual."""
        effort = "" if lab.effort == "standard" else f"{lab.effort} effort"
        bits = "on weights of 8 bits" if in_other_bits else ""
        fewer = lab.bench.judged_count != self.bench.judged_count
        samples = f"on {lab.bench.judged_count} samples" if fewer else ""
        return ", ".join(part for part in (step.name, effort, bits, samples) if part)


def _effort_below(effort: Effort) -> Effort:
    return EFFORTS[EFFORTS.index(effort) - 1]


@dataclass
class Trials:
    """The best of several candidates on the samples of `judge`, and the smallest error that any has reached, by which
    one.

    Another candidate must be better than the best so far by more than chance. If they are `presumed` to be better than
    the first, the best of them only must not be worse by more than chance. All samples decide `at_once`, or the first
    few of them where these suffice.
    """

    judge: Bench
    best: Candidate
    judged: Judged | None
    presumed: bool = False
    reached: float = math.inf
    at_once: bool = False
    closest: Judged | None = None

    def __post_init__(self) -> None:
        self.first = self.judged

    def record(self, what: str, seconds: float, *, kept: bool) -> StepRecord:
        """Return what the summary says: the error of the accepted candidate on as many samples as that of others is
        given on, or that of the closest one if none was accepted, next to what it had to beat."""
        if self.judged is not None and self.judged is not self.first:
            return StepRecord(what, seconds, self.judged.on_enough, kept)
        if self.closest is None or self.first is None:
            return StepRecord(what, seconds, self.reached, kept)
        count = self.closest.count
        return StepRecord(what, seconds, self.closest.value, kept, self.first.value_on(count), count)

    def run(self, proposals: Proposals) -> None:
        candidate = next(proposals, None)
        while candidate is not None:
            # Where the least of several is taken, these are measured on the same samples.
            judged = self.judge.judged(candidate.model(), at_once=self.presumed or self.at_once)
            if self._takes(judged):
                self.best, self.judged = candidate, judged
            if judged.value < self.reached:
                self.reached, self.closest = judged.value, judged
            try:
                candidate = proposals.send(ProposalOutcome(self.best, judged.value))
            except StopIteration:
                candidate = None

    def _takes(self, judged: Judged) -> bool:
        if self.judged is None or judged.beats(self.judged):
            return True
        return self.presumed and judged.value < self.reached and not (self.first and self.first.beats(judged))
