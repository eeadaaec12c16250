"""Why a quantized model is as far from the float model as it is, and what to do about it.

Numbers that look wrong suggest a cause. It becomes a finding when its fix, tried on the samples, brings the outputs
closer to the float model's; how much is the gain that findings are ordered by. So a healthy model has none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from ..bench.alignment import align_models
from ..bench.bench import Bench
from ..bench.errors import decibels
from ..bench.verdict import Verdict, verdict
from ..calibration import Settings, Stats
from ..comparison.compare import ComparisonOptions, Metric, compare_models, named
from ..comparison.values import Diagnosis, Finding, Remedy
from ..display import notebook_line
from ..errors import InvalidRecipe, argument
from ..files import PathLike
from ..graph.edit import only_signature
from ..graph.model import Model
from ..improve.pipeline import Result, quantize_with
from ..improve.steps import TRIED
from ..ops import OPS, OpSpec
from ..ops.check import check_runnable
from ..parallel import cached_property
from ..plan.request import Interface, RangeChoice, Request, WeightOptions, resolve_recipe, resolve_target
from ..recipe import Effort, Recipe
from ..recipe_files import plain_rules
from ..runtime import trusting
from ..sources.data import DataSource, samples_from
from ..sources.models import ModelSource, load
from ..sources.ports import entry
from ..targets import Target
from .causes import CAUSES, Stage
from .evidence import DiagnosisRequest, Fix, FixTrials, Hypothesis, ModelEvidence, affordable_samples, wide_share
from .sample_causes import with_sample_findings
from .scores import Scores
from .sensitive_ops import HEALTHY

COMPARED, MOST_SAMPLES = 32, 4096
"""Samples on which inner tensors are compared; and outputs, unless a limit is given."""

LEAST_GAIN = 1.0
"""In dB. What brings less is no cause."""

HIGH_EFFORT_ROOM = 0.5
"""The share of the time by which it may be exceeded before weights are no longer rounded with compensation."""


@dataclass(frozen=True)
class DiagnosisResult:
    """The diagnosis, with the model as it was and as the remedy makes it."""

    diagnosis: Diagnosis
    before: Model
    stats: Stats
    repaired: Result | None = None


def doctor(
    model: ModelSource,
    data: DataSource,
    *,
    quantized: ModelSource | None = None,
    calibration: DataSource | None = None,
    recipe: Recipe | PathLike | None = None,
    mode: str | None = None,
    range: RangeChoice = "auto",
    effort: Effort = "standard",
    target: Target | str | None = None,
    limit: int | None = None,
    signature: str | None = None,
    metric: Metric | None = None,
    seconds: float = 100.0,
    keep_state: bool | None = None,
    progress: Callable[[str], None] | None = None,
    ops: Mapping[str, OpSpec] = OPS,
    trusted: bool = True,
) -> Diagnosis:
    """What costs a quantized model its accuracy, with numbers and with a recipe that repairs it.

    `quantized` is the model in question; without it, one is made by `recipe` or `mode`, `range` and `effort`, as
    `quantize` does for `target`. `calibration` are the samples its ranges came from, if these are others than `data`.
    `metric` is a function of the outputs of all samples (for each a list of arrays) that gives a score. `seconds`
    limits the time for trying things out. `signature` is the one that samples are for, if the model has several.
    `keep_state` as in `compare`. `progress` is called with what is being done. `ops`: the op table, if it is to be
    another than the package's own. Models that are not `trusted` run in a child process, which they cannot escape from.
    """
    made = None if quantized is None else one_entry(load(quantized), signature)
    rules = resolve_recipe(mode, recipe, WeightOptions())
    wanted, progress = one_entry(load(model), signature), progress or notebook_line("doctor:")
    where = entry(wanted)
    own = None if calibration is None else samples_from(calibration, where)
    samples = samples_from(data, where)
    request = DiagnosisRequest(wanted, samples, made, own, rules, range, effort, limit, named(metric))
    request = replace(
        request, seconds=seconds, keep_state=keep_state, progress=progress or notebook_line("doctor:"), ops=ops
    )
    with trusting(trusted):
        return diagnose(replace(request, target=target_of(target, rules, made))).diagnosis


def one_entry(model: Model, signature: str | None) -> Model:
    """The part of a model that one of its signatures runs; all of it if none is named."""
    return model if signature is None else only_signature(model, str(entry(model, signature).key))


def target_of(asked: Target | str | None, recipe: Recipe, quantized: Model | None) -> Target:
    """What models are made for. One that was given is compared with others of its kind: integers wherever possible."""
    return resolve_target(asked, recipe, Interface(), strict=quantized is not None)


def diagnose(request: DiagnosisRequest) -> DiagnosisResult:
    """Find the causes, and build the model that their fixes ask for."""
    if not request.recipe.has_integer_ops:
        raise InvalidRecipe("the doctor looks at integer arithmetic; choose the mode int8 or int16x8")
    for given in (request.model, *filter(None, (request.quantized,))):
        check_runnable(given)
    request.report("measuring the float model")
    settings = Settings(keep_state=request.keep_state)
    most = request.limit or MOST_SAMPLES
    bench = Bench(request.model, request.data, replace(settings, limit=most), kept=most, ops=request.ops)
    calibration = None
    if request.calibration is not None:
        calibration = Bench(request.model, request.calibration, settings, ops=request.ops)
    made, quantization = request.quantized, None
    if made is None:
        request.report("quantizing as asked")
        quantization = _quantize(calibration or bench, request, request.recipe, request.range, request.effort)
        made = quantization.model
    request.report("comparing op by op")
    alignment = align_models(request.model, made)
    options = ComparisonOptions(min(COMPARED, len(bench.rows)), keep_state=request.keep_state, ops=request.ops)
    scores = Scores(bench, request.metric)
    compared = compare_models(request.model, made, bench.rows[: options.limit], options, alignment)
    comparison = scores.on_all_samples(compared, made)
    judged = bench.judging(affordable_samples(request.model, request.ops))
    trials = FixTrials(judged, request.recipe, time.perf_counter() + request.seconds, target=request.target)
    stats = None if calibration is None else calibration.stats
    evidence = ModelEvidence(request, made, comparison, alignment, trials, stats, quantization)
    judged_on = None if quantization is None or calibration is not None else False
    doctor = _Doctor(scores, evidence, replace(verdict(bench, made, bench.rows), held_back=judged_on))
    found = doctor.result()
    benches = {"data": bench} | ({} if calibration is None else {"calibration": calibration})
    return replace(found, diagnosis=with_sample_findings(found.diagnosis, benches))


def _quantize(bench: Bench, asked: DiagnosisRequest, recipe: Recipe, method: RangeChoice, effort: Effort) -> Result:
    """Quantize by what is measured already."""
    request = Request(recipe, method=method, effort=effort, ops=bench.ops, target=asked.target)
    return quantize_with(bench, request)


@dataclass
class _Doctor:
    """Tries fixes, and keeps account of what they bring."""

    scores: Scores
    evidence: ModelEvidence
    verdict: Verdict
    notes: list[str] = field(default_factory=list)
    fix: Fix = field(default_factory=Fix)

    @property
    def bench(self) -> Bench:
        return self.scores.bench

    @property
    def request(self) -> DiagnosisRequest:
        return self.evidence.request

    def result(self) -> DiagnosisResult:
        findings: list[Finding] = []
        if len(self.bench.rows) < self.bench.stats.samples:
            self.notes.append(f"{len(self.bench.rows)} of {self.bench.stats.samples} samples fit into memory")
        for stage in CAUSES:
            if self._is_due(stage, findings):
                findings += self._findings(stage)
        repaired, remedy = self._remedy(findings)
        findings.sort(key=lambda f: -math.inf if f.gain is None else f.gain, reverse=True)
        diagnosis = replace(self._diagnosis, findings=tuple(findings), remedy=remedy, notes=tuple(self.notes))
        return DiagnosisResult(diagnosis, self.evidence.made, self.bench.stats, repaired)

    @cached_property
    def _diagnosis(self) -> Diagnosis:
        return Diagnosis((), self.evidence.comparison, verdict=self.verdict)

    def _is_due(self, stage: Stage, findings: Sequence[Finding]) -> bool:
        """Whether the outputs are far enough off for the causes of this stage."""
        if stage == "rest":
            return not self._diagnosis.is_close and not any(f.gain is not None for f in findings)
        return stage == "speed" or not self._diagnosis.is_close or self.evidence.comparison.snr < HEALTHY + 10

    def _findings(self, stage: Stage) -> list[Finding]:
        """The causes of one stage that hold. What comes after is tried on top of their fixes."""
        found = []
        for find in CAUSES[stage]:
            if stage != "speed" and self.evidence.trials.is_late:
                self.notes.append(f"time ran out before everything was tried; allow more with {argument('seconds')}")
                break
            hypothesis = find(self.evidence)
            if hypothesis is not None and (proven := self._proven(find.__name__, hypothesis)) is not None:
                found.append(proven)
        found.sort(key=lambda pair: pair[0].gain or 0.0)
        # Where fixes disagree, the one that gains most counts.
        together = reduce(Fix.and_then, (fix for _, fix in found), Fix())
        if together != Fix():
            self.fix = self.fix.and_then(together)
            self.evidence = replace(self.evidence, trials=self.evidence.trials.after(together))
        return [finding for finding, _ in found]

    def _proven(self, code: str, hypothesis: Hypothesis) -> tuple[Finding, Fix] | None:
        """The finding with the best fix, unless that gains too little."""
        if hypothesis.is_choice and self._diagnosis.is_close:
            return None
        if not hypothesis.fixes or hypothesis.gain is not None:
            fix = next(iter(hypothesis.fixes), Fix())
            return hypothesis.finding(code, hypothesis.gain, fix, is_measured=False), fix
        self.request.report(f"trying: {hypothesis.title}")
        trials, without = self.evidence.trials, frozenset[int]()
        before = trials.error() if hypothesis.in_recipe else self._given_error
        others = {number for number, _ in self.bench.numbered_rows} - set(hypothesis.samples)
        if hypothesis.samples and others and self.evidence.calibration is None:
            without = frozenset(hypothesis.samples)
            before = trials.bench.error(self.evidence.made, without)
        errors = {fix: trials.error(fix, without) for fix in hypothesis.fixes}
        fix = min(errors, key=errors.__getitem__)
        gain = decibels(errors[fix]) - decibels(before)
        return None if gain < LEAST_GAIN else (hypothesis.finding(code, gain, fix, is_measured=True), fix)

    @cached_property
    def _given_error(self) -> float:
        return self.evidence.trials.bench.error(self.evidence.made)

    def _remedy(self, findings: Sequence[Finding]) -> tuple[Result | None, Remedy | None]:
        """The model with all fixes, through the whole of `quantize`; none if nothing was found that it could repair."""
        if not any(f.gain is not None for f in findings):
            return None, None
        request, scores = self.request, self.scores
        recipe = request.recipe.then(*self.fix.rules)
        before, built = scores.of(self.evidence.made), []
        for method, effort in self._ways():
            request.report(f"building the proposed model, range {method}, effort {effort}")
            result = _quantize(self.bench, request, recipe, method, effort)
            built.append((scores.of(result.model), result, {"range": method, "effort": effort}))
        after, result, options = max(built, key=lambda one: one[0].snr)
        if after.snr <= before.snr:
            self.notes.append(f"all fixes together do not help: {after.snr:.1f} dB after {before.snr:.1f} dB")
            return None, None
        moved = wide_share(result.model, request.ops) - wide_share(self.evidence.made, request.ops)
        return result, Remedy(plain_rules(recipe), options, before, after, max(0.0, moved), scores.float_metric)

    def _ways(self) -> Iterator[tuple[RangeChoice, Effort]]:
        """How to choose ranges and round weights: as asked, and as the fixes say where these go beyond it."""
        request = self.request
        yield request.range, request.effort
        method = self.fix.range
        if method is not None and method not in (request.range, *TRIED):
            yield method, request.effort
        late = self.evidence.trials.deadline + request.seconds * HIGH_EFFORT_ROOM
        if self.fix.effort == "high" and time.perf_counter() < late:
            yield request.range, "high"
