"""Versions of a model that share their first ops: run from a later op on, they have the same error."""

from __future__ import annotations

import numpy as np
import pytest

from zeropoint.bench.bench import Bench
from zeropoint.bench.loaded import Loaded
from zeropoint.graph import Model
from zeropoint.improve import resumed_runs
from zeropoint.improve.candidate import Candidate
from zeropoint.improve.resumed_runs import ResumedRuns
from zeropoint.plan.prepared import prepare_model
from zeropoint.plan.request import Request
from zeropoint.recipe import preset
from zeropoint.targets import INTEGER

from ..nets import Net, normal, samples_for

JUDGED = 3


def branching(*, early_output: bool = False) -> Model:
    """A shortcut around layers, a gate, a second input that a late op reads, and one output or two."""
    net = Net()
    x, late = net.input(1, 6, 6, 4), net.input(1, 6, 6, 8)
    first = net.conv(x, normal(8, 3, 3, 4, seed=1), normal(8, seed=2), activation=1)
    second = net.conv(first, normal(8, 1, 1, 8, seed=3, spread=0.3), normal(8, seed=4))
    added = net("ADD", [first, second])
    gated = net("MUL", [added, net("LOGISTIC", [added])])
    joined = net("CONCATENATION", [gated, late, first], shape=(1, 6, 6, 24), axis=3)
    last = net.conv(joined, normal(4, 1, 1, 24, seed=5, spread=0.2), normal(4, seed=6))
    return net.model(last, *([second] if early_output else []))


def prepared(model: Model) -> tuple[Candidate, Bench]:
    bench = Bench(model, samples_for(model), judged=JUDGED)
    request = Request(preset("int8"), bench.stats, target=INTEGER)
    return Candidate(prepare_model(model, request), request), bench


@pytest.fixture
def fed(monkeypatch) -> list[int]:
    """How many inputs each model had that was run."""
    counts: list[int] = []

    class Counted(Loaded):
        def __init__(self, bench, model, compared=None):
            counts.append(len(model.main.inputs) if bench.resumes else 0)
            super().__init__(bench, model, compared)

    monkeypatch.setattr("zeropoint.bench.bench.Loaded", Counted)
    return counts


@pytest.mark.parametrize("start", range(1, 7))
@pytest.mark.parametrize("is_float", [False, True], ids=["after integers", "after floats"])
def test_errors_are_those_of_whole_runs(start, is_float, fed):
    candidate, bench = prepared(branching())
    ops = candidate.planned.plans[0].graph.ops
    assert set(candidate.planned.plans[0].schemes) == set(ops)
    before = ops[:start] if is_float else ()
    runs = ResumedRuns(candidate, bench, [ops[start]], before)
    for left in ([], [ops[start]], ops[start + 1 :: 2], ops[start:]):
        whole = bench.error(candidate.model(left_float=[*before, *left]))
        fed.clear()
        assert runs.error([*before, *left], ops[start]) == whole
        assert [count > 0 for count in fed] == [True]
    assert bench.error(candidate.model()) > 0


def test_runs_begin_at_the_last_start_before_what_differs(fed):
    candidate, bench = prepared(branching())
    ops = candidate.planned.plans[0].graph.ops
    runs = ResumedRuns(candidate, bench, [ops[2], ops[5]])
    for first, inputs in ((1, 0), (2, 3), (4, 3), (6, 3)):
        fed.clear()
        left = ops[first : first + 1]
        assert runs.error(left, ops[first]) == bench.error(candidate.model(left_float=left))
        assert fed[0] == inputs  # those of the ADD are its two operands and the late input


@pytest.mark.parametrize("obstacle", ["early output", "open shape", "size"])
def test_whole_models_are_run_where_parts_would_not_do(obstacle, fed, monkeypatch):
    model = branching(early_output=obstacle == "early output")
    if obstacle == "open shape":
        for tensor in (t for t in model.main.tensors if t.data is None):
            tensor.shape_signature = (-1, *tensor.shape[1:])
    if obstacle == "size":
        monkeypatch.setattr(resumed_runs, "MOST_BYTES", 1000)
    candidate, bench = prepared(model)
    ops = candidate.planned.plans[0].graph.ops
    runs, left = ResumedRuns(candidate, bench, [ops[3]]), ops[3:5]
    assert runs.error(left, left[0]) == bench.error(candidate.model(left_float=left))
    assert set(fed) == {0}


def test_values_whose_shapes_are_not_those_of_the_file_are_not_fed(fed, monkeypatch):
    candidate, bench = prepared(branching())
    ops = candidate.planned.plans[0].graph.ops
    runs = ResumedRuns(candidate, bench, [ops[3]])
    real = runs._values
    monkeypatch.setattr(runs, "_values", lambda made: [[np.repeat(v, 2, axis=0) for v in own] for own in real(made)])
    assert runs.error(ops[3:], ops[3]) == bench.error(candidate.model(left_float=ops[3:]))
    assert set(fed) == {0}
