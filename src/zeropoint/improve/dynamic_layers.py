"""Dynamic layers whose inputs one scale for each run does not suit.

The kernels of the mode dynamic round what a layer reads with a single scale, found as they run. Where a few values of a
run are far larger than all others, nothing is left for these. Such layers keep their integer weights but compute with
floats: which ones is searched for as float islands are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..bench.errors import decibels
from ..graph.model import Op
from ..ops.execution import macs_of
from .candidate import Candidate, Lab, Proposals
from .float_islands import GAIN, MOST_RUNS, find_island

HARMLESS = 25.0
"""SNR of the outputs in dB from which on nothing is searched for."""

SAMPLES = 8
"""On how many samples it is searched."""


def layers_on_floats(lab: Lab, best: Candidate) -> Proposals:
    """Integer weights made float before use in the layers that lose most by the rounding of what they read."""
    layers = _dynamic_layers(best)
    if best.request.recipe.has_integer_ops or not layers or decibels(lab.error) >= HARMLESS:
        return
    bench = lab.bench.judging(SAMPLES)

    def snr(part: Sequence[Op]) -> float:
        return decibels(bench.error(_on_floats(best, part).model()))

    before = snr(())
    if snr(layers) - before < GAIN:  # the weights do the harm
        return
    work = {op: max(1, macs_of(op, best.request.ops)) for op in layers}
    report = lab.stage("looking for layers to compute in float", MOST_RUNS)
    found = find_island(work, snr, before, report, most=1.0) or layers
    candidate = _on_floats(best, found)
    if (yield candidate).best is candidate:
        risen = f"SNR of the outputs from {before:.1f} to {snr(found):.1f} dB"
        lab.notes.append(
            f"{len(found)} of {len(layers)} dynamic layers compute with floats on integer weights: {risen}"
        )


def _dynamic_layers(candidate: Candidate) -> list[Op]:
    """Layers that round what they read as they run, and that no rule names."""
    plan, recipe = candidate.planned.plans[0], candidate.request.recipe
    hybrid = {use.op for use, packed in plan.packed.items() if not packed.unpacked}
    return [op for op in plan.graph.ops if op in hybrid and (rule := recipe.rule(op)) is not None and rule.is_general]


def _on_floats(candidate: Candidate, ops: Sequence[Op]) -> Candidate:
    recipe = replace(candidate.request.recipe, on_floats=frozenset(ops))
    return replace(candidate, request=replace(candidate.request, recipe=recipe), refined=None)
