"""Laws of the comparison: blame is local, alignment survives renaming, every kind of model can be compared."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import zeropoint
from zeropoint.affine import QuantParams, dequantize, quantize
from zeropoint.bench.bench import Bench
from zeropoint.bench.errors import EXACT, decibels
from zeropoint.comparison.metrics import load_metric
from zeropoint.comparison.sums import ChannelGains, DeviationSums, IntegerUse, along
from zeropoint.dtypes import DType
from zeropoint.errors import InvalidModel, InvalidRecipe, InvalidSample
from zeropoint.graph.edit import copy_model, retype, set_constant
from zeropoint.recipe_files import recipe_from

from .. import build
from ..diagnosis.faults import conv_net, images, plainly, saved
from ..nets import Net, normal

MODES = {
    "int8": {"mode": "int8"},
    "int16x8": {"mode": "int16x8"},
    "dynamic": {"mode": "dynamic", "min_elements": 0},
    "weights": {"mode": "weights", "min_elements": 0},
    "float16": {"mode": "float16"},
    "mixed": {"recipe": recipe_from({"rules": [{"scheme": "int8"}, {"scheme": "int16x8", "name": "b"}]})},
    "islands": {"recipe": recipe_from({"rules": [{"scheme": "int8"}, {"scheme": "float", "name": "b"}]})},
    "integer ends": {"mode": "int8", "input_type": "uint8", "output_type": "int8"},
}


@pytest.fixture(scope="module")
def model():
    return conv_net()


@pytest.mark.parametrize("mode", MODES)
def test_every_op_of_every_kind_of_model_is_measured(model, mode):
    options = MODES[mode]
    needs_data = mode not in ("dynamic", "weights", "float16")
    made = zeropoint.quantize(model, data=images() if needs_data else None, **options).model
    found = zeropoint.compare(model, made, images(6))
    assert [row.name for row in found.ops] == ["a", "b", "c", "pooled", "out"]
    assert found.unaligned == ()
    assert found.samples == 6
    for row in found.ops:
        assert row.accumulated is not None
        assert row.own is not None
        assert min(row.own.snr, row.accumulated.snr) > 25
        assert (row.occupancy is None) == (row.dtype == "float32")
    assert found.snr > 20  # outputs are compared with what they vary by, which is less
    json.dumps(found.to_json(), allow_nan=False)


def test_a_model_is_equal_to_itself(model):
    found = zeropoint.compare(model, model, images(3))
    assert all(row.accumulated.snr == EXACT for row in found.ops)
    assert found.snr == EXACT
    assert found.outputs[0].largest == 0


def test_the_first_op_has_no_error_but_its_own(model):
    found = zeropoint.compare(model, plainly(model, images()), images(4))
    assert found.ops[0].own == found.ops[0].accumulated


@pytest.mark.parametrize("spoilt", ["a", "b", "c"])
def test_the_op_that_is_spoilt_gets_the_blame(model, spoilt):
    made = copy_model(plainly(model, images()))
    op = next(o for o in made.main.ops if o.name == spoilt)
    weights = op.inputs[1]
    set_constant(weights, np.roll(weights.data, 1, axis=0), weights.dtype, weights.params)
    found = zeropoint.compare(model, made, images(6))
    assert found.by_blame[0].name == spoilt
    assert found.by_blame[0].own.snr < 10
    assert all(row.own.snr > 25 for row in found.ops if row.name != spoilt)


RENAMINGS = {
    "suffix": lambda name, k: f"{name}_quantized",  # noqa: ARG005
    "path": lambda name, k: f"{name}/int8",  # noqa: ARG005
    "joined": lambda name, k: f"other{k};{name}",
    "nothing left": lambda name, k: f"t{k}",  # noqa: ARG005
}


@pytest.mark.parametrize("how", RENAMINGS)
def test_ops_are_found_again_under_other_names(model, how):
    made = copy_model(plainly(model, images()))
    for k, tensor in enumerate(made.main.tensors):
        if not tensor.is_constant and tensor not in (*made.main.inputs, *made.main.outputs):
            tensor.name = RENAMINGS[how](tensor.name, k)
    found = zeropoint.compare(model, made, images(3))
    assert [row.name for row in found.ops] == ["a", "b", "c", "pooled", "out"]
    assert all(row.accumulated.snr > 25 for row in found.ops)


def test_evened_out_channels_are_no_error():
    factors = np.geomspace(0.1, 10, 8).astype(np.float32)

    def net(factor):
        net, first = Net(), normal(8, 3, 3, 3, spread=0.25)
        x = net.conv(net.input(1, 8, 8, 3), first * factor[:, None, None, None], name="a", activation=1)
        return saved(net.model(net.conv(x, normal(6, 1, 1, 8, seed=2) / factor, name="out")))

    found = zeropoint.compare(net(np.ones(8, np.float32)), net(factors), images(6))
    assert all(row.accumulated.snr > 80 for row in found.ops)
    assert all(row.own.snr > 80 for row in found.ops)
    assert any("scaled" in note for note in found.notes)


def test_own_errors_above_the_accumulated_ones_are_said_to_be_unreliable():
    def net(signs):
        net, first = Net(), normal(8, 3, 3, 3, spread=0.25)
        x = net.conv(net.input(1, 8, 8, 3), first * signs[:, None, None, None], name="a")
        return saved(net.model(net.conv(x, normal(6, 1, 1, 8, seed=2) * signs, name="out")))

    exact, turned = net(np.ones(8, np.float32)), net(np.tile(np.float32([1, -1]), 4))
    found = zeropoint.compare(exact, turned, images(6))
    assert [("unreliable" in row.note) for row in found.ops] == [False, True]
    assert any("own SNR of 1 op is unreliable" in note for note in found.notes)
    assert not any("unreliable" in row.note for row in zeropoint.compare(exact, exact, images(2)).ops)


def test_endless_data_needs_a_limit_and_no_memory(model):
    endless = (images(1, seed=k)[0] for k in itertools.count())
    done = []
    assert zeropoint.compare(model, model, endless, limit=7, progress=done.append).samples == 7
    assert done == list(range(1, 8))


def test_top_1_is_compared_where_outputs_are_classes():
    net = Net()
    scores = net.dense(net.input(1, 16), normal(4, 16), name="scores")
    both = net.model(net("SOFTMAX", [scores], beta=1.0, name="classes"), net.dense(scores, normal(9, 4), name="wide"))
    data = [(normal(1, 16, seed=k),) for k in range(12)]
    classes, wide = zeropoint.compare(saved(both), plainly(saved(both), data), data).outputs
    assert classes.agreement is not None
    assert wide.agreement is None


def test_channels_of_different_kinds_count_the_same_in_compare_and_on_the_bench():
    net, spread = Net(), np.float32([300, 1, 1, 1])
    model = saved(net.model(net.conv(net.input(1, 8, 8, 3), normal(4, 1, 1, 3) * spread[:, None, None, None])))
    made = plainly(model, images())
    found = zeropoint.compare(model, made, images(8))
    assert found.snr == pytest.approx(decibels(Bench(model, images(8)).judging(8).error(made)), abs=0.01)
    assert found.outputs[0].where == f"'{model.main.outputs[0].name}'"


def test_probabilities_are_measured_at_what_they_are_made_of():
    net = Net()
    scores = net.dense(net.input(1, 16), normal(4, 16, spread=3), name="scores")
    model = saved(net.model(net("SOFTMAX", [scores], beta=1.0, name="classes")))
    data = [(normal(1, 16, seed=k),) for k in range(12)]
    for made in (plainly(model, data), plainly(model, data, output_type="int8")):
        found = zeropoint.compare(model, made, data)
        assert found.outputs[0].where == "'scores' before SOFTMAX"
        assert found.snr == pytest.approx(decibels(Bench(model, data).judging(12).error(made)), abs=0.01)


def test_a_metric_scores_both_models(model):
    def largest(outputs):
        return max(float(o[0].max()) for o in outputs)

    made = plainly(model, images())
    found = zeropoint.compare(model, made, images(5), metric=largest)
    assert found.metric.name == "largest"
    assert found.metric.before == pytest.approx(found.metric.after, rel=0.05)

    def broken(outputs):
        raise ZeroDivisionError

    with pytest.raises(InvalidRecipe, match="ZeroDivisionError"):
        zeropoint.compare(model, made, images(1), metric=broken)


@pytest.mark.parametrize("spec", ["metric", "missing.py:score", "there.py:nothing", "broken.py:score"])
def test_metrics_that_cannot_be_loaded_are_refused(tmp_path, spec):
    (tmp_path / "there.py").write_text("def score(outputs): return 1.0\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with pytest.raises(InvalidRecipe):
        load_metric(str(tmp_path / spec))
    assert load_metric(str(tmp_path / "there.py:score"))[0] == "score"


def test_outputs_with_a_scale_for_each_channel_are_compared():
    net = Net()
    x = net.input(1, 4)
    model = net.model(net("RELU", [x]), net("RESHAPE", [normal(3, 4), np.array([3, 4], np.int32)], (3, 4), "weights"))
    made = copy_model(model)
    op = made.main.ops[-1]
    weights = op.inputs[0].data
    params = QuantParams.from_range(weights.min(axis=1), weights.max(axis=1), DType.INT8, symmetric=True, axis=0)
    set_constant(op.inputs[0], quantize(weights, params), DType.INT8, params)
    retype(op.outputs[0], DType.INT8, params)
    _, found = zeropoint.compare(model, saved(made), [normal(1, 4, seed=k) for k in range(3)]).outputs
    assert found.deviation.snr > 30
    assert found.deviation.max_ulp is None
    assert found.largest <= max(params.scales) * 0.5001


def test_what_cannot_be_compared_is_refused(model):
    net = Net()
    other = net.model(net("ADD", [net.input(1, 8, 8, 3), net.input(1, 8, 8, 3)]))
    with pytest.raises(InvalidModel, match="inputs"):
        zeropoint.compare(model, other, images(1))
    with pytest.raises(InvalidSample, match=r"sample 1, input .* NaN"):
        zeropoint.compare(model, model, [*images(1), (np.full((1, 8, 8, 3), np.nan, np.float32),)])
    with pytest.raises(InvalidSample, match="no samples"):
        zeropoint.compare(model, model, [])


def test_models_without_a_common_output_are_refused(model):
    x = Net()
    other = saved(x.model(x.dense(x("MEAN", [x.input(1, 8, 8, 3), np.array([1, 2], np.int32)], (1, 3)), normal(7, 3))))
    with pytest.raises(InvalidModel, match=r"cannot be compared.*'out' \[1, 6\] and \[1, 7\]; give two versions"):
        zeropoint.compare(model, other, images(2))


def test_models_that_take_other_inputs_are_refused_by_that_reason():
    """LiteRT only says which node it could not prepare."""

    def taking(*shape: int):
        net = Net()
        return net.model(net.conv(net.input(*shape), normal(4, 1, 1, shape[-1]), name="out"))

    wanted, other = taking(1, 8, 8, 3), taking(1, 6, 10, 1)
    with pytest.raises(InvalidModel, match=r"their inputs differ: 'x0' \[1, 8, 8, 3\] and \[1, 6, 10, 1\]; give two"):
        zeropoint.compare(wanted, other, [normal(1, 8, 8, 3)])


def test_an_output_of_another_shape_is_said_to_be_left_out():
    def net(width):
        net = Net()
        x = net.input(1, 8)
        return saved(net.model(net.dense(x, normal(4, 8), name="same"), net.dense(x, normal(width, 8), name="other")))

    found = zeropoint.compare(net(5), net(6), [(normal(1, 8),)])
    assert [(row.name, row.tensor) for row in found.outputs] == [("out0", "same")]
    assert any("'other' [1, 5] and [1, 6]" in note for note in found.notes)


finite = st.floats(-1e6, 1e6, width=32)


@given(arrays(np.float32, 40, elements=finite), arrays(np.float32, 40, elements=finite))
def test_sums_agree_with_the_definition(wanted, found):
    sums = DeviationSums(scale=0.5)
    for part in (slice(0, 13), slice(13, 40)):
        sums.add(wanted[part], found[part])
    exact, other = wanted.astype(np.float64), found.astype(np.float64)
    error, power = ((exact - other) ** 2).sum(), (exact**2).sum()
    assert sums.error == pytest.approx(error, rel=1e-4, abs=1e-30)
    assert sums.power == pytest.approx(power, rel=1e-4, abs=1e-30)
    deviation = sums.deviation()
    assert deviation.mean_ulp == pytest.approx(np.abs(exact - other).mean() / 0.5, rel=1e-4)
    assert deviation.max_ulp == pytest.approx(np.abs(exact - other).max() / 0.5, rel=1e-4)
    if power > 1e-30 and error > 1e-30:
        assert deviation.snr == pytest.approx(decibels(error / power), abs=0.01)


@given(arrays(np.float32, 60, elements=st.floats(-4, 4, width=32)))
def test_clipping_is_what_lies_beyond(values):
    params = QuantParams.from_range(-1.0, 2.0, DType.INT8)
    levels = IntegerUse(params)
    integers = quantize(values, params)
    levels.add(values, integers)
    occupancy = levels.occupancy()
    assert occupancy is not None
    gaps = values - dequantize(integers, params)
    assert occupancy.clipped_low == pytest.approx((gaps < -params.scale * 0.5001).mean(), abs=0.05)
    assert occupancy.clipped_high == pytest.approx((gaps > params.scale * 0.5001).mean(), abs=0.05)
    assert 0 <= occupancy.used <= 1
    assert occupancy.used == (int(integers.max()) - int(integers.min())) / 255


def test_lost_channels_are_not_taken_for_scaled_ones():
    wanted = normal(1, 8, 8, 8)
    gains = ChannelGains()
    lost = wanted.copy()
    lost[..., 3] = 0
    gains.add(wanted, lost)
    assert gains.factors() is None
    gains, factors = ChannelGains(), np.geomspace(0.2, 5, 8).astype(np.float32)
    gains.add(wanted, wanted * factors)
    axis, found = gains.factors()
    assert axis == 3
    np.testing.assert_allclose(found, factors, rtol=1e-5)
    np.testing.assert_allclose(wanted * along(axis, found, build.act("x", *wanted.shape)), wanted * factors, rtol=1e-5)


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 0)], ids=str)
def test_scalars_and_nothing_at_all_are_compared(shape):
    """Outputs that are no table of scores, in every way that a file may have them."""
    x, y = (build.act(name, *shape) for name in ("x", "y"))
    model = build.one_op("ABS", [x], y, options="AbsOptions")
    found = zeropoint.compare(model, model, [np.ones(shape, np.float32)])
    assert all(row.agreement is None for row in found.outputs)


def test_names_that_are_no_text_do_no_harm():
    x, y = build.act("\udcff", 4), build.act("\udced", 4)
    model = build.one_op("ABS", [x], y, options="AbsOptions")
    sample = [np.float32([-1, 2, -3, 4])]
    assert zeropoint.compare(model, model, sample).outputs
    assert zeropoint.quantize(model, data=sample).model.main.outputs[0].name == "\udced"


@pytest.mark.parametrize("shape", [(8,), (2, 3, 4)])
def test_truth_values_are_compared(shape):
    x, y = build.act("x", *shape), build.act("y", *shape, dtype=DType.BOOL)
    model = build.one_op("GREATER", [x, build.const("limit", [0.0])], y, options="GreaterOptions")
    samples = [(row.astype(np.float32),) for row in np.random.default_rng(0).normal(size=(3, *shape))]
    assert zeropoint.compare(model, model, samples).outputs[0].deviation.snr == EXACT
