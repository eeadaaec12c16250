"""Few bits: levels of weights and activations, which layers have them, stages, and what is exported."""

from __future__ import annotations

from dataclasses import replace

import keras
import numpy as np
import pytest
from keras import ops

import zeropoint
from zeropoint.affine import QuantParams
from zeropoint.dtypes import DType
from zeropoint.errors import InvalidRecipe
from zeropoint.ops import OPS
from zeropoint.recipe_files import load_recipe, recipe_from
from zeropoint.train import QuantSettings, Schedule, distill, export, parity, trainable
from zeropoint.train.backend import array_of
from zeropoint.train.fake_quant import with_gradient_bits
from zeropoint.train.low_bits import low_bit_recipe, outermost_layers, stages_of
from zeropoint.train.weight_quantizers import (
    BinaryQuantizer,
    LearnedScales,
    MidriseQuantizer,
    TernaryQuantizer,
    WeightQuantizer,
)
from zeropoint.train_bits import TrainBits

from ..nets import Net, normal, samples_for
from .gradients import value_and_gradients


class Variable:
    """Stands for a layer that variables are added to."""

    def add_weight(self, shape, name, **_):
        import keras

        return keras.Variable(np.zeros(shape, np.float32), name=name)


def small_net():
    """Three layers with rectified values between them."""
    net = Net()
    x = net.conv(net.input(1, 6, 6, 2), normal(8, 3, 3, 2, spread=0.4), normal(8), activation=1)
    x = net.conv(x, normal(8, 3, 3, 8, seed=1, spread=0.2), normal(8, seed=2), activation=1)
    flat = net("RESHAPE", [x, np.array([1, 288], np.int32)], (1, 288), newShape=(1, 288))
    return net.model(net.dense(flat, normal(4, 288, seed=3, spread=0.1)))


def weights_of(model):
    return [t for t in model.main.tensors if t.data is not None and t.params and t.dtype.bits <= 8]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("w2a8", TrainBits(2, 8)),
        ("W4A4", TrainBits(4, 4)),
        ("w3", TrainBits(3, 8)),
        ("binary", TrainBits(1, 8)),
        ("w1a4", TrainBits(1, 4)),
        ("ternary", TrainBits(2, 8, ternary=True)),
        ("ternarya2", TrainBits(2, 2, ternary=True)),
    ],
)
def test_bits_are_spelled(text, wanted):
    assert TrainBits.parse(text) == wanted
    assert TrainBits.parse(str(wanted)) == wanted


def test_bits_that_there_are_not_are_refused():
    for text in ("w9a8", "w0", "a4", "", "w2a8x"):
        with pytest.raises(InvalidRecipe, match="ternary or binary"):
            TrainBits.parse(text)
    with pytest.raises(InvalidRecipe, match="from more bits to fewer"):
        stages_of("w2a8,w4a8")
    assert [str(s) for s in stages_of("w8a8,w4a8,binary")] == ["w8a8", "w4a8", "binarya8"]


LEVELS = {
    TernaryQuantizer: {-1, 0, 1},
    BinaryQuantizer: {-1, 1},
    MidriseQuantizer: {-3, -1, 1, 3},
    WeightQuantizer: set(range(-3, 4)),
}


@pytest.mark.parametrize("kind", LEVELS)
def test_what_is_trained_is_what_is_deployed(kind):
    """Integers times scale in training are those that are stored."""
    data = normal(6, 3, 3, 4, spread=0.5)
    start = QuantParams((0.1,) * 6, (0,) * 6, DType.INT8, zeropoint.affine.PerAxis(0))
    quantizer = kind(start, data, QuantSettings(), 3, LearnedScales(Variable().add_weight, "w"))
    scale = quantizer.scale(ops.convert_to_tensor(data))
    trained = array_of(quantizer.steps(ops.convert_to_tensor(data), scale)) * array_of(scale)
    params = quantizer.params(data)
    deployed = quantizer.deployed(data, params)
    scales, _ = params.along(4)
    np.testing.assert_allclose(np.floor(deployed / scales + 0.5) * scales, trained, rtol=1e-5, atol=1e-6)
    assert set(np.unique(np.round(trained / scales))) == LEVELS[kind]


