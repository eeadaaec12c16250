"""Graphs that ops call: loops and branches are quantized inside, composite ops become what they consist of."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from tests.build import act, branches, composite, const, graph, op
from zeropoint.dtypes import Array, DType
from zeropoint.graph import Model
from zeropoint.ops.execution import execution_of
from zeropoint.runtime import Session

STEPS, FEATURES, CELLS = 12, 4, 8


def recurrent_loop() -> Model:
    """h = tanh(W [x, h] + b) for every step of a sequence, as a loop over it."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(CELLS, FEATURES + CELLS)).astype(np.float32) / 2
    bias = rng.normal(size=CELLS).astype(np.float32) / 4

    def carried(prefix: str) -> list:
        return [
            act(f"{prefix}/step", dtype=DType.INT32),
            act(f"{prefix}/xs", STEPS, 1, FEATURES),
            act(f"{prefix}/h", 1, CELLS),
        ]

    given, go = carried("cond"), act("go", dtype=DType.BOOL)
    cond = graph(
        "cond", given, [go], op("LESS", [given[0], const("limit", np.int32(STEPS))], go, options="LessOptions")
    )
    (step, xs, h), after = carried("body"), act("body/next", dtype=DType.INT32)
    x, both, made = act("x", 1, FEATURES), act("both", 1, FEATURES + CELLS), act("made", 1, CELLS)
    total = act("total", 1, CELLS)
    body = graph(
        "body",
        [step, xs, h],
        [after, xs, made],
        op("ADD", [step, const("one", np.int32(1))], after, options="AddOptions"),
        op("GATHER", [xs, step], x, options="GatherOptions"),
        op("CONCATENATION", [x, h], both, options="ConcatenationOptions", axis=1),
        op("FULLY_CONNECTED", [both, const("w", weights), const("b", bias)], total, options="FullyConnectedOptions"),
        op("TANH", [total], made),
    )
    ins, outs = [const("zero", np.int32(0)), act("xs", STEPS, 1, FEATURES), act("h", 1, CELLS)], carried("last")
    call = op("WHILE", ins, *outs, options="WhileOptions", condSubgraphIndex=cond, bodySubgraphIndex=body)
    return Model([graph("main", ins[1:], [outs[2]], call), cond, body])


def sequences(count: int = 32) -> list[tuple[Array, Array]]:
    rng = np.random.default_rng(1)
    zeros = np.zeros((1, CELLS), np.float32)
    return [(rng.normal(size=(STEPS, 1, FEATURES)).astype(np.float32), zeros) for _ in range(count)]


def decibels(model: Model, made: Model, samples: list) -> float:
    runs = [[Session(m).run(s)[0] for s in samples] for m in (model, made)]
    error = sum(float(((a - b) ** 2).sum()) for a, b in zip(*runs, strict=True))
    return 10 * np.log10(sum(float((a**2).sum()) for a in runs[0]) / max(error, 1e-30))


@pytest.mark.parametrize(("mode", "least"), [("int8", 28), ("int16x8", 42)])
@pytest.mark.parametrize("effort", ["quick", "standard"])
def test_the_body_of_a_loop_computes_in_integers(mode: str, least: float, effort: str) -> None:
    model, samples = recurrent_loop(), sequences()
    result = zeropoint.quantize(model, mode, data=samples, target="integer", effort=effort)
    body = next(g for g in result.model.graphs if g.name == "body")
    executions = {o.kind: execution_of(o) for o in body.ops}
    assert executions["FULLY_CONNECTED"] == executions["TANH"] == executions["CONCATENATION"] == "integer"
    assert [t.dtype for t in (*body.inputs, *body.outputs)] == [DType.INT32, DType.FLOAT32, DType.FLOAT32] * 2
    assert decibels(model, result.model, samples) > least
    assert [s.code for s in result.skipped] == ["subgraph"]


def test_ranges_inside_a_loop_are_those_of_all_passes() -> None:
    stats = zeropoint.calibrate(recurrent_loop(), sequences(4))
    state, made = stats.tensors["body::body/h"], stats.tensors["body::made"]
    assert state.count == made.count == 4 * STEPS * CELLS
    assert made.high.value > 0.5


def test_branches_compute_in_integers() -> None:
    rng = np.random.default_rng(0)
    samples = [(np.bool_(k % 2), rng.normal(size=2).astype(np.float32)) for k in range(32)]
    model = branches()
    model.signatures = model.signatures[:1]
    result = zeropoint.quantize(model, data=samples, target="integer", effort="quick")
    kinds = {g.name: [o.kind for o in g.ops] for g in result.model.graphs[1:]}
    assert kinds == {"then": ["QUANTIZE", "ADD", "DEQUANTIZE"], "else": ["QUANTIZE", "MUL", "DEQUANTIZE"]}
    assert decibels(model, result.model, samples) > 38


def test_a_composite_becomes_what_it_consists_of() -> None:
    model = composite()
    samples = [np.random.default_rng(k).normal(size=3).astype(np.float32) for k in range(32)]
    result = zeropoint.quantize(model, data=samples, target="integer", effort="quick", strict=True)
    assert [[o.kind for o in g.ops] for g in result.model.graphs] == [["QUANTIZE", "MUL", "DEQUANTIZE"]]
    assert decibels(model, result.model, [[s] for s in samples]) > 35


def test_a_composite_that_a_rule_keeps_stays() -> None:
    samples = [np.random.default_rng(k).normal(size=3).astype(np.float32) for k in range(8)]
    kept = zeropoint.quantize(composite(), data=samples, keep_float="STABLEHLO_COMPOSITE", effort="quick")
    assert [o.kind for o in kept.model.main.ops] == ["STABLEHLO_COMPOSITE"]


def test_composites_inside_of_composites_are_inlined_each_with_its_own_tensors() -> None:
    """Twice the same graph, one of which calls it inside of another."""
    model = composite()
    (square,) = model.graphs[1:]
    x, y, z = act("outer/x", 3), act("outer/y", 3), act("outer/z", 3)
    call = model.main.ops[0]
    assert call.options is not None
    inner = [type(call)(call.kind, [a], [b], call.options) for a, b in ((x, y), (y, z))]
    outer = graph("outer", [x], [z], *inner)
    call.options = call.options.replace(decompositionSubgraphIndex=outer)
    model.graphs = [model.main, square, outer]
    samples = [np.random.default_rng(k).uniform(-1, 1, 3).astype(np.float32) for k in range(32)]
    result = zeropoint.quantize(model, data=samples, target="integer", effort="quick")
    assert [[o.kind for o in g.ops] for g in result.model.graphs] == [["QUANTIZE", "MUL", "MUL", "DEQUANTIZE"]]
    assert decibels(model, result.model, [[s] for s in samples]) > 30
