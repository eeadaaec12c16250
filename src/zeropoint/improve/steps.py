"""Accuracy steps as data: a name, the efforts at which each is tried, and what it proposes.

What makes an int8 model good cannot be decided one tensor at a time: the best clipping for a tensor may cost more
further on, and equalizing channels helps one network and not the next. So every step only proposes; the loop in
`search` runs what is proposed and keeps what brings the outputs closer to the float model's. A new step is a generator
and an entry in STEPS.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..bench.errors import decibels
from ..calibration import Grid, Method, Stats, TensorStats, choose_range
from ..calibration.collect import remeasure
from ..calibration.range_methods import Bounds
from ..graph.model import Model, Op, Tensor
from ..graph.query import fingerprint
from ..plan.planner import solved_ranges
from ..plan.prepared import Prepared
from ..recipe import Effort, Scheme, reaches
from ..targets import OpVerdict
from ..tflite.provenance import Provenance, provenance, recorded
from .candidate import Candidate, Lab, Proposals, Step
from .cross_layer_equalization import Equalized, equalize
from .dynamic_layers import layers_on_floats
from .gated_weights import with_gated_weights
from .island_steps import float_islands, wide_islands
from .range_choice import RangeTrials, affordable_samples
from .rounding_steps import compensated_rounding, mixed_precision, reconstruction

TRIED: tuple[Method, ...] = ("mse", "minmax")
"""Percentiles sometimes come closer to the float outputs, but no real model's score gained from trying them."""

COMPARED: tuple[Method, ...] = ("mse", "minmax", "percentile", "entropy")
"""Methods that are compared tensor by tensor."""

TRIAL_MACS: Mapping[Effort, float] = {"standard": 2e9, "high": 4e11}
"""The budget for that in multiply-accumulates, by effort."""

RANGE_PARTS = 8
"""Number of parts in which high effort chooses the ranges of a model that is too large for that."""

MEASURED_AGAIN = 48
"""Number of samples on which changed tensors are measured."""

OUTLIER_RATIO = 4.0
"""Ratio of the whole range to that of 99.99 % of the values from which the rest counts as outliers."""

OUTLIER_FACTORS = (1.0, 4.0, 8.0)
"""Multiples of the range of 99.99 % of the values that are tried."""

NOTICED = 0.1
"""A change in dB from which on other places to cut off are tried."""

CLOSE_ENOUGH = 25.0
"""SNR of the outputs in dB above which standard effort neither scales channels nor clips outliers. Real models that
gained from either had less than 20."""


def range_methods(lab: Lab, best: Candidate) -> Proposals:  # noqa: ARG001 - one signature for all steps
    """Propose the same range method for all tensors.

    If only weights are quantized, with 8 bits, chance decides by a few dB whether these corrections or nearest rounding
    bring the outputs of a model closer: both are measured.
    """
    request = best.request
    methods = TRIED if request.chooses_ranges else (request.method,)
    for method in methods:
        yield replace(best, request=replace(request, method=method))
    if not request.recipe.has_integer_ops and request.recipe.least_bits >= 8:
        yield replace(best, request=replace(request, effort="quick"))


def ranges_without_loud_samples(lab: Lab, best: Candidate) -> Proposals:
    """Propose ranges of the samples that are not far beyond the others.

    A few loud samples can leave all others a few steps of each range; or they are what matters. They may not be among
    those that judge, so what they lose has to be made up for by what the others gain.
    """
    split = lab.bench.loud
    if split is None or split.quiet_stats is None:
        return
    with_loud = split.error(lab.bench, best.model())
    for method in TRIED:
        request = replace(best.request, stats=split.quiet_stats, method=method)
        proposed = replace(best, request=request, without_loud=split.loud)
        if split.error(lab.bench, proposed.model()) < with_loud:
            yield proposed


def cross_layer_equalization(lab: Lab, best: Candidate) -> Proposals:
    """Propose tensors with scaled channels, so that they share one scale well."""
    request = best.request
    effort = request.recipe.highest_effort(request.effort)
    if not reaches(effort, "high") and decibels(lab.error) >= CLOSE_ENOUGH:
        return
    if request.stats is None or _has_given_ranges(best):
        return
    copied, twins = best.prepared.copied()
    copy, keys = copied.model, copied.keys
    equalized = equalize(copy, request.stats, request.ops, keys)
    if not equalized:
        return
    measured = _measured_again(lab, best, copy, (t for one in equalized for t in one.link.scaled))
    stats = _stats_of_edited(copy, request.stats, {keys[t]: found for t, found in measured.items()})
    packed = best.prepared.trained.packed
    kept = {twin: packed[t] for t, twin in twins.items() if t in packed and twin.buffer is t.buffer}
    model, verdicts = recorded(copy, _with_factors(copy, equalized)), _known_verdicts(best.prepared, copy)
    prepared = replace(copied, model=model, trained=replace(copied.trained, packed=kept), verdicts=verdicts)
    for method in dict.fromkeys((request.range_method, *TRIED[:1])):
        asked = replace(request, stats=stats, method=method)
        yield Candidate(prepared, asked, len(equalized), without_loud=best.without_loud)