def test_ternary_weights_start_near_the_best():
    """The scale is the mean of what lies beyond the threshold, which is 0.7 times the mean magnitude."""
    data = normal(1, 10000, spread=1.0)
    start = QuantParams((0.1,), (0,), DType.INT8)
    quantizer = TernaryQuantizer(start, data, QuantSettings(), 2, LearnedScales(Variable().add_weight, "w"))
    best = min(
        np.square(data - s * np.sign(data) * (np.abs(data) > t)).mean()
        for s in np.linspace(0.8, 1.6, 17)
        for t in np.linspace(0.3, 0.9, 13)
    )
    found = quantizer.deployed(data, quantizer.params(data))
    assert np.square(data - found).mean() < 1.02 * best


def test_four_levels_start_near_the_best():
    """For normally distributed weights the best step between four levels is 0.996 standard deviations, with an error of
    0.119 of the variance (Max, Quantizing for minimum distortion); with three levels it would be 0.190."""
    data = normal(1, 10000, spread=1.0)
    start = QuantParams((0.1,), (0,), DType.INT8)
    quantizer = MidriseQuantizer(start, data, QuantSettings(), 2, LearnedScales(Variable().add_weight, "w"))
    found = quantizer.deployed(data, quantizer.params(data))
    assert np.square(data - found).mean() < 0.122 * data.var()


@pytest.mark.parametrize("kind", [MidriseQuantizer, BinaryQuantizer])
def test_channels_without_weights_stay_almost_zero(kind):
    """Levels without a zero have no place for them, so their scale must be small; also in the file."""
    data = normal(4, 50, spread=1.0)
    data[2] = 0
    start = QuantParams((0.1,) * 4, (0,) * 4, DType.INT8, zeropoint.affine.PerAxis(0))
    quantizer = kind(start, data, QuantSettings(), 2, LearnedScales(Variable().add_weight, "w"))
    scale = quantizer.scale(ops.convert_to_tensor(data))
    trained = array_of(quantizer.steps(ops.convert_to_tensor(data), scale)) * array_of(scale)
    for found in (trained, quantizer.deployed(data, quantizer.params(data))):
        assert np.abs(found[2]).max() < 0.01 * np.abs(found[3]).min()


@pytest.mark.parametrize("kind", [TernaryQuantizer, BinaryQuantizer, MidriseQuantizer])
def test_weights_that_went_too_far_can_come_back(kind):
    """Beyond the outermost level, a gradient that leads further away is dropped; one that leads back is not."""
    data = np.array([[0.5, -0.5, 1.0, -1.0]], np.float32)
    start = QuantParams((0.1,), (0,), DType.INT8)
    quantizer = kind(start, data, QuantSettings(), 3, LearnedScales(Variable().add_weight, "w"))
    far = np.array([[50.0, 50.0, -50.0, -50.0, 0.1]], np.float32)
    above = np.array([[1.0, -1.0, 1.0, -1.0, 1.0]], np.float32)
    _, (gradient,) = value_and_gradients(lambda w: quantizer.steps(w, quantizer.scale(w)), [far], above)
    assert list(np.sign(gradient[0])) == [1, 0, 0, -1, 1]


@pytest.mark.parametrize("kind", [TernaryQuantizer, BinaryQuantizer, MidriseQuantizer])
def test_levels_take_the_place_of_weights_bit_by_bit(kind):
    """At first the weights are as they were, then a mean of that and of their levels, in the end only the latter."""
    data = normal(4, 50, spread=1.0)
    start = QuantParams((0.1,) * 4, (0,) * 4, DType.INT8, zeropoint.affine.PerAxis(0))
    quantizer = kind(start, data, QuantSettings(), 2, LearnedScales(Variable().add_weight, "w"))
    scale, weights = array_of(quantizer.scale(data)), ops.convert_to_tensor(data)
    none, half, full = (array_of(quantizer.steps(weights, scale, softness)) * scale for softness in (1.0, 0.5, 0.0))
    np.testing.assert_allclose(none, data, atol=1e-6)
    np.testing.assert_allclose(half, (none + full) / 2, atol=1e-6)
    np.testing.assert_array_equal(full, array_of(quantizer.steps(weights, scale)) * scale)


