"""Quantizes one model by one request: plan it, correct it, build it, and check that LiteRT runs it.

Given data, `search` looks for the candidate whose outputs are closest to the float model's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from .. import __version__
from ..bench.bench import Bench
from ..bench.errors import decibels, snr_text
from ..bench.loud_split import LoudSplit
from ..bench.op_errors import OpError, TracedSamples
from ..bench.sample_checks import LOUD_CHECK, SAMPLE_CAUSES, check_samples
from ..bench.verdict import BETTER, UNKNOWN, Judgement, Verdict
from ..calibration import Settings, Stats
from ..calibration.collect import Progress, in_sequence_note, never_used, unknown_states
from ..display import Displayed, counted
from ..errors import MissingExtra, UnsupportedOp, argument
from ..files import PathLike
from ..graph.edit import with_written_ranges
from ..graph.model import Model
from ..graph.query import constants, tensor_keys
from ..ops import OPS, OpSpec
from ..ops.check import check_runnable
from ..parallel import cached_property, single_threaded_blas
from ..plan.fit import placed
from ..plan.match import TargetAnswers, other_weight_notes
from ..plan.plan import Plan, Planned, Repair, Skipped
from ..plan.prepared import prepare_model, require_float_part, with_matched_rules
from ..plan.request import FALLBACK, Interface, Request
from ..plan.rewrite import Encoder, build
from ..plan.saved import save_plan
from ..recipe import EFFORTS, preset, reaches
from ..recipe_files import plain_rules
from ..runtime import require_runnable, time_limit
from ..runtime.device_tools import ToolReport, ask_tool
from ..sources.ports import entries, entry_graphs
from ..sources.samples import Samples
from ..targets import CPU, INTEGER, Check, Target, check_model
from ..tflite.provenance import Provenance, provenance, recorded
from ..tflite.write import save, to_bytes
from .bias_correction import plan_and_correct
from .candidate import Candidate, Stage, no_progress
from .drawback import Drawback, SourceModel, Weighing, drawback_of
from .made_up_inputs import never_further_off
from .mixed_precision import narrow_layers, weight_errors, worth_widening
from .rounding_steps import require_learning, rounded_for_all_samples
from .search import MOST_JUDGED, StepRecord, StepSearch, judged_samples
from .steps import WITHOUT_LOUD
from .without_data import with_chosen_bits


@dataclass(frozen=True, repr=False)
class Result(Displayed):
    """The quantized model with the plans it was made by, one for each graph that was changed.

    `prepared` is the float model that the plans are for, `stats` what its ranges come from, `unmatched` the names of
    given ranges that it has no tensors for. `verdict` says whether the model agrees with the float one. `ops` is the
    op table it was made with, `origin` the model that the user gave.
    """

    model: Model
    plans: tuple[Plan, ...]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    steps: tuple[StepRecord, ...] = ()
    traced: TracedSamples | None = field(default=None, repr=False)
    prepared: Model | None = None
    stats: Stats | None = None
    verdict: Verdict = UNKNOWN
    target: Target = INTEGER
    tool: ToolReport | None = None
    unmatched: tuple[str, ...] = ()
    ops: Mapping[str, OpSpec] = field(default_factory=lambda: OPS, repr=False)
    origin: SourceModel | None = field(default=None, repr=False)

    @property
    def check(self) -> Check:
        """Where every op of the model runs on the target."""
        return check_model(self.model, self.target, self.ops)

    @cached_property
    def worst(self) -> tuple[OpError, ...]:
        """The ops that add most to the error, if there were samples; computed when first accessed."""
        if self.traced is None or self.prepared is None:
            return ()
        return self.traced.worst_ops(self.prepared, self.model)

    @cached_property
    def drawback(self) -> Drawback | None:
        """What is worse than in the model it was made from, if it is larger or slower than that. Computed when first
        accessed, because it takes a few runs of both models: who only saves the result does not wait for them."""
        if self.origin is None:
            return None
        source = self.origin.model

        def of_weights(mode: str) -> Model:
            return run(source, Request(preset(mode), effort="quick", ops=self.ops, target=CPU)).model

        return drawback_of(Weighing(self.origin, self.model, self.check), of_weights)

    def from_file_of(self, size: int | None) -> Result:
        """Return the result with the size of the file that its model was read from."""
        return self if self.origin is None else replace(self, origin=replace(self.origin, file_bytes=size))

    @property
    def plan(self) -> Plan:
        return self.plans[0]

    @property
    def planned(self) -> Planned:
        """The plans with the model that they are for."""
        assert self.prepared is not None
        return Planned(self.prepared, self.plans)

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Every op that stayed float, with the reason."""
        return tuple(s for plan in self.plans for s in plan.skipped)

    @property
    def repairs(self) -> tuple[Repair, ...]:
        return tuple(r for plan in self.plans for r in plan.repairs)

    @property
    def given(self) -> dict[str, str]:
        """Tensors whose parameters were given, by name, and who gave them."""
        names = {} if self.prepared is None else tensor_keys(self.prepared)
        return {names[tensor]: text for plan in self.plans for tensor, text in plan.given.items()}

    def save(self, path: PathLike, *, overwrite: bool = False, write_ranges: bool = False) -> int:
        """Write the model, completely or not at all; return the file's size. `write_ranges` adds minima and maxima for
        viewers, which no runtime needs."""
        model = with_written_ranges(self.model) if write_ranges else self.model
        return save(model, path, overwrite=overwrite)

    def save_plan(self, path: PathLike, *, overwrite: bool = False) -> None:
        """Write the plans as JSON; `zeropoint.plan.load_plan` reads them again, for the `prepared` model."""
        save_plan(self.planned, path, overwrite=overwrite)


