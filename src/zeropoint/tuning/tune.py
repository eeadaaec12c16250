"""The public function `tune`: a model, samples and a budget in; the best model within it out, with all trials."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from ..bench.errors import compared_outputs
from ..calibration import Settings
from ..errors import InvalidRecipe, InvalidSample, argument, shortening_names
from ..files import PathLike
from ..graph.model import Model
from ..graph.names import short_names
from ..ops import OPS, OpSpec
from ..ops.check import check_runnable
from ..runtime import time_limit, trusting
from ..runtime.device_tools import require_reported
from ..sources.data import DataSource, read_labels, samples_from
from ..sources.models import ModelSource, load
from ..sources.ports import entry
from ..sources.samples import Samples, iterate, row_list
from ..targets import CPU, Target, target_named
from ..tflite import to_bytes
from ..train import start_keras
from .budget import OBJECTIVES, Budget, Objective
from .evaluation import EvaluationSet, Judge, evaluation_set
from .executor import executor
from .metric import SNR, Metric, chosen_metric
from .result import Tuned
from .search import Limits, Progress, Search
from .store import Store
from .trial import Workpiece

MOST_CALIBRATION = 256
"""Maximum number of calibration samples if the same data are used for evaluation."""


@dataclass(frozen=True)
class SearchSettings:
    """How long to search, and where.

    Attributes:
        trials: The maximum number of models to score.
        seconds: No trial is started after this time.
        store: A folder that stores trials, so that the same search resumes where it ended.
        workers: The number of processes on this machine.
        on: A Ray cluster to run trials on: "ray", or its address.
        allow_training: Train the best few models that lose too much, on the calibration samples; needs Keras. These
            come in addition to `trials`.
        training_steps: The number of steps to train each of them.
    """

    trials: int = 20
    seconds: float | None = None
    store: PathLike | None = None
    workers: int = 1
    on: str | None = None
    allow_training: bool = False
    training_steps: int = 500

    def __post_init__(self) -> None:
        for name, value in (("trials", self.trials), ("training steps", self.training_steps)):
            if value < 1:
                raise InvalidRecipe(f"{name} must be at least 1, not {value}")

    @property
    def limits(self) -> Limits:
        seconds, steps = math.inf if self.seconds is None else self.seconds, self.training_steps
        return Limits(self.trials, seconds, steps if self.allow_training else 0)


def tune(
    model: ModelSource,
    data: DataSource,
    *,
    budget: Budget,
    evaluation: DataSource | None = None,
    labels: Any = None,
    metric: str | Callable[..., float] | Metric | None = None,
    lower_is_better: bool = False,
    objective: Objective = "smallest",
    target: Target | str | None = None,
    settings: Settings | None = None,
    search: SearchSettings | None = None,
    progress: Progress | None = None,
    ops: Mapping[str, OpSpec] = OPS,
    trusted: bool = True,
) -> Tuned:
    """Find the smallest or fastest version of a float model within a budget.

    One half of the evaluation samples guides the search; the final score is measured once, on the other half.

    Args:
        model: The float model, as for `quantize`.
        data: Calibration samples, or the path of a file or folder that holds them.
        budget: What the model may lose and cost.
        evaluation: Evaluation samples; by default, the samples of `data` that are not used for calibration.
        labels: The class of each evaluation sample, or whatever else `metric` takes; or the path of an .npy.
        metric: "top1", "top5", "agreement" (with the float model's classes) or "snr" (of the outputs, in dB); a
            function of (outputs, labels) or of `model`, the path of a .tflite; or "file.py:function". By default "top1"
            with labels, "agreement" for classifiers, otherwise "snr".
        lower_is_better: Whether a lower score of your own metric is better.
        objective: "smallest", "fastest", or "front" to measure size and latency of all models.
        target: What the model is made for, as in `quantize`.
        settings: Settings of the calibration.
        search: How long to search, and where.
        progress: Called as the search proceeds.
        ops: The op table, if not the package's own; only without `workers`, `on` and `store` in `search`.
        trusted: If false, the model runs in a child process, so that a damaged or hostile file cannot crash or hang
            this one.

    Returns:
        The best model with its recipe, the Pareto front, and all trials.
    """
    if objective not in OBJECTIVES:
        raise InvalidRecipe(f"unknown objective {objective!r}; choose {', '.join(OBJECTIVES)}")
    loaded, made_for, search = load(model), _target(target), search or SearchSettings()
    check_runnable(loaded)
    _require_measurable(budget, made_for)
    if ops is not OPS and (search.workers > 1 or search.on is not None or search.store is not None):
        raise InvalidRecipe("trials with a custom op table can be neither stored nor sent to other processes")
    if search.allow_training:
        start_keras()
    where = entry(loaded)
    labels = read_labels(Path(labels)) if isinstance(labels, str | os.PathLike) else labels
    scoring = None if evaluation is None else samples_from(evaluation, where)
    with trusting(trusted), shortening_names(short_names(loaded)):
        task = _Task(loaded, settings or Settings(), made_for.name, ops)
        workpiece, scored = task.shared(samples_from(data, where), scoring, labels)
        chosen = chosen_metric(metric, labels is not None, _has_classes(loaded, ops), lower_is_better)
        if chosen is SNR and budget.max_drop is not None:
            raise InvalidRecipe(
                "the SNR of the float model against itself is infinite, so no drop can be measured; set a minimum "
                f"in dB with {argument('min_metric', 20)}, or give labels or a metric of your own"
            )
        return _Tuning(workpiece, scored, chosen, budget, objective, search).run(progress)


def _require_measurable(budget: Budget, target: Target) -> None:
    """Raise for limits on figures that the target's tool does not report."""
    if budget.max_ram is not None:
        require_reported(target, "ram")
    if budget.max_cycles is not None:
        require_reported(target, "cycles")


def _target(asked: Target | str | None) -> Target:
    if isinstance(asked, Target):
        return target_named(asked.name)
    return CPU if asked is None else target_named(asked)


def _has_classes(model: Model, ops: Mapping[str, OpSpec]) -> bool:
    return any(c.decides == "row" for c in compared_outputs(entry(model).graph, ops))


@dataclass(frozen=True)
class _Task:
    """A model to be tuned."""

    model: Model
    settings: Settings
    target: str
    ops: Mapping[str, OpSpec]

    def shared(self, data: Samples, evaluation: Samples | None, labels: Any) -> tuple[Workpiece, EvaluationSet]:
        """Return what trials need, still without rows, and the evaluation samples."""
        settings, where = self.settings, entry(self.model)
        if evaluation is not None:
            calibration = list(islice(iterate(data), None if settings.limit is None else 2 * settings.limit + 8))
            found = row_list(evaluation, where)
        else:
            samples = list(iterate(data))
            limit = settings.limit or min(MOST_CALIBRATION, len(samples) // 2)
            # Calibration holds back one in eight samples and reads further ones instead.
            used = limit + limit // 7 + 1
            settings, calibration = replace(settings, limit=limit), samples[:used]
            found = row_list(samples[used:], where)
            labels = None if labels is None else labels[used:]
        if not calibration:
            raise InvalidSample("no samples were given to calibrate on")
        limited = Workpiece(to_bytes(self.model), calibration, (), self.target, settings, time_limit(), self.ops)
        return limited, evaluation_set(found, labels)


@dataclass(frozen=True)
class _Tuning:
    """A configured search: what is checked before any model is made, and what is evaluated at the end."""

    workpiece: Workpiece
    scored: EvaluationSet
    metric: Metric
    budget: Budget
    objective: Objective
    settings: SearchSettings

    def run(self, progress: Progress | None) -> Tuned:
        in_sequence = self.workpiece.settings.in_sequence(entry(self.workpiece.loaded).graph)
        steering, final = self.scored.split(in_sequence) if self.metric.splits else (self.scored, None)
        piece = replace(self.workpiece, rows=steering.rows)
        judge, last = self._judge(steering), None if final is None else self._judge(final)
        for each in (judge, last):
            if each is not None:  # a metric that fails on the last part would be noticed after all the work
                each.require()
        allowed = self.budget.allowed_drop(judge.float_score, self.metric.point, self.metric.higher_is_better)
        with executor(piece, self.settings.on, self.settings.workers) as carrying_out:
            store = None if self.settings.store is None else Store.at(self.settings.store)
            search = Search(piece, judge, self.budget, self.objective, allowed, store, progress)
            search.run(carrying_out, self.settings.limits)
        return search.result(last)

    def _judge(self, part: EvaluationSet) -> Judge:
        exact = self.workpiece.outputs(self.workpiece.model, part.rows)
        return Judge(self.metric, part, exact, self.workpiece.model)
