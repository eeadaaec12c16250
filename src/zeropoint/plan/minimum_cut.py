"""Minimum cut: splits the nodes of a network in two so that the edges from the first part to the second cost least."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Generic, TypeVar

N = TypeVar("N", bound=Hashable)

FORBIDDEN = 1 << 60
"""The capacity of an edge that is never cut."""


@dataclass
class Network(Generic[N]):
    """Edges with capacities between a source and a sink. Capacities are integers, so that equal networks have equal
    cuts."""

    source: N
    sink: N
    _edges: dict[N, dict[N, int]] = field(default_factory=dict)

    def add(self, start: N, end: N, capacity: int) -> None:
        """Add an edge; a second one between the same nodes adds to its capacity."""
        self._edges.setdefault(start, {})
        self._edges.setdefault(end, {})
        self._edges[start][end] = self._edges[start].get(end, 0) + capacity
        self._edges[end].setdefault(start, 0)

    def cut(self) -> set[N]:
        """Return the source side, as large as a minimum cut allows. The network is consumed."""
        while (levels := self._levels()) is not None:
            self._block(levels)
        reaching, waiting = {self.sink}, deque([self.sink])
        while waiting:  # nodes that still reach the sink are on its side
            end = waiting.popleft()
            for start in self._edges.get(end, {}):
                if start not in reaching and self._edges[start][end] > 0:
                    reaching.add(start)
                    waiting.append(start)
        return self._edges.keys() - reaching

    def _levels(self) -> dict[N, int] | None:
        """Return the distance of each node from the source over edges with free capacity; None if the sink is
        unreachable."""
        levels, waiting = {self.source: 0}, deque([self.source])
        while waiting:
            node = waiting.popleft()
            for end, capacity in self._edges.get(node, {}).items():
                if capacity > 0 and end not in levels:
                    levels[end] = levels[node] + 1
                    waiting.append(end)
        return levels if self.sink in levels else None

    def _block(self, levels: dict[N, int]) -> None:
        """Push as much flow as the shortest paths allow (Dinic's algorithm)."""
        left = {node: list(ends) for node, ends in self._edges.items()}  # remaining neighbours to try from each node
        path = [self.source]
        while path:
            node = path[-1]
            if node == self.sink:
                path = self._push(path)
            elif not left[node]:
                path.pop()
                if path:
                    left[path[-1]].pop()
            elif self._edges[node][left[node][-1]] > 0 and levels.get(left[node][-1]) == levels[node] + 1:
                path.append(left[node][-1])
            else:
                left[node].pop()

    def _push(self, path: list[N]) -> list[N]:
        """Saturate a path; return its part up to the first saturated edge."""
        steps = list(pairwise(path))
        least = min(self._edges[a][b] for a, b in steps)
        for a, b in steps:
            self._edges[a][b] -= least
            self._edges[b][a] += least
        return path[: 1 + next(k for k, (a, b) in enumerate(steps) if self._edges[a][b] == 0)]
