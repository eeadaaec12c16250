"""Laws of what makes a result better: corrected biases, compensated rounding, evened-out channels, the search."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

import zeropoint
from tests.build import act, const, graph, op
from tests.nets import Net
from tests.ops.test_layout import layer
from zeropoint.affine import round_half_away
from zeropoint.bench.errors import decibels
from zeropoint.calibration import calibrate
from zeropoint.dtypes import Array, DType
from zeropoint.errors import InvalidStats, ZeropointError
from zeropoint.graph import Model
from zeropoint.graph.edit import copy_model
from zeropoint.graph.query import Use
from zeropoint.improve.candidate import no_progress
from zeropoint.improve.cross_layer_equalization import equalize
from zeropoint.improve.float_islands import GOOD_ENOUGH
from zeropoint.improve.gptq import compensated, output_error
from zeropoint.improve.layer_rounding import best_start
from zeropoint.improve.pipeline import plan as plan_model
from zeropoint.improve.pipeline import run
from zeropoint.improve.refiner import Refiner
from zeropoint.ops import OPS
from zeropoint.plan.request import Request
from zeropoint.plan.rewrite import rounded
from zeropoint.plan.weights import weight_params
from zeropoint.recipe import preset
from zeropoint.recipe_files import recipe_from
from zeropoint.runtime import Session

SEEDS = st.integers(0, 2**32 - 1)


def nearest(weights: Array, steps: Array, dtype: DType) -> Array:
    return np.clip(round_half_away(weights / steps), -dtype.max, dtype.max)


def correlated(rng: np.random.Generator, groups: int, samples: int, inputs: int) -> Array:
    """E[x x'] of inputs that go together; with few samples it is singular."""
    x = rng.normal(size=(groups, samples, inputs)) @ rng.normal(size=(groups, inputs, inputs))
    x *= rng.random((groups, 1, inputs)) > 0.2  # dead inputs
    return np.asarray(x.transpose(0, 2, 1) @ x / samples)


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(1, 20), st.integers(1, 30), st.sampled_from([DType.INT8, DType.INT4]), st.booleans())
def test_compensated_rounding_is_never_worse_than_nearest(
    seed: int, inputs: int, samples: int, dtype: DType, each: bool
) -> None:
    """With one scale for each row, or for each weight, as blocks have it."""
    rng = np.random.default_rng(seed)
    moments, weights = correlated(rng, 2, samples, inputs), rng.normal(size=(2, 5, inputs))
    steps = np.abs(weights).max(axis=2, keepdims=True) / dtype.max
    if each:
        steps = steps * rng.uniform(0.5, 1, weights.shape)
    q = compensated(weights, moments, steps, dtype.max)
    assert np.abs(q).max() <= dtype.max
    ours = output_error(q * steps - weights, moments)
    theirs = output_error(nearest(weights, steps, dtype) * steps - weights, moments)
    assert (ours <= theirs + 1e-9 * np.abs(theirs)).all()


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_uncorrelated_inputs_of_equal_power_are_rounded_to_nearest(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(1, 4, 9))
    steps = np.abs(weights).max(axis=2, keepdims=True) / 7
    q = compensated(weights, 3.0 * np.eye(9)[None], steps, DType.INT4.max)
    np.testing.assert_array_equal(q, nearest(weights, steps, DType.INT4))


def test_compensation_helps_where_inputs_go_together() -> None:
    rng = np.random.default_rng(0)
    moments, weights = correlated(rng, 1, 400, 32), rng.normal(size=(1, 16, 32))
    steps = np.abs(weights).max(axis=2, keepdims=True) / 7
    ours = output_error(compensated(weights, moments, steps, DType.INT4.max) * steps - weights, moments)
    theirs = output_error(nearest(weights, steps, DType.INT4) * steps - weights, moments)
    assert ours.sum() < 0.7 * theirs.sum()


DENSE = "FullyConnectedOptions"