def test_in_the_end_ternary_weights_near_a_threshold_decide():
    """Before, gradients pass straight through; then, those of weights outside of a narrowing band vanish."""
    data = np.linspace(-2, 2, 401, dtype=np.float32).reshape(1, -1)
    start = QuantParams((0.1,), (0,), DType.INT8, 0)
    quantizer = TernaryQuantizer(start, data, QuantSettings(), 2, LearnedScales(Variable().add_weight, "w"))
    threshold = float(quantizer.first_threshold.reshape(()))
    distance = np.abs(np.abs(data) - threshold) / (2 * threshold)
    plain = array_of(quantizer.steps(ops.convert_to_tensor(data), None))
    for left, width in ((2.0, None), (0.999, 0.3), (0.5, 0.16), (0.0, 0.02)):
        found, (gradient,) = value_and_gradients(
            lambda w, left=left: quantizer.steps(w, None, None, ops.convert_to_tensor(left)), [data], np.ones_like(data)
        )
        near = distance < (0 if width is None else width / 2 - 1e-3)
        far = distance > (0 if width is None else width / 2 + 1e-3)
        np.testing.assert_allclose(found[far], plain[far], atol=1e-5)
        if width is None:
            assert (gradient[np.abs(data) < 2 * threshold] > 0).all()
        else:
            assert near.any()
            assert (gradient[near] > 0).all()
            assert not gradient[far].any()


def test_wide_weights_are_never_soft():
    """The first and last layers keep 8 bits: they must be able to follow the others until the end."""
    data = normal(4, 50, spread=1.0)
    start = QuantParams((0.1,) * 4, (0,) * 4, DType.INT8, zeropoint.affine.PerAxis(0))
    quantizer = WeightQuantizer(start, data, QuantSettings(), None, LearnedScales(Variable().add_weight, "w"))
    _, (gradient,) = value_and_gradients(
        lambda w: quantizer.steps(w, quantizer.scale(w), 0.0), [data], np.ones_like(data)
    )
    assert (gradient > 0).all()


@pytest.mark.parametrize(("bits", "share", "faster"), [("binary", 2, 4), ("w4a8", 8, 1)])
def test_biases_and_ranges_keep_up_with_weights_of_few_bits(bits, share, faster):
    """With 1 or 2 bits, activations change as much as weights, so what belongs to them learns faster."""
    model = small_net()
    samples = samples_for(model, 24)
    done = distill(model, samples, train_bits=bits, schedule=Schedule(10, 8, checks=2))
    assert done.trained.blueprint.settings.settle == share
    usual = trainable(model, "int8", zeropoint.calibrate(model, samples))
    few, many = (
        [
            float(c.unit) / net.blueprint.plan.stored[c.uses[0].op.outputs[0]].scale
            for c in net.graph.constants
            if c.tensor.data.ndim == 1 and c.uses[0].op.kind == "CONV_2D"
        ]
        for net in (done.trained, usual)
    )
    assert len(few) == 2
    np.testing.assert_allclose(few, np.array(many) * faster, rtol=0.5)  # powers of two near the wanted unit
    assert done.trained.graph.ranges.slowness == {4: 0.25, 1: 2.0**-5}[faster]


def test_the_first_and_last_layers_are_left_in_8_bits():
    model = small_net()
    first, last = outermost_layers(model.main, OPS)
    assert [op.kind for op in (*first, *last)] == ["CONV_2D", "FULLY_CONNECTED"]
    rules = low_bit_recipe(model, TrainBits(2, 4), OPS)
    bits = [str(rules.scheme(op).trained) for op in model.main.ops if op.kind != "RESHAPE"]
    assert bits == ["w8a4", "w2a4", "w8a4"]
    rules = low_bit_recipe(model, TrainBits(2, 4), OPS, every_layer=True)
    assert {str(rules.scheme(op).trained) for op in model.main.ops} == {"w2a4"}


