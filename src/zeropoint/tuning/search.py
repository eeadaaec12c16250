"""The loop: what the tree proposes is carried out, scored, stored and told, until it is done or time is up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .. import __version__
from ..bench.latency import TimingOptions, benchmark
from ..calibration import Stats, calibrate
from ..parallel import cached_property
from ..targets import target_named
from .budget import Budget, Objective
from .evaluation import Judge, digest
from .executor import Executor
from .result import Baseline, Final, Scale, Tuned, trial_line
from .store import Store
from .tree import Question, walk
from .trial import Configuration, Outcome, Trial, Workpiece

MARGIN, PATH_MARGIN = 0.5, 1.0
"""Standard errors by which the drop on the samples that steer has to stay below what is allowed: the best of many is
lucky, and would otherwise often miss the budget on others. On a path, where the boldest of many is looked for, more."""

ROUNDS = 15
"""How often models are timed."""

FINALISTS = 4
"""The fastest models, which are timed once more, side by side."""


@dataclass(frozen=True)
class State:
    """How far a search is: what was said and tried so far, the best of it, and what is being tried."""

    lines: tuple[str, ...]
    trials: tuple[Trial, ...]
    best: Trial | None
    running: tuple[str, ...]
    most: int
    seconds: float


Progress = Callable[[State], None]


class Search:
    """One search. Trials are kept in the order in which the tree asked for them, wherever they are carried out."""

    def __init__(
        self,
        workpiece: Workpiece,
        judge: Judge,
        budget: Budget,
        objective: Objective,
        allowed: float,
        store: Store | None,
        progress: Progress | None,
    ) -> None:
        self.workpiece, self.judge, self.budget, self.objective = workpiece, judge, budget, objective
        self.allowed, self._store, self._progress = allowed, store, progress
        metric = judge.metric
        self.scale = Scale(metric.name, metric.point, metric.higher_is_better)
        self.trials: list[Trial] = []
        self.lines: list[str] = []
        self.interrupted = False
        self.baseline = Baseline(len(workpiece.model), judge.float_score)
        self._running: list[str] = []
        self._start, self._most = time.monotonic(), 0

    @property
    def times(self) -> bool:
        return self.objective != "smallest" or self.budget.needs_latency

    def say(self, line: str) -> None:
        self.lines.append(line)
        self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            spent = time.monotonic() - self._start
            state = State(tuple(self.lines), tuple(self.trials), self.best(), tuple(self._running), self._most, spent)
            self._progress(state)

    def run(self, executor: Executor, most: int, seconds: float) -> None:
        """Walk the tree. Ctrl-C ends it; what was measured is kept."""
        self._most = most
        try:
            self._announce()
            with self.workpiece.isolation():
                tree = walk(self._question())
                proposed: Sequence[Configuration] | None = next(tree, None)
                while proposed is not None:
                    late = time.monotonic() - self._start >= seconds
                    taken = [] if late else list(proposed)[: most - len(self.trials)]
                    found = self._batch(taken, executor)
                    if len(taken) < len(proposed):
                        self.say(f"stopped: {f'{seconds:g} seconds are over' if late else f'{most} trials are made'}")
                        return
                    try:
                        proposed = tree.send(found)
                    except StopIteration:
                        proposed = None
        except KeyboardInterrupt:
            self.interrupted = True
            self.say("interrupted; the best so far is taken")

    def _announce(self) -> None:
        score, count = self.judge.float_score, len(self.judge.part)
        limit = "" if math.isinf(self.allowed) else f"; at most {self.scale.amount(self.allowed)} may be lost"
        what = f"{self.scale.metric} {score:.6g} on {count} samples that steer"
        self.say(f"float: {what}, {len(self.workpiece.model):,} bytes{limit}")
        metric = self.judge.metric
        if metric.point != 1 and 0 < self.allowed < 1 / count:
            self.say(
                f"{count} samples are too few for this budget: a single one is {self.scale.amount(1 / count)}; "
                f"{2 * math.ceil(1 / self.allowed)} in all would show a difference, more would be better"
            )

    def _question(self) -> Question:
        bench = self.workpiece.bench(self.workpiece.rows)
        return Question(bench, self._stats, target_named(self.workpiece.target), self.objective, self.say)

    def _stats(self) -> Stats:
        return calibrate(self.workpiece.loaded, list(self.workpiece.calibration), self.workpiece.settings)

    def _batch(self, candidates: Sequence[Configuration], executor: Executor) -> list[Trial]:
        """Trials of candidates, in their order; those that are stored are not made again."""
        before, waiting = len(self.trials), [c.label for c in candidates]
        kept = {} if self._store is None else {c.label: self._store.find(self._key(c), c) for c in candidates}
        found = {label: trial for label, trial in kept.items() if trial is not None}
        left = [c for c in candidates if c.label not in found]
        self._running = [c.label for c in left]
        self._tell()
        try:
            for place, outcome in executor.outcomes(left):
                trial = self._scored(left[place], outcome)
                if self._store is not None:
                    self._store.add(self._key(left[place]), trial)
                found[trial.label] = trial
                self._running.remove(trial.label)
                while waiting and waiting[0] in found and not self.times:  # timed ones are timed side by side
                    self._take([found[waiting.pop(0)]])
        except KeyboardInterrupt:
            self._take([found[label] for label in waiting if label in found])
            raise
        rest = [found[label] for label in waiting]
        self._take(self._timed(rest) if self.times else rest)
        return self.trials[before:]

    def _take(self, trials: Sequence[Trial]) -> None:
        """Judge trials by the budget, and say what they are."""
        for trial in trials:
            excess = self._excess(trial)
            judged = replace(trial, within=not excess)
            self.trials.append(judged)
            self.say(trial_line(judged, self.baseline, self.scale, excess))

    def _scored(self, candidate: Configuration, outcome: Outcome) -> Trial:
        if outcome.refusal:
            return Trial(candidate, seconds=outcome.seconds, refusal=outcome.refusal)
        drop = self.judge.drop(outcome.outputs, outcome.content)
        return Trial(candidate, len(outcome.content), drop, outcome.content, outcome.tool, outcome.seconds)

    def _excess(self, trial: Trial) -> list[str]:
        """In what a trial is over the budget."""
        budget, drop, tool = self.budget, trial.drop, trial.tool
        if drop is None:
            return [trial.refusal]
        found = []
        if not drop.within(self.allowed, PATH_MARGIN if trial.candidate.path else MARGIN):
            sure = " or its standard error" if drop.within(self.allowed) else ""
            found.append(f"the drop{sure}")
        ram, cycles = (None, None) if tool is None else (tool.ram, tool.cycles)
        milliseconds = None if trial.latency is None else 1e3 * trial.latency
        longest = None if budget.seconds is None else 1e3 * budget.seconds
        limits: tuple[tuple[float | None, float | None, str, str], ...] = (
            (trial.size, budget.size, ",", "bytes"),
            (milliseconds, longest, ".3g", "ms"),
            (ram, budget.ram, ",", "bytes of RAM"),
            (cycles, budget.max_cycles, ",", "cycles"),
        )
        for value, limit, form, unit in limits:
            if limit is not None and (value is None or value > limit):
                found.append(f"{unit} not known" if value is None else f"{value:{form}} {unit}")
        return found

    @cached_property
    def _input_key(self) -> str:
        from importlib.metadata import version

        piece, metric = self.workpiece, self.judge.metric
        versions = (__version__, version("ai-edge-litert"), version("numpy"))
        shared = digest(piece.model, piece.calibration, piece.target, str(piece.settings), versions)
        return digest(shared, self.judge.part.digest(), metric.name, metric.higher_is_better, metric.source())

    def _key(self, candidate: Configuration) -> str:
        return digest(self._input_key, candidate.rules, candidate.effort)

    # Latency, always side by side with the float model.

    def _timed(self, trials: Sequence[Trial]) -> list[Trial]:
        contents = {t.label: t.content for t in trials if t.content}
        seconds = self._latencies(contents) if contents else {}
        return [replace(t, latency=seconds.get(t.label)) for t in trials]

    def _latencies(self, contents: dict[str, bytes]) -> dict[str, float]:
        """Seconds of one run, as they would be if the float model took the time that it took first."""
        from ..tflite import load

        reference = "the float model itself"
        models = {reference: self.workpiece.loaded, **{label: load(content) for label, content in contents.items()}}
        timed = benchmark(models, TimingOptions(rounds=ROUNDS, inside=False))
        found = {t.name: t.latencies[0].median for t in timed.models}
        own = found.pop(reference)
        if self.baseline.latency is None:
            self.baseline = replace(self.baseline, latency=own)
        assert self.baseline.latency is not None
        return {label: value * self.baseline.latency / own for label, value in found.items()}

    # The choice.

    def best(self) -> Trial | None:
        """The best trial that keeps the budget, and not by luck."""
        return min((t for t in self.trials if t.within and not self._is_luck(t)), key=self._rank, default=None)

    def _is_luck(self, trial: Trial) -> bool:
        """Whether a more careful place on the same path is over the budget."""
        own = trial.candidate
        before = (t for t in self.trials if own.path and t.candidate.path == own.path and t.candidate.step < own.step)
        return any(not t.within for t in before)

    def _rank(self, trial: Trial) -> tuple[float, ...]:
        drop = math.inf if trial.drop is None else trial.drop.value
        if self.objective == "fastest":
            return (math.inf if trial.latency is None else trial.latency, trial.size, drop)
        return (trial.size, drop)

    def _closest(self) -> Trial | None:
        """Where nothing keeps the budget: what loses least, among what is small and fast enough if there is such."""
        made = [t for t in self.trials if t.drop is not None]
        fits = [t for t in made if not [e for e in self._excess(t) if not e.startswith("the drop")]]
        return min(fits or made, key=lambda t: t.drop.value if t.drop else math.inf, default=None)

    def result(self, final_judge: Callable[[], Judge] | None) -> Tuned:
        """What was found, looked at on the samples that did not steer."""
        if self.objective == "fastest" and not self.interrupted:
            self._time_finalists()
        for trial in self.trials:
            if trial.within and self._is_luck(trial):
                self.say(
                    f"{trial.label} is not taken: what is more careful on its path is over budget, so this is luck"
                )
        chosen = self.best() or self._closest()
        final = None
        if chosen is not None and final_judge is not None:
            judge = final_judge()
            outputs = self.workpiece.outputs(chosen.content, judge.part.rows)
            final = Final(judge.drop(outputs, chosen.content), self.allowed)
        self.say(self._verdict(chosen, final))
        fields: dict[str, Any] = {"trials": tuple(self.trials), "chosen": chosen, "final": final}
        return Tuned(
            self.budget,
            self.objective,
            self.scale,
            self.allowed,
            self.baseline,
            **fields,
            lines=tuple(self.lines),
            limit=self.workpiece.settings.limit,
            interrupted=self.interrupted,
        )

    def _time_finalists(self) -> None:
        fastest = sorted((t for t in self.trials if t.within), key=self._rank)[:FINALISTS]
        if len(fastest) < 2:
            return
        seconds = self._latencies({t.label: t.content for t in fastest})
        self.trials = [replace(t, latency=seconds.get(t.label, t.latency)) for t in self.trials]

    def _verdict(self, chosen: Trial | None, final: Final | None) -> str:
        if chosen is None:
            return "nothing could be made of this model for this target"
        change = (
            ""
            if final is None
            else f"; on {final.drop.samples} samples that did not steer {self.scale.change(final.drop)}"
        )
        if not chosen.within:
            return f"no model keeps the budget; the closest is {chosen.label}{change}"
        if final is None:
            return (
                f"best: {chosen.label}; there is no score on samples that did not steer, as the metric looks at its own"
            )
        if final.holds:
            return f"best: {chosen.label}{change}: the budget holds"
        if final.holds_within_error:
            return f"best: {chosen.label}{change}: the budget holds within the standard error"
        return f"{chosen.label} kept the budget on the samples that steered{change}: over the budget there"
