"""How near the deployed model comes to the trained graph, in units of the last place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..affine import QuantParams, dequantize
from ..dtypes import Array, DType
from ..errors import InvalidSample
from ..graph.edit import copy_model
from ..graph.model import Model
from ..plan.pipeline import Result
from ..runtime import Kernels, Session
from ..sources.ports import entry
from ..sources.samples import Notes, Samples, rows
from .arrays import array_of
from .network import Trainable


@dataclass(frozen=True)
class Parity:
    """Of one output: how many elements were compared, which shares agree exactly and within one unit, the worst."""

    name: str
    elements: int
    equal: float
    within_one: float
    worst: float

    def __str__(self) -> str:
        return (
            f"'{self.name}': {self.equal:.2%} of {self.elements} elements equal, {self.within_one:.2%} within one "
            f"unit, the worst {self.worst:.0f} units off"
        )


def parity(
    trained: Trainable, result: Result, samples: Samples, *, limit: int = 100, kernels: Kernels = "delegate"
) -> tuple[Parity, ...]:
    """Run `samples` through the trained graph and through LiteRT, and compare the outputs of the trained graph."""
    planned, plan = trained.blueprint.planned.model, result.plan
    chosen = [row for _, row in rows(samples, entry(planned), Notes())][:limit]
    if not chosen:
        raise InvalidSample("no samples were given to compare")
    names = [tensor.name for tensor in trained.blueprint.outputs]
    exposed, params = _exposed(result.model, names)
    session = Session(exposed, kernels=kernels)
    units = [_unit(plan.stored.get(t), p) for t, p in zip(trained.blueprint.outputs, params, strict=True)]
    gaps: list[list[Array]] = [[] for _ in names]
    for row in chosen:
        wanted = trained(list(row), training=False)
        session.reset()
        found = session.run(row)
        for k, (ours, theirs) in enumerate(zip(wanted if isinstance(wanted, list) else [wanted], found, strict=True)):
            held = params[k]
            real = theirs if held is None else dequantize(theirs, held)
            gaps[k].append(np.abs(array_of(ours).astype(np.float64) - real).reshape(-1) / units[k])
    return tuple(_summary(name, np.concatenate(gap)) for name, gap in zip(names, gaps, strict=True))


def _exposed(model: Model, names: list[str]) -> tuple[Model, list[QuantParams | None]]:
    """A copy of the model whose outputs are the tensors of these names."""
    copy = copy_model(model)
    graph = entry(copy).graph
    graph.outputs = [graph.tensor(name) for name in names]
    copy.signatures = []
    copy.graphs = [graph, *(g for g in copy.graphs if g is not graph)]
    return copy, [t.params if t.is_quantized else None for t in graph.outputs]


def _unit(stored: QuantParams | None, held: QuantParams | None) -> float:
    """What one integer step is worth; for float outputs a 256th of what is usual, 1."""
    known = held or stored
    return 1 / 256 if known is None or known.dtype is DType.FLOAT32 else known.scale


def _summary(name: str, gaps: Array) -> Parity:
    units = np.round(gaps)
    return Parity(name, gaps.size, float((units == 0).mean()), float((units <= 1).mean()), float(units.max(initial=0)))
