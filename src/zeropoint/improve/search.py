"""The loop over the steps: what is proposed is built and run, and kept if the outputs come closer to the float ones."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..bench.bench import JUDGED, Bench
from ..bench.errors import decibels
from ..calibration import Settings
from ..calibration.collect import Progress
from ..graph.model import Model
from ..plan.derive import Interface
from ..plan.planner import prepare_model, require_float_part
from ..plan.request import Request
from ..sources.samples import Samples
from .pipeline import Result, Trial, carry_out, run
from .steps import STEPS, Candidate, Lab, Stage, Step, no_progress

JUDGED_AT_HIGH_EFFORT = 64


def quantize_on(
    model: Model,
    request: Request,
    data: Samples | Mapping[str, Samples],
    settings: Settings | None = None,
    progress: Progress | None = None,
    stage: Stage = no_progress,
) -> Result:
    """Calibrate on `data` and quantize; with standard effort and automatic ranges, in the way that works best."""
    require_float_part(model, request.recipe, request.ops)
    judged = JUDGED_AT_HIGH_EFFORT if request.recipe.highest_effort(request.effort) == "high" else JUDGED
    return quantize_with(
        Bench(model, data, settings, judged=judged, ops=request.ops, progress=progress), request, stage
    )


def quantize_with(bench: Bench, request: Request, stage: Stage = no_progress) -> Result:
    """Quantize the model of `bench` by what its samples say."""
    effort = request.recipe.highest_effort(request.effort)
    start = time.perf_counter()
    request = replace(request, stats=bench.stats)
    calibration = Trial("calibration", time.perf_counter() - start)
    chooses = request.recipe.has_integer_ops and request.method == "auto"
    if effort == "quick" or not (effort == "high" or chooses) or not bench.is_single or not bench.compared:
        return replace(run(bench.model, request), steps=(calibration,))
    search = Search(Lab(bench, effort, bench.settings, stage), [calibration])
    return search.result(Candidate(prepare_model(bench.model, request), request))


@dataclass
class Search:
    """Goes from one candidate to the next better one."""

    lab: Lab
    trials: list[Trial] = field(default_factory=list)
    steps: Sequence[Step] = STEPS

    def result(self, first: Candidate) -> Result:
        """Only the best candidate is built with its own inputs and outputs, and tried in LiteRT."""
        best, error = self.best(first)
        result = carry_out(best.planned, best.request)
        note = f"{best}; signal-to-noise of the outputs {decibels(error):.1f} dB"
        result = replace(result, notes=(*result.notes, note), steps=tuple(self.trials))
        if best.request.interface != Interface():
            return result
        return replace(result, worst=self.lab.bench.worst_ops(result.model, best.prepared.model))

    def best(self, first: Candidate) -> tuple[Candidate, float]:
        best, error = first, math.inf
        chooses = first.request.recipe.has_integer_ops and first.request.method == "auto"
        if self.lab.effort == "high" and chooses:
            self._measure_baseline(first)
        for step in self.steps:
            if self.lab.effort in step.efforts and (chooses or not step.ranges):
                best, error = self._try(step, best, error)
        return best, error

    def _try(self, step: Step, best: Candidate, error: float) -> tuple[Candidate, float]:
        """The best candidate after `step`, with its error."""
        start, reached, before = time.perf_counter(), math.inf, error
        proposals = step.propose(self.lab, best)
        candidate = next(proposals, None)
        while candidate is not None:
            found = self.lab.bench.error(candidate.model())
            reached = min(reached, found)
            if found < error or before == math.inf == error:
                best, error = candidate, found
            try:
                candidate = proposals.send(best)
            except StopIteration:
                candidate = None
        if reached < math.inf or before == math.inf:
            self.trials.append(Trial(step.name, time.perf_counter() - start, reached, error < before))
        return best, error

    def _measure_baseline(self, first: Candidate) -> None:
        """What quick effort would give, for comparison."""
        start = time.perf_counter()
        quick = replace(first, request=replace(first.request, method="minmax", effort="quick"))
        error = self.lab.bench.error(quick.model())
        self.trials.append(Trial("nearest rounding, minmax ranges", time.perf_counter() - start, error))
