"""Fitting weights to what the quantized part produces, and choosing ranges tensor by tensor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from zeropoint import calibrate, quantize
from zeropoint.bench.bench import Bench
from zeropoint.bench.errors import Compared
from zeropoint.calibration import Settings, Stats
from zeropoint.graph.edit import copy_model
from zeropoint.graph.model import Model
from zeropoint.improve.cross_layer_equalization import HEADROOM, channel_factors, equalize
from zeropoint.improve.gptq import refitted
from zeropoint.improve.layer_inputs import Pair
from zeropoint.improve.range_choice import RangeTrials, affordable_samples
from zeropoint.ops import OPS
from zeropoint.plan.planner import plan_model, solved_ranges
from zeropoint.plan.prepared import prepare_model
from zeropoint.plan.request import Request
from zeropoint.recipe import preset
from zeropoint.runtime import Session

from .. import build
from ..calibration.test_state import counter, lstm
from ..diagnosis import faults
from ..diagnosis.faults import conv_net
from ..nets import Net


def pair(f: np.ndarray, x: np.ndarray) -> Pair:
    return Pair((x.T @ x / len(x))[None], (f.T @ x / len(x))[None])


def error(w: np.ndarray, v: np.ndarray, f: np.ndarray, x: np.ndarray) -> float:
    return float(((f @ w[0].T - x @ v[0].T) ** 2).mean())


def halves(f: np.ndarray, x: np.ndarray) -> list[Pair]:
    return [pair(f[k::2], x[k::2]) for k in range(2)]


def test_inputs_that_are_right_leave_the_weights_alone() -> None:
    rng = np.random.default_rng(0)
    f, w = rng.normal(size=(400, 6)), rng.normal(size=(1, 3, 6))
    np.testing.assert_allclose(refitted(w, pair(f, f), halves(f, f))[0], w, atol=1e-12)


def test_what_was_mixed_up_before_is_undone() -> None:
    rng = np.random.default_rng(1)
    f, w = rng.normal(size=(4000, 6)), rng.normal(size=(1, 3, 6))
    x = f @ (np.eye(6) + 0.2 * rng.normal(size=(6, 6)))
    fitted, _ = refitted(w, pair(f, x), halves(f, x))
    assert error(w, fitted, f, x) < 0.05 * error(w, w, f, x)


def test_chance_is_not_learnt() -> None:
    """With as few vectors as inputs a fit could be perfect; but not on the other half of the data, so it is damped."""
    rng = np.random.default_rng(2)
    f, w = rng.normal(size=(64, 32)), rng.normal(size=(1, 3, 32))
    x = f + 0.05 * rng.normal(size=f.shape)
    fitted, _ = refitted(w, pair(f, x), halves(f, x))
    new = rng.normal(size=(4000, 32))
    seen = new + 0.05 * rng.normal(size=new.shape)
    assert error(w, fitted, new, seen) < 1.1 * error(w, w, new, seen)


def test_one_sample_cannot_be_split_so_nothing_is_fitted() -> None:
    w = np.ones((1, 2, 3))
    one = pair(np.eye(3), 2 * np.eye(3))
    fitted, damping = refitted(w, one, [one])
    assert fitted is w
    assert damping is None


def clipped(scale: float = 1.0) -> Model:
    """Two layers with a ReLU6 between them; the channels between differ widely, all but the last stay below 6."""
    rng = np.random.default_rng(3)
    sizes = scale * np.array([0.02, 0.1, 0.4, 1.0, 40.0], np.float32)
    x, y, z = build.act("x", 1, 8), build.act("y", 1, 5), build.act("z", 1, 4)
    first = build.const("first", (rng.uniform(0.2, 1, (5, 8)) * sizes[:, None] / 8).astype(np.float32))
    second = build.const("second", rng.normal(size=(4, 5)).astype(np.float32))
    dense = build.op("FULLY_CONNECTED", [x, first], y, options="FullyConnectedOptions", fusedActivationFunction=3)
    last = build.op("FULLY_CONNECTED", [y, second], z, options="FullyConnectedOptions")
    return Model([build.graph("main", [x], [z], dense, last)])


def samples(count: int = 40) -> list[np.ndarray]:
    rng = np.random.default_rng(4)
    return [rng.uniform(0, 2, (1, 8)).astype(np.float32) for _ in range(count)]


def outputs(model: Model) -> np.ndarray:
    session = Session(model)
    return np.array([session.run((s,))[0] for s in samples()])


def test_channels_below_a_clip_are_evened_out_and_the_function_stays() -> None:
    model = clipped()
    stats: Stats = calibrate(model, samples())
    evened = copy_model(model)
    assert {one.link.tensor.name for one in equalize(evened, stats, OPS)} == {"y"}
    np.testing.assert_allclose(outputs(evened), outputs(model), rtol=1e-5, atol=1e-6)
    peaks = calibrate(evened, samples()).tensors["y"].channels
    assert peaks is not None
    assert peaks.high[:4].max() <= 6 / HEADROOM * 1.0001
    assert peaks.high[4] == pytest.approx(6.0)  # that one was clipped already, so it is left alone
    assert peaks.high[:4].min() > 2 * stats.tensors["y"].channels.high[:4].min()


def test_a_channel_near_the_clip_keeps_its_size() -> None:
    factors = channel_factors(np.array([0.1, 0.2, 3.5, 6.0]), True, 6.0)
    assert factors is not None
    assert (factors[2:] == 1).all()
    assert (factors[:2] < 1).all()


def test_probabilities_are_judged_by_what_they_are_made_of() -> None:
    """An error that a softmax hides behind a probability of nearly one still counts."""
    x, y, z = build.act("x", 1, 3), build.act("y", 1, 3), build.act("z", 1, 3)

    def model(gain: float) -> Model:
        scale = build.const("gain", np.float32([gain]))
        softmax = build.op("SOFTMAX", [y], z, options="SoftmaxOptions", beta=1.0)
        return Model([build.graph("main", [x], [z], build.op("MUL", [x, scale], y, options="MulOptions"), softmax)])

    data = [np.float32([[3, 0, -3]]), np.float32([[-3, 0, 3]])]
    judge = Bench(model(1.0), data)
    assert judge.error(model(1.0)) == 0
    assert judge.error(model(1.1)) == pytest.approx(0.01, rel=1e-3)


def test_ranges_are_chosen_for_each_tensor() -> None:
    """One tensor has an outlier that does not matter, in another every value counts: no one method suits both."""
    rng, net = np.random.default_rng(5), Net()
    weights = np.c_[np.zeros(8), 0.2 * rng.normal(size=(8, 31))].astype(np.float32)
    model = net.model(net("TANH", [net.dense(net.input(1, 32), weights)]))
    data = [rng.uniform(-1, 1, (1, 32)).astype(np.float32) for _ in range(64)]
    for sample in data[::8]:
        sample[0, 0] = 30
    found = quantize(model, "int8", data=data)
    step = next(s for s in found.steps if s.what == "ranges of each tensor")
    assert step.error is not None
    fixed = {m: quantize(model, "int8", data=data, range=m) for m in ("minmax", "mse")}
    judge = Bench(model, data)
    assert judge.error(found.model) <= min(judge.error(other.model) for other in fixed.values()) * 1.001


def test_what_cannot_matter_is_not_judged() -> None:
    """A class that is far behind may be anywhere; a mask may be anything."""
    softmax = Compared(0, "row")
    logits = np.float32([[5.0, 4.0, -50.0, -3.4e38]])
    other = np.float32([[6.0, 5.0, -90.0, -1e30]])
    np.testing.assert_allclose(softmax.judged(logits), softmax.judged(other), atol=1e-6)
    assert Compared(0, "logits").judged(np.float32([100.0])) == Compared(0, "logits").judged(np.float32([30.0]))


def test_states_of_recurrent_layers_are_left_out() -> None:
    """LiteRT wants them as they are, so they cannot be rounded one by one."""
    rng = np.random.default_rng(6)
    model = lstm()
    data = [tuple(rng.normal(size=t.shape).astype(np.float32) for t in model.main.inputs) for _ in range(12)]
    assert not quantize(model, "int8", data=data).skipped


def test_parts_of_a_large_model_get_ranges_together(monkeypatch) -> None:
    """Where trials of each tensor cost too much, high effort tries another method on parts of the model."""
    monkeypatch.setattr("zeropoint.improve.steps.TRIAL_MACS", {"standard": 0, "high": 0})
    whole = {effort: quantize(clipped(), "int8", data=samples(), effort=effort) for effort in ("standard", "high")}
    assert "ranges of parts, high effort" not in {step.what for step in whole["standard"].steps}
    steps = {step.what: step for step in whole["high"].steps}
    before, after = steps["ranges and biases"], steps["ranges of parts, high effort"]
    assert before.error is not None
    assert after.error is not None
    assert after.error <= before.error


def test_ranges_of_a_large_model_are_not_tried_one_by_one() -> None:
    small, trials = clipped(), 10
    assert affordable_samples(small, trials, 5e9, OPS) > 0
    assert affordable_samples(small, 10**8, 5e9, OPS) == 0


def of_any_size(*, declared: bool) -> Model:
    """A convolution and a dense layer on images of any height; without `declared`, only the input says so."""
    x, y, z = build.act("x", 1, 1, 6, 3), build.act("y", 1, 1, 6, 4), build.act("z", 1, 1, 6, 2)
    for tensor in (x, y, z) if declared else (x,):
        tensor.shape_signature = (1, -1, *tensor.shape[2:])
    kernel, bias = build.const("kernel", build.weights(4, 3, 3, 3)), build.const("bias", build.weights(4))
    conv = build.op("CONV_2D", [x, kernel, bias], y, options="Conv2DOptions", strideW=1, strideH=1)
    weights, shift = build.const("weights", build.weights(2, 4, seed=1)), build.const("shift", build.weights(2))
    dense = build.op("FULLY_CONNECTED", [y, weights, shift], z, options="FullyConnectedOptions", keepNumDims=True)
    return Model([build.graph("main", [x], [z], conv, dense)])


def images(*heights: int) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.normal(size=(1, height, 6, 3)).astype(np.float32) for height in heights]


def test_high_effort_takes_samples_of_any_size() -> None:
    """Layers that slide windows over images of no fixed size stay as they are, others are refined."""
    model, data = of_any_size(declared=True), images(5, 3, 9, 4, 7, 2)
    standard, high = (quantize(model, "int8", data=data, effort=effort) for effort in ("standard", "high"))
    assert {use.op.kind for use in high.plan.constants.keys if use.slot == 1} <= {"FULLY_CONNECTED"}
    judge = Bench(model, data)
    assert judge.error(high.model) <= judge.error(standard.model)


def test_ranges_of_groups_are_those_that_planning_by_each_method_gives() -> None:
    model, data = conv_net(), faults.images(8)
    request = Request(preset("int8"), calibrate(model, data), method="mse")
    prepared = prepare_model(model, request)
    plan = plan_model(prepared, request).with_float_ends().plans[0]
    methods = ("mse", "minmax", "percentile", "entropy")
    trials = RangeTrials(model, plan, solved_ranges(plan, prepared, request), methods, Bench(model, data))
    assert trials.groups
    for method in methods:
        planned = plan_model(prepared, replace(request, method=method)).plans[0]
        for group in trials.groups:
            assert {planned.stored[tensor] for tensor in group.tensors} == {group.params[method]}


def test_what_a_resource_holds_is_judged_as_it_is_calibrated() -> None:
    model, data = counter(), [np.full((1, 3, 2), value, np.float32) for value in (1, 2, 3)]
    for keep, wanted in ((None, [1, 3, 6]), (True, [1, 3, 6]), (False, [1, 2, 3])):
        bench = Bench(model, data, Settings(keep_state=keep))
        assert [float(found.max()) for (found,) in bench.wanted(3)] == wanted
        assert bench.error(model) == 0  # from the start again