@pytest.mark.parametrize("bits", ["w4a4", "w2a2", "ternarya3", "w1a1"])
def test_few_levels_are_exported_and_agree(bits):
    """The integers of the file have as many levels as were trained, and LiteRT computes what the trained graph does."""
    model, asked = small_net(), TrainBits.parse(bits)
    samples = samples_for(model, 24)
    recipe = low_bit_recipe(model, asked, OPS, every_layer=True)
    net = trainable(model, None, zeropoint.calibrate(model, samples), recipe=recipe)
    x = np.concatenate([row[0] for row in samples])
    net.compile(optimizer="adam", loss="mse", run_eagerly=True)
    net.train_on_batch(x, array_of(net(x)) * 0.5)
    result = export(net)
    most = {1: 2, 2: 3 if asked.ternary else 4}.get(asked.weights, 2**asked.weights - 1)
    assert all(len(np.unique(t.data)) <= most for t in weights_of(result.model))
    (found,) = parity(net, result, samples)
    assert found.equal >= 0.98, str(found)
    if bits == "w2a2":
        assert all(set(np.unique(t.data)) == {-3, -1, 1, 3} for t in weights_of(result.model))
    for op in result.model.main.ops:
        if op.kind == "CONV_2D":
            assert op.outputs[0].params.zero_point == 127 - (2**asked.activations - 1)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras, when it saves
@pytest.mark.parametrize("bits", ["binary", "w2a8"])
def test_biases_keep_the_means_of_outputs_where_they_are(bits, tmp_path):
    """Rounding to few levels shifts means unless the means of the inputs are known; they are saved with the graph."""
    model = small_net()
    samples = samples_for(model, 24)
    inner = model.main.ops[1].outputs[0].name
    recipe = low_bit_recipe(model, TrainBits.parse(bits), OPS)
    net = trainable(model, None, zeropoint.calibrate(model, samples), recipe=recipe, outputs=[inner])
    x = np.concatenate([row[0] for row in samples])
    wanted = array_of(trainable(model, outputs=[inner], quantize=False)(x)).mean(axis=(0, 1, 2))
    without = type(net)(replace(net.blueprint, means={}))
    known, unknown = (np.abs(array_of(one(x)).mean(axis=(0, 1, 2)) - wanted).mean() for one in (net, without))
    assert known < 0.5 * unknown
    net.save(tmp_path / "net.keras")
    np.testing.assert_array_equal(array_of(keras.models.load_model(tmp_path / "net.keras")(x)), array_of(net(x)))


def test_only_a_trained_bias_of_one_layer_makes_up_for_rounding():
    model = small_net()
    stats = zeropoint.calibrate(model, samples_for(model, 8))
    recipe = low_bit_recipe(model, TrainBits.parse("ternary"), OPS)
    for freeze, wanted in (((), [1]), (("CONV_2D",), [])):
        net = trainable(model, None, stats, recipe=recipe, freeze=freeze)
        layers = net.blueprint.plan.graph.ops
        assert [layers.index(use.op) for use in net.graph.mean_shifts] == wanted


def test_stages_go_from_more_bits_to_fewer(tmp_path):
    model = small_net()
    done = distill(model, samples_for(model, 24), train_bits="w4a8,binary", schedule=Schedule(4, 8, checks=2))
    assert [note.split(":")[0] for note in done.result.notes[-2:]] == ["w4a8", "binarya8"]
    inner = done.trained.graph.quantizers
    assert sorted({q.bits for q in inner.values()}) == [1, 8]


@pytest.mark.parametrize("kind", [TernaryQuantizer, BinaryQuantizer, MidriseQuantizer])
def test_the_next_stage_gets_weights_of_the_size_that_scales_give_them(kind):
    data = normal(4, 50, spread=1.0)
    start = QuantParams((0.1,) * 4, (0,) * 4, DType.INT8, zeropoint.affine.PerAxis(0))
    quantizer = kind(start, data, QuantSettings(), 2, LearnedScales(Variable().add_weight, "w"))
    before = quantizer.deployed(data, quantizer.params(data))
    quantizer.exponents.assign(np.full((4, 1), np.log(3), np.float32))
    np.testing.assert_allclose(quantizer.deployed(data, quantizer.params(data)), 3 * before, rtol=1e-5)
    np.testing.assert_allclose(quantizer.effective(data), 3 * data, rtol=1e-5)


