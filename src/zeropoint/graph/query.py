"""Queries on a graph: producers and readers of a tensor, called graphs, fingerprints."""

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
    """A place where a tensor is read: input `slot` of `op`. Graph outputs are not uses; ask the graph for those."""

    op: Op
    slot: int

    @property
    def tensor(self) -> Tensor:
        """The tensor that is read; raises if the optional input is absent."""
        tensor = self.op.inputs[self.slot]
        assert tensor is not None
        return tensor

    @property
    def data(self) -> Array:
        """The data of the constant that is read."""
        data = self.tensor.data
        assert data is not None
        return data


class Uses:
    """Producers and readers of every tensor of a graph. A snapshot: build it again after edits."""

    def __init__(self, graph: Graph) -> None:
        self._producer: dict[Tensor, Op] = {}
        self._readers: dict[Tensor, list[Use]] = {}
        self._outputs = set(graph.outputs)
        producer, readers, made = self._producer, self._readers, tuple.__new__
        for op in graph.ops:
            for tensor in op.outputs:
                producer.setdefault(tensor, op)
            for slot, source in enumerate(op.inputs):
                if source is None:
                    continue
                use = made(Use, (op, slot))  # as `Use(op, slot)` does, in a third of the time
                if source in readers:
                    readers[source].append(use)
                else:
                    readers[source] = [use]

    def producer(self, tensor: Tensor) -> Op | None:
        return self._producer.get(tensor)

    def readers(self, tensor: Tensor) -> list[Use]:
        return self._readers.get(tensor, [])

    def is_output(self, tensor: Tensor) -> bool:
        return tensor in self._outputs

    def is_unused(self, tensor: Tensor) -> bool:
        return tensor not in self._readers and tensor not in self._outputs


def called_graphs(model: Model) -> set[Graph]:
    """Return the graphs that some op calls: control-flow bodies and composite decompositions."""
    return {graph for g in model.graphs for op in g.ops for graph in op.graphs()}


def reachable_graphs(graph: Graph, without: str = "") -> list[Graph]:
    """Return the graphs that `graph` calls directly or indirectly, nearest first; calls by ops of kind `without` are
    ignored.
    """
    found = [graph]
    for caller in found:  # the list grows during the loop
        ops = (op for op in caller.ops if op.kind != without)
        found += dict.fromkeys(callee for op in ops for callee in op.graphs() if callee not in found)
    return found[1:]


def activation_bytes(graph: Graph) -> int:
    """Return the total size of all activations of one run, with the shapes stored in the file."""
    return sum(map(_activation_size, graph.tensors))


def live_bytes(graph: Graph) -> int:
    """Return the most that activations take at any time of a run, if each is dropped after the last op that reads
    it."""
    last = {t: k for k, op in enumerate(graph.ops) for t in op.inputs if t is not None}
    last |= dict.fromkeys(graph.outputs, len(graph.ops))
    held = sum(_activation_size(t) for t in graph.inputs)
    most = held
    for k, op in enumerate(graph.ops):
        held += sum(_activation_size(t) for t in op.outputs)
        most = max(most, held)
        ended = {t for t in (*op.inputs, *op.outputs) if t is not None and last.get(t, k) == k}
        held -= sum(_activation_size(t) for t in ended)
    return most


def _activation_size(tensor: Tensor) -> int:
    return 0 if tensor.is_constant else tensor.size * tensor.dtype.bits // 8


def constants(graph: Graph) -> Iterator[Tensor]:
    return (t for t in graph.tensors if t.is_constant)


def unique_names(graph: Graph) -> dict[Tensor, str]:
    """Return a distinct name for each tensor: its own, with `#2`, `#3`, ... on repetitions, or `%k` if it has none."""
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
    """Return a distinct key for each tensor of a model: its unique name, prefixed with the graph's name except in the
    first.
    """
    keys: dict[Tensor, str] = {}
    for index, graph in enumerate(model.graphs):
        prefix = f"{graph.name or index}::" if index else ""
        keys.update({t: prefix + name for t, name in unique_names(graph).items()})
    return keys


def fingerprint(model: Model) -> str:
    """Return a short hash of a model: names, shapes, types, ops and constant data."""
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
"""Bytes of a constant that are condensed into one number of the fingerprint."""


@cache
def _factors() -> Array:
    """Return distinct pseudo-random odd numbers, one for each word of a row."""
    return np.asarray(np.frombuffer(hashlib.shake_128(b"fingerprint").digest(ROW), "<u8") | np.uint64(1))


def _condensed(raw: Array) -> bytes:
    """Sum words times factors, row by row: ten times as fast as a cryptographic hash, and collisions need not resist
    attack.

    Factors are odd, so a change of a single word always changes the sum (modulo 2**64); others are missed only by
    chance.
    """
    whole = raw.size // ROW * ROW
    rows = raw[:whole].view("<u8").reshape(-1, ROW // 8)
    return (rows @ _factors()).tobytes() + raw[whole:].tobytes()


def _bytes(value: object) -> bytes:
    return repr(value).encode("utf-8", "surrogateescape")
