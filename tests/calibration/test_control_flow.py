"""Tensors inside control flow: the branch that was taken, every pass of a loop, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from zeropoint.calibration import Settings, calibrate
from zeropoint.calibration.stats import Stats
from zeropoint.dtypes import DType
from zeropoint.errors import InvalidSample
from zeropoint.graph import Graph, Model, Tensor

from .. import build

BOOL, INT32 = DType.BOOL, DType.INT32


def extremes(stats: Stats, name: str) -> tuple[float, float, int]:
    t = stats.tensors[name]
    return t.low.value, t.high.value, t.runs


def branch(name: str, kind: str, *, shape: tuple[int, ...] = (1, 2)) -> Graph:
    x, y = build.act(f"{name}/x", *shape), build.act(f"{name}/y", *shape)
    return build.graph(name, [x], [y], build.op(kind, [x, x], y, options=f"{kind.title()}Options"))


def choosing(then: Graph, other: Graph, value: Tensor) -> Model:
    """IF choice THEN then(value) ELSE other(value)."""
    choice, y = build.act("choice", dtype=BOOL), build.act("y", *value.shape)
    options = {"thenSubgraphIndex": then, "elseSubgraphIndex": other}
    call = build.op("IF", [choice, value], y, options="IfOptions", **options)
    inputs = [t for t in (choice, value) if not t.is_constant]
    return Model([build.graph("main", inputs, [y], call), then, other])


def counting(body: Graph, limit: int) -> Model:
    """WHILE step < limit DO step, x = step + 1, body(x)."""
    step, x, go = build.act("cond/step", dtype=INT32), build.act("cond/x", 1, 2), build.act("cond/go", dtype=BOOL)
    less = build.op("LESS", [step, build.const("limit", np.int32(limit))], go, options="LessOptions")
    before, after = build.act("body/before", dtype=INT32), build.act("body/after", dtype=INT32)
    add = build.op("ADD", [before, build.const("one", np.int32(1))], after, options="AddOptions")
    inner = build.graph("body", [before, *body.inputs], [after, *body.outputs], add, *body.ops)
    ins, outs = ([build.act(f"{n}step", dtype=INT32), build.act(f"{n}x", 1, 2)] for n in ("", "last/"))
    cond = build.graph("cond", [step, x], [go], less)
    options = {"condSubgraphIndex": cond, "bodySubgraphIndex": inner}
    call = build.op("WHILE", ins, *outs, options="WhileOptions", **options)
    nested = list(dict.fromkeys(g for op in body.ops for g in op.graphs()))
    return Model([build.graph("main", ins, outs, call), cond, inner, *nested])


def test_each_branch_sees_its_own_samples():
    model = choosing(branch("add", "ADD"), branch("mul", "MUL"), build.act("value", 1, 2))
    samples = [(np.bool_(k % 3 == 0), np.float32([[k, -k]])) for k in range(8)]
    for workers in (1, 3):
        stats = calibrate(model, samples, Settings(workers=workers))
        assert extremes(stats, "add::add/x") == (-6, 6, 3)
        assert extremes(stats, "add::add/y") == (-12, 12, 3)
        assert extremes(stats, "mul::mul/x") == (-7, 7, 5)
        assert extremes(stats, "mul::mul/y") == (1, 49, 5)
        assert stats.tensors["add::add/y"].high.sample == 6


def test_a_branch_that_is_never_taken_has_no_statistics():
    model = choosing(branch("add", "ADD"), branch("mul", "MUL"), build.act("value", 1, 2))
    stats = calibrate(model, [(np.bool_(True), np.float32([[k, 1]])) for k in range(4)])
    assert {name for name in stats.tensors if "::" in name} == {"add::add/x", "add::add/y"}


def test_branches_may_be_given_constants():
    model = choosing(branch("add", "ADD"), branch("mul", "MUL"), build.const("value", [[3.0, -4.0]]))
    stats = calibrate(model, [np.bool_(False), np.bool_(True)])
    assert extremes(stats, "add::add/y") == (-8, 6, 1)
    assert extremes(stats, "mul::mul/y") == (9, 16, 1)


@pytest.mark.parametrize("histograms", [True, False])
def test_every_pass_of_a_loop_is_seen(histograms):
    model = counting(branch("twice", "ADD"), limit=4)
    samples = [(np.int32(4 - passes), np.float32([[1, -1]])) for passes in (0, 1, 3, 0)]
    stats = calibrate(model, samples, Settings(histograms=histograms))
    assert extremes(stats, "body::twice/x") == (-4, 4, 2)
    assert extremes(stats, "body::twice/y") == (-8, 8, 2)
    found = stats.tensors["body::twice/y"]
    assert (found.count, found.high.sample) == (8, 2)
    assert found.histogram.total == 8
    assert found.average.range[1] == pytest.approx((2 * 0.99 + 8) / 1.99)


def test_loops_and_branches_nest():
    """Inside the loop, x doubles while it is below the limit and is squared after that."""
    x, y = build.act("choose/x", 1, 2), build.act("choose/y", 1, 2)
    first, small = build.act("first", 1, 1), build.act("small", 1, 1, dtype=BOOL)
    scalar = build.act("small/scalar", dtype=BOOL)
    then, other = branch("add", "ADD"), branch("mul", "MUL")
    body = build.graph(
        "unused",
        [x],
        [y],
        build.op("SLICE", [x, build.const("begin", [0, 0]), build.const("size", [1, 1])], first),
        build.op("LESS", [first, build.const("bound", [[5.0]])], small, options="LessOptions"),
        build.op("RESHAPE", [small, build.const("none", np.zeros(0, np.int32))], scalar, options="ReshapeOptions"),
        build.op("IF", [scalar, x], y, options="IfOptions", thenSubgraphIndex=then, elseSubgraphIndex=other),
    )
    stats = calibrate(counting(body, limit=4), [(np.int32(0), np.float32([[1, 1]]))])
    assert extremes(stats, "body::choose/x") == (1, 8, 1)
    assert extremes(stats, "add::add/y") == (2, 8, 1)
    assert extremes(stats, "mul::mul/y") == (64, 64, 1)


def test_the_inside_of_a_composite_is_seen():
    stats = calibrate(build.composite(), [np.float32([1, 2, -3])])
    assert extremes(stats, "body::body/y") == (1, 9, 1)


def test_lengths_may_vary_inside():
    value = build.act("value", 1, 2)
    model = choosing(branch("add", "ADD"), branch("mul", "MUL"), value)
    for graph in model.graphs:
        for tensor in graph.tensors:
            if tensor.dtype is DType.FLOAT32:
                tensor.shape_signature = (1, -1)
    stats = calibrate(model, [(np.bool_(n % 2), np.full((1, n), n, np.float32)) for n in (1, 4, 3, 2)])
    assert extremes(stats, "mul::mul/y") == (4, 16, 2)
    assert stats.tensors["mul::mul/y"].count == 6


def test_channels_are_kept_inside():
    x, y = build.act("dense/x", 1, 2), build.act("dense/y", 1, 2)
    weights = build.const("w", [[1.0, 2.0], [3.0, 4.0]])
    dense = build.op("FULLY_CONNECTED", [x, weights], y, options="FullyConnectedOptions")
    model = choosing(build.graph("dense", [x], [y], dense), branch("mul", "MUL"), build.act("value", 1, 2))
    samples = [(np.bool_(True), np.float32([[k, 10 * k]])) for k in range(3)]
    channels = calibrate(model, samples).tensors["dense::dense/x"].channels
    assert (channels.high.tolist(), channels.mean.tolist()) == ([2, 20], [1, 10])


def test_nonfinite_values_inside_are_named():
    x, y = build.act("log/x", 1, 2), build.act("log/y", 1, 2)
    log = build.graph("log", [x], [y], build.op("LOG", [x], y))
    model = choosing(log, branch("mul", "MUL"), build.act("value", 1, 2))
    samples = [(np.bool_(True), np.float32([[1, 2]])), (np.bool_(True), np.float32([[1, -2]]))]
    with pytest.raises(InvalidSample, match="sample 1 makes 1 of 2 values of 'log::log/y' NaN or infinite"):
        calibrate(model, samples)
    found = calibrate(model, samples, Settings(allow_nonfinite=True)).tensors["log::log/y"]
    assert (found.count, found.nonfinite) == (3, 1)


def test_graphs_that_work_on_resources_are_left_out_with_a_note():
    x, kept, y = (build.act(f"reader/{n}", 1, 2) for n in ("x", "kept", "y"))
    handle = build.act("handle", 1, dtype=DType.RESOURCE)
    make = build.op("VAR_HANDLE", [], handle, options="VarHandleOptions", sharedName="kept")
    ops = [make, build.op("ASSIGN_VARIABLE", [handle, x]), build.op("READ_VARIABLE", [handle], kept)]
    reader = build.graph("reader", [x], [y], *ops, build.op("ADD", [x, kept], y, options="AddOptions"))
    model = choosing(reader, branch("mul", "MUL"), build.act("value", 1, 2))
    stats = calibrate(model, [(np.bool_(True), np.float32([[1, 2]]))])
    assert stats.notes == ("'y' uses resources; tensors in the graphs it calls were not measured",)


def without_shapes(model: Model, graph: Graph) -> None:
    """As converters leave the tensors of a body whose shapes they do not know."""
    for tensor in (t for t in graph.tensors if not t.is_constant):
        tensor.shape = ()
    for call in model.main.ops:
        for tensor in call.outputs:
            tensor.shape = ()


@pytest.mark.parametrize("make", ["IF", "WHILE"])
def test_bodies_without_shapes_are_run_as_they_come(make):
    """What they compute stays float; what follows, which has no shape in the file either, does not have to."""
    body = branch("body", "ADD")
    model = choosing(body, branch("mul", "MUL"), build.act("value", 1, 2)) if make == "IF" else counting(body, 2)
    called, result = model.graphs[1 if make == "IF" else 2], model.main.outputs[-1]
    without_shapes(model, called)
    wide, weights = build.act("wide"), build.const("weights", build.weights(3, 2))
    model.main.ops.append(build.op("FULLY_CONNECTED", [result, weights], wide, options="FullyConnectedOptions"))
    model.main.tensors += [weights, wide]
    model.main.outputs = [wide]
    values = [np.float32([[k, -k]]) for k in range(1, 9)]
    samples = [(np.bool_(k % 2), x) if make == "IF" else (np.int32(0), x) for k, x in enumerate(values)]
    for effort in ("quick", "standard", "high"):
        made = zeropoint.quantize(model, "int8", samples, effort=effort)
        # A loop carries integers round; what is around the branches is float.
        assert [s.op.kind for s in made.skipped] == ([make] if make == "IF" else [])
        assert all("runs other graphs" in s.reason for s in made.skipped)
        assert zeropoint.compare(model, made.model, samples).snr > 25
    reasons = [s.reason for s in zeropoint.quantize(model, "dynamic", min_elements=1).skipped]
    assert any("no shape in the file" in reason for reason in reasons)


def test_bodies_that_compute_nothing_at_first_are_measured():
    """A slice of no elements has no extremes, and LiteRT's Python API does not give it."""
    x, nothing, double = build.act("body/x", 1, 2), build.act("body/nothing"), build.act("body/double", 1, 2)
    start, size = build.const("start", np.int32([0, 0])), build.const("size", np.int32([0, 0]))
    cut = build.op("SLICE", [x, start, size], nothing, options="SliceOptions")
    body = build.graph("body", [x], [double], cut, build.op("ADD", [x, x], double, options="AddOptions"))
    samples = [(np.int32(0), np.float32([[1, -1]]))]
    found = calibrate(counting(body, 2), samples)
    assert extremes(found, "body::body/double") == (-4, 4, 1)
    assert "body::body/nothing" not in found.tensors
