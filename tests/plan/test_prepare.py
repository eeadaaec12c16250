"""What is folded before planning, and what is left alone."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from tests.build import act, branches, const, graph, op
from zeropoint.graph import Model
from zeropoint.graph.edit import copy_model
from zeropoint.ops import OPS
from zeropoint.plan.prepare import prepare
from zeropoint.recipe import preset
from zeropoint.runtime import Session

from ..nets import Net, normal, outputs_of, samples_for, worst


def quotient() -> Model:
    x, y = act("x", 1, 4), act("y", 1, 4)
    return Model([graph("main", [x], [y], op("DIV", [x, const("d", [1.0, 2.0, 4.0, 5.0])], y, options="DivOptions"))])


def global_pool() -> Model:
    x, y = act("x", 1, 4, 4, 2), act("y", 1, 1, 1, 2)
    sizes = {"filterHeight": 4, "filterWidth": 4, "strideH": 1, "strideW": 1, "padding": 1}
    return Model([graph("main", [x], [y], op("AVERAGE_POOL_2D", [x], y, options="Pool2DOptions", **sizes))])


@pytest.mark.parametrize(
    ("build", "kind", "instead"), [(quotient, "DIV", "MUL"), (global_pool, "AVERAGE_POOL_2D", "MEAN")]
)
def test_recast_ops_compute_the_same_unless_a_rule_keeps_them(build, kind: str, instead: str) -> None:
    model = build()
    rng = np.random.default_rng(0)
    samples = [rng.normal(size=model.main.inputs[0].shape).astype(np.float32) for _ in range(24)]
    folded = copy_model(model)
    prepare(folded, preset("int8"), OPS)
    assert [o.kind for o in folded.main.ops] == [instead]
    for x in samples:
        np.testing.assert_allclose(Session(folded).run([x])[0], Session(model).run([x])[0], rtol=1e-6, atol=1e-6)
    kept = zeropoint.quantize(model, data=samples, keep_float=[kind])
    assert [o.kind for o in kept.model.main.ops] == [kind]
    assert kept.warnings == ("nothing was quantized",)


@pytest.mark.parametrize("kind", ["MAX_POOL_2D", "AVERAGE_POOL_2D"])
@pytest.mark.parametrize("mode", ["int8", "weights", "float16"])
@pytest.mark.parametrize("is_output", [True, False])
def test_pools_of_one_are_taken_out(kind: str, mode: str, is_output: bool) -> None:
    """Behind a ReLU, LiteRT's delegate would leave out what is before it."""
    net = Net()
    x = net("RELU", [net.conv(net.input(1, 5, 5, 3), normal(3, 1, 1, 3), normal(3))])
    pooled = net(kind, [x], name="pooled", filterWidth=1, filterHeight=1, strideW=1, strideH=1)
    model = net.model(pooled if is_output else net("ADD", [pooled, np.float32([0.5])]))
    samples = samples_for(model, 8, spread=3.0)
    made = zeropoint.quantize(model, mode, data=samples if mode == "int8" else None, effort="quick")
    assert kind not in {op.kind for op in made.model.main.ops}
    assert [t.name for t in made.model.main.outputs] == [t.name for t in model.main.outputs]
    assert worst(outputs_of(model, samples, "reference"), outputs_of(made.model, samples)) <= 0.02
    if mode == "int8":  # calibrated and judged by what the float model means, not by what the delegate makes of it
        assert made.verdict is not None
        assert made.verdict.snr is not None
        assert made.verdict.snr > 25
        assert zeropoint.compare(model, made.model, samples).snr > 25


def test_graphs_that_ops_call_stay_as_they_are() -> None:
    model = branches()
    copy = copy_model(model)
    prepare(copy, preset("int8"), OPS)
    assert [str(g) for g in copy.graphs[1:]] == [str(g) for g in model.graphs[1:]]


@pytest.mark.parametrize(
    ("fused", "kind", "code"), [(3, "RELU", 3), (1, "RELU6", 3), (1, "RELU", 1), (3, "RELU6", 3), (2, "RELU6", None)]
)
def test_a_clamp_after_a_fused_clamp_is_the_narrower_one(fused: int, kind: str, code: int | None) -> None:
    """Frameworks write a ReLU behind a ReLU6. What is between 0 and 1 is no fused function."""
    net = Net()
    x = net.conv(net.input(1, 6, 6, 4), normal(8, 3, 3, 4), normal(8), activation=fused)
    model = net.model(net.conv(net(kind, [x]), normal(4, 1, 1, 8, seed=1)))
    made = copy_model(model)
    prepare(made, preset("int8"), OPS)
    first = made.main.ops[0]
    assert [o.kind for o in made.main.ops] == ["CONV_2D", *([kind] if code is None else []), "CONV_2D"]
    assert first.option("fusedActivationFunction") == (fused if code is None else code)
    data = samples_for(model, 3)
    for wanted, got in zip(outputs_of(model, data), outputs_of(made, data), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