def test_recipes_name_bits_for_some_ops(tmp_path):
    content = {"rules": [{"scheme": "int8"}, {"ops": "CONV_2D", "scheme": "int8", "train_bits": "ternary"}]}
    model, samples = small_net(), samples_for(small_net(), 8)
    net = trainable(model, None, zeropoint.calibrate(model, samples), recipe=recipe_from(content))
    kinds = {use.op.kind: type(q) for use, q in net.graph.quantizers.items()}
    assert kinds == {"CONV_2D": TernaryQuantizer, "FULLY_CONNECTED": WeightQuantizer}
    with pytest.raises(InvalidRecipe, match=r"train_bits, which need training: zeropoint\.distill"):
        zeropoint.quantize(model, recipe=recipe_from(content), data=samples)
    with pytest.raises(InvalidRecipe, match="is for the scheme int8"):
        recipe_from({"rules": [{"scheme": "int16x8", "train_bits": "w4a8"}]})
    (tmp_path / "r.toml").write_text('[[rules]]\nscheme = "int8"\ntrain_bits = "w4a4"\n')
    assert load_recipe(tmp_path / "r.toml").rules[0].scheme.trained == TrainBits(4, 4)


def test_fewer_bits_learn_faster():
    """Unless told otherwise: weights of few levels have a longer way to the next one."""
    peaks = [Schedule().rate(bits).warmup_target for bits in (8, 4, 2)]
    assert peaks == sorted(set(peaks))
    assert Schedule(learning_rate=1e-5).rate(2).warmup_target == 1e-5


def test_gradients_are_rounded_to_few_bits():
    """Each sample's gradients take few values, and are right on average."""
    x = np.zeros((2, 400), np.float32)
    above = np.stack([np.linspace(-1, 1, 400), np.linspace(-0.01, 0.01, 400)]).astype(np.float32)
    total = np.zeros_like(above)
    for step in range(64):
        _, (found,) = value_and_gradients(lambda v, step=step: with_gradient_bits(v, 3, step), [x], above)
        total += found / 64
        assert len(np.unique(np.round(found[0], 5))) <= 8
    assert (np.abs(total - above).max(axis=1) < 0.12 * np.abs(above).max(axis=1)).all()
    with pytest.raises(InvalidRecipe, match="1 to 16 bits"):
        QuantSettings(gradient_bits=0)


def test_values_inside_a_learned_range_move_its_scale():
    """LSQ: the gradient of the scale is round(k) - k inside."""
    from zeropoint.train.fake_quant import nudge, round_and_clip

    x = np.array([0.3, 0.45, -0.2], np.float32)

    def total(low, high):
        grid = nudge(low, high, 15.0, learn_scale=True)
        return ops.sum(round_and_clip(grid.in_steps(ops.convert_to_tensor(x)), grid.bounds()) * grid.scale)

    _, (_, to_high) = value_and_gradients(total, [np.float32(-1), np.float32(2)], np.float32(1))
    k = x / 0.2
    assert float(array_of(to_high)) == pytest.approx(float((np.round(k) - k).sum()) / 15, abs=1e-4)


def test_low_bits_refuse_what_contradicts_them():
    for decide in ((5, 5), (-1, 3), (4, 2)):
        with pytest.raises(InvalidRecipe, match="the earlier one first"):
            QuantSettings(decide=decide)
    model = small_net()
    with pytest.raises(InvalidRecipe, match="omit mode and recipe"):
        distill(model, samples_for(model, 4), "int16x8", train_bits="w2a8")
    with pytest.raises(InvalidRecipe, match="omit resume"):
        distill(model, (), train_bits="w4a8,w2a8", resume="run.npz")  # before any sample is needed
    assert replace(TrainBits(4, 4)).at_least(TrainBits(8, 2)) == TrainBits(8, 4)


def test_inspect_tells_the_levels_and_the_zipped_size(run, tmp_path):
    model = small_net()
    stats = zeropoint.calibrate(model, samples_for(model, 8))
    recipe = low_bit_recipe(model, TrainBits.parse("ternary"), OPS)
    file = tmp_path / "ternary.tflite"
    export(trainable(model, None, stats, recipe=recipe)).save(file)
    shown = zeropoint.inspect(file)
    assert sorted(t.levels for t in shown.tensors if t.levels is not None)[0] == 3
    assert shown.few_levels == "1 of 3 weights: 1 with 3 levels (2 bits)"
    assert shown.zip_bytes < shown.file_bytes
    code, out, _ = run("inspect", file)
    assert code == 0
    assert "1 with 3 levels (2 bits);" in out
    assert "(3 levels)" in out
    assert zeropoint.inspect(model).zip_bytes is None