def plan(model: Model, request: Request) -> Planned:
    """Plan `model`, which is not changed."""
    return plan_and_correct(prepare_model(model, request), request)


def run(model: Model, request: Request) -> Result:
    """Quantize `model`, which is not changed."""
    candidate = Candidate(prepare_model(model, request), request)
    layers = [] if request.effort == "quick" else narrow_layers(candidate.planned, request.recipe)
    widening = worth_widening(weight_errors(layers, candidate.planned, request.ops))
    if widening is None:
        return carry_out(candidate.planned, request, encoder=candidate.encoder)
    candidate = candidate.widened(widening)
    result = carry_out(candidate.planned, candidate.request, encoder=candidate.encoder)
    return replace(result, notes=(*result.notes, widening.text()))


@single_threaded_blas()
def run_without_data(model: Model, request: Request) -> Result:
    """Quantize without samples, with notes on what could not be done for that reason."""
    check_runnable(model)
    request = with_matched_rules(model, request)
    request, measured = _measured(model, request)
    result = ask_target(_with_states(_run_unmeasured(model, request), model, request))
    origin = SourceModel(model, time_limit=time_limit())
    return replace(result, notes=(*result.notes, *measured, *_left_out(request)), origin=origin)


def _run_unmeasured(model: Model, request: Request) -> Result:
    """Quantize without samples; if only weights are quantized, with 8 bits, error-cancelling rounding has to prove
    itself; with fewer, the treatment of each layer is decided on synthetic inputs."""
    only_weights = not request.recipe.has_integer_ops and request.stats is None and request.effort != "quick"
    if only_weights and request.recipe.least_bits < 8:
        candidate, notes = with_chosen_bits(Candidate(prepare_model(model, request), request))
        result = carry_out(candidate.planned, candidate.request, encoder=candidate.encoder)
        return replace(result, notes=(*result.notes, *notes))
    corrected = run(model, request)
    changes_weights = any(plan.constants.values for plan in corrected.plans)
    if not only_weights or not changes_weights:
        return corrected
    nearest = run(model, replace(request, effort="quick"))
    if never_further_off(model, corrected.model, nearest.model, request.ops):
        return corrected
    note = f"nearest rounding: cancelling errors did not help on all generated inputs; {argument('data')} would decide"
    return replace(nearest, notes=(*nearest.notes, note))


def _measured(model: Model, request: Request) -> tuple[Request, tuple[str, ...]]:
    """Return the request for the fastest placement on this machine, if requested, and what was measured."""
    if not request.measure:
        return request, ()
    from .measured_target import measured_request  # what times models is rarely needed

    found, note = measured_request(model, request)
    return found, (note,)


def _left_out(request: Request) -> Iterator[str]:
    effort, method = request.recipe.highest_effort(request.effort), request.range_method
    extremes_only = request.stats is not None and not request.stats.has_histograms
    if extremes_only and request.recipe.has_integer_ops and method not in ("minmax", "average"):
        yield f"ranges by minmax: {method} needs histograms, which the statistics lack"
    if effort == "quick" or not request.recipe.rounds_weights:
        return
    if request.stats is None or extremes_only:
        sources = f"{argument('data')}, or {argument('stats')} with histograms"
        yield f"biases are not corrected: that needs the means of activations ({sources})"
    if reaches(effort, "high"):
        yield (
            f"no compensated rounding, and no choice by the error of the outputs: {effort} effort needs data "
            f"({argument('data')})"
        )
    elif request.chooses_ranges and not extremes_only:
        yield f"ranges by {FALLBACK}: choosing by the error of the outputs needs data ({argument('data')})"


