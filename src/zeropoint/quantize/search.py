"""Several ways to quantize a model, and the one whose outputs come closest to the float model's on the data.

What makes an int8 model good is not to be had from one tensor at a time: clipping that is best for a tensor may cost
more further on, and evening out channels helps one network and not the next. Both are cheap to try.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..affine import QuantParams
from ..calibrate import Method, Settings, Stats, calibrate
from ..calibrate.collect import Progress
from ..dtypes import Array
from ..graph.edit import copy_model, signatures_follow
from ..graph.model import Model, Tensor
from ..graph.query import tensor_keys
from ..runtime import Session
from ..sources.ports import Row, entries, entry
from ..sources.samples import Notes, Samples, iterate, rows
from .equalize import equalize
from .pipeline import Planned, Request, Result, carry_out, plan_model, require_float_part, run
from .plan import Plan
from .planner import Interface
from .prepare import prepare
from .refine import Refiner

TRIED: tuple[Method, ...] = ("mse", "minmax")
"""Percentiles sometimes come closer to the float outputs, but over the zoo no score gained from trying them."""

KEPT_SAMPLES, KEPT_BYTES = 256, 1 << 28
"""How much of the data is held back to run again."""

JUDGED, REFINED = 24, 64
"""On how many of these candidates are compared, and weights refined."""


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


@dataclass(frozen=True)
class Candidate:
    """One way to do it: a model that computes the same as the original, its statistics, and a range method."""

    model: Model
    stats: Stats
    method: Method
    equalized: int  # how many tensors have had their channels evened out

    def __str__(self) -> str:
        return f"{self.method} ranges" + (
            f", channels of {self.equalized} tensors evened out" if self.equalized else ""
        )


def quantize_on(
    model: Model,
    request: Request,
    data: Samples | Mapping[str, Samples],
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Result:
    """Calibrate on `data` and quantize; with standard effort and automatic ranges, in the way that works best."""
    require_float_part(model)
    single = not isinstance(data, Mapping) and len({e.graph for e in entries(model)}) == 1
    if request.method != "auto" or request.effort == "quick" or not single:
        return run(model, replace(request, stats=calibrate(model, data, settings, progress=progress)))
    assert not isinstance(data, Mapping)
    keeper = Keeper(data)
    stats = calibrate(model, keeper, settings, progress=progress)
    judge = Judge.of(model, keeper.kept)
    if judge is None:
        return run(model, replace(request, stats=stats))
    plain = [Candidate(model, stats, method, 0) for method in TRIED]
    best, error = judge.best(plain, request)
    evened, count = _equalized(model, stats, request)
    if count:
        again = calibrate(evened, keeper.kept, replace(settings or Settings(), limit=None))
        methods = dict.fromkeys((best.method, "mse"))
        other, its_error = judge.best([Candidate(evened, again, m, count) for m in methods], request)
        if its_error < error:
            best, error = other, its_error
    chosen = replace(request, stats=best.stats, method=best.method)
    planned, how = plan_model(best.model, chosen), str(best)
    if request.effort == "high":
        refined = _refined(planned, chosen, keeper.kept, progress)
        its_error = judge.error(_float_ends(refined, chosen))
        if its_error < error:
            planned, error, how = refined, its_error, f"{how}, weights rounded with compensation"
    result = carry_out(planned, chosen)
    return replace(result, notes=(*result.notes, f"{how}; outputs differ by {_decibel(error)}"))


def _refined(planned: Planned, request: Request, kept: list[Any], progress: Progress | None) -> Planned:
    """The same plan with better weights and biases."""
    samples = [row for _, row in rows(kept[:REFINED], entry(planned.model), Notes())][:REFINED]
    refiner = Refiner(planned.model, request.ops, samples, progress)
    return Planned(planned.model, tuple(refiner.refine(plan) for plan in planned.plans))


def _float_ends(planned: Planned, request: Request) -> Model:
    """The model with float inputs and outputs, to be compared."""
    plans = tuple(replace(plan, inputs={}, outputs={}, stored=_inner(plan)) for plan in planned.plans)
    return carry_out(Planned(planned.model, plans), request).model


def _inner(plan: Plan) -> dict[Tensor, QuantParams]:
    return {t: p for t, p in plan.stored.items() if t not in plan.inputs}


def _equalized(model: Model, stats: Stats, request: Request) -> tuple[Model, int]:
    """A copy of the model with evened-out channels, and how many tensors that concerns."""
    copy = copy_model(model)
    keys = tensor_keys(copy)
    with signatures_follow(copy):
        given = prepare(copy, request.recipe).merge(request.ranges)
    # Ranges that were given are those of the tensors as they are.
    return copy, 0 if given.entries else len(equalize(copy, stats, keys))


@dataclass(frozen=True)
class Judge:
    """Compares outputs with those of the float model."""

    samples: list[Row]
    outputs: list[list[Array]]
    float_outputs: list[int]

    @classmethod
    def of(cls, model: Model, kept: list[Any]) -> Judge | None:
        """None if the model has no float output to compare."""
        session = Session(model)
        compared = [k for k, d in enumerate(session.outputs) if np.dtype(d["dtype"]).kind == "f"]
        chosen = [row for _, row in rows(kept[:JUDGED], entry(model), Notes())][:JUDGED]
        if not compared or not chosen:
            return None
        return cls(chosen, _run(session, chosen), compared)

    def best(self, candidates: list[Candidate], request: Request) -> tuple[Candidate, float]:
        asked = replace(request, interface=Interface())
        models = (run(c.model, replace(asked, stats=c.stats, method=c.method)).model for c in candidates)
        errors = [self.error(model) for model in models]
        k = int(np.argmin([error if np.isfinite(error) else np.inf for error in errors]))
        return candidates[k], errors[k]

    def error(self, model: Model) -> float:
        """Squared error of a model's outputs relative to their power, averaged over outputs."""
        found = _run(Session(model), self.samples)
        return float(np.mean([self._relative(k, found) for k in self.float_outputs]))

    def _relative(self, k: int, found: list[list[Array]]) -> float:
        power = error = 0.0
        for wanted, got in zip(self.outputs, found, strict=True):
            reference = wanted[k].astype(np.float64)
            power += float((reference**2).sum())
            error += float(((reference - got[k]) ** 2).sum())
        return error / power if power > 0 else error


def _run(session: Session, samples: list[Row]) -> list[list[Array]]:
    found = []
    shapes: list[tuple[int, ...]] = [tuple(d["shape"]) for d in session.inputs]
    for row in samples:
        if [a.shape for a in row] != shapes:
            shapes = [a.shape for a in row]
            session.resize(shapes)
        session.reset()
        found.append(session.run(row))
    return found


def _decibel(error: float) -> str:
    return "nothing" if error <= 0 else f"{10 * math.log10(error):.1f} dB of their power"
