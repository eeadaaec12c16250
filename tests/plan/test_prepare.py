"""What is folded before planning, and what is left alone."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from tests.build import act, branches, const, graph, op
from zeropoint.graph import Model
from zeropoint.graph.edit import copy_model
from zeropoint.plan.prepare import prepare
from zeropoint.recipe import preset
from zeropoint.runtime import Session


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
    prepare(folded, preset("int8"))
    assert [o.kind for o in folded.main.ops] == [instead]
    for x in samples:
        np.testing.assert_allclose(Session(folded).run([x])[0], Session(model).run([x])[0], rtol=1e-6, atol=1e-6)
    kept = zeropoint.quantize(model, data=samples, keep_float=[kind])
    assert [o.kind for o in kept.model.main.ops] == [kind]
    assert kept.warnings == ("nothing was quantized",)


def test_graphs_that_ops_call_stay_as_they_are() -> None:
    model = branches()
    copy = copy_model(model)
    prepare(copy, preset("int8"))
    assert [str(g) for g in copy.graphs[1:]] == [str(g) for g in model.graphs[1:]]