def carry_out(planned: Planned, request: Request, *, trained: bool = False, encoder: Encoder | None = None) -> Result:
    """Build the planned model, and check that LiteRT runs it. `encoder` has integers that are already known."""
    ops = [op for graph in planned.model.graphs for op in graph.ops]
    warnings = [f"no op matches the rule {rule}" for rule in request.recipe.unmatched(ops)]
    if not any(plan.does_anything for plan in planned.plans):
        warnings.append("nothing was quantized")
    else:
        planned = replace(planned, model=_with_provenance(planned.model, request, trained))
    planned = placed(planned, request.ops, request.target)
    made = build(planned, request.ops, encoder)
    _require_taken(check_model(made, request.target, request.ops))
    require_runnable(made)
    notes = (*planned.notes, *other_weight_notes(planned.plans, request))
    result = Result(made, planned.plans, tuple(warnings), notes, prepared=planned.model, stats=request.stats)
    return replace(result, target=request.target, unmatched=request.ranges.unmatched, ops=request.ops)


def _with_provenance(model: Model, request: Request, trained: bool) -> Model:
    """Return the prepared model with a record in its metadata of how it is made, unless nothing is to be recorded."""
    if not request.record:
        return recorded(model, None)
    settings: dict[str, object] = {"target": request.target.name, "range": request.method, "effort": request.effort}
    rules = plain_rules(request.recipe)
    what = {"mode": request.recipe.rules[0].scheme.label} if len(rules) == 1 else {"rules": rules}
    settings = {**what, **settings, **({"trained": True} if trained else {})}
    return recorded(model, replace(provenance(model) or Provenance(), version=__version__, settings=settings))


def ask_target(result: Result) -> Result:
    """Return the result with the report of the target's own tool; raises if that refuses the model."""
    if result.target.tool is None:
        return result
    try:
        return replace(result, tool=ask_tool(result.target, to_bytes(result.model)))
    except MissingExtra as missing:
        return replace(result, notes=(*result.notes, f"the tool of {result.target.name} was not run: {missing}"))


def _require_taken(check: Check) -> None:
    """Raise for ops that the target does not run at all."""
    if refused := check.having("refused"):
        raise UnsupportedOp(
            f"{check.target.name} refuses {counted(len(refused), 'op')}:",
            *(f"  {c.op.label} '{c.op.name}' {c.verdict.why}" for c in refused),
            "change the model, or make it for another target (`zeropoint targets` lists them)",
        )


@single_threaded_blas()
def quantize_on(
    model: Model,
    request: Request,
    data: Samples | Mapping[str, Samples],
    settings: Settings | None = None,
    progress: Progress | None = None,
    stage: Stage = no_progress,
) -> Result:
    """Calibrate on `data` and quantize; with standard effort and automatic ranges, in the way that works best."""
    request = accepted(model, request)
    TargetAnswers(request.target, request.ops).require_obeyed(request.recipe, model)
    judged = judged_for(request)
    bench = Bench(
        model,
        data,
        settings,
        judged=judged,
        holds_back=judged > 0,
        fits=reaches(request.recipe.highest_effort(request.effort), "high"),
        ops=request.ops,
        outputs=request.outputs,
        progress=progress,
    )
    result = ask_target(quantize_with(bench, request, stage))
    has_ranges = request.recipe.has_integer_ops
    findings = [found for found in check_samples(bench) if has_ranges or found.check != LOUD_CHECK.name]
    warnings = (*map(str, findings), *_left_without_samples(model, request, data), *result.warnings)
    notes = (*result.notes, *_use_of_samples(request))
    found = _judged(bench, result.model, request)
    if any(finding.check in SAMPLE_CAUSES for finding in findings):
        found = found.on_wrong_samples()
    origin = SourceModel(model, time_limit=time_limit())
    return replace(result, warnings=warnings, notes=notes, verdict=found, origin=origin)


def accepted(model: Model, request: Request) -> Request:
    """Return the request with its rules matched to the model; raises if it cannot be fulfilled on samples."""
    check_runnable(model)
    require_float_part(model, request.recipe, request.ops)
    request = with_matched_rules(model, request)
    if request.recipe.highest_effort(request.effort) == "max":
        require_learning()
    return request


def judged_for(request: Request) -> int:
    """Return the maximum number of samples on which candidates are compared; 0 if there is nothing to choose."""
    return MOST_JUDGED if _searches(request) else 0


def _judged(bench: Bench, made: Model, request: Request) -> Verdict:
    """Return the verdict on a model; if it computes with integers, beside the mode dynamic as users would get it."""
    judgement = Judgement.of(bench)
    found, error = judgement.verdict(made)
    has_weights = any(t.dtype.is_float for graph in bench.model.graphs for t in constants(graph))
    if not request.recipe.has_integer_ops or found.error is None or not has_weights:
        return found
    dynamic = Request(preset("dynamic"), effort=min(request.effort, "standard", key=EFFORTS.index), ops=request.ops)
    dynamic_model = _run_unmeasured(bench.model, replace(dynamic, target=CPU)).model
    if not judgement.may_be_better(dynamic_model, error):
        return found
    other, its = judgement.verdict(dynamic_model)
    return found.beside(other, its.beats(error, BETTER))


