"""Modes that quantize weights alone: dynamic, weights, float16."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zeropoint
from zeropoint.bench.latency import undelegated
from zeropoint.dtypes import DType
from zeropoint.errors import InvalidModel, InvalidRecipe
from zeropoint.graph import Graph, Model, Op, Tensor
from zeropoint.improve.squant import balanced, nonnegative_tensors
from zeropoint.ops import OPS
from zeropoint.recipe import DYNAMIC, FLOAT, Recipe, Rule, Scheme, preset
from zeropoint.runtime import Runner, Session
from zeropoint.tflite import to_bytes

from .. import build
from ..nets import Net, normal, outputs_of, samples_for, worst

MODES = ("dynamic", "weights", "float16")
NARROWER = {"dynamic": DType.INT8, "weights": DType.INT8, "float16": DType.FLOAT16}


def dense(source: Tensor, weights: Tensor, name: str, bias: Tensor | None = None, fused: int = 0) -> Op:
    result = build.act(name, *source.shape[:-1], weights.shape[0])
    op = build.op("FULLY_CONNECTED", [source, weights, bias], result, options="FullyConnectedOptions")
    assert op.options is not None
    op.options = op.options.replace(fusedActivationFunction=fused)
    return op


def kernel(name: str = "w", outputs: int = 40, inputs: int = 40, seed: int = 0) -> Tensor:
    return build.const(name, normal(outputs, inputs, seed=seed, spread=0.2))


def one_layer() -> Model:
    x = build.act("x", 3, 40)
    op = dense(x, kernel(), "y", build.const("b", normal(40, seed=1)))
    return Model([build.graph("main", [x], [op.outputs[0]], op)])


def constants(graph: Graph, dtype: DType) -> list[Tensor]:
    return [t for t in graph.tensors if t.is_constant and t.dtype is dtype]


def kinds(graph: Graph) -> list[str]:
    return [op.kind for op in graph.ops]


@pytest.mark.parametrize("mode", MODES)
def test_a_layer_is_smaller_and_computes_nearly_the_same(mode: str) -> None:
    model, samples = one_layer(), samples_for(one_layer())
    result = zeropoint.quantize(model, mode)
    assert len(to_bytes(result.model)) < 0.6 * len(to_bytes(model))
    assert worst(outputs_of(model, samples), outputs_of(result.model, samples)) < 0.03
    assert constants(result.model.main, NARROWER[mode])
    assert [t.name for t in result.model.main.outputs] == ["y"]
    assert result.skipped == ()
    assert to_bytes(zeropoint.quantize(model, mode).model) == to_bytes(result.model)


def test_small_weights_stay_float_and_are_listed() -> None:
    result = zeropoint.quantize(one_layer(), "dynamic", min_elements=1601)
    assert [s.reason for s in result.skipped] == ["its weights have fewer than 1601 elements"]
    assert result.warnings == ("nothing was quantized",)
    assert not constants(result.model.main, DType.INT8)
    assert constants(zeropoint.quantize(one_layer(), "dynamic", min_elements=1600).model.main, DType.INT8)


def two_readers(second: Op | None = None) -> Model:
    """A dense layer and a product that read one constant."""
    x, other, w = build.act("x", 3, 40), build.act("other", 40, 40), kernel()
    op = dense(x, w, "y")
    product = build.op("MUL", [other, w], build.act("z", 40, 40), options="MulOptions")
    return Model([build.graph("main", [x, other], [op.outputs[0], product.outputs[0]], op, second or product)])


@pytest.mark.parametrize("mode", MODES)
def test_a_shared_constant_is_held_once(mode: str) -> None:
    """The product, which needs floats, gets them from a DEQUANTIZE."""
    result = zeropoint.quantize(two_readers(), mode)
    graph = result.model.main
    assert len(constants(graph, NARROWER[mode])) == 1
    assert not constants(graph, DType.FLOAT32)
    assert kinds(graph).count("DEQUANTIZE") == 1
    samples = samples_for(two_readers())
    assert worst(outputs_of(two_readers(), samples), outputs_of(result.model, samples)) < 0.03


def test_an_op_that_a_rule_keeps_in_float_gets_the_float_weights() -> None:
    result = zeropoint.quantize(two_readers(), "dynamic", keep_float=["MUL"])
    graph = result.model.main
    assert len(constants(graph, DType.INT8)) == len(constants(graph, DType.FLOAT32)) == 1
    assert kinds(graph) == ["FULLY_CONNECTED", "MUL"]


@pytest.mark.parametrize("mode", MODES)
def test_graphs_that_share_bytes_go_on_sharing_them(mode: str) -> None:
    """As the prefill and decode graphs of a language model do."""
    shared = kernel()
    graphs = []
    for name, rows in (("first", 1), ("second", 4)):
        x = build.act("x", rows, 40)
        op = dense(x, replace(shared), "y")
        graphs.append(build.graph(name, [x], [op.outputs[0]], op))
    model = Model(graphs)
    for graph in graphs:
        build.sign(model, graph.name, graph)
    result = zeropoint.quantize(model, mode)
    first, second = (constants(g, NARROWER[mode])[0] for g in result.model.graphs)
    assert first.buffer is second.buffer
    assert len(to_bytes(result.model)) < 0.6 * len(to_bytes(model))


def same_bytes(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> Model:
    """Two layers whose weights are the same bytes in these shapes, as converters store equal bytes once."""
    net, values = Net(), normal(*shapes[0], spread=0.2)
    first = build.const("first/w", values)
    second = replace(build.const("second/w", values.reshape(shapes[1])), buffer=first.buffer)
    made = []
    for weights in (first, second):
        if len(weights.shape) == 4:
            made.append(net.conv(net.input(1, 6, 6, weights.shape[3]), weights))
        else:
            made.append(net.dense(net.input(3, weights.shape[1]), weights))
    return net.model(*made)


SHAPES = (((32, 64), (64, 32)), ((16, 3, 3, 8), (16, 72)))


@pytest.mark.parametrize("mode", [*MODES, "int8"])
@pytest.mark.parametrize("shapes", SHAPES)
def test_layers_may_read_the_same_bytes_in_other_shapes(mode: str, shapes: Any) -> None:
    model = same_bytes(shapes)
    samples = samples_for(model)
    for data in (samples, None) if mode != "int8" else (samples,):
        result = zeropoint.quantize(model, mode, data=data)
        assert worst(outputs_of(model, samples), outputs_of(result.model, samples)) < 0.03


def test_a_constant_of_the_same_bytes_stays_float_if_the_scales_do_not_fit_its_shape() -> None:
    net, values = Net(), normal(64, 32, spread=0.2)
    weights = build.const("w", values)
    factors = replace(build.const("c", values.reshape(32, 64)), buffer=weights.buffer)
    model = net.model(net.dense(net.input(3, 32), weights), net("MUL", [net.input(32, 64), factors]))
    result = zeropoint.quantize(model, "dynamic")
    assert [t.shape for t in constants(result.model.main, DType.INT8)] == [weights.shape]
    assert factors.shape in [t.shape for t in constants(result.model.main, DType.FLOAT32)]


@pytest.mark.parametrize("shapes", SHAPES)
def test_few_bits_of_the_same_bytes_have_the_scales_of_each_shape(shapes: Any) -> None:
    model = same_bytes(shapes)
    result = zeropoint.quantize(model, "int8", data=samples_for(model), weight_bits=4)
    for tensor in constants(result.model.main, DType.INT4):
        assert tensor.params is not None
        assert len(tensor.params.scales) == tensor.shape[0]


def body(name: str, seed: int) -> Graph:
    x = build.act(f"{name}/x", 3, 40)
    op = dense(x, kernel(f"{name}/w", seed=seed), f"{name}/y")
    return build.graph(name, [x], [op.outputs[0]], op)


def with_branches() -> Model:
    choice, x, y = build.act("choice", dtype=DType.BOOL), build.act("x", 3, 40), build.act("y", 3, 40)
    then, other = body("then", 1), body("else", 2)
    op = build.op("IF", [choice, x], y, options="IfOptions")
    assert op.options is not None
    op.options = op.options.replace(thenSubgraphIndex=then, elseSubgraphIndex=other)
    return Model([build.graph("main", [choice, x], [y], op), then, other])


@pytest.mark.parametrize("mode", MODES)
def test_bodies_of_control_flow_are_quantized(mode: str) -> None:
    model = with_branches()
    result = zeropoint.quantize(model, mode)
    for graph in result.model.graphs[1:]:
        assert not constants(graph, DType.FLOAT32)
        assert constants(graph, NARROWER[mode])
    for choice in (True, False):
        fed = [np.bool_(choice), normal(3, 40, seed=5)]
        np.testing.assert_allclose(Session(result.model).run(fed)[0], Session(model).run(fed)[0], atol=0.05)


@pytest.mark.parametrize("mode", MODES)
def test_what_a_composite_op_stands_for_is_quantized(mode: str) -> None:
    x, y, spelt_out = build.act("x", 3, 40), build.act("y", 3, 40), body("body", 1)
    op = build.op("STABLEHLO_COMPOSITE", [x], y, options="StableHLOCompositeOptions", name="my.layer", version=1)
    assert op.options is not None
    op.options = op.options.replace(decompositionSubgraphIndex=spelt_out, compositeAttributes=(1, 2, 250))
    model = Model([build.graph("main", [x], [y], op), spelt_out])
    result = zeropoint.quantize(model, mode)
    assert not constants(result.model.graphs[1], DType.FLOAT32)
    fed = [normal(3, 40, seed=5)]
    np.testing.assert_allclose(Session(result.model).run(fed)[0], Session(model).run(fed)[0], atol=0.05)


def lookup(*shape: int, **options: Any) -> Model:
    indices = build.act("ids", *shape, dtype=DType.INT32)
    table = build.const("table", normal(50, 40) * np.geomspace(0.01, 3, 50)[:, None].astype(np.float32))
    op = build.op("GATHER", [table, indices], build.act("y", *shape, 40), options="GatherOptions", **options)
    return Model([build.graph("main", [indices], [op.outputs[0]], op)])


def test_rows_of_a_table_have_scales_of_their_own() -> None:
    model = lookup(7)
    result = zeropoint.quantize(model, "dynamic")
    assert kinds(result.model.main) == ["EMBEDDING_LOOKUP"]
    assert result.skipped == ()
    ids = np.arange(0, 49, 7, dtype=np.int32)
    got, wanted = Session(result.model).run([ids])[0], Session(model).run([ids])[0]
    assert (np.abs(got - wanted).max(axis=1) <= 0.51 / 127 * np.abs(wanted).max(axis=1)).all()


def test_a_rule_for_lookups_holds_to_the_end() -> None:
    """Turned into another kind of op, it would no longer match."""
    result = zeropoint.quantize(lookup(7), recipe=Recipe((Rule(FLOAT), Rule(DYNAMIC, ops="GATHER"))))
    assert not result.warnings
    assert not constants(result.model.main, DType.FLOAT32)


@pytest.mark.parametrize("is_open", [False, True])
def test_indices_in_rows_and_columns_are_looked_up_as_a_list(is_open: bool) -> None:
    model = lookup(2, 3)
    if is_open:
        model.main.inputs[0].shape_signature, model.main.outputs[0].shape_signature = (-1, 3), (-1, 3, 40)
    result = zeropoint.quantize(model, "dynamic")
    assert kinds(result.model.main) == ["RESHAPE", "EMBEDDING_LOOKUP", "RESHAPE"]
    assert [t.name for t in result.model.main.outputs] == ["y"]
    for count in (2, 5) if is_open else (2,):
        ids = np.arange(3 * count, dtype=np.int32).reshape(count, 3) * 3
        sessions = Session(result.model), Session(model)
        for session in sessions:
            session.resize([ids.shape])
        got, wanted = (session.run([ids])[0] for session in sessions)
        assert (np.abs(got - wanted).max(axis=2) <= 0.51 / 127 * np.abs(wanted).max(axis=2)).all()


def test_a_table_read_in_another_way_is_converted_behind() -> None:
    model = lookup(2, 3)
    model.main.inputs[0].shape_signature, model.main.outputs[0].shape_signature = (-1, -1), (-1, -1, 40)
    result = zeropoint.quantize(model, "dynamic")
    assert kinds(result.model.main) == ["GATHER", "DEQUANTIZE"]
    assert [t.name for t in result.model.main.outputs] == ["y"]
    ids = np.arange(6, dtype=np.int32).reshape(2, 3) * 8
    sessions = Session(result.model), Session(model)
    for session in sessions:
        session.resize([ids.shape])
    got, wanted = (session.run([ids])[0] for session in sessions)
    assert (
        np.abs(got - wanted).max()
        <= 0.51 / 127 * np.abs(wanted).max() + np.abs(model.main.tensor("table").data).max() / 127
    )


def test_what_float16_cannot_hold_stays_float32_and_is_named() -> None:
    model = one_layer()
    bias = model.main.tensor("b")
    data = np.array(bias.data)
    data[3] = 7e4
    model.main.ops[0].inputs[2] = huge = build.const("b", data)
    model.main.tensors[model.main.tensors.index(bias)] = huge
    result = zeropoint.quantize(model, "float16")
    assert [str(r) for r in result.repairs] == ["'b': stays float32: it reaches beyond float16's 65504"]
    assert [t.name for t in constants(result.model.main, DType.FLOAT32)] == ["b"]


def by_element(kind: str, options: str, values: Any) -> Model:
    return build.one_op(kind, [build.act("x", 1, 4), build.const("c", values)], build.act("y", 1, 4), options=options)


@pytest.mark.parametrize(
    ("kind", "values", "text"),
    [
        ("ADD", np.float32(1e-12), "float16 would make 0 of 1e-12"),
        ("DIV", np.float32(1e-9), "float16 would make 0 of 1e-09"),
        ("DIV", np.float32([1.0, 1e-9, 1.0, 2.0]), "float16 would make 0 of 1e-09"),
        ("MUL", np.float32([1.0, 1e-6, 1.0, 2.0]), "float16 would make 1.01e-06 of 1e-06"),
    ],
)
def test_small_numbers_that_float16_would_lose_stay_float32(kind: str, values: Any, text: str) -> None:
    """An epsilon becomes 0 otherwise, and what is divided by it NaN or infinity."""
    model = by_element(kind, f"{kind.title()}Options", values)
    result = zeropoint.quantize(model, "float16")
    assert [(str(r), r.code) for r in result.repairs] == [(f"'c': stays float32: {text}", "float16_precision")]
    assert f"repaired 'c': stays float32: {text}" in str(result.plan)
    zeros = [np.zeros((1, 4), np.float32)]
    np.testing.assert_array_equal(Session(result.model).run(zeros)[0], Session(model).run(zeros)[0])


def test_small_numbers_among_weights_do_not_keep_them_from_float16() -> None:
    """They are added up with larger ones. Weights that are small throughout stay float32."""
    model = one_layer()
    weights = model.main.ops[0].inputs[1]
    assert weights is not None
    data = np.array(weights.data)
    data[0, :5] = 1e-9
    model.main.ops[0].inputs[1] = build.const("w", data)
    model.main.tensors = list(dict.fromkeys(t for op in model.main.ops for t in op.tensors()))
    result = zeropoint.quantize(model, "float16")
    assert result.repairs == ()
    assert constants(result.model.main, DType.FLOAT16)
    model.main.ops[0].inputs[1] = build.const("w", data * np.float32(1e-7))
    model.main.tensors = list(dict.fromkeys(t for op in model.main.ops for t in op.tensors()))
    (repair,) = zeropoint.quantize(model, "float16").repairs
    assert (repair.tensor.name, repair.code) == ("w", "float16_precision")


def test_a_use_that_float16_would_harm_keeps_float32_beside_one_that_it_does_not() -> None:
    """The same numbers as a bias, where they count as a whole, and as divisors, where each counts."""
    x, shared = build.act("x", 3, 40), build.const("c", np.r_[np.float32(1e-9), np.ones(39, np.float32)])
    layer = dense(x, kernel(), "y", shared)
    divided = build.op("DIV", [layer.outputs[0], shared], build.act("z", 3, 40), options="DivOptions")
    result = zeropoint.quantize(Model([build.graph("main", [x], [divided.outputs[0]], layer, divided)]), "float16")
    assert [t.name for t in constants(result.model.main, DType.FLOAT32)] == ["c"]
    assert len(constants(result.model.main, DType.FLOAT16)) == 2


def test_a_float16_model_can_be_made_smaller_still() -> None:
    halves = zeropoint.quantize(one_layer(), "float16").model
    result = zeropoint.quantize(halves, "dynamic")
    assert kinds(result.model.main) == ["FULLY_CONNECTED"]
    assert len(to_bytes(result.model)) < len(to_bytes(halves))


def blocks() -> Model:
    """A depthwise convolution between two others, with weights that are worth quantizing."""
    net = Net()
    x = net.conv(net.input(1, 8, 8, 32), normal(128, 1, 1, 32), normal(128), activation=1)
    operands = [x, normal(1, 3, 3, 128, seed=1), normal(128, seed=2)]
    x = net("DEPTHWISE_CONV_2D", operands, name="middle", strideW=1, strideH=1, depthMultiplier=1)
    return net.model(net.conv(x, normal(32, 1, 1, 128, seed=3), normal(32, seed=4)))


def delegates_all(model: Model) -> bool:
    return not undelegated(Runner(model))


def test_layers_that_the_delegate_lacks_with_integer_weights_compute_in_float() -> None:
    """The weights are as small as before: a DEQUANTIZE converts them when the model is loaded."""
    model = blocks()
    made, named = (zeropoint.quantize(model, recipe=recipe) for recipe in (preset("dynamic"), by_name(DYNAMIC)))
    assert kinds(made.model.main) == ["DEQUANTIZE", "CONV_2D", "DEPTHWISE_CONV_2D", "CONV_2D"]
    assert len(constants(made.model.main, DType.INT8)) == 3
    assert delegates_all(made.model)
    assert any("1 DEPTHWISE_CONV_2D compute with floats on integer weights" in note for note in made.notes)
    # A rule that names the layer, and other targets, have what they ask for.
    for result in (named, zeropoint.quantize(model, "dynamic", target="integer")):
        assert kinds(result.model.main) == ["CONV_2D", "DEPTHWISE_CONV_2D", "CONV_2D"]


def by_name(scheme: Scheme) -> Recipe:
    return preset("dynamic").then(Rule(scheme, name="middle"))


@pytest.mark.parametrize("mode", ["weights", "dynamic"])
def test_layers_of_a_float16_model_stay_fast(mode: str) -> None:
    """The delegate takes no layer whose weights are integers and whose bias is float16."""
    halves = zeropoint.quantize(blocks(), "float16").model
    made = zeropoint.quantize(halves, mode).model
    assert len(constants(made.main, DType.INT8)) == 3
    assert delegates_all(made)


def test_biases_make_up_for_the_rounding_of_weights_where_means_are_known() -> None:
    """To float rounding: the mean output error of each channel on the calibration data is zero."""
    model = one_layer()
    rng = np.random.default_rng(0)
    samples = [(rng.gamma(1.0, 1.0, (3, 40)) * np.linspace(0, 3, 40)).astype(np.float32) for _ in range(20)]
    result = zeropoint.quantize(model, "weights", data=samples, weight_bits=4)
    errors = [Session(result.model).run([x])[0] - Session(model).run([x])[0] for x in samples]
    typical = np.abs(errors).mean()
    assert np.abs(np.mean(errors, axis=(0, 1))).max() < 1e-4 * typical


@given(
    rows=st.integers(1, 4),
    inputs=st.integers(1, 6),
    taps=st.integers(1, 9),
    bits=st.sampled_from([2, 4, 8]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=150)
def test_rounding_errors_cancel(rows: int, inputs: int, taps: int, bits: int, seed: int) -> None:
    """No weight moves by more than one step, and the sum of a row's errors is at most half a step."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(rows, inputs, taps))
    limit = 2 ** (bits - 1) - 1
    steps = np.abs(weights).max(axis=(1, 2)) / limit
    q = balanced(weights, steps, limit)
    error = weights / steps[:, None, None] - q
    assert np.abs(q).max() <= limit
    assert (q == np.round(q)).all()
    assert np.abs(error).max() < 1 + 1e-9
    can_move = np.abs(q).max(axis=(1, 2)) < limit  # a row at the end of the range may have nowhere to go
    sums = np.abs(error.sum(axis=(1, 2)))
    assert (sums[can_move] <= 0.5 + 1e-9).all()
    taps_only = balanced(weights, steps, limit, rows=False)
    nearest = np.clip(np.round(weights / steps[:, None, None]), -limit, limit)
    if taps == 1:
        np.testing.assert_array_equal(taps_only, nearest)


