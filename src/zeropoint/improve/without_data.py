"""Low-bit weights without data: decides on likely inputs which layers need 8 bits, and how the others are rounded."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..bench.bench import Bench
from ..errors import ZeropointError
from ..ops import OpSpec
from ..ops.execution import total_macs
from ..ops.layout import Convolution
from ..sources.ports import Row
from .candidate import Candidate, no_progress
from .likely_inputs import likely_rows
from .mixed_precision import (
    DB_PER_BIT,
    NarrowLayer,
    Widening,
    measured_harms,
    narrow_layers,
    weight_errors,
    worth_widening,
)
from .refiner import Refiner

REFINED, REFINING_MACS = 1024, 1e11
"""Number of likely inputs for which weights are rounded, and the work that their runs may take; with fewer, weights are
rounded independently."""

JUDGED, JUDGING_MACS = (4, 48), 1e11
"""Number of likely inputs on which the cost of few bits is measured for each layer, and the work this may take."""

CHEAPER = 0.5
"""Price of bytes in decibels, relative to that with data: synthetic inputs show only part of the error."""


def with_chosen_bits(candidate: Candidate) -> tuple[Candidate, tuple[str, ...]]:
    """Return the candidate with 8 bits for some layers and better roundings for others, according to likely inputs;
    with notes."""
    layers = narrow_layers(candidate.planned, candidate.request.recipe)
    if not layers:
        return candidate, ()
    with contextlib.suppress(ZeropointError):  # the model does not run with its recorded shapes
        return _on_likely_inputs(candidate, layers)
    return _by_weight_errors(candidate, layers)


def _by_weight_errors(candidate: Candidate, layers: Sequence[NarrowLayer]) -> tuple[Candidate, tuple[str, ...]]:
    widening = worth_widening(weight_errors(layers, candidate.planned, candidate.request.ops))
    return (candidate, ()) if widening is None else (candidate.widened(widening), (widening.text(),))


def _on_likely_inputs(candidate: Candidate, layers: Sequence[NarrowLayer]) -> tuple[Candidate, tuple[str, ...]]:
    model, ops = candidate.prepared.model, candidate.request.ops
    macs = max(1, total_macs(model.main.ops, ops))
    count = min(JUDGED[1], int(JUDGING_MACS // (len(layers) * macs)))
    rows, is_known = likely_rows(model, ops, count, seed=1)
    if count < JUDGED[0] or not rows:
        return _by_weight_errors(candidate, layers)
    bench, notes = Bench(model, (), ops=ops).on(rows), list[str]()
    refiner = None
    if is_known and _is_dense(layers, ops) and REFINED * len(layers) * macs <= REFINING_MACS:
        refiner = _refiner(candidate, likely_rows(model, ops, REFINED)[0])
        notes.append(
            "weights rounded with compensation on made-up inputs, whose mean follows from the first layer's biases"
        )

    def rounded(widened: Candidate) -> Candidate:
        return widened if refiner is None else replace(widened, refined=refiner.refine(widened.planned))

    def error(one: Candidate) -> float:
        return bench.error(rounded(one).model())

    wide = candidate.widened(Widening((*layers,), len(layers)))
    rest, report = error(wide), no_progress("", len(layers))
    harms = measured_harms(layers, rest, lambda layer: error(candidate.narrow_only_in(layer, wide)), report)
    widening = worth_widening(harms, rest, CHEAPER * DB_PER_BIT)
    if widening is None:
        return rounded(candidate), (*notes,)
    widening = replace(widening, chosen_by="by what few bits cost on made-up inputs")
    return rounded(candidate.widened(widening)), (widening.text(), *notes)


def _refiner(candidate: Candidate, rows: Sequence[Row]) -> Refiner:
    return Refiner(
        candidate.prepared.model, candidate.request, rows, no_progress, len(rows), refits=False, made_up=True
    )


def _is_dense(layers: Sequence[NarrowLayer], ops: Mapping[str, OpSpec]) -> bool:
    """Whether no layer has windows. With windows, SQuant's assumption that neighbours are similar is more reliable."""
    return not any(isinstance(ops[op.kind].layout, Convolution) for layer in layers for op in layer.ops)
