"""Inserts copies where LiteRT's plain kernels would overwrite values that are still to be read.

LiteRT lets RESHAPE and similar ops share the memory of their input, and ADD and similar ops write into that of an input
that nothing else reads. It checks that for the input and for the tensor that had the memory first, but not for those in
between (`ArenaPlanner::IdentifyInPlaceTensors`, LiteRT 2.3):

    a = ABS(x); b = MUL(a, c); d = RESHAPE(b); e = MUL(d, f); ABS(e); CONCATENATION(b, ...)

All of a, b, d and e share one piece of memory, and CONCATENATION reads e where it should read b. Reordering the ops
would not help: the delegate runs what it takes as early as it can.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..graph.edit import insert_after, unused_name
from ..graph.model import Graph, Op, Tensor
from ..graph.query import Use, Uses
from ..ops import OpSpec, Trait, spec_of
from ..tflite.schema import default_options

SMALLEST = 5
"""Minimum size in bytes of tensors that LiteRT overwrites."""


def copy_overwritten(graph: Graph, ops: Mapping[str, OpSpec]) -> None:
    """Edit the graph in place: an input that an op would overwrite although others may read it later is copied for that
    op."""
    if not _has_shared_views(graph, ops):
        return
    memory, kinds = _Memory(graph, ops), {op.kind for op in graph.ops}
    overwriting = {kind for kind in kinds if kind in ops and ops[kind].kernels.in_place}
    for op in [op for op in graph.ops if op.kind in overwriting]:
        for use in memory.taken(op):
            if memory.is_read_by_others(use):
                _copy(graph, use, ops)
            else:
                memory.share(use.tensor, op.outputs[0])


def _has_shared_views(graph: Graph, ops: Mapping[str, OpSpec]) -> bool:
    """Whether others read what some op makes a view of. Otherwise tensors that share memory are read one after the
    other."""
    kinds = {kind for kind in {op.kind for op in graph.ops} if kind in ops and Trait.VIEW in ops[kind].traits}
    viewed = {op.inputs[0] for op in graph.ops if op.kind in kinds}.difference(graph.inputs)
    readers = Counter(t for op in graph.ops for t in op.inputs if t in viewed)
    readers.update(t for t in graph.outputs if t in viewed)
    return any(count > 1 for tensor, count in readers.items() if tensor is not None and not tensor.is_constant)


class _Memory:
    """Which tensors share memory, for the ops visited so far."""

    def __init__(self, graph: Graph, ops: Mapping[str, OpSpec]) -> None:
        self._uses, self._ops = Uses(graph), ops
        self._kept = {t for t in graph.tensors if t.is_variable or t.is_constant}.union(graph.inputs)
        self._views = {kind for kind, spec in ops.items() if Trait.VIEW in spec.traits}
        self._first: dict[Tensor, Tensor] = {}
        self._sharing: dict[Tensor, list[Tensor]] = {}

    def taken(self, op: Op) -> Iterator[Use]:
        """Yield the inputs whose memory the first output of `op` may take: one, if shapes are known."""
        spec = spec_of(op, self._ops)
        if not spec.kernels.in_place or self._uses.is_output(op.outputs[0]):
            return
        for slot in spec.kernels.in_place:
            source = op.input(slot)
            if source is None or source in self._kept or not source.shape:  # scalars are too small
                continue
            is_view = op.kind in self._views
            if is_view or self._can_be_overwritten(source, op.outputs[0]):
                if is_view or self._readers(self._first.get(source, source)) == 1:
                    yield Use(op, slot)
                if not source.is_dynamic and not op.outputs[0].is_dynamic:
                    return

    def _can_be_overwritten(self, source: Tensor, result: Tensor) -> bool:
        """Whether LiteRT's first check allows it. The tensor that had the memory before is checked only for the chosen
        input."""
        size, wanted = (t.size * t.dtype.bits // 8 for t in (source, result))
        fits = source.is_dynamic or result.is_dynamic or size == wanted >= SMALLEST
        return fits and self._readers(source) == 1

    def _readers(self, tensor: Tensor) -> int:
        return len(self._uses.readers(tensor)) + self._uses.is_output(tensor)

    def share(self, source: Tensor, result: Tensor) -> None:
        first = self._first.setdefault(result, self._first.get(source, source))
        sharing = self._sharing.setdefault(first, [first])
        sharing.append(result)

    def is_read_by_others(self, use: Use) -> bool:
        """Whether `use` changes values that others read, and not certainly before it."""
        if use.op.kind in self._views:
            return False
        sharing = self._sharing.get(self._first.get(use.tensor, use.tensor), [])
        others = {reader.op for t in sharing for reader in self._uses.readers(t)}
        return bool(others - {use.op}) and not self._needed(use.op).issuperset(others)

    def _needed(self, op: Op) -> set[Op]:
        """Return `op` and all ops that must run before it."""
        found, waiting = {op}, [op]
        while waiting:
            makers = {self._uses.producer(t) for t in waiting.pop().inputs if t is not None}
            new = {maker for maker in makers if maker is not None} - found
            found |= new
            waiting += new
        return found


def _copy(graph: Graph, use: Use, ops: Mapping[str, OpSpec]) -> None:
    """Have the op read a copy. CONCATENATION has kernels for all types and ranks, none of which works in place."""
    source = use.tensor
    twin = replace(source, name=unused_name(graph, f"{source.name}/copy"))
    version = ops["CONCATENATION"].kernels.versions.get(source.dtype.label, 1)
    joined = Op("CONCATENATION", [source], [twin], default_options("ConcatenationOptions", axis=0), version)
    insert_after(graph, source, joined, [use])
