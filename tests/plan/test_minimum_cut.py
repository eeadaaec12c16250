"""No split of the nodes costs less than the one that is found, and none of equal cost keeps more on the first side."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from zeropoint.plan.minimum_cut import FORBIDDEN, Network

Edges = dict[tuple[str, str], int]


def cost(edges: Edges, first: set[str]) -> int:
    return sum(capacity for (a, b), capacity in edges.items() if a in first and b not in first)


def splits(nodes: list[str]) -> list[set[str]]:
    return [{"s", *chosen} for k in range(len(nodes) + 1) for chosen in combinations(nodes, k)]


@pytest.mark.parametrize("seed", range(40))
def test_cut_is_the_least_and_the_largest_of_these(seed: int) -> None:
    rng = np.random.default_rng(seed)
    inner = list("abcdef")[: 2 + seed % 5]
    pairs = [(a, b) for a in ("s", *inner) for b in (*inner, "t") if a != b and rng.random() < 0.6]
    edges = {pair: int(rng.choice([1, 2, 3, 5, 8, FORBIDDEN], p=[0.2, 0.2, 0.2, 0.2, 0.15, 0.05])) for pair in pairs}
    network = Network("s", "t")
    for (a, b), capacity in edges.items():
        network.add(a, b, capacity)
    found = network.cut() | {"s"}
    known = [n for n in inner if any(n in pair for pair in edges)]
    best = min(cost(edges, each) for each in splits(known))
    assert cost(edges, found) == best
    assert len(found) == max(len(each) for each in splits(known) if cost(edges, each) == best)