def _left_without_samples(model: Model, request: Request, data: Samples | Mapping[str, Samples]) -> Iterator[str]:
    """Yield a warning for each signature without samples."""
    where = {e.key: e.graph for e in entries(model)}
    given = {where.get(key) for key in data} if isinstance(data, Mapping) else set(where.values())
    for key, graph in where.items() if request.recipe.has_integer_ops else ():
        if graph not in given:
            yield (
                f"there are no samples for the signature '{key}': what only it runs has no ranges and stays float; "
                "in Python, data={signature: samples} takes samples for each"
            )


def _use_of_samples(request: Request) -> Iterator[str]:
    """Yield what samples are used for in modes without ranges of activations."""
    if request.recipe.has_integer_ops:
        return
    chosen = "biases were corrected with them, and ways to round the weights compared; " if _searches(request) else ""
    yield f"the samples: {chosen}the verdict is about them. This mode has no ranges of activations"


@single_threaded_blas()
def quantize_with(bench: Bench, request: Request, stage: Stage = no_progress) -> Result:
    """Quantize the model of `bench` using its samples."""
    start = time.perf_counter()
    request = replace(request, stats=bench.stats)
    calibration = StepRecord("calibration", time.perf_counter() - start)
    request, measured = _measured(bench.model, request)
    if not _searches(request) or not bench.is_single or not bench.compared:
        result = replace(run(bench.model, request), steps=(calibration,))
    else:
        effort = request.recipe.highest_effort(request.effort)
        search = StepSearch(bench.judging(judged_samples(bench, effort)), effort, stage, [calibration])
        result = _searched(search, Candidate(prepare_model(bench.model, request), request))
    result = replace(result, notes=(*measured, *result.notes))
    if bench.settings.keep_state is None and any(map(bench.settings.in_sequence, entry_graphs(bench.model))):
        result = replace(result, notes=(*result.notes, in_sequence_note()))
    return _with_states(result, bench.model, request)


def _with_states(result: Result, model: Model, request: Request) -> Result:
    """Return the result with a warning for each state whose range is not known."""
    if request.stats is None or not request.recipe.has_integer_ops:
        return result
    unknown = (key for key in unknown_states(model, request.stats) if key not in request.ranges.entries)
    return replace(result, warnings=(*result.warnings, *map(never_used, unknown)))


def _searches(request: Request) -> bool:
    """Whether several candidates are compared on the samples."""
    effort = request.recipe.highest_effort(request.effort)
    only_weights = not request.recipe.has_integer_ops and request.recipe.rounds_weights
    is_worth_it = request.chooses_ranges or only_weights or request.recipe.least_bits < 8
    return reaches(effort, "high") or (effort == "standard" and is_worth_it)


def _searched(search: StepSearch, first: Candidate) -> Result:
    """Search, then build only the best candidate with its own inputs and outputs, and try it in LiteRT."""
    found, bench = search.best(first), search.bench
    best = found.finished or rounded_for_all_samples(bench, found.candidate, search.effort)
    result = carry_out(best.planned, best.request, encoder=best.encoder)
    notes = [f"{best}; SNR of the outputs {snr_text(decibels(found.error))}, measured at {bench.where}"]
    if best.widening is not None:
        notes.append(best.widening.text(found.gains["mixed precision"]))
    split = bench.loud if first.request.chooses_ranges else None
    notes += [*_outcome_without_loud(split, best, found.gains), *search.notes]
    result = replace(result, notes=(*result.notes, *notes), steps=tuple(search.trials))
    if best.request.interface != Interface():
        return result
    return replace(result, traced=bench.traced)


def _outcome_without_loud(split: LoudSplit | None, best: Candidate, gains: Mapping[str, float]) -> Iterator[str]:
    """Yield what ranges without loud samples were worth, if there are any."""
    if split is None:
        return
    which, whose = split.loud.names, "" if split.has_all else f", those of {len(split.quiet)} others in memory,"
    if best.without_loud is not None:
        yield f"ranges without {which}{whose} were taken: that brought the outputs {gains[WITHOUT_LOUD]:.1f} dB closer"
    elif split.quiet_stats is not None:
        yield f"ranges with {which} were kept: with ranges of the others, the outputs came no closer"
    else:
        yield f"ranges without {which} could not be tried: too few of the other samples fit into memory"
