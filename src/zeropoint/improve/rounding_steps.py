"""Steps that are about how weights are rounded: with compensation, in how many bits, and learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..bench.bench import Bench
from ..bench.errors import decibels
from ..ops.execution import macs_of
from ..recipe import Effort
from ..sources.ports import Row
from .candidate import Candidate, Lab, Proposals, no_progress
from .float_islands import GOOD_ENOUGH
from .gptq import Refiner
from .mixed_precision import NarrowLayer, measured_harms, narrow_layers, weight_errors, worth_widening

REFINED = 32, 256
REFINING_MACS: Mapping[Effort, float] = {"standard": 4e10, "high": 7e11}
"""On how many samples weights are refined: within these limits, so many that it takes this work. At standard effort it
is for weights of fewer than 8 bits, which hold badly otherwise, if the work suffices for the fewest samples."""

VECTORS: Mapping[Effort, int] = {"standard": 2048, "high": 8192}
"""About how many inputs of a layer its weights are refined for; more for layers with more weights."""

MENDING_VECTORS, MENDING_MACS, FEWEST_MENDING = 512, 2e10, 16
"""The same where standard effort refines weights of 8 bits: what activations have lost is found with fewer vectors. It
is not for models whose runs take more work than this, nor for fewer samples: weights would fit these and no others."""

WIDENED = 4, 16
WIDENING_MACS: Mapping[Effort, float] = {"standard": 1e11, "high": 1e12}
"""On how many samples it is measured what few bits cost each layer, and how much work that may be."""


def _refiner(lab: Lab, best: Candidate, used: Sequence[Row], *, is_wide: bool) -> Refiner:
    """What rounds weights with compensation on the samples `used`; `is_wide` if they have 8 bits, which standard effort
    leaves alone but for models that need it."""
    request = best.request
    asked = request if request.effort == "quick" else replace(request, effort="high" if is_wide else lab.effort)
    vectors = MENDING_VECTORS if is_wide else VECTORS[lab.effort]
    refiner = Refiner(best.prepared.model, asked, used, lab.stage, vectors, lab.bench.in_sequence)
    return replace(refiner, refits=refiner.may_refit(best.planned))


def compensated_rounding(lab: Lab, best: Candidate) -> Proposals:
    """Weights that make up for each other's rounding, layer by layer (GPTQ), and for what the layers before lost."""
    rows, judged = lab.bench.rows, len(lab.bench.judged_rows)
    # Weights are fitted to other samples than they are judged by, if there are enough.
    unseen = rows[judged:]
    is_wide = lab.effort == "standard" and best.request.recipe.least_bits >= 8
    most = _mending_samples(lab, best) if is_wide else _refining_samples(best, lab.effort)
    used = (unseen if len(unseen) >= REFINED[0] else rows)[:most]
    if not used:
        return
    request, cut = best.request, best.request.limits
    refiner = _refiner(lab, best, used, is_wide=is_wide)
    for_all = replace(refiner, samples=rows[:most]) if len(rows[:most]) > len(used) else None
    # Ranges chosen tensor by tensor suit weights that are rounded by themselves: try it without them, too.
    plain = replace(best, request=replace(request, methods={k: m for k, m in request.methods.items() if k in cut}))
    for candidate in (best, plain) if plain.request != request and lab.effort == "high" else (best,):
        refined = refiner.refine(candidate.planned)
        proposed = replace(candidate, refined=refined, refits=refiner.refits, refiner=for_all)
        is_kept = (yield proposed).best is proposed
        # Samples may be too few to fit weights to the errors of the layers before. If that helps where work is scarce,
        # nothing else is tried. With 8 bits, rounding alone brings little.
        if refiner.refits and not is_wide and (not is_kept or len(used) < most):
            plainly = replace(refiner, refits=False).refine(candidate.planned)
            again = None if for_all is None else replace(for_all, refits=False)
            yield replace(candidate, refined=plainly, refits=False, refiner=again)


def rounded_for_all_samples(bench: Bench, best: Candidate) -> Candidate:
    """The candidate with weights rounded on the samples that judged it, too, unless held-back samples find that worse.

    Without held-back samples nothing could tell, so it stays as it is.
    """
    if best.refiner is None or best.refined is None or best.learned or not bench.unseen_rows:
        return best
    made = replace(best, refined=best.refiner.refine(replace(best, refined=None).planned), refiner=None)
    others = bench.on(bench.unseen_rows)
    return made if others.error(made.model()) <= others.error(best.model()) else best


