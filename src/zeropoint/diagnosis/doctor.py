"""Why a quantized model is as far from the float model as it is, and what to do about it.

Numbers that look wrong are suspects. A suspect becomes a finding when its fix, tried on the samples, brings the outputs
closer to the float model's; how much is the gain that findings are ordered by. So a healthy model has none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ..calibration import Stats, calibrate
from ..comparison.compare import Asked, compare_models
from ..comparison.outputs import Metric, NamedMetric, named
from ..comparison.scoring import Scorer
from ..comparison.values import Diagnosis, Finding, Remedy, decibels
from ..dtypes import DType
from ..errors import InvalidRecipe, InvalidSample
from ..graph.model import Model
from ..improve.search import TRIED, quantize_on
from ..ops.execution import macs_of
from ..plan.pipeline import RangeChoice, Request, Result, WeightOptions, resolve_recipe
from ..recipe import Effort, Recipe, plain_rules, preset
from ..sources.models import ModelSource, load
from ..sources.ports import Row, entry
from ..sources.samples import Notes, Samples, rows
from .facts import Facts, Suspect, numbers
from .sensitive import Search
from .suspect_inputs import suspect_inputs
from .suspect_ranges import suspect_ranges
from .suspect_speed import suspect_speed
from .suspect_weights import suspect_weights
from .trial import Fix, Lab, extended, wide_share

KEPT_SAMPLES, KEPT_BYTES = 256, 1 << 28
"""How much of the data is held to be run again and again."""

COMPARED = 32
"""Samples on which inner tensors are compared."""

HEALTHY = 30.0
"""Signal-to-noise of the outputs in dB from which on no op is called sensitive: nobody sees such an error."""

LEAST_GAIN, LEAST_SENSITIVE_GAIN = 1.0, 1.5
"""In dB. What brings less is no cause."""

COARSE = 0.4
"""The share of the error that stays with 16-bit activations, from which on it is the weights that matter."""

HIGH_EFFORT_ROOM = 0.5
"""The share of the time by which it may be exceeded before weights are no longer rounded with compensation."""


@dataclass(frozen=True)
class Case:
    """What to examine: a float model, samples, perhaps a quantized version of it with the samples it was calibrated on.

    `most` is the share of the multiply-accumulates that may be given more bits; `seconds` the time for trying.
    """

    model: Model
    data: Samples
    quantized: Model | None = None
    calibration: Samples | None = None
    recipe: Recipe = field(default_factory=lambda: preset("int8"))
    range: RangeChoice = "auto"
    effort: Effort = "standard"
    limit: int | None = None
    metric: NamedMetric | None = None
    seconds: float = 100.0
    most: float = 0.1
    told: Callable[[str], None] | None = None


@dataclass(frozen=True)
class Examined:
    """The diagnosis, with the model as it was and as the remedy makes it."""

    diagnosis: Diagnosis
    before: Model
    stats: Stats
    mended: Result | None = None


def doctor(
    model: ModelSource,
    data: Samples,
    *,
    quantized: ModelSource | None = None,
    calibration: Samples | None = None,
    recipe: Recipe | None = None,
    mode: str | None = None,
    range: RangeChoice = "auto",
    effort: Effort = "standard",
    limit: int | None = None,
    metric: Metric | None = None,
    seconds: float = 100.0,
    progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    """What costs a quantized model its accuracy, with numbers and with a recipe that mends it.

    `quantized` is the model in question; without it, one is made by `recipe` or `mode`, `range` and `effort`, as
    `quantize` does. `calibration` are the samples its ranges came from, if these are others than `data`. `metric` is a
    function of the outputs of all samples (for each a list of arrays) that gives a score. `seconds` limits the time for
    trying things out. `progress` is called with what is being done.
    """
    case = Case(
        load(model),
        data,
        quantized=None if quantized is None else load(quantized),
        calibration=calibration,
        recipe=resolve_recipe(mode, recipe, WeightOptions()),
        range=range,
        effort=effort,
        limit=limit,
        metric=named(metric),
        seconds=seconds,
        told=progress,
    )
    return examine(case).diagnosis


def examine(case: Case) -> Examined:
    """Diagnose, and build the model that the findings ask for."""
    if not case.recipe.has_integer_ops:
        raise InvalidRecipe("the doctor looks at integer arithmetic; choose the mode int8 or int16x8")
    samples = list(_kept(case))
    _tell(case, "measuring the float model")
    stats = calibrate(case.model, [row for _, row in samples])
    calibration = None if case.calibration is None else calibrate(case.model, case.calibration)
    own = _quantized(case, samples) if case.quantized is None else None
    made = case.quantized if own is None else own.model
    assert made is not None
    _tell(case, "comparing op by op")
    asked = Asked(min(COMPARED, len(samples)))
    comparison = compare_models(case.model, made, [row for _, row in samples], asked)
    facts = Facts(case.model, made, comparison, stats, calibration, *_said(own, case.recipe))
    practice = _Practice(case, samples, facts)
    findings = tuple(practice.findings())
    mended, remedy = practice.remedy(findings)
    ordered = tuple(sorted(findings, key=lambda f: -math.inf if f.gain is None else f.gain, reverse=True))
    return Examined(Diagnosis(ordered, comparison, remedy, tuple(practice.notes)), made, stats, mended)


def _tell(case: Case, what: str) -> None:
    if case.told is not None:
        case.told(what)


def _kept(case: Case) -> Iterator[tuple[int, Row]]:
    room = KEPT_BYTES
    most = min(case.limit or KEPT_SAMPLES, KEPT_SAMPLES)
    taken = 0
    for number, row in rows(case.data, entry(case.model), Notes()):
        room -= sum(a.nbytes for a in row)
        if taken and (taken >= most or room < 0):
            return
        taken += 1
        yield number, row
    if not taken:
        raise InvalidSample("there are no samples to examine the model on; give at least one")


def _quantized(case: Case, samples: Sequence[tuple[int, Row]]) -> Result:
    _tell(case, "quantizing as asked")
    request = Request(case.recipe, method=case.range, effort=case.effort)
    return quantize_on(case.model, request, case.calibration or [row for _, row in samples])


def _said(own: Result | None, recipe: Recipe) -> tuple[tuple[str, ...], dict[str, str], frozenset[str]]:
    """What our own quantizer said: repairs, why ops stayed float, and which of these the recipe keeps so."""
    if own is None:
        return (), {}, frozenset()
    kept = frozenset(s.op.name for s in own.skipped if recipe.scheme(s.op).activations is None)
    return tuple(str(r) for r in own.repairs), {s.op.name: s.reason for s in own.skipped}, kept


@dataclass
class _Practice:
    """Tries fixes, and keeps account of what they bring."""

    case: Case
    samples: Sequence[tuple[int, Row]]
    facts: Facts
    notes: list[str] = field(default_factory=list)
    fix: Fix = field(default_factory=Fix)

    def __post_init__(self) -> None:
        self.start = time.perf_counter()
        metric = None if self.case.metric is None else self.case.metric[1]
        self.scorer = Scorer(self.case.model, self.samples, metric)
        deadline = self.start + self.case.seconds
        self.lab = Lab(self.scorer, self.facts.stats, self.case.recipe, deadline)

    def findings(self) -> Iterator[Finding]:
        if self.facts.comparison.snr < HEALTHY + 10:
            yield from self._proven()
            yield from self._sensitive()
        yield from suspect_speed(self.facts)

    def _proven(self) -> Iterator[Finding]:
        """Suspects whose fix helps; the best first, and each on top of those before."""
        found: list[tuple[float, Finding, Fix]] = []
        given = self.lab.scorer.error(self.facts.made)
        anew = self.lab.error()
        for suspect in (*suspect_inputs(self.facts), *suspect_weights(self.facts), *suspect_ranges(self.facts)):
            if self.lab.is_late:
                self.notes.append("time ran out before all suspects were tried; allow more with --seconds")
                break
            _tell(self.case, f"trying: {suspect.finding.title}")
            proven = self._tried(suspect, given if suspect.about_model else anew)
            if proven is not None:
                found.append(proven)
        for _, finding, fix in sorted(found, key=lambda f: -f[0]):
            self.fix = fix.and_then(self.fix)  # what gains most has the last word
            yield finding
        if self.fix.rules or self.fix.options:
            self.lab.after(self.fix)

    def _tried(self, suspect: Suspect, before: float) -> tuple[float, Finding, Fix] | None:
        """The suspect with its best fix and the gain, unless that is too little."""
        without = suspect.without
        if without:
            kept = [number for number, _ in self.lab.scorer.samples if number not in without]
            own_data = self.facts.calibration is None
            without = without if own_data and kept else frozenset()
            before = self.lab.scorer.error(self.facts.made, without)
        errors = [self.lab.error(fix, without) for fix in suspect.fixes]
        error, fix = min(zip(errors, suspect.fixes, strict=True), key=lambda pair: pair[0])
        gain = decibels(error) - decibels(before)
        if gain < LEAST_GAIN:
            return None
        return gain, replace(suspect.finding, gain=gain, is_measured=True, rules=fix.rules, options=fix.options), fix

    def _sensitive(self) -> Iterator[Finding]:
        before = self.lab.error()
        if decibels(before) >= HEALTHY:
            return
        search = Search(self.lab, self.case.most, self.case.told)
        widened, error = search.found()
        gain = decibels(error) - decibels(before)
        if gain >= LEAST_SENSITIVE_GAIN:
            moved = [op for op in search.graph.ops if op.label in widened.kinds or op in widened.layers]
            share = sum(map(macs_of, widened.layers)) / search.total
            what = ", ".join([*widened.kinds, *(f"{op.label} '{op.name}'" for op in widened.layers)][:6])
            yield Finding(
                "sensitive_ops",
                f"{len(moved)} ops hold most of the error",
                (
                    f"outputs at {decibels(before):.1f} dB; with these ops in more bits at {decibels(error):.1f} dB",
                    f"they hold {share:.1%} of the multiply-accumulates: {what}"
                    f"{' ...' if len(widened.kinds) + len(widened.layers) > 6 else ''}",
                ),
                f"{1 - error / before:.0%} of the squared error of the outputs comes from them",
                "compute them with 16 bits or in float, and the rest in 8",
                gain,
                True,
                widened.rules,
                ops=tuple(op.name for op in moved),
                numbers=numbers(before=decibels(before), after=decibels(error), share=share, ops=len(moved)),
            )
            self.fix = self.fix.and_then(Fix(widened.rules))
        coarse = None if self.lab.is_late else self._coarse_weights(before)
        if coarse is not None:
            yield coarse
            self.fix = self.fix.and_then(Fix(options=coarse.options))

    def _coarse_weights(self, before: float) -> Finding | None:
        """Whether rounding the weights alone makes much of the error, so that better rounding helps."""
        if self.case.effort == "high" or any(r.scheme.activations is DType.INT16 for r in self.case.recipe.rules):
            return None
        with_wide = self.lab.error(Fix(({"scheme": "int16x8"},)))
        share = with_wide / before if before > 0 else 0.0
        if not COARSE <= share <= 1:
            return None
        return Finding(
            "coarse_weights",
            "rounding the weights alone makes much of the error",
            (
                f"with 8-bit activations the outputs are at {decibels(before):.1f} dB, with 16-bit ones at "
                f"{decibels(with_wide):.1f} dB: {share:.0%} of the squared error stays",
            ),
            "more bits for activations cannot help beyond that",
            "let the weights make up for each other's rounding (--effort high), or train (zeropoint train)",
            -10 * math.log10(1 - share / 2),
            options={"effort": "high"},
            numbers=numbers(share=share, wide=decibels(with_wide)),
        )

    def remedy(self, findings: Sequence[Finding]) -> tuple[Result | None, Remedy | None]:
        """The model with all fixes, through the whole of `quantize`; none if nothing was found that it could mend."""
        if not any(f.gain is not None for f in findings):
            return None, None
        recipe = extended(self.case.recipe, self.fix.rules)
        before, best = self.scorer.score(self.facts.made), None
        for method, effort in self._ways():
            _tell(self.case, f"building the proposed model, range {method}, effort {effort}")
            request = Request(recipe, method=method, effort=effort)
            result = quantize_on(self.case.model, request, [row for _, row in self.samples])
            after = self.scorer.score(result.model)
            if best is None or after.snr > best[1].snr:
                best = result, after, {"range": method, "effort": effort}
        assert best is not None
        result, after, options = best
        if after.snr <= before.snr:
            self.notes.append(f"all fixes together do not help: {after.snr:.1f} dB after {before.snr:.1f} dB")
            return None, None
        moved = wide_share(result.model) - wide_share(self.facts.made)
        return result, Remedy(plain_rules(recipe), options, before, after, max(0.0, moved), self.scorer.float_metric())

    def _ways(self) -> Iterator[tuple[RangeChoice, Effort]]:
        """How to set ranges and round weights: as asked, and as the fixes say where these go beyond it."""
        yield self.case.range, self.case.effort
        method = self.fix.options.get("range", self.case.range)
        if method not in (self.case.range, *TRIED):
            yield method, self.case.effort
        late = self.start + self.case.seconds * (1 + HIGH_EFFORT_ROOM)
        if self.fix.options.get("effort") == "high" and time.perf_counter() < late:
            yield self.case.range, "high"
