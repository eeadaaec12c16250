"""The search loop: runs, scores, stores and reports what the tree proposes, until it is done or time is up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .. import __version__
from ..display import counted
from ..errors import InvalidRecipe, printable
from ..parallel import cached_property
from ..targets import target_named
from .budget import Budget, Objective
from .evaluation import Drop, Judge, digest
from .excess import Excess, excesses, used_drop
from .executor import Executor
from .latency import Stopwatch
from .metric import SNR, TOP1, most_frequent, rank_correlation
from .obstacles import obstacles
from .question import Aim, Question
from .result import Baseline, Final, Scale, Tuned, trial_line
from .store import Store
from .tree import TRAINED, Round, training, walk
from .trial import Configuration, Outcome, Trial, Workpiece

CLEARLY = 0.95
"""The share of the float model's latency below which a model counts as faster, not by chance."""

FINALISTS, FEWEST_ORDERED = 4, 5
"""Number of the fastest models that are timed again, side by side; and of models whose order is worth comparing."""


@dataclass(frozen=True)
class Limits:
    """The limits of a search: trials before training, seconds after which none is started, and training `steps` each
    (0: none)."""

    trials: int
    seconds: float
    steps: int = 0


@dataclass(frozen=True)
class SearchState:
    """The state of a search: what was reported and tried so far, the best of it, and the current trials."""

    lines: tuple[str, ...]
    trials: tuple[Trial, ...]
    best: Trial | None
    running: tuple[str, ...]
    most: int
    seconds: float


Progress = Callable[[SearchState], None]


