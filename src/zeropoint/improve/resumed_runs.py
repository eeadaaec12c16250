"""Runs versions of a candidate from a later op on: what comes before it is the same in all of them, and computed
once."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..bench.bench import Bench
from ..bench.errors import Compared
from ..bench.loaded import Loaded
from ..dtypes import Array
from ..graph.model import Graph, Op, Tensor
from ..parallel import cached_property
from ..plan.parts import read_from_before
from ..sources.ports import Row
from .candidate import Candidate

MOST_BYTES = 1 << 26
"""Maximum size of the values that are kept to continue from."""


class ResumedRuns:
    """Versions of a candidate in which some ops are left float, run on the samples that judge on `bench`.

    Runs may begin at one of the `starts`; there, all versions have the ops `before` in float and no others.
    """

    def __init__(self, candidate: Candidate, bench: Bench, starts: Sequence[Op], before: Collection[Op] = ()) -> None:
        self._candidate, self._bench, self._before = candidate, bench, before
        graph = candidate.planned.plans[0].graph
        self._places = {op: place for place, op in enumerate(graph.ops)}
        self._graph, self._benches = graph, dict[int, Bench]()
        places = sorted(self._places[op] for op in starts) if _is_plain(graph) and not bench.in_sequence else []
        self._starts = [place for place in places if place and self._computes_outputs(graph.ops[place:])]

    def _computes_outputs(self, ops: Sequence[Op]) -> bool:
        """Whether everything that is compared is computed by these ops."""
        compared = {one.tensor(self._graph) for one in self._bench.compared}
        return compared.union(self._graph.outputs).issubset(t for op in ops for t in op.outputs)

    def error(self, left_float: Collection[Op], first: Op) -> float:
        """Return the error with these ops in float; `first` is the first op that differs between versions."""
        start = max((place for place in self._starts if place <= self._places[first]), default=0)
        if not start or start not in self._rows:
            return self._bench.error(self._candidate.model(left_float=left_float))
        if start not in self._benches:
            self._benches[start] = self._bench.resuming(self._rows[start])
        ops = self._graph.ops[start:]
        model = self._candidate.part(ops, read_from_before(ops), self._graph.outputs, left_float)
        return self._benches[start].error(model)

    @cached_property
    def _rows(self) -> dict[int, list[Row]]:
        """For each start the values that ops from there on read, by sample; none if there are too many, or if their
        shapes depend on the sample."""
        fed = {start: read_from_before(self._graph.ops[start:]) for start in self._starts}
        given = self._graph.inputs
        made = list(dict.fromkeys(t for tensors in fed.values() for t in tensors if t not in given))
        sizes = [t.size * t.dtype.bits // 8 for t in made]
        if sum(sizes) * len(self._bench.judged_rows) > MOST_BYTES:
            return {}
        found: list[dict[Tensor, Array]] = [
            dict(zip((*given, *made), (*row, *values), strict=True))
            for row, values in zip(self._bench.judged_rows, self._values(made), strict=True)
        ]
        if any(values.shape != t.shape for sample in found for t, values in sample.items()):
            return {}
        return {start: [tuple(sample[t] for t in tensors) for sample in found] for start, tensors in fed.items()}

    def _values(self, made: Sequence[Tensor]) -> list[list[Array]]:
        """Return the values of tensors before the last start, by sample, as numbers that they represent."""
        rows, graph = self._bench.judged_rows, self._graph
        if not made:
            return [[] for _ in rows]
        head = self._candidate.part(graph.ops[: max(self._starts)], graph.inputs, made, self._before)
        return Loaded(self._bench, head, [Compared(place) for place in range(len(made))]).values(rows)


def _is_plain(graph: Graph) -> bool:
    """Whether ops only compute their outputs, with shapes that the file states."""
    keeps_state = any(t.is_variable for t in graph.tensors) or not all(op.outputs for op in graph.ops)
    return not keeps_state and not any(t.is_dynamic for t in graph.tensors)