def _has_given_ranges(candidate: Candidate) -> bool:
    """Whether ranges are given or trained, which apply to the tensors as they are. Inputs are not scaled."""
    prepared = candidate.prepared
    inputs = {prepared.keys[t] for graph in prepared.model.graphs for t in graph.inputs}
    return bool(candidate.request.ranges.entries.keys() - inputs) or prepared.trained.has_marks


def _known_verdicts(prepared: Prepared, copy: Model) -> dict[tuple[Op, Scheme], OpVerdict]:
    """Return what the target says about the ops of a copy: scaling channels changes nothing that matters to it."""
    pairs = zip(prepared.model.graphs, copy.graphs, strict=True)
    ops = {op: twin for old, new in pairs for op, twin in zip(old.ops, new.ops, strict=True)}
    return {(ops[op], scheme): known for (op, scheme), known in prepared.verdicts.items() if op in ops}


def gates_in_weights(lab: Lab, best: Candidate) -> Proposals:
    """Propose gates that multiply weights instead of pixels, for targets that are faster that way.

    Computed weights share one scale, and what they add up to has no bias to correct, so samples decide. Weights that
    were fitted to make up for other errors stay as they are.
    """
    request = best.request
    gated = None if best.refined is not None else with_gated_weights(best.prepared, best.planned, request)
    if gated is None or request.stats is None:
        return
    model = gated.prepared.model
    measured = _measured_again(lab, best, model, gated.added)
    known = (provenance(model) or Provenance()).without_counterparts(t.name for t in gated.added)
    keys = {**gated.prepared.keys, **{t: t.name for t in measured}}
    prepared = replace(gated.prepared, model=recorded(model, known), keys=keys)
    stats = _stats_of_edited(model, request.stats, {t.name: found for t, found in measured.items()})
    yield replace(best, prepared=prepared, request=replace(request, stats=stats), gated=gated.layers)


def _measured_again(lab: Lab, best: Candidate, model: Model, tensors: Iterable[Tensor]) -> dict[Tensor, TensorStats]:
    """Return statistics of tensors that were changed in, or added to, an edited model of the best candidate."""
    settings = replace(lab.bench.settings, limit=None)
    split = None if best.without_loud is None else lab.bench.loud
    rows = lab.bench.rows if split is None else split.quiet_rows(lab.bench)
    return remeasure(model, tensors, rows[:MEASURED_AGAIN], settings, best.request.ops)


def _stats_of_edited(model: Model, stats: Stats, measured: Mapping[str, TensorStats]) -> Stats:
    """Return the statistics of an edited model: those of the model before, except for what was measured again."""
    return replace(stats, fingerprint=fingerprint(model), tensors={**stats.tensors, **measured})


def _with_factors(model: Model, equalized: Sequence[Equalized]) -> Provenance:
    """Return the file's record with the factors of scaled channels, for tensors with unique names."""
    known, alike = provenance(model) or Provenance(), Counter(t.name for graph in model.graphs for t in graph.tensors)
    for one in equalized:
        own = {tensor.name: factors for tensor, factors in one.factors.items() if alike[tensor.name] == 1}
        known = replace(known.scaled(own), is_complete=known.is_complete and len(own) == len(one.factors))
    return known


def clipped_outliers(lab: Lab, best: Candidate) -> Proposals:
    """Propose to clip the few largest values of some tensors.

    In transformers a single element of a token can be a hundred times as large as all others; a scale that covers it
    leaves nothing for these, and a range without it changes what the element does. Between the two is an optimum.
    """
    if lab.effort == "standard" and decibels(lab.error) >= CLOSE_ENOUGH:
        return
    kinds = outliers(best)
    groups = [list(kinds)] if kinds else []
    if lab.effort == "high" and len(kinds) > 1:
        groups += [[kind] for kind in kinds]
    report = lab.stage("cutting off outliers", len(groups))
    for done, group in enumerate(groups, 1):
        for factor in OUTLIER_FACTORS:
            inner = {key: bounds for kind in group for key, bounds in kinds[kind].items()}
            limits = {key: (low * factor, high * factor) for key, (low, high) in inner.items()}
            # A histogram that includes the outliers is too coarse for any choice among the other values.
            whole: dict[str, Method] = dict.fromkeys(limits, "minmax")
            asked = best.request
            asked = replace(asked, limits={**asked.limits, **limits}, methods={**asked.methods, **whole})
            best, error = yield replace(best, request=asked)
            if factor == min(OUTLIER_FACTORS) and abs(decibels(error) - decibels(lab.error)) < NOTICED:
                break  # if the strongest clipping makes no difference, less does not either
        report(done)