def test_signs_are_known_from_the_graph() -> None:
    x = build.act("x", 3, 40)
    rectified = dense(x, kernel("w1"), "rectified", fused=1)
    moved = build.op("RESHAPE", [rectified.outputs[0], build.const("to", [40, 3])], build.act("moved", 40, 3))
    plain = dense(x, kernel("w2"), "plain")
    soft = build.op("SOFTMAX", [plain.outputs[0]], build.act("soft", 3, 40), options="SoftmaxOptions", beta=1.0)
    graph = build.graph("main", [x], [moved.outputs[0], soft.outputs[0]], rectified, moved, plain, soft)
    assert {t.name for t in nonnegative_tensors(graph, OPS)} == {"rectified", "moved", "soft"}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"mode": "dynamic", "input_type": "int8"}, "integer inputs and outputs need integer arithmetic"),
    ({"mode": "float16", "strict": True}, "strict=True needs integer arithmetic"),
    ({"mode": "weights", "range": "entropy"}, "'entropy' is for ranges of activations"),
    ({"mode": "float16", "weight_bits": 4}, "float16 has no integer weights"),
    ({"mode": "dynamic", "block": 32}, "blocks need the mode dynamic and 4-bit weights"),
    ({"mode": "dynamic", "weight_bits": 4, "block": 48}, "blocks of 48 are not supported"),
    ({"mode": "dynamic", "asymmetric": True}, "asymmetric weights need the mode weights"),
    ({"mode": "dynamic", "weight_bits": 9}, "weights of 9 bits are not supported; choose 2 to 8"),
    ({"mode": "tiny"}, "unknown mode 'tiny'"),
    ({"mode": preset("dynamic")}, "give it as recipe="),
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_wishes_that_do_not_fit_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRecipe, match=words):
        zeropoint.quantize(one_layer(), **options)


