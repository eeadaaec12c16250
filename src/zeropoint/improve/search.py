"""From one candidate to a better one: effort by effort, step by step.

What a step proposes is built and run, and kept if it beats the best so far by more than chance explains. Each effort
goes on from what the one below it found, and held-back samples have the last word on whether it gained anything.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..bench.bench import JUDGED, Bench
from ..bench.errors import JudgedError, decibels
from ..recipe import EFFORTS, Effort
from .candidate import Candidate, Lab, Stage, Step, no_progress
from .steps import STEPS

JUDGED_AT_HIGH_EFFORT = 64
"""Samples on which models are compared at high effort."""

UNKNOWN_ERROR = JudgedError(math.inf)


@dataclass(frozen=True)
class StepRecord:
    """Something that was tried: the time it took, the outputs' relative squared error after it, if it was kept."""

    what: str
    seconds: float
    error: float | None = None
    kept: bool = True


@dataclass(frozen=True)
class Found:
    """A candidate, its error, and by how many dB each step raised the SNR on the way to it."""

    candidate: Candidate
    error: JudgedError
    gains: dict[str, float] = field(default_factory=dict)


def judged_samples(effort: Effort) -> int:
    """On how many samples models are compared."""
    return JUDGED if effort in ("quick", "standard") else JUDGED_AT_HIGH_EFFORT


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
            error = self.bench.error(quick.model())  # what quick effort would give, for comparison
            self.trials.append(StepRecord("nearest rounding, minmax ranges", time.perf_counter() - start, error))
        found, chooses = Found(first, UNKNOWN_ERROR), first.request.chooses_ranges
        for effort in efforts:
            steps = [step for step in STEPS if effort in step.efforts and (chooses or not step.ranges)]
            found = self._improved(effort, steps, found)
        return found

    def _improved(self, effort: Effort, steps: Sequence[Step], below: Found) -> Found:
        """The best that `effort` finds; what the effort below found, unless this is better on other samples too."""
        judge = self._judge(effort)
        if below.error is UNKNOWN_ERROR:
            return self._stepped(effort, steps, judge, below)
        below = replace(below, error=judge.judged(below.candidate.model()))
        start = below.candidate if effort == "max" else below.candidate.unrefined()
        error = below.error if start is below.candidate else judge.judged(start.model())
        found = self._stepped(effort, steps, judge, Found(start, error, below.gains))
        if not found.error.beats(below.error):
            return below
        unseen = self.bench.unseen_rows
        if unseen and judge is self.bench:
            others = self.bench.on(unseen)
            errors = [others.error(one.candidate.model()) for one in (below, found)]
            if errors[0] < errors[1]:
                lost = decibels(errors[0]) - decibels(errors[1])
                self.notes.append(f"{effort} effort gave nothing: {lost:.1f} dB less on held-back samples")
                return below
        return found

    def _judge(self, effort: Effort) -> Bench:
        """At max effort all samples but those held back are learned from, so that only these can judge."""
        if effort == "max":
            unseen = self.bench.unseen_rows
            return self.bench.on(unseen) if unseen else self.bench
        is_usual = judged_samples(effort) == judged_samples(self.effort)
        return self.bench if is_usual else self.bench.judging(judged_samples(effort))

    def _stepped(self, effort: Effort, steps: Sequence[Step], judge: Bench, found: Found) -> Found:
        """What all steps of one effort find, one after the other."""
        lab_bench = self.bench if effort == "max" else judge
        for step in steps:
            lab = Lab(lab_bench, effort, self.stage, found.error.value, self.notes)
            found = self._tried(step, lab, judge, found)
        return found

    def _tried(self, step: Step, lab: Lab, judge: Bench, before: Found) -> Found:
        """The best candidate after `step`."""
        start, reached = time.perf_counter(), math.inf
        best, error = before.candidate, before.error
        proposals = step.propose(lab, best)
        candidate = next(proposals, None)
        while candidate is not None:
            found = judge.judged(candidate.model())
            reached = min(reached, found.value)
            if error is UNKNOWN_ERROR or found.beats(error):
                best, error = candidate, found
            try:
                candidate = proposals.send(best)
            except StopIteration:
                candidate = None
        if reached == math.inf and before.error is not UNKNOWN_ERROR:
            return before
        what = step.name if lab.effort == "standard" else f"{step.name}, {lab.effort} effort"
        self.trials.append(StepRecord(what, time.perf_counter() - start, reached, best is not before.candidate))
        gain = decibels(error.value) - decibels(before.error.value)
        return Found(best, error, {**before.gains, step.name: gain})
