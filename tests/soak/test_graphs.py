"""Random graphs: the generator keeps its word, and every graph is quantized rightly or refused, in every mode."""

from __future__ import annotations

from collections import Counter

import pytest

from tools.soak.graphs import random_graph
from tools.soak.verdict import MODES
from tools.soak.workers import Limits, Worker
from zeropoint.graph import problems
from zeropoint.ops import OPS
from zeropoint.tflite import to_bytes

SMALL = (5, 20)
GRAPHS, PARTS = 240, 8
THOROUGH = 24
"""Graphs at standard effort, where steps are tried and their outcome is claimed."""

NOT_GROWN = {
    "DILATE",
    "DYNAMIC_UPDATE_SLICE",
    "EMBEDDING_LOOKUP",
    "FILL",
    "GATHER_ND",
    "MATRIX_SET_DIAG",
    "ONE_HOT",
    "POW",
    "SCATTER_ND",
    "SELECT",
    "SPARSE_TO_DENSE",
    "SVDF",
}
"""Ops with integer kernels that no rule grows: most only choose among their inputs, and conformance tests run them all.
A rule more would change the graphs of every seed."""


def test_a_seed_gives_the_same_graph_each_time():
    for seed in range(5):
        first, second = random_graph(seed), random_graph(seed)
        assert to_bytes(first.model) == to_bytes(second.model)
        for rows in zip(first.samples, second.samples, strict=True):
            assert all((a == b).all() for a, b in zip(*rows, strict=True))


def test_graphs_are_valid_and_hold_every_kind_of_op():
    kinds, sizes = Counter[str](), []
    for seed in range(150):
        model = random_graph(seed).model
        assert not list(problems(model))
        sizes.append(len(model.main.ops))
        kinds.update(op.kind for op in model.main.ops)
    assert max(sizes) >= 50
    assert sum(size >= 5 for size in sizes) >= 140
    assert {kind for kind, spec in OPS.items() if spec.types} - kinds.keys() <= NOT_GROWN


def failures(effort: str, first: int, graphs: int) -> dict[int, str]:
    worker = Worker("graphs", {"seed": 0, "ops": SMALL, "effort": effort}, Limits(seconds=300))
    try:
        return {
            outcome.case: f"{outcome.kind}: {outcome.detail}"
            for number in range(first, first + graphs)
            for outcome in worker.run(number * len(MODES), len(MODES))
            if not outcome.is_fine
        }
    finally:
        worker.close()


@pytest.mark.parametrize("part", range(PARTS))
def test_a_random_graph_is_right_or_refused_in_every_mode(part):
    each = GRAPHS // PARTS
    assert failures("quick", part * each, each) == {}


def test_at_standard_effort_too():
    assert failures("standard", 0, THOROUGH) == {}