def test_a_model_without_float_weights_is_refused() -> None:
    made = zeropoint.quantize(one_layer(), "int8", data=samples_for(one_layer()), strict=True)
    with pytest.raises(InvalidModel, match="no float weights"):
        zeropoint.quantize(made.model, "dynamic")


def test_modes_can_be_mixed() -> None:
    """One layer in integers, one with integer weights, one in float."""
    x = build.act("x", 3, 40)
    ops = [dense(x, kernel("w1", seed=1), "a")]
    ops.append(dense(ops[-1].outputs[0], kernel("w2", seed=2), "b"))
    ops.append(dense(ops[-1].outputs[0], kernel("w3", seed=3), "c"))
    model = Model([build.graph("main", [x], [ops[-1].outputs[0]], *ops)])
    rules = Recipe((Rule(zeropoint.recipe.INT8), Rule(DYNAMIC, name="b"), Rule(FLOAT, name="c")))
    samples = samples_for(model)
    result = zeropoint.quantize(model, recipe=rules, data=samples)
    assert kinds(result.model.main) == [
        "QUANTIZE",
        "FULLY_CONNECTED",
        "DEQUANTIZE",
        "FULLY_CONNECTED",
        "FULLY_CONNECTED",
    ]
    assert worst(outputs_of(model, samples), outputs_of(result.model, samples)) < 0.05


def test_what_data_would_have_brought_is_said() -> None:
    assert any("biases are not corrected" in n for n in zeropoint.quantize(one_layer(), "dynamic").notes)
    assert any("high effort needs data" in n for n in zeropoint.quantize(one_layer(), "dynamic", effort="high").notes)
    assert zeropoint.quantize(one_layer(), "dynamic", effort="quick").notes == ()
    assert zeropoint.quantize(one_layer(), "float16").notes == ()


def test_the_plan_tells_how_constants_are_held() -> None:
    text = str(zeropoint.quantize(one_layer(), "dynamic").plan)
    assert "1 hybrid" in text
    assert "int8 40 channels on axis 0" in text
    assert "float16  unpacked  constant" in str(zeropoint.quantize(one_layer(), "float16").plan)