class Search:
    """One search. Trials are kept in the order in which the tree asked for them, wherever they run."""

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
        self._stopwatch = Stopwatch(workpiece.loaded, workpiece.rows[0] if workpiece.rows else None)

    @property
    def times(self) -> bool:
        return self.objective != "smallest" or self.budget.needs_latency

    def say(self, line: str) -> None:
        self.lines.append(printable(line))
        self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            spent = time.monotonic() - self._start
            state = SearchState(
                tuple(self.lines), tuple(self.trials), self.best(), tuple(self._running), self._most, spent
            )
            self._progress(state)

    def run(self, executor: Executor, limits: Limits) -> None:
        """Walk the tree, then train what may be trained. Ctrl-C ends it; all measurements are kept."""
        self._most = limits.trials + (TRAINED if limits.steps else 0)
        try:
            self._announce()
            with self.workpiece.isolation():
                question = self._question(limits.steps)
                self._follow(walk(question), executor, limits)
                if limits.steps:
                    more = replace(limits, trials=len(self.trials) + TRAINED)
                    missed = [t for t in self.trials if [e.limit for e in self._excesses(t)] == ["drop"]]
                    self._follow(training(question, missed, self.best()), executor, more)
                self._say_what_is_unsure()
                self._say_obstacles(question)
        except KeyboardInterrupt:
            self.interrupted = True
            self.say("interrupted; the best so far is taken")

    def _follow(self, tree: Round, executor: Executor, limits: Limits) -> None:
        """Run what a tree proposes, until it is done or a limit is reached."""
        proposed: Sequence[Configuration] | None = next(tree, None)
        while proposed is not None:
            late = time.monotonic() - self._start >= limits.seconds
            room = 0 if late else limits.trials - len(self.trials)
            taken = list(proposed)[:room]
            found = self._batch(taken, executor)
            if not room or len(taken) < len(proposed):
                spent = f"{limits.seconds:g} seconds" if late else counted(limits.trials, "trial")
                self.say(f"stopped after {spent}")
                return
            try:
                proposed = tree.send(found)
            except StopIteration:
                proposed = None

    def _announce(self) -> None:
        score, count = self.judge.float_score, len(self.judge.part)
        limit = "" if math.isinf(self.allowed) else f"; at most {self.scale.amount(self.allowed)} may be lost"
        metric = self.judge.metric
        steering = f" on {count} samples that steer" if metric.splits else ""
        what = f"{self.scale.metric} {score:.6g}{steering}"
        self.say(f"float: {what}, {len(self.workpiece.model):,} bytes{limit}")
        if metric is TOP1 and score <= most_frequent(self.judge.part.truth):
            self.say(
                "that is no better than one class for all of them; are these the labels of these samples, in order?"
            )
        if self.times and target_named(self.workpiece.target).tool is not None:
            self.say(f"times are those of LiteRT on this machine, not of {self.workpiece.target}")
        if metric.point != 1 and 0 < self.allowed < 1 / count:
            self.say(
                f"{count} samples are too few for this budget: a single one is {self.scale.amount(1 / count)}; "
                f"{2 * math.ceil(1 / self.allowed)} in all would show a difference, more would be better"
            )

    def _say_what_is_unsure(self) -> None:
        """Report whether the samples can distinguish the budget from chance, by the standard error of what was
        measured, and how many would suffice: the error decreases with the square root of their number."""
        chosen, count = self.best() or self._closest(), len(self.judge.part)
        error = math.nan if chosen is None or chosen.drop is None else chosen.drop.error
        if 0 < self.allowed < error:
            needed = 2 * math.ceil(count * (error / self.allowed) ** 2)
            self.say(
                f"{count} samples that steer are too few to tell this budget from chance: the standard error is "
                f"{self.scale.amount(error)}; about {needed:,} in all would do"
            )

    def _say_obstacles(self, question: Question) -> None:
        """If no model meets the budget, report which layers prevent it."""
        closest = None if self.best() is not None else self._closest()
        if closest is None:
            return
        first = max(self._excesses(closest), key=lambda excess: excess.ratio)

        def score(outcome: Outcome) -> Drop:
            return self.judge.drop(outcome.outputs, outcome.content)

        for line in obstacles(question, self.workpiece, first.limit, score, self.scale.points):
            self.say(line)

    def _question(self, steps: int) -> Question:
        bench = self.workpiece.bench(self.workpiece.rows)
        piece = self.workpiece
        aim = Aim(self.objective, self.budget.size, self.objective == "front" or not math.isinf(self.allowed))
        measured = None if self._store is None else self._store.measurements(self._input_key)
        return Question(bench, piece.calibrated, target_named(piece.target), aim, self.say, steps, measured)

    def _batch(self, candidates: Sequence[Configuration], executor: Executor) -> list[Trial]:
        """Return trials of candidates, in order; stored ones are not repeated."""
        before, waiting = len(self.trials), [c.label for c in candidates]
        found = self._stored(candidates)
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
                while waiting and waiting[0] in found and not self.times:  # latencies are measured side by side
                    self._take([found[waiting.pop(0)]])
        except KeyboardInterrupt:
            self._take([found[label] for label in waiting if label in found])
            raise
        rest = [found[label] for label in waiting]
        self._take(self._timed(rest) if self.times else rest)
        return self.trials[before:]

    def _stored(self, candidates: Sequence[Configuration]) -> dict[str, Trial]:
        if self._store is None:
            return {}
        kept = {c.label: self._store.find(self._key(c), c) for c in candidates}
        return {label: trial for label, trial in kept.items() if trial is not None}

    def _take(self, trials: Sequence[Trial]) -> None:
        """Judge trials by the budget, and report them."""
        for trial in trials:
            over = self._excesses(trial)
            judged = replace(trial, within=not over, used=used_drop(trial, self.allowed))
            self.trials.append(judged)
            self.say(trial_line(judged, self.baseline, self.scale, [excess.text for excess in over]))

    def _scored(self, candidate: Configuration, outcome: Outcome) -> Trial:
        if outcome.refusal:
            return Trial(candidate, seconds=outcome.seconds, refusal=outcome.refusal)
        try:
            drop = self.judge.drop(outcome.outputs, outcome.content)
        except InvalidRecipe as error:  # the user's metric, for which this model is of no use
            return Trial(candidate, seconds=outcome.seconds, refusal=str(error))
        return Trial(candidate, len(outcome.content), drop, outcome.content, outcome.tool, outcome.seconds)

    def _excesses(self, trial: Trial) -> tuple[Excess, ...]:
        return tuple(excesses(trial, self.budget, self.allowed, self.scale.point))

    @cached_property
    def _input_key(self) -> str:
        from importlib.metadata import version

        piece, metric = self.workpiece, self.judge.metric
        versions = (__version__, version("ai-edge-litert"), version("numpy"))
        shared = digest(piece.model, piece.calibration, piece.target, str(piece.settings), versions)
        return digest(shared, self.judge.part.digest(), metric.name, metric.higher_is_better, metric.source())

    def _key(self, candidate: Configuration) -> str:
        return digest(self._input_key, candidate.rules, candidate.effort, _training(candidate.steps))

    def _timed(self, trials: Sequence[Trial], again: bool = False) -> list[Trial]:
        """Return trials with latencies, measured relative to the float model."""
        contents = {t.label: t.content for t in trials if t.content and not t.candidate.is_float}
        measure = self._stopwatch.timed_again if again else self._stopwatch.timed
        seconds: dict[str, float | None] = {**measure(contents)} if contents else {}
        own = self._stopwatch.seconds
        self.baseline = replace(self.baseline, latency=own)
        seconds |= {t.label: own for t in trials if t.candidate.is_float}
        return [replace(t, latency=seconds.get(t.label)) for t in trials]

    # Choosing the result.

    def best(self) -> Trial | None:
        """Return the best trial that meets the budget, and not by chance; the float model, if nothing is clearly
        faster."""
        able = [t for t in self.trials if t.within and not self._is_luck(t)]
        own = self.baseline.latency if self.objective == "fastest" else None
        if own is not None and any(t.candidate.is_float for t in able):
            able = [t for t in able if t.candidate.is_float or (t.latency is not None and t.latency < CLEARLY * own)]
        return min(able, key=self._rank, default=None)

    def _is_luck(self, trial: Trial) -> bool:
        """Whether a more careful position on the same path loses too much."""
        own = trial.candidate
        before = (t for t in self.trials if own.path and t.candidate.path == own.path and t.candidate.step < own.step)
        return any(t.used > 1 for t in before)

    def _rank(self, trial: Trial) -> tuple[float, ...]:
        drop = math.inf if trial.drop is None else trial.drop.value
        if self.objective == "fastest":
            cycles = None if trial.tool is None else trial.tool.cycles  # the device tool's figures take precedence
            speed = trial.latency if cycles is None else cycles
            return (math.inf if speed is None else speed, trial.size, drop)
        # Without a limit on the loss, the model that loses least is wanted, not the one that loses everything.
        return (drop, trial.size) if math.isinf(self.allowed) else (trial.size, drop)

    def _closest(self) -> Trial | None:
        """Return the trial that exceeds the limits least, and of these the one that loses least, if none meets the
        budget."""

        def beyond(trial: Trial) -> tuple[float, float]:
            drop = math.inf if trial.drop is None else trial.drop.value
            return max((excess.ratio for excess in self._excesses(trial)), default=1.0), drop

        return min((t for t in self.trials if t.drop is not None), key=beyond, default=None)

    def result(self, last: Judge | None) -> Tuned:
        """Return the result, evaluated on the samples that did not guide the search."""
        if self.objective == "fastest" and not self.interrupted:
            self._time_finalists()
        for trial in self.trials:
            if trial.within and self._is_luck(trial):
                self.say(
                    f"{trial.label} is not taken: what is more careful on its path is over budget, so this is luck"
                )
        chosen = self.best() or self._closest()
        final = None
        if chosen is not None and last is not None:
            outputs = self.workpiece.outputs(chosen.content, last.part.rows)
            final = Final(last.drop(outputs, chosen.content), self.allowed)
        if agreement := self._agreement():
            self.say(agreement)
        self.say(self._verdict(chosen, final))
        return Tuned(
            self.budget,
            self.objective,
            self.scale,
            self.allowed,
            self.baseline,
            trials=tuple(self.trials),
            chosen=chosen,
            final=final,
            lines=tuple(self.lines),
            limit=self.workpiece.settings.limit,
            interrupted=self.interrupted,
        )

    def _agreement(self) -> str:
        """Return how far the order of the models by the metric is that by the measure of error; empty if these are the
        same, or too few are known."""
        known = [(t.drop.snr, -t.drop.value) for t in self.trials if t.drop is not None and t.drop.snr is not None]
        if self.judge.metric is SNR or len(known) < FEWEST_ORDERED or len({drop for _, drop in known}) < 2:
            return ""
        correlation = rank_correlation(*zip(*known, strict=True))
        order = f"{correlation:.2f} (1 is the same order)"
        return f"rank correlation of {self.scale.metric} and the error of the outputs over these models: {order}"

    def _time_finalists(self) -> None:
        """Time the fastest models again; those slower than the float model are dropped."""
        able = sorted((t for t in self.trials if t.within and not t.candidate.is_float), key=self._rank)
        timed = {t.label: t for t in self._timed(able[:FINALISTS], again=True)} if able else {}
        self.trials = [timed.get(t.label, t) for t in self.trials]

    def _verdict(self, chosen: Trial | None, final: Final | None) -> str:
        if chosen is None and not self.trials:
            return f"nothing was tried {'before that' if self.interrupted else 'in the time that was given'}"
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


def _training(steps: int) -> tuple[object, ...]:
    """Return what distinguishes trained models."""
    if not steps:
        return ()
    from ..train.backend import backend_versions

    return steps, *backend_versions()
