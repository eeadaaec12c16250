"""Steps that change how weights are rounded: compensated rounding (GPTQ), mixed precision, learned rounding."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..bench.bench import Bench
from ..bench.errors import decibels
from ..bench.measure import SampledError
from ..ops.execution import total_macs
from ..recipe import Effort, reaches
from ..sources.ports import Row
from .candidate import Candidate, Lab, ProposalOutcome, Proposals, no_progress
from .float_islands import GOOD_ENOUGH, POOR
from .mixed_precision import (
    MOST_GROWTH,
    RESCUE_GROWTH,
    NarrowLayer,
    Widening,
    measured_harms,
    narrow_layers,
    weight_errors,
    worth_widening,
)
from .refiner import Refiner

REFINED = 32, 256
REFINING_MACS: Mapping[Effort, float] = {"standard": 6e10, "high": 1e11}
"""The minimum and maximum number of samples that weights are refined on, and the work in multiply-accumulates that
decides between them. Standard effort refines only weights of fewer than 8 bits, which lose too much otherwise, and only
if this work suffices for the minimum."""

SEARCHED_MACS: Mapping[Effort, float] = {"standard": 1e8, "high": math.inf}
"""Multiply-accumulates of a layer's weights with the moments of its inputs, up to which its integers are searched after
rounding with compensation. Larger layers gain nothing from that: they have others to compensate enough (minilm_l6_sts:
13.9 dB without, 13.5 to 14.1 with)."""

VECTORS: Mapping[Effort, int] = {"standard": 2048, "high": 8192}
"""About how many input vectors of a layer its weights are refined on; more for layers with more weights."""

MENDING_VECTORS, MENDING_MACS, FEWEST_MENDING = 512, 2e10, 16
"""Limits for 8-bit weights at standard effort, which are refined to make up for quantized activations. That needs fewer
vectors. Models that need more work are skipped; so are fewer samples, because the weights would overfit them."""

FEWEST_WIDENED = 4
MOST_WIDENED: Mapping[Effort, int] = {"standard": 16, "high": 64}
WIDENING_MACS: Mapping[Effort, float] = {"standard": 1e11, "high": 1e12}
"""The minimum and maximum number of samples for measuring what few bits cost each layer, and the work allowed."""

FEWEST_CROSSED = 8
"""The minimum number of samples to fit weights to one half of them and look at the other."""

CHECKED_EVERY = 8
"""One in this many samples is not learned from, but kept for checking blocks; two if none are held back."""


def _refiner(lab: Lab, best: Candidate, used: Sequence[Row], *, is_wide: bool) -> Refiner:
    """Return the refiner that rounds weights with compensation on the samples `used`. `is_wide` means 8-bit weights,
    which standard effort refines only for models that need it."""
    request = best.request
    asked = request if request.effort == "quick" else replace(request, effort="high" if is_wide else lab.effort)
    vectors = MENDING_VECTORS if is_wide else VECTORS[lab.effort]
    refiner = Refiner(best.prepared.model, asked, used, lab.stage, vectors, lab.bench.in_sequence)
    refiner = replace(refiner, heeds_clamps=reaches(lab.effort, "high"), searched_macs=SEARCHED_MACS[lab.effort])
    return replace(refiner, refits=refiner.may_refit(best.planned))


def compensated_rounding(lab: Lab, best: Candidate) -> Proposals:
    """Propose weights whose rounding errors cancel, layer by layer (GPTQ), and that offset errors of earlier layers."""
    rows, judged = lab.bench.rows, len(lab.bench.judged_rows)
    # If there are enough samples, weights are fitted to other samples than those that judge them.
    unseen = rows[judged:]
    is_wide = lab.effort == "standard" and best.request.recipe.least_bits >= 8
    most = _mending_samples(lab, best) if is_wide else _refining_samples(lab, best)
    used = (unseen if len(unseen) >= REFINED[0] else rows)[:most]
    if not used:
        return
    refiner = _refiner(lab, best, used, is_wide=is_wide)
    for_all = replace(refiner, samples=rows[:most]) if len(rows[:most]) > len(used) else None
    is_kept = best.widening is not None and best.refits  # of the candidate that was widened
    for candidate in _to_be_rounded(lab, best):
        if _may_propose(lab.bench, refiner, candidate, must_gain=is_wide):
            proposed = replace(candidate, refined=refiner.refine(candidate.planned), refits=refiner.refits)
            proposed = replace(proposed, refiner=for_all)
            is_kept |= (yield proposed).best is proposed
        # The samples may be too few to fit weights to errors of earlier layers, so also try rounding alone, unless
        # fitting helped. With 8 bits, rounding alone brings little.
        alone = replace(refiner, refits=False)
        is_tried = refiner.refits and not is_wide and not is_kept
        if is_tried and _may_propose(lab.bench, alone, candidate, must_gain=False):
            again = None if for_all is None else replace(for_all, refits=False)
            yield replace(candidate, refined=alone.refine(candidate.planned), refits=False, refiner=again)


def _to_be_rounded(lab: Lab, best: Candidate) -> tuple[Candidate, ...]:
    """Return the candidate; at high effort also without ranges that were chosen for weights rounded to nearest."""
    request, cut = best.request, best.request.limits
    plain = replace(request, methods={key: method for key, method in request.methods.items() if key in cut})
    return (best, replace(best, request=plain)) if plain != request and lab.effort == "high" else (best,)


def _may_propose(bench: Bench, refiner: Refiner, candidate: Candidate, *, must_gain: bool) -> bool:
    """Return whether samples can judge what is fitted to others, or cross-fitting finds that this holds."""
    judged, count = len(bench.judged_rows), len(bench.rows)
    judges_others = count - judged >= REFINED[0] or bench.in_sequence or count < FEWEST_CROSSED
    return judges_others or _holds_on_others(bench, refiner, candidate, must_gain=must_gain)


def _holds_on_others(bench: Bench, refiner: Refiner, candidate: Candidate, *, must_gain: bool) -> bool:
    """Return whether what rounding with compensation gains on its samples holds on others (cross-fitting).

    Samples that weights were fitted to say nothing about others. So weights are fitted to each half of the samples and
    judged by the other half: there they must not be clearly worse than without, or clearly better if they `must_gain`.
    """
    count = len(bench.rows)
    every, plain, fitted = bench.judging(count), SampledError(), SampledError()
    halves = range(0, count, 2), range(1, count, 2)
    for places, others in (halves, halves[::-1]):
        half = replace(refiner, samples=[bench.rows[k] for k in places])
        plain += every.errors(candidate.model(), others)
        fitted += every.errors(replace(candidate, refined=half.refine(candidate.planned)).model(), others)
    return fitted.beats(plain) if must_gain else not plain.beats(fitted)


def rounded_for_all_samples(bench: Bench, best: Candidate, effort: Effort) -> Candidate:
    """Return the candidate with weights rounded on all samples, including those that judged it. Without held-back
    samples, return it unchanged.

    More samples are presumed to be better, so held-back ones have to find that clearly worse. From high effort on any
    loss on these counts, because its result must not be worse there than that of standard effort.
    """
    if best.refiner is None or best.refined is None or best.learned or not bench.unseen_rows:
        return best
    made = replace(best, refined=best.refiner.refine(replace(best, refined=None).planned), refiner=None)
    others = bench.on(bench.unseen_rows)
    before, after = (others.judged(one.model(), at_once=True) for one in (best, made))
    is_worse = before.value < after.value if reaches(effort, "high") else before.beats(after)
    return best if is_worse else made


def _refining_samples(lab: Lab, best: Candidate) -> int:
    """Return the number of samples to refine on: fewer for large models; none if even the fewest take more work than
    standard effort allows."""
    if lab.effort == "standard" and best.request.recipe.least_bits >= 8:
        return 0
    macs = max(1, _refiner(lab, best, lab.bench.rows[: REFINED[0]], is_wide=False).macs(best.planned))
    if lab.effort == "standard" and REFINED[0] * macs > REFINING_MACS["standard"]:
        return 0
    return int(np.clip(REFINING_MACS[lab.effort] // macs, *REFINED))


def _mending_samples(lab: Lab, candidate: Candidate) -> int:
    """Return the number of samples on which standard effort fits 8-bit weights to quantized activations: none for
    models that are good enough, or so large that running every sample twice takes too long.

    Models with states are skipped: single runs do not show what states do, and sequences cannot be run layer by layer.
    """
    request, bench = candidate.request, lab.bench
    if decibels(lab.error) >= GOOD_ENOUGH or bench.in_sequence or not request.recipe.has_integer_ops:
        return 0
    macs = total_macs(candidate.prepared.model.main.ops, request.ops)
    is_large = 2 * REFINED[0] * macs > MENDING_MACS  # each sample is run in the float model and in the quantized one
    return 0 if is_large or len(bench.rows) < FEWEST_MENDING else REFINED[0]


def mixed_precision(lab: Lab, best: Candidate) -> Proposals:
    """Propose 8-bit weights for the layers that lose most in few bits; for more of them if the outputs stay poor."""
    layers = narrow_layers(best.planned, best.request.recipe)
    if not layers:
        return
    harms, rest = _harms(lab, best, layers)
    usual, most = (worth_widening(harms, rest, most_growth=most) for most in (MOST_GROWTH, RESCUE_GROWTH))
    reached = lab.error
    if usual is not None:
        reached = yield from _least_error(_widened(lab, best, usual))
    if most is not None and most != usual and decibels(reached) < POOR:
        yield from _widened(lab, best, most)


def _widened(lab: Lab, best: Candidate, widening: Widening) -> Proposals:
    wide = best.widened(widening)
    if best.refined is None:
        yield wide
    else:
        yield from compensated_rounding(lab, wide)


def _least_error(proposals: Proposals) -> Generator[Candidate, ProposalOutcome, float]:
    """Pass proposals on, and return the least error that any of them reached."""
    least, candidate = math.inf, next(proposals, None)
    while candidate is not None:
        outcome = yield candidate
        least = min(least, outcome.error)
        try:
            candidate = proposals.send(outcome)
        except StopIteration:
            break
    return least


def _harms(lab: Lab, best: Candidate, layers: Sequence[NarrowLayer]) -> tuple[dict[NarrowLayer, float], float]:
    """Return the error that each layer adds when it alone has few bits, and the error with 8 bits everywhere."""
    ops = best.request.ops
    work = len(layers) * total_macs(best.prepared.model.main.ops, ops)
    samples = int(min(WIDENING_MACS[lab.effort] // max(1, work), MOST_WIDENED[lab.effort]))
    if samples < FEWEST_WIDENED:
        return weight_errors(layers, best.planned, ops), 0.0
    bench, report = lab.bench.judging(samples), lab.stage("measuring what few bits cost", len(layers))
    narrow, wide = replace(best, refined=None), best.widened(Widening((*layers,), len(layers)))
    rest = bench.error(wide.model())
    return measured_harms(layers, rest, lambda one: bench.error(narrow.narrow_only_in(one, wide).model()), report), rest


def require_learning() -> None:
    """Raise if Keras is not installed, before any work starts."""
    from ..train import reconstruction as train_blocks

    train_blocks.require_learning()


@dataclass(frozen=True)
class LearningSplit:
    """The samples that max effort learns from, and those that its blocks are checked on; if few, the same."""

    learned: Sequence[Row]
    checked: Sequence[Row]


def learning_split(bench: Bench) -> LearningSplit:
    """Return how the samples in memory are used. Those for checking are among the samples that judge: no effort rounds
    weights on these if there are enough others, so what was learned and what was not are compared on equal terms."""
    rows, judged = bench.rows, len(bench.judged_rows)
    count = len(rows) * (1 if bench.unseen_rows else 2) // CHECKED_EVERY
    if count < 2 or bench.in_sequence:
        return LearningSplit(rows, rows)
    places = range(0, judged, max(1, judged // count))[:count]
    return LearningSplit([row for k, row in enumerate(rows) if k not in places], [rows[k] for k in places])


def reconstruction(lab: Lab, best: Candidate) -> Proposals:
    """Propose weight roundings and activation ranges learned block by block, on all samples that are not held back."""
    from ..train import reconstruction as train_blocks  # needs Keras

    if lab.bench.in_sequence:
        lab.notes.append("max effort gave nothing: samples are one sequence, and blocks learn from single ones")
        return
    request = best.request if best.request.effort == "quick" else replace(best.request, effort="max")
    split, plain = learning_split(lab.bench), replace(best, refined=None)
    refiner = Refiner(best.prepared.model, request, split.learned, no_progress, VECTORS["high"], refits=best.refits)
    refiner = replace(refiner, heeds_clamps=True)
    learner = train_blocks.Reconstruction(refiner, split.checked, lab.stage, request.seed, request.stats)
    found = learner.of(plain.planned)
    if found.changed:
        yield replace(best, refined=found.planned, learned=found.changed)
    stopped = "interrupted; " if found.interrupted else ""
    lab.notes.append(f"{stopped}{found.changed} of {found.blocks} blocks learned something that holds on other samples")
