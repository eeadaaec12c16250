"""Graphs that ops call: loops and branches are quantized inside, composite ops become what they consist of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import zeropoint
from tests.build import act, branches, composite, const, graph, loop, op
from zeropoint.affine import dequantize, quantize
from zeropoint.dtypes import Array, DType
from zeropoint.graph import Model
from zeropoint.ops import OPS
from zeropoint.ops.execution import execution_of
from zeropoint.plan.rewrite import build
from zeropoint.plan.saved import plan_text, planned_from_text
from zeropoint.runtime import Session

from .laws import broken_laws

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
    assert decibels(model, result.model, samples) > least
    assert not result.skipped
    assert broken_laws(result) == []


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
@pytest.mark.parametrize("ends", ["float32", "int8"])
def test_a_loop_hands_its_states_on_as_integers(mode: str, ends: str) -> None:
    """In one scale for what goes in, round and out, so that the loop of a whole integer model is integers only."""
    model, samples = recurrent_loop(), sequences()
    types = {"input_type": ends, "output_type": ends}
    result = zeropoint.quantize(model, mode, data=samples, target="integer", strict=True, effort="quick", **types)
    main, cond, body = result.model.graphs
    held = DType.INT8 if mode == "int8" else DType.INT16
    for one in (cond.inputs, body.inputs, body.outputs):
        assert [t.dtype for t in one] == [DType.INT32, held, held]
    (loop,) = (o for o in main.ops if o.kind == "WHILE")
    for k in (1, 2):
        passed = (loop.inputs[k], loop.outputs[k], cond.inputs[k], body.inputs[k], body.outputs[k])
        assert len({t.params for t in passed if t is not None}) == 1
    assert all(execution_of(o) != "float" for o in body.ops)
    assert result.verdict.snr is not None
    assert result.verdict.snr > (28 if mode == "int8" else 38)
    given = [s if t.params is None else quantize(s, t.params) for s, t in zip(samples[0], main.inputs, strict=True)]
    wanted = Session(result.model, kernels="reference").run(given)[0]
    np.testing.assert_array_equal(zeropoint.simulate(result.model, given)[main.outputs[0].name], wanted)
    saved = planned_from_text(plan_text(result.planned), result.prepared)
    assert zeropoint.to_bytes(build(saved, OPS)) == zeropoint.to_bytes(result.model)


def test_an_initial_state_beyond_what_a_kernel_fixes_is_not_cut_off() -> None:
    """A tanh makes numbers up to 1, and the first state is 5."""
    samples = [(xs, np.full((1, CELLS), 5 * (-1) ** k, np.float32)) for k, (xs, _) in enumerate(sequences())]
    model = recurrent_loop()
    result = zeropoint.quantize(model, data=samples, target="integer", effort="quick")
    body = next(g for g in result.model.graphs if g.name == "body")
    assert body.inputs[2].params.range()[1] > 4.9
    assert decibels(model, result.model, samples) > 20


def test_a_state_that_the_body_has_in_float_passes_as_float() -> None:
    result = zeropoint.quantize(
        recurrent_loop(), data=sequences(), target="integer", keep_float="CONCATENATION", effort="quick"
    )
    body = next(g for g in result.model.graphs if g.name == "body")
    assert [t.dtype.label for t in body.inputs] == ["int32", "int8", "float32"]  # GATHER still reads integers
    assert "subgraph" in {s.code for s in result.skipped}


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


@pytest.mark.parametrize("options", [{"input_type": "int8", "output_type": "int8"}, {"strict": True}])
def test_branches_take_and_give_integers_where_these_are_around_them(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    samples = [(np.bool_(k % 2), rng.normal(size=2).astype(np.float32)) for k in range(32)]
    model = branches()
    model.signatures = model.signatures[:1]
    result = zeropoint.quantize(model, data=samples, target="integer", effort="quick", **options)
    assert {g.name: [o.kind for o in g.ops] for g in result.model.graphs[1:]} == {"then": ["ADD"], "else": ["MUL"]}
    (call,) = (o for o in result.model.main.ops if o.kind == "IF")
    then, other = result.model.graphs[1:]
    assert call.inputs[1].params == then.inputs[0].params == other.inputs[0].params
    assert call.outputs[0].params == then.outputs[0].params == other.outputs[0].params
    assert result.verdict.snr is not None
    assert result.verdict.snr > 35


def test_what_branches_give_cuts_off_no_constant_beside_it() -> None:
    """Their result has a scale of its own, which a constant that is joined to it exceeds by 0.8 of a step."""
    rng = np.random.default_rng(0)
    samples = [(np.bool_(k % 2), rng.normal(size=2).astype(np.float32)) for k in range(32)]
    model = branches()
    model.signatures = model.signatures[:1]
    (result,) = model.main.outputs
    seen = zeropoint.calibrate(model, samples).tensors[result.name]
    step = (seen.high.value - seen.low.value) / 255
    beside, joined = const("beside", [seen.high.value + 1.2 * step] * 2), act("joined", 4)
    model.main.ops.append(op("CONCATENATION", [result, beside], joined, options="ConcatenationOptions", axis=0))
    model.main.tensors += [beside, joined]
    model.main.outputs = [joined]
    model.signatures = []
    made = zeropoint.quantize(model, data=samples, target="integer", effort="quick", strict=True).model
    (held,) = (t for t in made.main.tensors if t.name == "beside")
    assert held.params is not None
    assert dequantize(held.data, held.params) == pytest.approx(beside.data, abs=0.51 * held.params.scale)


def test_a_loop_takes_what_has_no_range_of_its_own() -> None:
    """SIGN stays float, and what only a call reads is not measured."""
    model, raw = loop(), act("raw", 2)
    step, x = model.main.inputs
    model.main.ops.insert(0, op("SIGN", [raw], x))
    model.main.inputs, model.signatures = [step, raw], []
    model.main.tensors.append(raw)
    samples = [(np.int32(0), np.float32([k - 8, 3 - k])) for k in range(16)]
    result = zeropoint.quantize(model, data=samples, target="integer", effort="quick")
    assert [o.kind for o in result.model.main.ops] == ["SIGN", "QUANTIZE", "WHILE", "DEQUANTIZE"]
    assert decibels(model, result.model, samples) > 30


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


# Constants that are handed to the graphs.


WEIGHTS = np.random.default_rng(5).normal(size=(CELLS, CELLS)).astype(np.float32) / 2


def branch_of_weights(*, returned: bool = False, called_twice: bool = False) -> Model:
    """A dense layer, or nothing, on weights that the caller of both branches has."""

    def inputs(prefix: str) -> list:
        return [act(f"{prefix}/x", 1, CELLS), act(f"{prefix}/w", CELLS, CELLS)]

    (x, w), (same, other), made = inputs("then"), inputs("else"), act("then/y", 1, CELLS)
    dense = op("FULLY_CONNECTED", [x, w, None], made, options="FullyConnectedOptions")
    then, no = graph("then", [x, w], [made], dense), graph("else", [same, other], [same])
    choice, outer, kernel = act("choice", dtype=DType.BOOL), act("x", 1, CELLS), const("w", WEIGHTS)
    results = [act("y", 1, CELLS), act("z", 1, CELLS)][: 1 + called_twice]
    if returned:
        made_too = act("kernel", CELLS, CELLS)
        then.outputs.append(w)
        no.outputs.append(other)
        results.append(made_too)
    options = {"options": "IfOptions", "thenSubgraphIndex": then, "elseSubgraphIndex": no}
    calls = [op("IF", [choice, outer, kernel], results[0], *(results[1:] if returned else ()), **options)]
    if called_twice:
        calls.append(op("IF", [choice, results[0], const("other", -WEIGHTS)], results[1], **options))
    return Model([graph("main", [choice, outer], results, *calls), then, no])


def choices(count: int = 24) -> list[tuple[Array, Array]]:
    rng = np.random.default_rng(2)
    return [(np.bool_(k % 3 > 0), rng.normal(size=(1, CELLS)).astype(np.float32)) for k in range(count)]


def test_weights_that_a_branch_is_handed_are_its_own() -> None:
    """A converter of ONNX passes them in; quantized they stay in the branch, which computes in integers."""
    model, samples = branch_of_weights(), choices()
    result = zeropoint.quantize(model, data=samples, target="integer", effort="quick")
    then = next(g for g in result.model.graphs if g.name == "then")
    (dense,) = [o for o in then.ops if o.kind == "FULLY_CONNECTED"]
    assert execution_of(dense) == "integer"
    assert [len(g.inputs) for g in result.model.graphs] == [2, 1, 1]
    assert decibels(model, result.model, samples) > 28
    for mode in ("dynamic", "weights"):
        made = zeropoint.quantize(model, mode, min_elements=0, effort="quick").model
        assert not any(t.dtype.is_float and t.is_constant and t.size > CELLS for g in made.graphs for t in g.tensors)
        assert decibels(model, made, samples) > 28


@pytest.mark.parametrize("how", ["returned", "called_twice"])
def test_constants_that_are_more_than_read_stay_with_the_caller(how: str) -> None:
    model, samples = branch_of_weights(**{how: True}), choices()
    result = zeropoint.quantize(model, data=samples, target="integer", effort="quick")
    assert [len(g.inputs) for g in result.model.graphs] == [2, 2, 2]
    assert decibels(model, result.model, samples) > 28


def loop_over_weights(*, read_behind: bool = False, changed: bool = False) -> Model:
    """h = W h, three times, where W is carried along."""

    def carried(prefix: str) -> list:
        kernel, state = act(f"{prefix}/w", CELLS, CELLS), act(f"{prefix}/h", 1, CELLS)
        return [act(f"{prefix}/step", dtype=DType.INT32), kernel, state]

    given, go = carried("cond"), act("go", dtype=DType.BOOL)
    cond = graph("cond", given, [go], op("LESS", [given[0], const("limit", np.int32(3))], go, options="LessOptions"))
    (step, w, h), after, made = carried("body"), act("body/next", dtype=DType.INT32), act("made", 1, CELLS)
    halved = act("body/halved", CELLS, CELLS)
    ops = [
        op("ADD", [step, const("one", np.int32(1))], after, options="AddOptions"),
        op("FULLY_CONNECTED", [h, w, None], made, options="FullyConnectedOptions"),
        op("MUL", [w, const("half", np.float32(0.5))], halved, options="MulOptions"),
    ]
    body = graph("body", [step, w, h], [after, halved if changed else w, made], *ops[: 2 + changed])
    ins, outs = [const("zero", np.int32(0)), const("w", WEIGHTS), act("h", 1, CELLS)], carried("last")
    call = op("WHILE", ins, *outs, options="WhileOptions", condSubgraphIndex=cond, bodySubgraphIndex=body)
    result, behind = outs[2], act("behind", 1, CELLS)
    ops = [call]
    if read_behind:
        ops.append(op("FULLY_CONNECTED", [result, outs[1], None], behind, options="FullyConnectedOptions"))
    return Model([graph("main", ins[2:], [behind if read_behind else result], *ops), cond, body])


@pytest.mark.parametrize("read_behind", [False, True])
def test_weights_that_a_loop_carries_along_are_its_own(read_behind: bool) -> None:
    model, samples = loop_over_weights(read_behind=read_behind), [(x,) for _, x in choices()]
    result = zeropoint.quantize(model, data=samples, target="integer", effort="quick")
    dense = [o for g in result.model.graphs for o in g.ops if o.kind == "FULLY_CONNECTED"]
    assert len(dense) == 1 + read_behind
    assert {execution_of(o) for o in dense} == {"integer"}
    assert [len(g.inputs) for g in result.model.graphs] == [1, 2, 2]
    assert decibels(model, result.model, samples) > 25


def test_what_a_loop_changes_stays_carried() -> None:
    model, samples = loop_over_weights(changed=True), [(x,) for _, x in choices()]
    result = zeropoint.quantize(model, data=samples, target="integer", effort="quick")
    assert [len(g.inputs) for g in result.model.graphs] == [1, 3, 3]
    assert decibels(model, result.model, samples) > 25


def test_a_graph_that_an_op_calls_may_have_fewer_outputs_than_the_one_that_calls_it() -> None:
    """While calibrating, the outputs of the calling graph are kept, and of no other."""
    model = branches()
    model.signatures = model.signatures[:1]
    (y,) = model.main.outputs
    further = [act(f"further{k}", 2) for k in range(2)]
    model.main.tensors += further
    model.main.ops += [op(kind, [y], further[k], options=None) for k, kind in enumerate(("RELU", "TANH"))]
    model.main.outputs += further
    rng = np.random.default_rng(0)
    samples = [(np.bool_(k % 2), rng.normal(size=2).astype(np.float32)) for k in range(16)]
    made = zeropoint.quantize(model, "int8", data=samples, target="integer")
    for row in samples:
        for wanted, got in zip(Session(model).run(row), Session(made.model).run(row), strict=True):
            np.testing.assert_allclose(got, wanted, atol=0.15)
