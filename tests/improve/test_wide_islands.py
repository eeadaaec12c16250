"""16 bits for ops that need them, where the target has kernels for that: transformers in integers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from zeropoint.bench.errors import decibels
from zeropoint.calibration import calibrate
from zeropoint.dtypes import DType
from zeropoint.graph.check import problems
from zeropoint.graph.query import Uses
from zeropoint.improve import island_steps
from zeropoint.improve.integer_norms import rewrite_norms
from zeropoint.improve.pipeline import quantize_on
from zeropoint.improve.smoothquant import SIDES, boundaries, smoothed
from zeropoint.plan.planner import plan_model
from zeropoint.plan.prepared import prepare_model
from zeropoint.plan.request import Island, Request
from zeropoint.recipe import INT16X8, preset
from zeropoint.targets import CPU, INTEGER

from ..nets import Net, normal, outputs_of, samples_for

TOKENS, WIDTH, LARGE = 6, 16, 5


def layer_norm(net: Net, x, seed: int, squares: str = "SQUARED_DIFFERENCE"):
    """Written out as converters do it; `squares` is how the squares are made."""
    axis = np.array([1], np.int32)
    mean = net("MEAN", [x, axis], (TOKENS, 1), keepDims=True)
    centred = net("SUB", [x, mean])
    operands = {"SQUARED_DIFFERENCE": [x, mean], "MUL": [centred, centred], "SQUARE": [centred]}[squares]
    variance = net("MEAN", [net(squares, operands), axis], (TOKENS, 1), keepDims=True)
    inverse = net("RSQRT", [net("ADD", [variance, np.float32(1e-5)])])
    gain = 1 + normal(WIDTH, seed=seed, spread=0.1)
    gain[LARGE] = 10
    normed = net("MUL", [net("MUL", [centred, inverse]), gain])
    return net("ADD", [normed, normal(WIDTH, seed=seed + 1, spread=0.1)])


def transformer(blocks: int = 2, squares: str = "SQUARED_DIFFERENCE"):
    """A residual stream into which each layer writes one channel a hundred times as large as the others, for some
    tokens."""
    net = Net()
    stream = layer_norm(net, net.input(TOKENS, WIDTH), 7, squares)
    for k in range(blocks):
        offsets = normal(4 * WIDTH, seed=20 + k)
        offsets[0] = -2  # seldom above zero
        inner = net.dense(stream, reading(4 * WIDTH, 10 + k), offsets)
        weights = normal(WIDTH, 4 * WIDTH, seed=30 + k, spread=0.1)
        weights[3, 0] = 300
        written = net.dense(net("RELU", [inner]), weights, normal(WIDTH, seed=40 + k, spread=0.1))
        stream = layer_norm(net, net("ADD", [written, stream]), 50 + k, squares)
    return net.model(net.dense(stream, reading(8, 60)))


def reading(outputs: int, seed: int):
    """Weights that read the stream, and little of the channel with the large gain."""
    weights = normal(outputs, WIDTH, seed=seed, spread=0.3)
    weights[:, LARGE] /= 10
    return weights


def quantize(model, **changes):
    request = replace(Request(preset("int8"), target=INTEGER), **changes)
    return quantize_on(model, request, samples_for(model, 48))


def error(wanted, got) -> float:
    return decibels(float(np.square(got - wanted).sum() / np.square(wanted).sum()))


@pytest.mark.parametrize("squares", ["SQUARED_DIFFERENCE", "MUL", "SQUARE"])
def test_rewritten_normalizations_compute_the_same(squares):
    model = transformer(squares=squares)
    samples = samples_for(model, 8)
    (wanted,) = outputs_of(model, samples)
    stats = calibrate(model, samples)

    def bounds(tensor):
        seen = stats.tensors.get(tensor.name)
        return None if seen is None else (seen.low.value, seen.high.value)

    made = rewrite_norms(model.main, bounds)
    kinds = [op.kind for op in model.main.ops]
    assert squares not in kinds or squares == "MUL"
    assert kinds.count("BATCH_MATMUL") == 3
    assert kinds.count("RSQRT") > 3  # of parts, where the range is wide
    assert not list(problems(model))
    assert all(span.low <= span.high for span in made.values())
    assert error(wanted, outputs_of(model, samples)[0]) > 90
    measured = calibrate(model, samples)
    for tensor, span in made.items():  # what follows from the ranges beside holds
        seen = measured.tensors[tensor.name]
        slack = 1e-3 * (span.high - span.low)
        assert span.low - slack <= seen.low.value <= seen.high.value <= span.high + slack, tensor.name


def test_a_normalization_that_others_look_into_is_left_alone():
    net = Net()
    x = net.input(TOKENS, WIDTH)
    squares = net("MUL", [x, x])
    mean = net("MEAN", [squares, np.array([1], np.int32)], (TOKENS, 1), keepDims=True)
    model = net.model(mean, squares)
    assert not rewrite_norms(model.main, lambda _: (0.0, 1.0))


@pytest.mark.parametrize("side", SIDES)
def test_smoothing_leaves_the_function_and_evens_out_the_channels(side):
    model = transformer()
    samples = samples_for(model, 24)
    stats = calibrate(model, samples)
    layers = ("FULLY_CONNECTED", "RELU")
    islands = {op.outputs[0].name: Island(INT16X8) for op in model.main.ops if op.kind not in layers}
    request = Request(preset("int8"), stats, islands=islands, method="minmax")
    prepared = prepare_model(model, request)
    plan = plan_model(prepared, request).plans[0]
    found = [b for b in boundaries(plan, request.ops) if b.side == side]
    assert found
    assert all(op.kind == "FULLY_CONNECTED" for b in found for op in b.layers)
    made, products = smoothed(prepared, request, plan, side)
    assert products
    assert not list(problems(made.model))
    (wanted,), (got,) = (outputs_of(m, samples[:4]) for m in (prepared.model, made.model))
    assert error(wanted, got) > 90
    again = replace(request, islands={**islands, **products})
    uses, graph = Uses(made.model.main), made.model.main
    new = [t for t in graph.tensors if t.name.endswith("/smoothed")]
    assert len(new) == len(products)
    schemes = plan_model(made, again).plans[0].schemes
    for tensor in new:
        product = uses.producer(tensor) if side == "before" else uses.readers(tensor)[0].op
        assert schemes[product].activations is DType.INT16


def test_a_transformer_holds_in_integers():
    model = transformer()
    plain, made = quantize(model, effort="quick"), quantize(model)
    samples = samples_for(model, 40)[24:]
    (wanted,) = outputs_of(model, samples)
    before, after = (error(wanted, outputs_of(r.model, samples)[0]) for r in (plain, made))
    assert after > max(20.0, before + 10)
    assert not made.skipped
    assert "16-bit islands and SmoothQuant" in {s.what for s in made.steps if s.kept}
    assert made.plan.wide_ops
    assert all(
        "the SNR of the outputs rises from" in why or "SmoothQuant" in why for why in made.plan.wide_ops.values()
    )
    assert f"{len(made.plan.wide_ops)} ops with 16 bits" in made.notes[-1]
    assert "because with 16 bits for such ops the SNR of the outputs rises from" in str(made.plan)


def test_layers_get_16_bits_only_in_models_that_are_poor_otherwise(monkeypatch):
    """LiteRT's delegate takes none of 16 bits, so that they cost many times what they gain in a model that is good."""
    net = Net()
    sizes = np.geomspace(1, 300, 8, dtype=np.float32)  # of channels that have one scale in common
    h = net.dense(net.input(1, 16), normal(8, 16, seed=1) * sizes[:, None])
    read = net.dense(h, normal(64, 8, seed=2) / sizes)
    x = net("ADD", [read, net.dense(net("TANH", [h]), normal(64, 8, seed=3))])  # TANH: channels cannot be scaled
    for k in range(3):
        x = net("RELU", [net.dense(x, normal(64, 64, seed=4 + k, spread=0.2))])
    model = net.model(net.dense(x, normal(4, 64, seed=7)))

    def wide_layers(poor: float) -> int:
        monkeypatch.setattr(island_steps, "POOR", poor)
        return sum(op.kind == "FULLY_CONNECTED" for op in quantize(model).plan.wide_ops)

    assert wide_layers(poor=100.0) > 0
    assert wide_layers(poor=-100.0) == 0


@pytest.mark.parametrize("changes", [{"target": CPU}, {"effort": "quick"}])
def test_8_bits_stay_where_float_is_a_choice_or_nothing_is_tried(changes):
    assert not quantize(transformer(), **changes).plan.wide_ops


def test_an_island_without_a_kernel_stays_at_8_bits():
    model = transformer(1)
    stats = calibrate(model, samples_for(model, 8))
    squares = next(op for op in model.main.ops if op.kind == "SQUARED_DIFFERENCE")
    request = Request(preset("int8"), stats, islands={squares.outputs[0].name: Island(INT16X8, "to see")})
    plan = plan_model(prepare_model(model, request), request).plans[0]
    assert not plan.wide_ops
    assert {s.label for s in plan.schemes.values()} == {"int8"}
