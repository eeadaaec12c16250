"""The inputs of a layer, in the quantized model and in the float model, and their moments.

Refined weights change the inputs of all later layers, so the model is run again for each layer. That need not start at
its inputs: the values of the samples at one point of the graph are kept, and the next run continues from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate
from operator import add
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from ..dtypes import Array
from ..graph.model import Graph, Model, Op, Tensor
from ..runtime.runner import Runner
from ..sources.ports import Row

HELD = 1 << 27
"""Bytes that samples may take at a place where they are held. Where they would take more, the next run starts at the
place before."""

MOST_INPUTS = 1024
"""Inputs whose moments are taken together. What layers with more read is treated in blocks: memory and time grow with
the square and the cube of this."""


TOGETHER = 512
"""Vectors that are multiplied with each other at once: many, as sums of large matrices take time, and memory."""


@dataclass(frozen=True)
class ColumnBlocks:
    """The inputs of a layer in blocks of equal width, each treated as a separate group."""

    inputs: int

    @property
    def count(self) -> int:
        return max(1, -(-self.inputs // MOST_INPUTS))

    @property
    def width(self) -> int:
        return -(-self.inputs // self.count)

    def split(self, values: Array, fill: float = 0.0) -> Array:
        """Return [groups, rows, inputs] as [groups * blocks, rows, width], the last block padded."""
        if self.count == 1:
            return values
        groups, rows, inputs = values.shape
        padded = np.pad(values, [(0, 0), (0, 0), (0, self.count * self.width - inputs)], constant_values=fill)
        by_block = padded.reshape(groups, rows, self.count, self.width).transpose(0, 2, 1, 3)
        return np.ascontiguousarray(by_block).reshape(groups * self.count, rows, self.width)

    def join(self, values: Array) -> Array:
        """Invert `split`."""
        if self.count == 1:
            return values
        blocks, rows, width = values.shape
        by_row = values.reshape(blocks // self.count, self.count, rows, width).transpose(0, 2, 1, 3)
        return np.asarray(by_row.reshape(blocks // self.count, rows, self.count * width)[:, :, : self.inputs])


@dataclass(frozen=True)
class Pair:
    """E[x x'] and E[f x'] [groups, inputs, inputs] of inputs x that should be f."""

    second: Array
    cross: Array

    def missing(self, weights: Array) -> Array:
        """Return E[(w . f - w . x) x'] [groups, inputs, outputs]: what a change of the weights should achieve."""
        return np.asarray((self.cross - self.second).transpose(0, 2, 1) @ weights.transpose(0, 2, 1))

    def change(self, missing: Array, damping: float) -> Array:
        """Return the change d [groups, inputs, outputs] of weights w for which (w + d) . x is close to w . f.

        Because the change is solved for, damping pulls towards the current weights, not towards zero.
        """
        return np.asarray(np.linalg.solve(self.damped(damping, missing.dtype), missing))

    def damped(self, damping: float, dtype: DTypeLike = np.float64) -> Array:
        """Return E[x x'] with this share of its mean diagonal added."""
        inputs = self.second.shape[1]
        level = np.trace(self.second, axis1=1, axis2=2) / inputs
        damped, spots = self.second.astype(dtype), np.arange(inputs)
        damped[:, spots, spots] += (damping * np.where(level > 0, level, 1.0))[:, None]
        return damped

    def error(self, change: Array, missing: Array) -> float:
        """Return by how much E[(w . f - (w + d) . x)**2] is larger than without the change."""
        return float(np.sum((self.second.astype(change.dtype) @ change - 2 * missing) * change, dtype=np.float64))


class Moments(NamedTuple):
    """E[x] and E[x x'] of a layer's input vectors x, for each group; E[f] and E[f x'], f being x in the float model.
    The last is empty where it is not asked for: it takes as much time as all others together.
    `vectors` is how many there were."""

    first: Array
    second: Array
    float_first: Array
    cross: Array
    vectors: float

    @classmethod
    def mean(cls, several: Sequence[Moments]) -> Moments:
        total, parts = reduce(lambda sums, one: cls(*map(add, sums, one)), several), len(several)
        first, second, float_first, cross = (part / parts for part in total[:4])
        return cls(first, second, float_first, cross, total.vectors)

    @classmethod
    def of(cls, samples: Iterable[tuple[Array, Array]], *, crossed: bool = True) -> Moments:
        """Return the moments of pairs of x and f [groups, vectors, inputs], one for each sample; all samples have equal
        weight."""
        firsts, pending, count, vectors = [], list[tuple[Array, Array]](), 0, 0
        total: tuple[Array, Array] | None = None

        def added() -> tuple[Array, Array]:
            x, f = (np.concatenate(parts, axis=1) for parts in zip(*pending, strict=True))
            products = x.transpose(0, 2, 1) @ x, f.transpose(0, 2, 1) @ x if crossed else np.empty(0, x.dtype)
            if total is None:
                return products
            for sums, product in zip(total, products, strict=True):
                sums += product
            return total

        for x, f in samples:
            count += 1
            vectors += x.shape[1]
            firsts.append([part.mean(axis=1, dtype=np.float64) for part in (x, f)])
            share = np.float32(1 / math.sqrt(x.shape[1]))
            pending.append((x * share, f * share))
            if sum(part.shape[1] for part, _ in pending) >= TOGETHER:
                total = added()
                pending.clear()
        if pending:
            total = added()
        assert total is not None
        first, float_first = (sum(parts) / count for parts in zip(*firsts, strict=True))
        return cls(first, total[0] / count, float_first, total[1] / count, vectors)

    def without_means(self, second: Array) -> Moments:
        """Return the moments with other second moments, and with means of zero, so that biases stay unchanged."""
        first, float_first = np.zeros_like(self.first), np.zeros_like(self.float_first)
        return Moments(first, second, float_first, self.cross, self.vectors)

    def pair(self, has_bias: bool) -> Pair:
        """Return the second moments; central ones if a bias takes care of the means."""
        if not has_bias:
            return Pair(self.second, self.cross)
        means, dtype = self.first[:, None, :], self.second.dtype
        second = self.second - (self.first[:, :, None] * means).astype(dtype)
        cross = self.cross - (self.float_first[:, :, None] * means).astype(dtype) if self.cross.size else self.cross
        return Pair(second, cross)


class Frontier:
    """How far a graph has been run on samples: for each sample, everything that the ops from `place` on read.

    Samples of one sequence, and graphs with state, are run from the start each time.
    """

    def __init__(self, graph: Graph, rows: Sequence[Row], in_sequence: bool) -> None:
        self.place = 0
        self.rows: list[Sequence[Array]] = list(rows)
        has_memory = any(t.is_variable or t.dtype.storage is None for t in graph.tensors)
        self._may_stop = not in_sequence and not has_memory and not any(op.graphs() for op in graph.ops)
        self._in_sequence = in_sequence
        self._is_fixed = not any(t.is_dynamic for t in graph.inputs)

    def until(self, model: Model, graph: Graph, op: Op, slot: int) -> Stretch:
        """Return what leads from here to the input of `op` at `slot`; `graph` is a version of the one that was run so
        far."""
        end, source = graph.ops.index(op), op.inputs[slot]
        assert source is not None
        start, held = live_tensors(graph, self.place), self._held(graph, end, source)
        wanted = [source] if held is None else held
        made = [t for t in wanted if t not in start]
        runner = None
        if made:
            part = replace(graph, inputs=start, ops=_stretch_ops(graph, self.place, end))
            others = [g for g in model.graphs if g is not graph]
            runner = Runner.exposing(replace(model, graphs=[part, *others]), part, made, strict=self._is_fixed)
            runner.keeping_state(self._in_sequence)
        stretch = Stretch(self, start, source, wanted, runner, held is not None)
        self.place = self.place if held is None else end
        return stretch

    def _held(self, graph: Graph, end: int, source: Tensor) -> list[Tensor] | None:
        """Return what is held before the op at `end`, of which `source` is read first; None if the samples cannot be
        held there."""
        if not self._may_stop:
            return None
        held = list(dict.fromkeys([*live_tensors(graph, end), source]))
        size = sum(t.size * np.dtype(t.dtype.storage).itemsize for t in held)
        return held if size * len(self.rows) <= HELD else None

    def macs_until(self, graph: Graph, layers: Iterable[tuple[Op, Tensor]], macs: Callable[[Op], int]) -> int:
        """Return how many multiply-accumulates a sample takes up to each of these layers in turn, which read these
        tensors."""
        places = {op: k for k, op in enumerate(graph.ops)}
        before, place, total = list(accumulate(map(macs, graph.ops), initial=0)), 0, 0
        for op, source in layers:
            end = places[op]
            total += before[end] - before[place]
            place = place if self._held(graph, end, source) is None else end
        return total


@dataclass(frozen=True)
class Stretch:
    """The ops between a frontier and a layer, and, if it `stops` there, what the frontier holds afterwards."""

    frontier: Frontier
    start: Sequence[Tensor]
    source: Tensor
    ends: Sequence[Tensor]
    runner: Runner | None
    stops: bool

    def another(self) -> Stretch:
        """Return a copy for another thread."""
        return replace(self, runner=None if self.runner is None else self.runner.another())

    def run(self, number: int) -> Array:
        """Return the layer's input for the sample of this number. Each is run once."""
        row = self.frontier.rows[number]
        values = dict(zip(self.start, row, strict=True))
        if self.runner is not None:
            values |= self.runner.values(row)
        if self.stops:
            self.frontier.rows[number] = [values[t] for t in self.ends]
        return values[self.source]


def live_tensors(graph: Graph, place: int) -> list[Tensor]:
    """Return tensors computed from samples before the op at `place` and read from there on; at the beginning, the
    inputs."""
    if not place:
        return list(graph.inputs)
    made = {*graph.inputs, *(t for op in graph.ops[:place] if not _unpacks(op) for t in op.outputs)}
    read = {t for op in graph.ops[place:] for t in op.inputs}
    return [t for t in graph.tensors if t in made and t in read]


def _stretch_ops(graph: Graph, start: int, end: int) -> list[Op]:
    """Return the ops of a stretch, preceded by those that dequantize their constants, which do not depend on
    samples."""
    ops = [op for op in graph.ops[start:end] if not _unpacks(op)]
    read = {t for op in ops for t in op.inputs}
    return [*(op for op in graph.ops[:end] if _unpacks(op) and not read.isdisjoint(op.outputs)), *ops]


def _unpacks(op: Op) -> bool:
    """Whether the op dequantizes a constant. LiteRT's delegate (2.3) cannot return dequantized constants as outputs."""
    return op.kind == "DEQUANTIZE" and op.inputs[0] is not None and op.inputs[0].data is not None
