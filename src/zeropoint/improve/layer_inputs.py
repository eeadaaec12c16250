"""What a layer reads, in the quantized model and in the float one, and the moments of it.

Refined weights change what all layers behind them read, so the model is run anew for each layer. That need not begin
with its inputs: what the samples are at one place of the graph is held, and the next run goes on from there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import NamedTuple

import numpy as np

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
    """The inputs of a layer in blocks of equal width, each of which is treated as a group by itself."""

    inputs: int

    @property
    def count(self) -> int:
        return max(1, -(-self.inputs // MOST_INPUTS))

    @property
    def width(self) -> int:
        return -(-self.inputs // self.count)

    def split(self, values: Array, fill: float = 0.0) -> Array:
        """[groups, rows, inputs] as [groups * blocks, rows, width], the last block filled up."""
        if self.count == 1:
            return values
        groups, rows, inputs = values.shape
        padded = np.pad(values, [(0, 0), (0, 0), (0, self.count * self.width - inputs)], constant_values=fill)
        by_block = padded.reshape(groups, rows, self.count, self.width).transpose(0, 2, 1, 3)
        return np.ascontiguousarray(by_block).reshape(groups * self.count, rows, self.width)

    def join(self, values: Array) -> Array:
        """The inverse of `split`."""
        if self.count == 1:
            return values
        blocks, rows, width = values.shape
        by_row = values.reshape(blocks // self.count, self.count, rows, width).transpose(0, 2, 1, 3)
        return np.asarray(by_row.reshape(blocks // self.count, rows, self.count * width)[:, :, : self.inputs])


@dataclass(frozen=True)
class Pair:
    """E[x x'] and E[f x'] [groups, inputs, inputs] of inputs x that were to be f."""

    second: Array
    cross: Array

    def missing(self, weights: Array) -> Array:
        """E[(w . f - w . x) x'] [groups, inputs, outputs]: what a change of the weights should bring."""
        return np.asarray((self.cross - self.second).transpose(0, 2, 1) @ weights.transpose(0, 2, 1))

    def change(self, missing: Array, damping: float) -> Array:
        """The change d [groups, inputs, outputs] of weights w for which (w + d) . x is close to w . f.

        As it is the change that is solved for, damping pulls towards the weights as they are, not towards zero.
        """
        inputs = self.second.shape[1]
        level = np.trace(self.second, axis1=1, axis2=2) / inputs
        damped, spots = self.second.astype(missing.dtype), np.arange(inputs)
        damped[:, spots, spots] += (damping * np.where(level > 0, level, 1.0))[:, None]
        return np.asarray(np.linalg.solve(damped, missing))

    def error(self, change: Array, missing: Array) -> float:
        """By how much E[(w . f - (w + d) . x)**2] is larger than without the change."""
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
        """Of pairs of x and f [groups, vectors, inputs], one for each sample; all samples count the same."""
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
        """With other second moments, and with means of zero, so that biases stay as they are."""
        first, float_first = np.zeros_like(self.first), np.zeros_like(self.float_first)
        return Moments(first, second, float_first, self.cross, self.vectors)

    def pair(self, has_bias: bool) -> Pair:
        """The second moments; about the means if a bias takes care of these."""
        if not has_bias:
            return Pair(self.second, self.cross)
        means, dtype = self.first[:, None, :], self.second.dtype
        second = self.second - (self.first[:, :, None] * means).astype(dtype)
        cross = self.cross - (self.float_first[:, :, None] * means).astype(dtype) if self.cross.size else self.cross
        return Pair(second, cross)


class Frontier:
    """How far a graph was run on samples: everything that the ops from `place` on read, of each of them.

    Samples of one sequence, and graphs with a memory, are run from the start each time.
    """

    def __init__(self, graph: Graph, rows: Sequence[Row], in_sequence: bool) -> None:
        self.place = 0
        self.rows: list[Sequence[Array]] = list(rows)
        has_memory = any(t.is_variable or t.dtype.storage is None for t in graph.tensors)
        self._may_stop = not in_sequence and not has_memory and not any(op.graphs() for op in graph.ops)
        self._in_sequence = in_sequence
        self._is_fixed = all(-1 not in (t.shape_signature or t.shape) for t in graph.inputs)

    def until(self, model: Model, graph: Graph, op: Op, slot: int) -> Stretch:
        """What leads from here to the input of `op` at `slot`; `graph` is a version of the one that was run so far."""
        end, source = graph.ops.index(op), op.inputs[slot]
        assert source is not None
        start = live_tensors(graph, self.place)
        ends = list(dict.fromkeys([*live_tensors(graph, end), source])) if self._may_stop else [source]
        held = sum(t.size * np.dtype(t.dtype.storage).itemsize for t in ends) * len(self.rows)
        stops = self._may_stop and held <= HELD
        wanted = ends if stops else [source]
        made = [t for t in wanted if t not in start]
        runner = None
        if made:
            part = replace(graph, inputs=start, ops=_stretch_ops(graph, self.place, end))
            others = [g for g in model.graphs if g is not graph]
            runner = Runner.exposing(replace(model, graphs=[part, *others]), part, made, strict=self._is_fixed)
            runner.keeping_state(self._in_sequence)
        stretch = Stretch(self, start, source, wanted, runner, stops)
        self.place = end if stops else self.place
        return stretch


@dataclass(frozen=True)
class Stretch:
    """The ops between a frontier and a layer, and, where it `stops` there, what the frontier holds afterwards."""

    frontier: Frontier
    start: Sequence[Tensor]
    source: Tensor
    ends: Sequence[Tensor]
    runner: Runner | None
    stops: bool

    def another(self) -> Stretch:
        """The same for another thread."""
        return replace(self, runner=None if self.runner is None else self.runner.another())

    def run(self, number: int) -> Array:
        """What the layer reads for the sample of this number. Each is run once."""
        row = self.frontier.rows[number]
        values = dict(zip(self.start, row, strict=True))
        if self.runner is not None:
            values |= self.runner.values(row)
        if self.stops:
            self.frontier.rows[number] = [values[t] for t in self.ends]
        return values[self.source]


def live_tensors(graph: Graph, place: int) -> list[Tensor]:
    """What was made of samples before the op at `place` and is read from there on; at the beginning, the inputs."""
    if not place:
        return list(graph.inputs)
    made = {*graph.inputs, *(t for op in graph.ops[:place] if not _unpacks(op) for t in op.outputs)}
    read = {t for op in graph.ops[place:] for t in op.inputs}
    return [t for t in graph.tensors if t in made and t in read]


def _stretch_ops(graph: Graph, start: int, end: int) -> list[Op]:
    """The ops of a stretch, behind those that unpack what they read: samples have no part in that."""
    ops = [op for op in graph.ops[start:end] if not _unpacks(op)]
    read = {t for op in ops for t in op.inputs}
    return [*(op for op in graph.ops[:end] if _unpacks(op) and not read.isdisjoint(op.outputs)), *ops]


def _unpacks(op: Op) -> bool:
    """Whether it makes floats of a constant. LiteRT's delegate (2.3) cannot give what it unpacks as an output."""
    return op.kind == "DEQUANTIZE" and op.inputs[0] is not None and op.inputs[0].data is not None
