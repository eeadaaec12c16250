"""Loops, branches and variables: what is computed inside is what LiteRT computes."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from zeropoint.affine import QuantParams
from zeropoint.dtypes import DType
from zeropoint.graph import Graph, Model
from zeropoint.runtime import Session
from zeropoint.simulation.vectors import export_vectors

from .. import build
from ..plan.test_called import recurrent_loop, sequences

UNIT = QuantParams((0.5,), (3,), DType.INT8)


@pytest.mark.parametrize(("kernels", "runtime"), [("reference", "reference"), ("xnnpack", "delegate")])
@pytest.mark.parametrize("mode", ["int8", "int16x8"])
def test_a_loop_is_computed_as_litert_does(mode, kernels, runtime):
    samples = sequences(8)
    model = zeropoint.quantize(recurrent_loop(), mode, data=samples, effort="quick", target="integer").model
    session = Session(model, kernels=runtime)
    for sample in samples[:3]:
        trace = zeropoint.simulate(model, sample, kernels)
        assert "FULLY_CONNECTED" in {op.kind for op in trace.rules if op not in trace.elsewhere}
        np.testing.assert_array_equal(trace.outputs[0], session.run(sample)[0])
    (loop,) = (op for op in model.main.ops if op.kind == "WHILE")
    assert trace.explain(trace.names[loop.outputs[2]], (0, 0)).note.startswith("computed by the graphs")


def squared(name: str, kind: str) -> Graph:
    x, y = (build.act(f"{name}/{end}", 1, 4, dtype=DType.INT8, params=UNIT) for end in "xy")
    return build.graph(name, [x], [y], build.op(kind, [x, x], y, options=f"{kind.title()}Options"))


@pytest.mark.parametrize("choice", [True, False])
def test_the_branch_that_is_taken(choice):
    condition = build.act("choice", dtype=DType.BOOL)
    x, y = (build.act(end, 1, 4, dtype=DType.INT8, params=UNIT) for end in "xy")
    then, other = squared("then", "ADD"), squared("other", "MUL")
    options = {"options": "IfOptions", "thenSubgraphIndex": then, "elseSubgraphIndex": other}
    model = Model([build.graph("main", [condition, x], [y], build.op("IF", [condition, x], y, **options)), then, other])
    for graph in (then, other):
        graph.ops[0].version = 2
    sample = np.array(choice), np.array([[-5, 0, 9, 60]], np.int8)
    wanted = Session(model, kernels="reference").run(sample)[0]
    np.testing.assert_array_equal(zeropoint.simulate(model, sample)["y"], wanted)


def variables(*, assigned: bool) -> Model:
    """y = x + variable, which starts as a constant and becomes y."""
    start = build.const("start", np.array([[1, 2, 3, 4]], np.int8), DType.INT8, UNIT)
    handles = [build.act(name, dtype=DType.RESOURCE) for name in ("first", "second")]
    made = [build.op("VAR_HANDLE", [], h, options="VarHandleOptions", container="", sharedName="v") for h in handles]
    init = build.graph("init", [], [], made[0], build.op("ASSIGN_VARIABLE", [handles[0], start]))
    x, held, y = (build.act(name, 1, 4, dtype=DType.INT8, params=UNIT) for name in ("x", "held", "y"))
    once = build.op("CALL_ONCE", [], options="CallOnceOptions", initSubgraphIndex=init)
    add = build.op("ADD", [x, held], y, options="AddOptions")
    add.version = 2
    ops = [made[1], build.op("READ_VARIABLE", [handles[1]], held), add, build.op("ASSIGN_VARIABLE", [handles[1], y])]
    return Model([build.graph("main", [x], [y], *([once] if assigned else []), *ops), init])


def test_variables_are_held_while_a_sample_runs():
    model, sample = variables(assigned=True), [np.array([[-5, 0, 9, 60]], np.int8)]
    wanted = Session(model, kernels="reference").run(sample)[0]
    for _ in range(2):  # every sample starts afresh
        np.testing.assert_array_equal(zeropoint.simulate(model, sample)["y"], wanted)


def test_golden_vectors_leave_out_handles(tmp_path):
    trace = zeropoint.simulate(variables(assigned=True), [np.zeros((1, 4), np.int8)])
    files = export_vectors([trace], tmp_path / "v", format="hex")
    assert len(files) == 4  # the index, x, what was held, and their sum


def test_a_variable_that_nothing_assigned():
    with pytest.raises(zeropoint.errors.InvalidModel, match="before anything has assigned it"):
        zeropoint.simulate(variables(assigned=False), [np.zeros((1, 4), np.int8)])
