"""Dynamic-range layers whose inputs do not suit one scale per run.

The kernels of the mode dynamic quantize a layer's input with a single scale, determined at run time. If a few values of
a run are far larger than all others, nothing is left for these. Such layers keep their integer weights but compute in
float; they are searched for as float islands are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..bench.errors import decibels
from ..graph.model import Op
from ..ops.execution import macs_of
from .candidate import Candidate, Lab, Proposals
from .float_islands import GAIN, MOST_RUNS, FloatShare, find_island

HARMLESS = 25.0
"""SNR of the outputs in dB above which the search is skipped."""

SAMPLES = 8
"""Number of samples used for the search."""


def layers_on_floats(lab: Lab, best: Candidate) -> Proposals:
    """Propose to dequantize the integer weights of the layers that lose most by quantizing their input."""
    layers = _dynamic_layers(best)
    if best.request.recipe.has_integer_ops or not layers or decibels(lab.error) >= HARMLESS:
        return
    bench = lab.bench.judging(SAMPLES)

    def snr(part: Sequence[Op]) -> float:
        return decibels(bench.error(_on_floats(best, part).model()))

    before = snr(())
    if snr(layers) - before < GAIN:  # the weights cause the error
        return
    work = {op: max(1, macs_of(op, best.request.ops)) for op in layers}
    report = lab.stage("looking for layers to compute in float", MOST_RUNS)
    found = find_island(work, snr, before, report, FloatShare(1.0)) or layers
    candidate = _on_floats(best, found)
    if (yield candidate).best is candidate:
        risen = f"SNR of the outputs from {before:.1f} to {snr(found):.1f} dB"
        lab.notes.append(
            f"{len(found)} of {len(layers)} dynamic layers compute with floats on integer weights: {risen}"
        )


def _dynamic_layers(candidate: Candidate) -> list[Op]:
    """Return layers that quantize their input at run time, and that no rule names."""
    plan, recipe = candidate.planned.plans[0], candidate.request.recipe
    hybrid = {use.op for use, packed in plan.packed.items() if not packed.unpacked}
    return [op for op in plan.graph.ops if op in hybrid and (rule := recipe.rule(op)) is not None and rule.is_general]


def _on_floats(candidate: Candidate, ops: Sequence[Op]) -> Candidate:
    recipe = replace(candidate.request.recipe, on_floats=frozenset(ops))
    return replace(candidate, request=replace(candidate.request, recipe=recipe), refined=None)