def inputs(model: Model, count: int = 20) -> list[Array]:
    rng = np.random.default_rng(1)
    shape = model.main.inputs[0].shape
    offsets = rng.uniform(0, 2, shape[-1])
    return [(rng.normal(size=shape) + offsets).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("name", ["FULLY_CONNECTED", "pointwise"])
def test_a_corrected_bias_leaves_no_mean_error(name: str) -> None:
    """Exactly so where every weight meets the whole input; at borders of larger windows nearly."""
    model = layer(name)
    samples = inputs(model)
    stats = calibrate(model, samples)
    (only,) = model.main.ops
    params = weight_params(only.inputs[1].data, None if name == "FULLY_CONNECTED" else 0, DType.INT4.levels, "w")
    error = rounded(only.inputs[1].data, params) - only.inputs[1].data
    shift = OPS[only.kind].layout.mean_shift(only, error, stats.tensors["x"].channels.mean)
    copied = copy_model(model)
    copied.main.ops[0].inputs[1] = const("w2", (only.inputs[1].data + error).astype(np.float32))
    copied.main.ops[0].inputs[2] = const("b2", (only.inputs[2].data - shift).astype(np.float32))
    copied.main.tensors += copied.main.ops[0].inputs[1:]
    before, after = Session(model), Session(copied)
    difference = np.mean([after.run([x])[0] - before.run([x])[0] for x in samples], axis=0)
    means = difference.reshape(-1, difference.shape[-1]).mean(axis=0)
    assert np.abs(means).max() < 1e-4
    assert np.abs(shift).max() > 1e-2  # there was something to correct


def chain(spread: float = 30.0) -> Model:
    """Convolution, depthwise, convolution, dense: channels between them that differ widely."""
    rng = np.random.default_rng(0)
    sizes = np.geomspace(1, spread, 8).astype(np.float32)
    x, a, b, c = act("x", 1, 6, 6, 3), act("a", 1, 6, 6, 8), act("b", 1, 6, 6, 8), act("c", 1, 6, 6, 4)
    w1 = (rng.normal(size=(8, 1, 1, 3)) * sizes[:, None, None, None]).astype(np.float32)
    w2 = (rng.normal(size=(1, 3, 3, 8)) / sizes * sizes[::-1]).astype(np.float32)
    w3 = (rng.normal(size=(4, 1, 1, 8)) / sizes[::-1]).astype(np.float32)
    relu = {"fusedActivationFunction": 1, "strideH": 1, "strideW": 1}
    ops = [
        op("CONV_2D", [x, const("w1", w1), const("b1", sizes)], a, options="Conv2DOptions", **relu),
        op(
            "DEPTHWISE_CONV_2D",
            [a, const("w2", w2), const("b2", sizes[::-1].copy())],
            b,
            options="DepthwiseConv2DOptions",
            depthMultiplier=1,
            **relu,
        ),
        op("CONV_2D", [b, const("w3", w3), const("b3", np.ones(4, np.float32))], c, options="Conv2DOptions", **relu),
    ]
    return Model([graph("main", [x], [c], *ops)])


def test_equalization_changes_no_output() -> None:
    model = chain()
    samples = inputs(model)
    stats = calibrate(model, samples)
    evened = copy_model(model)
    assert {one.link.tensor.name for one in equalize(evened, stats, OPS)} == {"a", "b"}
    one, other = Session(model), Session(evened)
    for x in samples:
        np.testing.assert_allclose(other.run([x])[0], one.run([x])[0], rtol=1e-4, atol=1e-3)
    peaks = [calibrate(m, samples).tensors["a"].channels.high for m in (model, evened)]
    assert peaks[1].max() / peaks[1].min() < 0.1 * peaks[0].max() / peaks[0].min()


def test_a_tensor_with_another_use_is_not_equalized() -> None:
    model = chain()
    model.main.outputs.append(model.main.tensor("a"))
    assert {one.link.tensor.name for one in equalize(copy_model(model), calibrate(model, inputs(model)), OPS)} == {"b"}


def attention(spread: float = 40.0) -> Model:
    """A layer norm's gain and bias, three projections, one head of attention, and the output projection."""
    rng = np.random.default_rng(0)
    sizes = np.geomspace(1, spread, 8).astype(np.float32)
    x, scaled, shifted = act("x", 6, 8), act("scaled", 6, 8), act("shifted", 6, 8)
    ops = [
        op("MUL", [x, const("gain", sizes)], scaled, options="MulOptions"),
        op("ADD", [scaled, const("offset", sizes[::-1] / 9)], shifted, options="AddOptions"),
    ]
    heads = []
    for name, rows in (("q", np.ones(8)), ("k", np.ones(8)), ("v", sizes)):
        weights = (rng.normal(size=(8, 8)) / sizes * rows[:, None]).astype(np.float32)
        flat, split, turned = act(name, 6, 8), act(f"{name}/split", 6, 2, 4), act(f"{name}/heads", 2, 6, 4)
        ops.append(op("FULLY_CONNECTED", [shifted, const(f"{name}/w", weights)], flat, options=DENSE))
        ops.append(op("RESHAPE", [flat, const(f"{name}/shape", [6, 2, 4])], split, options="ReshapeOptions"))
        ops.append(op("TRANSPOSE", [split, const(f"{name}/order", [1, 0, 2])], turned, options="TransposeOptions"))
        heads.append(turned)
    scores, shares, mixed = act("scores", 2, 6, 6), act("shares", 2, 6, 6), act("mixed", 2, 6, 4)
    ops.append(op("BATCH_MATMUL", heads[:2], scores, options="BatchMatMulOptions", adjY=True))
    ops.append(op("SOFTMAX", [scores], shares, options="SoftmaxOptions", beta=1.0))
    ops.append(op("BATCH_MATMUL", [shares, heads[2]], mixed, options="BatchMatMulOptions"))
    back, joined, y = act("back", 6, 2, 4), act("joined", 6, 8), act("y", 6, 5)
    ops.append(op("TRANSPOSE", [mixed, const("back/order", [1, 0, 2])], back, options="TransposeOptions"))
    ops.append(op("RESHAPE", [back, const("joined/shape", [6, 8])], joined, options="ReshapeOptions"))
    last = (rng.normal(size=(5, 8)) / sizes).astype(np.float32)
    ops.append(op("FULLY_CONNECTED", [joined, const("last", last)], y, options=DENSE))
    return Model([graph("main", [x], [y], *ops)])


def test_equalization_goes_through_attention_and_from_a_layer_norm() -> None:
    model = attention()
    samples = inputs(model)
    evened = copy_model(model)
    assert {one.link.tensor.name for one in equalize(evened, calibrate(model, samples), OPS)} == {"shifted", "v"}
    one, other = Session(model), Session(evened)
    for x in samples:
        np.testing.assert_allclose(other.run([x])[0], one.run([x])[0], rtol=1e-4, atol=1e-4)
    for name in ("shifted", "v", "joined"):
        seen = [calibrate(m, samples).tensors[name].channels for m in (model, evened)]
        before, after = (np.ptp(np.log(channels.high - channels.low)) for channels in seen)
        assert after < before - np.log(2)


def test_a_layer_norm_that_something_else_reads_is_left_alone() -> None:
    model = attention()
    model.main.outputs.append(model.main.tensor("shifted"))
    assert {one.link.tensor.name for one in equalize(copy_model(model), calibrate(model, inputs(model)), OPS)} == {"v"}


def with_an_outlier() -> tuple[Model, list[Array]]:
    """Two dense layers; in every seventh sample a single value between them is a thousand times larger than others."""
    rng = np.random.default_rng(0)
    x, a, b, y = act("x", 400, 16), act("a", 400, 16), act("b", 400, 16), act("y", 400, 8)
    first = np.eye(16, dtype=np.float32)
    last = rng.normal(size=(8, 16)).astype(np.float32)
    last[:, 3] *= 1e-4  # what the outlier says hardly counts
    ops = [
        op("FULLY_CONNECTED", [x, const("w1", first)], a, options=DENSE),
        op("ADD", [a, const("c", rng.normal(size=16).astype(np.float32))], b, options="AddOptions"),
        op("FULLY_CONNECTED", [b, const("w2", last)], y, options=DENSE),
    ]
    samples = [rng.normal(size=(400, 16)).astype(np.float32) for _ in range(24)]
    for sample in samples[::7]:
        sample[0, 3] = 1000
    return Model([graph("main", [x], [y], *ops)]), samples


def test_outliers_are_cut_off_where_that_helps() -> None:
    model, samples = with_an_outlier()
    plain = zeropoint.quantize(model, data=samples, range="minmax")
    best = zeropoint.quantize(model, data=samples)
    assert any("outliers of" in note for note in best.notes)
    assert output_power(best.model, samples, model) < 0.1 * output_power(plain.model, samples, model)


def test_layers_without_a_bias_get_one_to_be_corrected() -> None:
    x, y = act("x", 3, 40), act("y", 3, 40)
    weights = np.random.default_rng(0).normal(size=(40, 40)).astype(np.float32)
    only = op("FULLY_CONNECTED", [x, const("w", weights)], y, options=DENSE)
    model = Model([graph("main", [x], [y], only)])
    samples = [np.abs(s) for s in inputs(model)]
    corrected = zeropoint.quantize(model, "dynamic", data=samples, weight_bits=4)
    assert corrected.model.main.ops[0].inputs[2] is not None
    assert output_power(corrected.model, samples, model) < output_power(
        zeropoint.quantize(model, "dynamic", weight_bits=4).model, samples, model
    )
    quick = zeropoint.quantize(model, "dynamic", data=samples, weight_bits=4, effort="quick")
    assert len(quick.model.main.ops[0].inputs) == 2


def test_the_number_of_cores_changes_nothing(monkeypatch) -> None:
    model, samples = chain(), inputs(chain(), 24)
    made = []
    for cores in (1, 2, 8):
        monkeypatch.setattr("zeropoint.parallel.cores", lambda cores=cores: cores)
        made.append(zeropoint.to_bytes(zeropoint.quantize(model, data=samples, effort="high", weight_bits=4).model))
    assert made[0] == made[1] == made[2]


def test_matrix_products_take_one_thread_while_quantizing(monkeypatch) -> None:
    """Whatever their number outside: sums depend on it in their last bits."""
    model, samples, used = chain(), inputs(chain(), 24), set()

    def threads() -> set[int]:
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    def noted(*given: Any) -> Any:
        used.update(threads())
        return best_start(*given)

    monkeypatch.setattr("zeropoint.improve.layer_rounding.best_start", noted)
    with threadpool_limits(2, user_api="blas"):
        zeropoint.quantize(model, data=samples, weight_bits=4)
        assert used == {1}
        assert threads() == {2}
        with pytest.raises(ZeropointError):
            zeropoint.quantize(model, data=[np.zeros(1)], weight_bits=4)
        assert threads() == {2}


def test_effort_can_be_spent_on_some_ops_only() -> None:
    model, samples = chain(), inputs(chain(), 24)
    rules = recipe_from({"rules": [{"scheme": "int8"}, {"scheme": "int8", "name": "b", "effort": "quick"}]})
    values = zeropoint.quantize(model, recipe=rules, stats=calibrate(model, samples)).plan.constants.keys
    assert {use.op.name for use in values} == {"a", "c"}


def test_steps_say_what_was_gained_and_how_long_it_took() -> None:
    model, samples = chain(), inputs(chain(), 24)
    steps = zeropoint.quantize(model, data=samples, effort="high", weight_bits=4).steps
    first = ["calibration", "nearest rounding, minmax ranges", "ranges and biases, on weights of 8 bits"]
    assert [s.what for s in steps][:3] == first
    assert "compensated rounding" in [s.what for s in steps]
    assert all(s.seconds >= 0 for s in steps)
    assert steps[-1].error < steps[1].error


@pytest.mark.parametrize("mode", ["int8", "dynamic"])
def test_few_bits_are_rounded_with_compensation_by_default(mode: str) -> None:
    model, samples = chain(), [np.abs(s) for s in inputs(chain(), 60)]
    options = {"mode": mode, "data": samples, **({} if mode == "int8" else {"min_elements": 0})}
    quick = zeropoint.quantize(model, weight_bits=4, effort="quick", **options)
    usual = zeropoint.quantize(model, weight_bits=4, **options)
    assert "compensated rounding" in [s.what for s in usual.steps]
    assert output_power(usual.model, samples, model) < 0.8 * output_power(quick.model, samples, model)
    eight = {step.what: step.error for step in zeropoint.quantize(model, **options).steps}
    before = [error for what, error in eight.items() if error is not None and what != "compensated rounding"]
    is_close = mode == "dynamic" or decibels(min(before)) >= GOOD_ENOUGH
    assert is_close == ("compensated rounding" not in eight)  # 8 bits need it only where integers lose much


def cancelling() -> Model:
    """The difference of two layers that nearly agree: integers leave little of it."""
    rng = np.random.default_rng(0)
    x, a, b, d, y = (act(name, 40, 16) for name in "xabdy")
    one = rng.normal(size=(16, 16)).astype(np.float32)
    other = one + 0.02 * rng.normal(size=(16, 16)).astype(np.float32)
    last = rng.normal(size=(16, 16)).astype(np.float32)
    ops = [
        op("FULLY_CONNECTED", [x, const("one", one)], a, options=DENSE),
        op("FULLY_CONNECTED", [x, const("other", other)], b, options=DENSE),
        op("SUB", [a, b], d, options="SubOptions"),
        op("FULLY_CONNECTED", [d, const("last", last)], y, options=DENSE),
    ]
    return Model([graph("main", [x], [y], *ops)])


def test_weights_of_8_bits_are_fitted_by_default_where_the_outputs_need_it(monkeypatch) -> None:
    model, samples, others = cancelling(), inputs(cancelling(), 60), inputs(cancelling(), 90)[60:]
    usual = zeropoint.quantize(model, data=samples, target="int8")
    assert "compensated rounding" in [s.what for s in usual.steps]
    assert any("rounded with compensation" in note for note in usual.notes)
    monkeypatch.setattr("zeropoint.improve.rounding_steps.GOOD_ENOUGH", -100.0)
    without = zeropoint.quantize(model, data=samples, target="int8")
    assert "compensated rounding" not in [s.what for s in without.steps]
    assert output_power(usual.model, others, model) < 0.8 * output_power(without.model, others, model)


def output_power(model: Model, samples: list[Array], reference: Model) -> float:
    one, other = Session(reference), Session(model)
    return float(np.mean([(other.run([x])[0] - one.run([x])[0]) ** 2 for x in samples]))


def test_the_search_finds_what_equalization_gains() -> None:
    model, samples = chain(300.0), inputs(chain(300.0), 30)
    quick = zeropoint.quantize(model, data=samples, effort="quick")
    best = zeropoint.quantize(model, data=samples)
    assert any("equalized" in note for note in best.notes)
    with pytest.raises(InvalidStats, match="another model"):  # some are of the equalized tensors
        best.stats.require(model)
    assert output_power(best.model, samples, model) < 0.7 * output_power(quick.model, samples, model)


@pytest.mark.parametrize("effort", ["standard", "high"])
def test_channels_of_a_model_that_is_close_enough_are_scaled_from_high_effort_on(effort: str, monkeypatch) -> None:
    monkeypatch.setattr("zeropoint.improve.steps.CLOSE_ENOUGH", -100.0)
    made = zeropoint.quantize(chain(300.0), data=inputs(chain(300.0), 30), effort=effort)
    assert any("equaliz" in step.what for step in made.steps) == (effort == "high")


def test_tensors_that_a_target_added_keep_their_ranges_when_others_are_equalized() -> None:
    """XNNPACK has no RELU_0_TO_1, so one becomes two ops for `cpu`; no sample told the range between them."""
    model = chain(300.0)
    (c,) = model.main.outputs
    y = act("y", *c.shape)
    model.main.ops.append(op("RELU_0_TO_1", [c], y))
    model.main.tensors.append(y)
    model.main.outputs[:] = [y]
    best = zeropoint.quantize(model, data=inputs(model, 30), target="cpu")
    assert any("equalized" in note for note in best.notes)
    assert any("clamped" in tensor.name for tensor in best.model.main.tensors)
    assert not [skipped for plan in best.plans for skipped in plan.skipped if "not known" in skipped.reason]


@pytest.mark.parametrize("effort", ["standard", "high"])
def test_more_effort_is_never_worse_on_the_data_and_always_the_same(effort: str) -> None:
    model, samples = chain(), inputs(chain(), 24)
    quick = zeropoint.quantize(model, data=samples, effort="quick")
    first, second = (zeropoint.quantize(model, data=samples, effort=effort) for _ in range(2))
    assert zeropoint.to_bytes(first.model) == zeropoint.to_bytes(second.model)
    assert output_power(first.model, samples, model) <= 1.01 * output_power(quick.model, samples, model)


def test_weights_are_refined_alike_whatever_types_callers_give() -> None:
    """The samples are float, also where the model is going to take integers."""
    model, samples = chain(), inputs(chain(), 24)
    plain = zeropoint.quantize(model, data=samples, effort="high", weight_bits=4, target="integer")
    integers = zeropoint.quantize(model, data=samples, effort="high", weight_bits=4, input_type="uint8")
    assert [s.error for s in integers.steps] == [s.error for s in plain.steps]
    assert integers.model.main.inputs[0].dtype is DType.UINT8


def test_refined_biases_match_the_float_means_exactly() -> None:
    """Of the layer's own inputs, as the quantized part produces them."""
    model = layer("pointwise")
    samples = [(x,) for x in inputs(model, 16)]
    request = Request(preset("int8"), calibrate(model, samples), method="minmax")
    planned = plan_model(model, request)
    refiner = Refiner(planned.model, replace(request, effort="high"), samples, no_progress, vectors=8192)
    (plan,) = refiner.refine(planned).plans
    (only,) = plan.graph.ops
    float_mean = np.mean([x.reshape(-1, 4).mean(axis=0) for (x,) in samples], axis=0, dtype=np.float64)
    params = plan.wanted[Use(only, 0)]
    from zeropoint.affine import dequantize, quantize

    seen = np.mean([dequantize(quantize(x, params), params).reshape(-1, 4).mean(axis=0) for (x,) in samples], axis=0)
    wanted = only.inputs[1].data.reshape(6, 4) @ float_mean + only.inputs[2].data
    made = plan.constants.at(Use(only, 1)).reshape(6, 4) @ seen + plan.constants.at(Use(only, 2))
    np.testing.assert_allclose(made, wanted, atol=1e-4)


def test_quick_effort_leaves_the_constants_as_they_are() -> None:
    model = chain()
    request = Request(preset("int8"), calibrate(model, inputs(model)), effort="quick")
    assert not run(model, request).plan.constants.keys


@pytest.mark.parametrize("mode", ["weights", "dynamic"])
@pytest.mark.parametrize("seed", range(4))
def test_with_data_8_bit_weights_are_never_worse_than_at_quick_effort(mode: str, seed: int) -> None:
    """Corrections help on average, nearest rounding is luckier now and then: what is measured better is kept."""
    rng = np.random.default_rng(seed)
    net = Net()
    x = net.input(1, 8, 8, 4)
    y = net.conv(x, rng.normal(size=(8, 3, 3, 4)).astype(np.float32), activation=1)
    y = net.conv(y, rng.normal(size=(8, 3, 3, 8)).astype(np.float32), name="last")
    model = net.model(y)
    samples = [rng.normal(size=(1, 8, 8, 4)).astype(np.float32) for _ in range(12)]
    wanted = np.stack([Session(model).run([s])[0] for s in samples])

    def error(effort: str) -> float:
        made = zeropoint.quantize(model, mode, data=samples, effort=effort, min_elements=0).model
        return float(np.square(np.stack([Session(made).run([s])[0] for s in samples]) - wanted).sum())

    assert error("standard") <= error("quick") * (1 + 1e-6)