def outliers(candidate: Candidate) -> dict[str, dict[str, Bounds]]:
    """Return tensors in which a few values are far larger than all others, with the range of those others, by op
    kind."""
    stats, keys = candidate.request.stats, candidate.prepared.keys
    found: dict[str, dict[str, Bounds]] = {}
    for graph in candidate.prepared.model.graphs:
        makers = {tensor: op.kind for op in graph.ops for tensor in op.outputs}
        for tensor, kind in {**dict.fromkeys(graph.inputs, "input"), **makers}.items():
            seen = None if stats is None else stats.tensors.get(keys.get(tensor, ""))
            if seen is None:
                continue
            low, high = choose_range(seen, "percentile", Grid())
            if high > low and seen.high.value - seen.low.value > OUTLIER_RATIO * (high - low):
                found.setdefault(kind, {})[keys[tensor]] = (low, high)
    return found


def ranges_of_each_tensor(lab: Lab, best: Candidate) -> Proposals:
    """Propose the range of each tensor by the method that is best for it."""
    trials, samples = _trials(lab, best)
    if trials is None or not samples:
        return
    chosen = trials.best(samples, lab.stage("choosing ranges", len(trials.groups)))
    known = {best.prepared.keys[t]: method for t, method in chosen.items() if t in best.prepared.keys}
    if known:
        yield replace(best, request=replace(best.request, methods={**known, **best.request.methods}))


def ranges_of_parts(lab: Lab, best: Candidate) -> Proposals:
    """Propose the ranges of parts of the model by the other method, if tensors cannot be tried one by one."""
    assert best.request.stats is not None
    trials, samples = _trials(lab, best)
    if trials is not None and samples:
        return
    tensors = [key for key in best.request.stats.tensors if key not in best.request.limits]
    (other,) = (method for method in TRIED if method != best.request.range_method)
    size = max(1, -(-len(tensors) // RANGE_PARTS))
    parts = [tensors[k : k + size] for k in range(0, len(tensors), size)]
    report = lab.stage("choosing ranges", len(parts))
    for done, part in enumerate(parts, 1):
        methods = {**best.request.methods, **dict.fromkeys(part, other)}
        best, _ = yield replace(best, request=replace(best.request, methods=methods))
        report(done)


def _trials(lab: Lab, best: Candidate) -> tuple[RangeTrials | None, int]:
    """Return trials of each tensor's range, and the number of samples there is time for."""
    request, model, work = best.request, best.prepared.model, TRIAL_MACS[lab.effort]
    methods: list[Method] = list(dict.fromkeys((request.range_method, *COMPARED)))
    movable = [group for group in best.planned.plans[0].groups if not group.fixed]
    if not affordable_samples(model, len(movable) * len(methods), work, request.ops):
        return None, 0
    plan = best.planned.with_float_ends().plans[0]
    trials = RangeTrials(model, plan, solved_ranges(plan, best.prepared, request), methods, lab.bench)
    return trials, affordable_samples(model, trials.count, work, request.ops)


WITHOUT_LOUD = "ranges without loud samples"
"""The step whose outcome users are told."""

BOTH: tuple[Effort, ...] = ("standard", "high")

STEPS: Sequence[Step] = (
    Step("ranges and biases", ("standard",), range_methods, ranges=False, activations=True),
    Step(WITHOUT_LOUD, ("standard",), ranges_without_loud_samples, activations=True),
    Step("cross-layer equalization", ("standard",), cross_layer_equalization),
    Step("cutting off outliers", BOTH, clipped_outliers, activations=True),
    Step("ranges of each tensor", BOTH, ranges_of_each_tensor, activations=True),
    Step("ranges of parts", ("high",), ranges_of_parts, activations=True),
    Step("float islands", ("standard",), float_islands, ranges=False, activations=True),
    Step("16-bit islands and SmoothQuant", ("standard",), wide_islands, ranges=False, activations=True),
    Step("dynamic layers", ("standard",), layers_on_floats, ranges=False),
    Step("compensated rounding", BOTH, compensated_rounding, ranges=False, presumed=True),
    Step("gates in weights", ("standard",), gates_in_weights, ranges=False, presumed=True),
    Step("mixed precision", BOTH, mixed_precision, ranges=False, presumed=True),
    Step("reconstruction", ("max",), reconstruction, ranges=False),
)
