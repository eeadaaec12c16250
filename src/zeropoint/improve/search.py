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
from ..ops.execution import macs_of
from ..recipe import EFFORTS, Effort, reaches
from .candidate import Candidate, Lab, Proposals, Stage, Step, no_progress
from .steps import STEPS

MOST_JUDGED, JUDGED_SHARE = 64, 0.4
JUDGING_MACS = 2e9
"""Models are compared on this many samples, or this share of them, as weights are fitted to the others; at standard
effort on fewer if the model is large: so many that it takes this work, though not fewer than `JUDGED`."""

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


def judged_samples(bench: Bench, effort: Effort) -> int:
    """On how many samples models are compared."""
    most: float = MOST_JUDGED
    if not reaches(effort, "high"):
        macs = sum(macs_of(op, bench.ops) for op in bench.entry.graph.ops)
        most = min(most, JUDGING_MACS // max(1, macs))
    return int(max(JUDGED, min(most, JUDGED_SHARE * len(bench.rows))))


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
        count = judged_samples(self.bench, effort)
        return self.bench if count == self.bench.judged_count else self.bench.judging(count)

    def _stepped(self, effort: Effort, steps: Sequence[Step], judge: Bench, found: Found) -> Found:
        """What all steps of one effort find, one after the other."""
        lab_bench = self.bench if effort == "max" else judge
        for step in steps:
            lab = Lab(lab_bench, effort, self.stage, found.error.value, self.notes)
            found = self._tried(step, lab, judge, found)
        return found

    def _tried(self, step: Step, lab: Lab, judge: Bench, before: Found) -> Found:
        """The best candidate after `step`."""
        start = time.perf_counter()
        first = before.candidate.in_8_bits() if step.activations else before.candidate
        in_other_bits = first is not before.candidate
        is_known = before.error is not UNKNOWN_ERROR
        error = judge.judged(first.model()) if in_other_bits and is_known else before.error
        trials = Trials(judge, first, error, step.presumed and not in_other_bits)
        trials.run(step.propose(replace(lab, error=error.value), first))
        if trials.reached == math.inf and is_known:
            return before
        best, error = trials.best, trials.error
        if in_other_bits:
            best = before.candidate if best is first else best.in_asked_bits()
            error = before.error if best is before.candidate else judge.judged(best.model())
            if before.error.beats(error):
                best, error = before.candidate, before.error
        what, seconds = self._named(step, lab, in_other_bits), time.perf_counter() - start
        self.trials.append(StepRecord(what, seconds, trials.shown, best is not before.candidate))
        gain = decibels(error.value) - decibels(before.error.value)
        return Found(best, error, {**before.gains, step.name: gain})

    def _named(self, step: Step, lab: Lab, in_other_bits: bool) -> str:
        """The step, and how its error was measured where that is not as usual."""
        effort = "" if lab.effort == "standard" else f"{lab.effort} effort"
        bits = "on weights of 8 bits" if in_other_bits else ""
        fewer = lab.bench.judged_count != self.bench.judged_count
        samples = f"on {lab.bench.judged_count} samples" if fewer else ""
        return ", ".join(part for part in (step.name, effort, bits, samples) if part)


@dataclass
class Trials:
    """The best of some candidates by the samples of `judge`, and the least error that any has reached.

    Another one has to be better than the best so far by more than chance. Where they are `presumed` to be better than
    the first, the best of them only must not be worse than that by more than chance.
    """

    judge: Bench
    best: Candidate
    error: JudgedError
    presumed: bool = False
    reached: float = math.inf

    def __post_init__(self) -> None:
        self.first_error = self.error

    @property
    def shown(self) -> float:
        """The error of what was taken; of what came closest, if nothing was."""
        return self.reached if self.error is self.first_error else self.error.value

    def run(self, proposals: Proposals) -> None:
        candidate = next(proposals, None)
        while candidate is not None:
            found = self.judge.judged(candidate.model())
            if self._takes(found):
                self.best, self.error = candidate, found
            self.reached = min(self.reached, found.value)
            try:
                candidate = proposals.send(self.best)
            except StopIteration:
                candidate = None

    def _takes(self, found: JudgedError) -> bool:
        if self.error is UNKNOWN_ERROR or found.beats(self.error):
            return True
        return self.presumed and found.value < self.reached and not self.first_error.beats(found)
