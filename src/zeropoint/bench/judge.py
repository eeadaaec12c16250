"""How far a quantized model's outputs are from the float model's, and where on the way they part."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..affine import dequantize
from ..dtypes import Array, DType
from ..graph.edit import cut_model
from ..graph.model import Graph, Model, Op, Tensor
from ..ops import CONVERSIONS, OPS, Probabilities
from ..ops.execution import macs_of
from ..parallel import in_parallel
from ..recipe import Effort
from ..runtime.runner import Runner, loadable
from ..sources.ports import Row, entry
from ..sources.samples import Notes, rows

JUDGED = {"standard": 24, "high": 64}
"""On how many samples models are compared, by effort."""

SQUASHED = 8.0
"""What is so much below the greatest input of a softmax, or so far from zero before a sigmoid, makes no difference: a
probability of 0.0003."""

SHORT = 1e8
"""Multiply-accumulates that take less time than starting threads."""

PARTS = 2
"""The samples are split into so many parts, whatever the number of cores, so that sums come out the same."""


@dataclass(frozen=True)
class Judge:
    """Compares outputs with those of the float model.

    Of an output that a softmax or a sigmoid makes, it compares what goes into these: probabilities near 0 and 1 hide
    what happened before, so that a few doubtful samples would decide alone.
    """

    samples: list[Row]
    compared: tuple[Compared, ...]
    values: list[list[Array]]  # by sample, of the float model

    @classmethod
    def of(cls, model: Model, kept: list[Any], effort: Effort = "standard") -> Judge | None:
        """None if the model has no float output to compare."""
        most = JUDGED[effort]
        compared = tuple(_compared(entry(model).graph))
        chosen = [row for _, row in rows(kept[:most], entry(model), Notes())][:most]
        if not compared or not chosen:
            return None
        return cls(chosen, compared, _seen(model, compared, chosen))

    def first(self, count: int) -> Judge:
        """One that looks at fewer samples."""
        return replace(self, samples=self.samples[:count], values=self.values[:count])

    def error(self, model: Model) -> float:
        """Squared error of a model's outputs relative to their power, averaged over outputs."""
        found = _seen(model, self.compared, self.samples)
        columns = [([row[k] for row in self.values], [row[k] for row in found]) for k in range(len(self.compared))]
        error = float(np.mean([relative_error(wanted, got) for wanted, got in columns]))
        return error if math.isfinite(error) else math.inf


@dataclass(frozen=True)
class Compared:
    """The output at `place`, or, where it holds `probabilities`, what these are made of."""

    place: int
    probabilities: Probabilities | None = None

    def tensor(self, graph: Graph) -> Tensor:
        maker = None if self.probabilities is None else _maker(graph, graph.outputs[self.place])
        return graph.outputs[self.place] if maker is None or maker.inputs[0] is None else maker.inputs[0]

    def seen(self, values: Array) -> Array:
        if self.probabilities is None:
            return values
        if self.probabilities == "each":
            return np.clip(values, -SQUASHED, SQUASHED)
        # What all inputs have in common, a softmax does not see.
        below = np.maximum(values.astype(np.float64) - values.max(axis=-1, keepdims=True), -SQUASHED)
        return np.asarray(below - below.mean(axis=-1, keepdims=True))


def _compared(graph: Graph) -> Iterator[Compared]:
    for place, tensor in enumerate(graph.outputs):
        if tensor.dtype is DType.FLOAT32:
            maker = _maker(graph, tensor)
            spec = None if maker is None else OPS.get(maker.kind)
            yield Compared(place, None if spec is None else spec.probabilities)


def _maker(graph: Graph, tensor: Tensor) -> Op | None:
    """What computes the tensor, behind conversions."""
    makers = {t: op for op in graph.ops for t in op.outputs}
    maker = makers.get(tensor)
    while maker is not None and maker.kind in (*CONVERSIONS, "FAKE_QUANT") and maker.inputs[0] is not None:
        maker = makers.get(maker.inputs[0])
    return maker


def _seen(model: Model, compared: Sequence[Compared], samples: Sequence[Row]) -> list[list[Array]]:
    """By sample, the real values of what is compared."""
    graph = entry(model).graph
    columns = _inner(model, graph, [c.tensor(graph) for c in compared], samples)
    return [[c.seen(column[k]) for c, column in zip(compared, columns, strict=True)] for k in range(len(samples))]


def relative_error(wanted: Sequence[Array], got: Sequence[Array]) -> float:
    """The power of the difference over the power of what is wanted."""
    power = error = 0.0
    for reference, found in zip(wanted, got, strict=True):
        exact = reference.astype(np.float64)
        power += float((exact**2).sum())
        error += float(((exact - found) ** 2).sum())
    return error / power if power > 0 else error


@dataclass(frozen=True)
class OpError:
    """What an op adds to the error: the relative squared error of its output, and the largest among its inputs."""

    label: str
    name: str
    error: float
    before: float


LOOKED_AT = 8
"""Samples on which inner tensors are compared."""


def worst_ops(model: Model, made: Model, samples: Sequence[Row], most: int = 3) -> tuple[OpError, ...]:
    """The ops of `made` whose outputs are furthest from those in `model`, beyond what their inputs already are."""
    graphs = entry(model).graph, entry(made).graph
    named = [{t.name: t for op in graph.ops for t in op.outputs if t.shape} for graph in graphs]
    both = [n for n, t in named[0].items() if n in named[1] and t.dtype is DType.FLOAT32]
    if not both:
        return ()
    values = [
        _inner(m, g, [own[n] for n in both], samples[:LOOKED_AT])
        for m, g, own in zip((model, made), graphs, named, strict=True)
    ]
    errors = {n: relative_error(*(column[k] for column in values)) for k, n in enumerate(both)}
    found = []
    for op in graphs[0].ops:
        if op.outputs and op.outputs[0].name in errors:
            before = max((errors.get(t.name, 0.0) for t in op.inputs if t is not None), default=0.0)
            found.append(OpError(op.label, op.name, errors[op.outputs[0].name], before))
    return tuple(sorted(found, key=lambda e: e.before - e.error)[:most])


def _inner(model: Model, graph: Graph, tensors: list[Tensor], samples: Sequence[Row]) -> list[list[Array]]:
    """The real values of inner tensors, for each all samples."""
    cut, kept = cut_model(model, graph, tensors)
    fed = [k for k, t in enumerate(graph.inputs) if t in kept]
    found = run_all(cut, [tuple(row[k] for k in fed) for row in samples])
    return [[real(row[k], tensor) for row in found] for k, tensor in enumerate(tensors)]


def run_all(model: Model, samples: Sequence[Row]) -> list[list[Array]]:
    """The outputs of every sample, states reset before each."""
    content = loadable(model)

    def part(own: Sequence[Row]) -> list[list[Array]]:
        runner = Runner(model, content)
        return [runner.run(row) for row in own]

    if len(samples) * sum(macs_of(op) for op in model.main.ops) < SHORT:
        return part(samples)
    half = -(-len(samples) // PARTS)
    pieces = in_parallel(part, [samples[k : k + half] for k in range(0, len(samples), half)])
    return [row for piece in pieces for row in piece]


def decibel(error: float) -> str:
    """Of a relative squared error: 0 dB is an error as strong as the signal itself."""
    return "none" if error <= 0 else f"{10 * math.log10(error):.1f} dB"


def real(values: Array, tensor: Tensor) -> Array:
    """What the numbers of a tensor stand for."""
    return values if tensor.params is None or not tensor.is_quantized else dequantize(values, tensor.params)
