"""Several ways to quantize a model, and the one whose outputs come closest to the float model's on the data.

What makes an int8 model good is not to be had from one tensor at a time: clipping that is best for a tensor may cost
more further on, and evening out channels helps one network and not the next. All of it is tried, and kept if it helps.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..affine import QuantParams
from ..bench.judge import Judge, decibel, worst_ops
from ..calibration import Grid, Method, Settings, Stats, calibrate, choose_range
from ..calibration.collect import Progress
from ..calibration.range_methods import Bounds
from ..graph.edit import copy_model, signatures_follow
from ..graph.model import Model, Tensor
from ..graph.query import tensor_keys
from ..ops.execution import macs_of
from ..plan.pipeline import (
    Planned,
    Request,
    Result,
    Stage,
    Step,
    carry_out,
    plan_model,
    require_float_part,
    run,
    untold,
)
from ..plan.plan import Plan
from ..plan.planner import Interface
from ..plan.prepare import prepare
from ..recipe import Effort
from ..sources.ports import entries, entry
from ..sources.samples import Notes, Samples, iterate, rows
from .cross_layer_equalization import equalize
from .layerwise import Refiner
from .range_choice import RangeTrials, affordable_samples

TRIED: tuple[Method, ...] = ("mse", "minmax")
"""Percentiles sometimes come closer to the float outputs, but over the zoo no score gained from trying them."""

KEPT_SAMPLES, KEPT_BYTES = 256, 1 << 28
"""How much of the data is held back to run again."""

REFINED = 32, 128
REFINING_MACS = 7e11
"""On how many samples weights are refined: within these limits, so many that it takes this work."""

COMPARED: tuple[Method, ...] = ("mse", "minmax", "percentile", "entropy")
"""Methods that are compared tensor by tensor."""

TRIAL_MACS: dict[Effort, float] = {"standard": 5e9, "high": 1e12}
"""How many multiply-accumulates may go into that, by effort."""

RANGE_PARTS = 8
"""In how many parts high effort picks the ranges of a model that is too large for that."""

OUTLIER_RATIO = 4.0
"""From this share of the range up, what lies outside of the range of 99.99 % of the values counts as outliers."""

OUTLIER_FACTORS = (1.0, 4.0, 8.0)
"""Multiples of the range of 99.99 % of the values that are tried."""


@dataclass
class Keeper:
    """Samples on their way to calibration, the first of which stay here."""

    samples: Samples
    kept: list[Any] = field(default_factory=list)

    def __iter__(self) -> Iterator[Any]:
        room = KEPT_BYTES
        for sample in iterate(self.samples):
            room -= _size(sample)
            if len(self.kept) < KEPT_SAMPLES and room >= 0:
                self.kept.append(sample)
            yield sample


def _size(sample: Any) -> int:
    parts = sample.values() if isinstance(sample, Mapping) else sample if isinstance(sample, tuple | list) else [sample]
    return sum(int(getattr(part, "nbytes", 8)) for part in parts)


def quantize_on(
    model: Model,
    request: Request,
    data: Samples | Mapping[str, Samples],
    settings: Settings | None = None,
    progress: Progress | None = None,
    stage: Stage = untold,
) -> Result:
    """Calibrate on `data` and quantize; with standard effort and automatic ranges, in the way that works best."""
    require_float_part(model, request.recipe)
    single = not isinstance(data, Mapping) and len({e.graph for e in entries(model)}) == 1
    effort = request.recipe.highest_effort(request.effort)
    compared = effort == "high" or (
        effort == "standard" and request.recipe.has_integer_ops and request.method == "auto"
    )
    keeper = Keeper(data) if single and compared else None
    start = time.perf_counter()
    stats = calibrate(model, data if keeper is None else keeper, settings, progress=progress)
    judge = None if keeper is None else Judge.of(model, keeper.kept, effort)
    calibration = Step("calibration", time.perf_counter() - start)
    if keeper is None or judge is None:
        return replace(run(model, replace(request, stats=stats)), steps=(calibration,))
    search = Search(judge, request, keeper.kept, [calibration], stage)
    return search.result(Candidate(model, stats, TRIED[0]), settings or Settings())


@dataclass(frozen=True)
class Candidate:
    """One way to do it: a model that computes the same as the original, its statistics, and range methods."""

    model: Model
    stats: Stats
    method: Method
    others: Mapping[str, Method] = field(default_factory=dict)  # tensors whose ranges another method picks
    limits: Mapping[str, Bounds] = field(default_factory=dict)  # tensors whose few largest values are cut off
    equalized: int = 0  # how many tensors have had their channels evened out

    def __str__(self) -> str:
        text = f"{self.method} ranges"
        others = {key: method for key, method in self.others.items() if key not in self.limits}
        if others:
            text += f", of {len(others)} tensors {', '.join(sorted(set(others.values())))}"
        if self.limits:
            text += f", outliers of {len(self.limits)} tensors cut off"
        return text + (f", channels of {self.equalized} tensors evened out" if self.equalized else "")


@dataclass
class Search:
    """Goes from one candidate to the next better one."""

    judge: Judge
    request: Request
    kept: list[Any]
    steps: list[Step]
    stage: Stage

    @property
    def is_high(self) -> bool:
        return self.request.recipe.highest_effort(self.request.effort) == "high"

    def result(self, first: Candidate, settings: Settings) -> Result:
        best, error = self._best_method(first)
        if self.request.recipe.has_integer_ops and self.request.method == "auto":
            best, error = self._equalized(best, error, settings)
            best, error = self._without_outliers(best, error)
            best, error = self._tensor_by_tensor(best, error)
        chosen = self._request(best)
        planned, how = plan_model(best.model, chosen), [str(best)] if self.request.recipe.has_integer_ops else []
        if self.is_high:
            refined, its_error = self._compensated(planned, chosen, error)
            if its_error < error:
                planned, error = refined, its_error
                how.append("weights rounded with compensation")
        result = carry_out(planned, chosen)
        note = f"{', '.join(how) or 'nearest rounding'}; error of the outputs {decibel(error)}"
        worst = worst_ops(best.model, result.model, self.judge.samples) if chosen.interface == Interface() else ()
        return replace(result, notes=(*result.notes, note), steps=tuple(self.steps), worst=worst)

    def _request(self, candidate: Candidate) -> Request:
        if not self.request.recipe.has_integer_ops:
            return replace(self.request, stats=candidate.stats)
        return replace(
            self.request,
            stats=candidate.stats,
            method=candidate.method,
            methods=candidate.others,
            limits=candidate.limits,
        )

    def _error(self, candidate: Candidate) -> float:
        asked = replace(self._request(candidate), interface=Interface())
        return self.judge.error(run(candidate.model, asked).model)

    def _best(self, what: str, candidates: Sequence[Candidate]) -> tuple[Candidate, float]:
        start = time.perf_counter()
        errors = [self._error(candidate) for candidate in candidates]
        k = min(range(len(errors)), key=errors.__getitem__)
        self.steps.append(Step(what, time.perf_counter() - start, errors[k]))
        return candidates[k], errors[k]

    def _best_method(self, first: Candidate) -> tuple[Candidate, float]:
        if not self.request.recipe.has_integer_ops:
            return self._best("nearest rounding, biases corrected", [first])
        if self.request.method != "auto":
            return self._best(f"{self.request.method} ranges", [replace(first, method=self.request.method)])
        if self.is_high:
            start = time.perf_counter()
            plain = replace(self.request, stats=first.stats, method="minmax", effort="quick", interface=Interface())
            error = self.judge.error(run(first.model, plain).model)
            self.steps.append(Step("nearest rounding, minmax ranges", time.perf_counter() - start, error))
        return self._best("ranges and biases", [replace(first, method=method) for method in TRIED])

    def _equalized(self, best: Candidate, error: float, settings: Settings) -> tuple[Candidate, float]:
        """The best candidate with channels evened out, if that helps."""
        start = time.perf_counter()
        evened, count = equalized_copy(best.model, best.stats, self.request)
        if not count:
            return best, error
        again = calibrate(evened, self.kept, replace(settings, limit=None))
        methods: Sequence[Method] = list(dict.fromkeys((best.method, "mse")))
        tried = [Candidate(evened, again, method, equalized=count) for method in methods]
        errors = [self._error(candidate) for candidate in tried]
        k = min(range(len(errors)), key=errors.__getitem__)
        kept = errors[k] < error
        self.steps.append(Step("evening out channels", time.perf_counter() - start, errors[k], kept))
        return (tried[k], errors[k]) if kept else (best, error)

    def _without_outliers(self, best: Candidate, error: float) -> tuple[Candidate, float]:
        """The best candidate with the few largest values of some tensors cut off, if that helps.

        In transformers a single element of a token can be a hundred times as large as all others; a scale that holds it
        leaves nothing for these, and a range without it changes what the element does. Between the two is a best place.
        """
        start, kinds = time.perf_counter(), outliers(best)
        if not kinds:
            return best, error
        groups = [list(kinds)] + ([[kind] for kind in kinds] if self.is_high and len(kinds) > 1 else [])
        report = self.stage("cutting off outliers", len(groups))
        for done, group in enumerate(groups, 1):
            for factor in OUTLIER_FACTORS:
                limits = {key: _wider(kinds[kind][key], factor) for kind in group for key in kinds[kind]}
                # A histogram that spans the outliers is too coarse for any choice among the other values.
                whole: dict[str, Method] = dict.fromkeys(limits, "minmax")
                tried = replace(best, limits={**best.limits, **limits}, others={**best.others, **whole})
                its_error = self._error(tried)
                if its_error < error:
                    best, error = tried, its_error
            report(done)
        self.steps.append(Step("cutting off outliers", time.perf_counter() - start, error, bool(best.limits)))
        return best, error

    def _tensor_by_tensor(self, best: Candidate, error: float) -> tuple[Candidate, float]:
        """The best candidate with the range of each tensor picked by the method that is best for it, if that helps."""
        start, work = time.perf_counter(), TRIAL_MACS["high" if self.is_high else "standard"]
        trials, groups, samples = None, [], 0
        if affordable_samples(best.model, len(best.stats.tensors), work):
            methods: list[Method] = list(dict.fromkeys((best.method, *COMPARED)))
            asked = [replace(self._request(replace(best, method=m)), interface=Interface()) for m in methods]
            planned = {m: plan_model(best.model, r) for m, r in zip(methods, asked, strict=True)}
            trials = RangeTrials(planned, self.judge)
            groups = trials.groups()
            samples = affordable_samples(best.model, sum(len(group.distinct) for group in groups), work)
        if trials is None or not samples:
            return self._part_by_part(best, error) if self.is_high else (best, error)
        if not groups:
            return best, error
        report = self.stage("choosing ranges", len(groups))
        chosen = trials.best(groups, samples, report)
        known = {name: method for name, method in chosen.items() if name in best.stats.tensors}
        tried = replace(best, others={**known, **best.others})
        its_error = self._error(tried)
        kept = bool(known) and its_error < error
        self.steps.append(Step("ranges of each tensor", time.perf_counter() - start, its_error, kept))
        return (tried, its_error) if kept else (best, error)

    def _part_by_part(self, best: Candidate, error: float) -> tuple[Candidate, float]:
        """The best candidate with the ranges of parts of a large model picked by the other method, where that helps."""
        start, tensors = time.perf_counter(), [key for key in best.stats.tensors if key not in best.limits]
        (other,) = (method for method in TRIED if method != best.method)
        size = max(1, -(-len(tensors) // RANGE_PARTS))
        parts = [tensors[k : k + size] for k in range(0, len(tensors), size)]
        report = self.stage("choosing ranges", len(parts))
        changed = False
        for done, part in enumerate(parts, 1):
            tried = replace(best, others={**best.others, **dict.fromkeys(part, other)})
            its_error = self._error(tried)
            if its_error < error:
                best, error, changed = tried, its_error, True
            report(done)
        self.steps.append(Step("ranges of parts", time.perf_counter() - start, error, changed))
        return best, error

    def _compensated(self, planned: Planned, request: Request, before: float) -> tuple[Planned, float]:
        """The same plan with better weights and biases."""
        start = time.perf_counter()
        # Weights are fitted to other samples than they are judged by, if there are enough.
        unseen = self.kept[len(self.judge.samples) :]
        used = rows(unseen if len(unseen) >= REFINED[0] else self.kept, entry(planned.model), Notes())
        samples = [row for _, row in itertools.islice(used, _refining_samples(planned))]
        refiner = Refiner(planned.model, request, samples, self.stage)
        refined = Planned(planned.model, tuple(refiner.refine(plan) for plan in planned.plans))
        error = self.judge.error(_float_ends(refined, request))
        self.steps.append(Step("compensated rounding", time.perf_counter() - start, error, error < before))
        return refined, error


def _refining_samples(planned: Planned) -> int:
    """As every layer needs runs of all before it, fewer for large models."""
    layers = [macs for op in entry(planned.model).graph.ops if (macs := macs_of(op))]
    fewest, most = REFINED
    return int(max(fewest, min(most, REFINING_MACS // max(1, len(layers) * sum(layers)))))


def outliers(candidate: Candidate) -> dict[str, dict[str, Bounds]]:
    """Tensors in which a few values are far larger than all others, with the range of those others, by kind of op."""
    found: dict[str, dict[str, Bounds]] = {}
    keys = tensor_keys(candidate.model)
    for graph in candidate.model.graphs:
        makers = {tensor: op.kind for op in graph.ops for tensor in op.outputs}
        for tensor, kind in {**dict.fromkeys(graph.inputs, "input"), **makers}.items():
            seen = candidate.stats.tensors.get(keys[tensor])
            if seen is None:
                continue
            low, high = choose_range(seen, "percentile", Grid())
            if high > low and seen.high.value - seen.low.value > OUTLIER_RATIO * (high - low):
                found.setdefault(kind, {})[keys[tensor]] = (low, high)
    return found


def _wider(bounds: Bounds, factor: float) -> Bounds:
    return bounds[0] * factor, bounds[1] * factor


def _float_ends(planned: Planned, request: Request) -> Model:
    """The model with float inputs and outputs, to be compared."""
    plans = tuple(replace(plan, inputs={}, outputs={}, stored=_inner(plan)) for plan in planned.plans)
    return carry_out(Planned(planned.model, plans), request).model


def _inner(plan: Plan) -> dict[Tensor, QuantParams]:
    return {t: p for t, p in plan.stored.items() if t not in plan.inputs}


def equalized_copy(model: Model, stats: Stats, request: Request) -> tuple[Model, int]:
    """A copy of the model with evened-out channels, and how many tensors that concerns."""
    copy = copy_model(model)
    keys = tensor_keys(copy)
    with signatures_follow(copy):
        given = prepare(copy, request.recipe).ranges.merge(request.ranges)
    # Ranges that were given are those of the tensors as they are.
    return copy, 0 if given.entries else len(equalize(copy, stats, keys))