def _refining_samples(candidate: Candidate, effort: Effort) -> int:
    """As every layer needs runs of all before it, fewer for large models; none where standard effort is too little."""
    request = candidate.request
    layers = [macs for op in candidate.prepared.model.main.ops if (macs := macs_of(op, request.ops))]
    work = max(1, len(layers) * sum(layers))
    if effort == "standard" and (request.recipe.least_bits >= 8 or REFINED[0] * work > REFINING_MACS["standard"]):
        return 0
    return int(np.clip(REFINING_MACS[effort] // work, *REFINED))


def _mending_samples(lab: Lab, candidate: Candidate) -> int:
    """On how many samples standard effort fits weights of 8 bits to what activations have lost; none for models that
    are good enough, or so large that the two runs of every sample take too long.

    What states that come back do is not seen in single runs, and sequences cannot be run layer by layer.
    """
    request, bench = candidate.request, lab.bench
    if decibels(lab.error) >= GOOD_ENOUGH or bench.in_sequence or not request.recipe.has_integer_ops:
        return 0
    macs = sum(macs_of(op, request.ops) for op in candidate.prepared.model.main.ops)
    is_large = 2 * REFINED[0] * macs > MENDING_MACS  # each sample is run in the float model and in the quantized one
    return 0 if is_large or len(bench.rows) < FEWEST_MENDING else REFINED[0]


def mixed_precision(lab: Lab, best: Candidate) -> Proposals:
    """Weights of the layers that few bits cost most in 8 bits."""
    layers = narrow_layers(best.planned, best.request.recipe)
    widening = worth_widening(*_harms(lab, best, layers)) if layers else None
    if widening is None:
        return
    wide = best.widened(widening)
    if best.refined is None:
        yield wide
    else:
        yield from compensated_rounding(lab, wide)


def _harms(lab: Lab, best: Candidate, layers: Sequence[NarrowLayer]) -> tuple[dict[NarrowLayer, float], float]:
    """The error that each layer adds, alone in few bits, to that of the model with all of them in 8."""
    ops = best.request.ops
    work = len(layers) * sum(macs_of(op, ops) for op in best.prepared.model.main.ops)
    samples = int(min(WIDENING_MACS[lab.effort] // max(1, work), WIDENED[1]))
    if samples < WIDENED[0]:
        return weight_errors(layers, best.planned, ops), 0.0
    bench, report = lab.bench.judging(samples), lab.stage("measuring what few bits cost", len(layers))
    return measured_harms(layers, lambda wide: bench.error(best.widened(wide).model()), report)


def require_learning() -> None:
    """Raise unless Keras is there, before anything is tried."""
    from ..train import reconstruction as train_blocks

    train_blocks.require_learning()


def reconstruction(lab: Lab, best: Candidate) -> Proposals:
    """Roundings of weights and ranges of activations learned block by block, on all samples that are not held back."""
    from ..train import reconstruction as train_blocks  # needs Keras

    rows, judged = lab.bench.rows, len(lab.bench.judged_rows)
    # Without held-back samples, those that judge are not learned from, if there are enough others.
    used = rows[judged:] if not lab.bench.unseen_rows and len(rows) - judged >= REFINED[0] else rows
    if lab.bench.in_sequence:
        lab.notes.append("max effort gave nothing: samples are one sequence, and blocks learn from single ones")
        return
    request = best.request if best.request.effort == "quick" else replace(best.request, effort="max")
    # What is learned is checked on samples that weights were not rounded for either: on those, they are too good.
    checked = used[:: train_blocks.CHECKED_EVERY] if len(used) >= 2 * train_blocks.CHECKED_EVERY else used
    learned = [row for k, row in enumerate(used) if k % train_blocks.CHECKED_EVERY] if checked is not used else used
    refiner = Refiner(best.prepared.model, request, learned, no_progress, VECTORS["high"], refits=best.refits)
    plain = replace(best, refined=None)
    found = train_blocks.Reconstruction(refiner, checked, lab.stage, request.seed).of(plain.planned)
    if found.changed:
        yield replace(best, refined=found.planned, learned=found.changed)
    stopped = "interrupted; " if found.interrupted else ""
    lab.notes.append(f"{stopped}{found.changed} of {found.blocks} blocks learned something that holds on other samples")
