"""Questions about a graph: who makes a tensor, who reads it, which graphs there are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from itertools import count
from typing import NamedTuple

import numpy as np

from ..dtypes import Array
from .model import Graph, Model, Op, Tensor


class Use(NamedTuple):
    """A place that reads a tensor: input `slot` of `op`. Graph outputs are asked of the graph itself."""

    op: Op
    slot: int

    @property
    def tensor(self) -> Tensor:
        """What is read; an error where an optional input was left out."""
        tensor = self.op.inputs[self.slot]
        assert tensor is not None
        return tensor

    @property
    def data(self) -> Array:
        """The constant that is read."""
        data = self.tensor.data
        assert data is not None
        return data


class Uses:
    """Producers and readers of every tensor of a graph, as of now: made afresh after edits."""

    def __init__(self, graph: Graph) -> None:
        self._producer: dict[Tensor, Op] = {}
        self._readers: dict[Tensor, list[Use]] = {}
        self._outputs = set(graph.outputs)
        for op in graph.ops:
            for tensor in op.outputs:
                self._producer.setdefault(tensor, op)
            for slot, source in enumerate(op.inputs):
                if source is not None:
                    self._readers.setdefault(source, []).append(Use(op, slot))

    def producer(self, tensor: Tensor) -> Op | None:
        return self._producer.get(tensor)

    def readers(self, tensor: Tensor) -> list[Use]:
        return self._readers.get(tensor, [])

    def is_output(self, tensor: Tensor) -> bool:
        return tensor in self._outputs

    def is_unused(self, tensor: Tensor) -> bool:
        return tensor not in self._readers and tensor not in self._outputs


def called_graphs(model: Model) -> set[Graph]:
    """Graphs that some op calls: control-flow bodies and composite decompositions."""
    return {graph for g in model.graphs for op in g.ops for graph in op.graphs()}


def reachable_graphs(graph: Graph, without: str = "") -> list[Graph]:
    """The graphs that `graph` calls, and those that they call, nearest first; not those called by a kind of ops."""
    found = [graph]
    for caller in found:  # which grows meanwhile
        ops = (op for op in caller.ops if op.kind != without)
        found += dict.fromkeys(callee for op in ops for callee in op.graphs() if callee not in found)
    return found[1:]


def activation_bytes(graph: Graph) -> int:
    """The sum of all tensors of one run, at the sizes that the file has for them."""
    return sum(t.size * t.dtype.bits // 8 for t in graph.tensors if not t.is_constant)


def constants(graph: Graph) -> Iterator[Tensor]:
    return (t for t in graph.tensors if t.is_constant)


def unique_names(graph: Graph) -> dict[Tensor, str]:
    """A distinct name for each tensor: its own, with `#2`, `#3` ... on repetitions, `%k` where it has none."""
    taken = {t.name for t in graph.tensors}
    names: dict[Tensor, str] = {}
    numbers: dict[str, Iterator[int]] = {}
    for index, tensor in enumerate(graph.tensors):
        name = base = tensor.name or f"%{index}"
        if base in numbers:
            name = next(n for k in numbers[base] if (n := f"{base}#{k}") not in taken)
        else:
            numbers[base] = count(2)
        taken.add(name)
        names[tensor] = name
    return names


def tensor_keys(model: Model) -> dict[Tensor, str]:
    """A distinct name for each tensor of a model: unique in its graph, behind the graph's name in all but the first."""
    keys: dict[Tensor, str] = {}
    for index, graph in enumerate(model.graphs):
        prefix = f"{graph.name or index}::" if index else ""
        keys.update({t: prefix + name for t, name in unique_names(graph).items()})
    return keys


def fingerprint(model: Model) -> str:
    """A short text that tells models apart: names, shapes, types, ops and constant data."""
    digest = hashlib.blake2b(digest_size=16)
    for graph in model.graphs:
        number = {tensor: k for k, tensor in enumerate(graph.tensors)}
        for tensor in graph.tensors:
            digest.update(_bytes((tensor.name, tensor.shape, tensor.dtype.name, tensor.is_variable)))
            if tensor.buffer is not None:
                digest.update(_condensed(tensor.buffer.raw))
        for op in graph.ops:
            ends = [[number.get(t, -1) if t is not None else -1 for t in side] for side in (op.inputs, op.outputs)]
            values = {} if op.options is None else op.options.values
            options = {k: v for k, v in values.items() if not isinstance(v, Graph)}
            digest.update(_bytes((op.label, *ends, options)))
    return digest.hexdigest()


ROW = 8192
"""Bytes of a constant that go into one number of its fingerprint."""


@cache
def _factors() -> Array:
    """An odd number for each word of a row, all different and without a pattern."""
    return np.asarray(np.frombuffer(hashlib.shake_128(b"fingerprint").digest(ROW), "<u8") | np.uint64(1))


def _condensed(raw: Array) -> bytes:
    """Sums of words times factors, row by row: a tenth of the time of a cryptographic hash, where nobody cheats.

    A factor is odd, so that a change of a single word always shows (modulo 2**64); any other is missed by chance only.
    """
    whole = raw.size // ROW * ROW
    rows = raw[:whole].view("<u8").reshape(-1, ROW // 8)
    return (rows @ _factors()).tobytes() + raw[whole:].tobytes()


def _bytes(value: object) -> bytes:
    return repr(value).encode("utf-8", "surrogateescape")
