"""Finds out why a quantized model differs from the float model, and what to do about it.

Suspicious numbers suggest a cause. It becomes a finding if its fix, tried on the samples, brings the outputs closer to
the float model's; findings are sorted by that gain. So a healthy model has none.
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
from ..bench.judged_outputs import PLAIN, JudgedOutputs
from ..bench.verdict import Verdict, verdict
from ..calibration import Settings, Stats
from ..comparison.compare import ComparisonOptions, compare_models
from ..comparison.metrics import Metric, named
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
"""The number of samples on which intermediate tensors are compared; and outputs, unless a limit is given."""

LEAST_GAIN = 1.0
"""In dB. A fix that gains less does not confirm a cause."""

HIGH_EFFORT_ROOM = 0.5
"""The share by which the time limit may be exceeded before GPTQ is skipped."""


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
    outputs: JudgedOutputs | None = None,
    progress: Callable[[str], None] | None = None,
    ops: Mapping[str, OpSpec] = OPS,
    trusted: bool = True,
) -> Diagnosis:
    """Find out what costs a quantized model its accuracy, and propose a recipe that fixes it.

    Every finding is backed by a measurement: its fix was tried on the samples and brought the outputs closer to the
    float model's.

    Args:
        model: The float model.
        data: Samples, as for `calibrate`.
        quantized: The quantized model to examine; by default, one is made by `recipe` or `mode`, `range`, `effort` and
            `target`, as in `quantize`.
        calibration: The samples that its ranges came from, if not `data`.
        recipe: Rules that set the mode for each op, or the path of a recipe file.
        mode: "int8" (the default) or "int16x8".
        range: How ranges are chosen; "auto" tries several methods.
        effort: "quick", "standard" or "high".
        target: What the model is made for, as in `quantize`.
        limit: The maximum number of samples.
        signature: The signature to run, if the model has several.
        metric: A function that takes the outputs (a list of arrays for each sample) and returns a score.
        seconds: The time limit for trying fixes.
        keep_state: Whether each run starts from the state that the previous one left; by default decided from the
            model.
        outputs: What the outputs are (classes, points, mask ...) if that is not recognized, and how much each counts.
        progress: Called with a description of the current step.
        ops: The op table, if not the package's own.
        trusted: If false, models run in a child process, so that a damaged or hostile file cannot crash or hang this
            one.

    Returns:
        The findings, largest gain first, and the proposed recipe with the score measured with it.
    """
    made = None if quantized is None else one_entry(load(quantized), signature)
    rules = resolve_recipe(mode, recipe, WeightOptions())
    wanted, progress = one_entry(load(model), signature), progress or notebook_line("doctor:")
    where = entry(wanted)
    own = None if calibration is None else samples_from(calibration, where)
    samples = samples_from(data, where)
    request = DiagnosisRequest(wanted, samples, made, own, rules, range, effort, limit, named(metric))
    request = replace(request, seconds=seconds, keep_state=keep_state, progress=progress, ops=ops)
    request = replace(request, outputs=outputs or PLAIN)
    with trusting(trusted):
        return diagnose(replace(request, target=target_of(target, rules, made))).diagnosis


def one_entry(model: Model, signature: str | None) -> Model:
    """Return the part of a model that one of its signatures runs; the whole model if none is named."""
    return model if signature is None else only_signature(model, str(entry(model, signature).key))


def target_of(asked: Target | str | None, recipe: Recipe, quantized: Model | None) -> Target:
    """Return the target. A given quantized model is compared with fully integer versions."""
    return resolve_target(asked, recipe, Interface(), strict=quantized is not None)


def diagnose(request: DiagnosisRequest) -> DiagnosisResult:
    """Find the causes, and build the model that their fixes ask for."""
    if not request.recipe.has_integer_ops:
        raise InvalidRecipe("the doctor examines integer arithmetic; choose the mode int8 or int16x8")
    for given in (request.model, *filter(None, (request.quantized,))):
        check_runnable(given)
    request.report("measuring the float model")
    settings = Settings(keep_state=request.keep_state)
    most = request.limit or MOST_SAMPLES
    bench = Bench(
        request.model, request.data, replace(settings, limit=most), kept=most, ops=request.ops, outputs=request.outputs
    )
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
    options = replace(options, outputs=request.outputs)
    scores = Scores(bench, request.metric)
    compared = compare_models(request.model, made, bench.rows[: options.limit], options, alignment)
    comparison = scores.on_all_samples(compared, made)
    judged = bench.judging(affordable_samples(request.model, request.ops))
    trials = FixTrials(judged, request.recipe, time.perf_counter() + request.seconds, target=request.target)
    stats = None if calibration is None else calibration.stats
    evidence = ModelEvidence(request, made, comparison, alignment, trials, stats, quantization)
    judged_on = None if quantization is None or calibration is not None else False
    doctor = _Doctor(scores, evidence, replace(verdict(bench, made, on_all=True), held_back=judged_on))
    found = doctor.result()
    benches = {"data": bench} | ({} if calibration is None else {"calibration": calibration})
    return replace(found, diagnosis=with_sample_findings(found.diagnosis, benches))


def _quantize(bench: Bench, asked: DiagnosisRequest, recipe: Recipe, method: RangeChoice, effort: Effort) -> Result:
    """Quantize with the measurements that already exist."""
    request = Request(recipe, method=method, effort=effort, ops=bench.ops, target=asked.target, outputs=asked.outputs)
    return quantize_with(bench, request)


@dataclass
class _Doctor:
    """Tries fixes, and keeps track of what they gain."""

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
            self.notes.append(f"only {len(self.bench.rows)} of {self.bench.stats.samples} samples fit into memory")
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
        """Whether the outputs are far enough off to look for the causes of this stage."""
        if stage == "rest":
            return not self._diagnosis.is_close and not any(f.gain is not None for f in findings)
        return stage == "speed" or not self._diagnosis.is_close or self.evidence.comparison.snr < HEALTHY + 10

    def _findings(self, stage: Stage) -> list[Finding]:
        """Return the confirmed causes of one stage. Later stages are tried on top of their fixes."""
        found = []
        for find in CAUSES[stage]:
            if stage != "speed" and self.evidence.trials.is_late:
                self.notes.append(f"time ran out before everything was tried; allow more with {argument('seconds')}")
                break
            hypothesis = find(self.evidence)
            if hypothesis is not None and (proven := self._proven(find.__name__, hypothesis)) is not None:
                found.append(proven)
        found.sort(key=lambda pair: pair[0].gain or 0.0)
        # Where fixes conflict, the one with the largest gain wins.
        together = reduce(Fix.and_then, (fix for _, fix in found), Fix())
        if together != Fix():
            self.fix = self.fix.and_then(together)
            self.evidence = replace(self.evidence, trials=self.evidence.trials.after(together))
        return [finding for finding, _ in found]

    def _proven(self, code: str, hypothesis: Hypothesis) -> tuple[Finding, Fix] | None:
        """Return the finding with its best fix, unless that gains too little."""
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
        """Return the model with all fixes, made by `quantize` from scratch; none if no finding can be fixed by it."""
        if not any(f.gain is not None for f in findings):
            return None, None
        request, scores = self.request, self.scores
        recipe = request.recipe.then(*self.fix.rules)
        before, built = scores.of(self.evidence.made), []
        for method, effort in self._ways():
            request.report(f"building the proposed model, range {method}, effort {effort}")
            result = _quantize(self.bench, request, recipe, method, effort)
            built.append((scores.of(result.model), result, {"range": method, "effort": effort}))
        after, result, options = max(built, key=lambda one: one[0].rank)
        if after.rank <= before.rank:
            self.notes.append(f"all fixes together do not help: {after.rank:.4g} after {before.rank:.4g} {after.unit}")
            return None, None
        moved = wide_share(result.model, request.ops) - wide_share(self.evidence.made, request.ops)
        return result, Remedy(plain_rules(recipe), options, before, after, max(0.0, moved), scores.float_metric)

    def _ways(self) -> Iterator[tuple[RangeChoice, Effort]]:
        """Yield range methods and efforts to try: as requested, and as the fixes demand where these go further."""
        request = self.request
        yield request.range, request.effort
        method = self.fix.range
        if method is not None and method not in (request.range, *TRIED):
            yield method, request.effort
        late = self.evidence.trials.deadline + request.seconds * HIGH_EFFORT_ROOM
        if self.fix.effort == "high" and time.perf_counter() < late:
            yield request.range, "high"
