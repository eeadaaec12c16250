"""Ranges that training left in a model are used, and the ops that held them are gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import zeropoint
from zeropoint.affine import PerAxis, QuantParams, dequantize, quantize
from zeropoint.dtypes import Array, DType
from zeropoint.errors import InvalidSample
from zeropoint.graph import Model, Tensor
from zeropoint.graph.edit import copy_model
from zeropoint.ops import OPS
from zeropoint.plan.qdq import has_trained_ranges, take_trained
from zeropoint.runtime import Session

from .. import build
from ..frameworks import tensorflow, unwarned
from ..nets import Net, kinds, normal, outputs_of, quantized, samples_for
from .laws import broken_laws

MARKS = ("FAKE_QUANT", "QUANTIZE", "DEQUANTIZE")


def fake(net: Net, x: Any, low: float, high: float, **values: Any) -> Tensor:
    return net("FAKE_QUANT", [x], min=low, max=high, **{"numBits": 8, **values})


def pair(net: Net, x: Tensor, params: QuantParams) -> Tensor:
    """QUANTIZE with DEQUANTIZE behind it, as other tools write it."""
    held = build.act(f"{x.name}/held", *x.shape, dtype=params.dtype, params=params)
    back = build.act(f"{x.name}/back", *x.shape)
    net.ops.append(build.op("QUANTIZE", [x], held, options="QuantizeOptions"))
    net.ops.append(build.op("DEQUANTIZE", [held], back, options="DequantizeOptions"))
    return back


def dequantized(net: Net, name: str, data: Any, params: QuantParams) -> Tensor:
    """A constant that a file holds as integers, for float arithmetic."""
    stored = build.const(f"{name}/stored", quantize(data, params), params.dtype, params)
    back = build.act(name, *data.shape)
    net.ops.append(build.op("DEQUANTIZE", [stored], back, options="DequantizeOptions"))
    return back


def dense(net: Net, x: Tensor, kernel: Tensor) -> Tensor:
    """A dense layer whose weights come out of another op."""
    return net("FULLY_CONNECTED", [x, kernel, None], (1, kernel.shape[0]), "y")


def one_scale(scale: float, zero: int = 0, dtype: DType = DType.INT8) -> QuantParams:
    return QuantParams((float(np.float32(scale)),), (zero,), dtype)


X, Y = one_scale(6 / 255, 10), one_scale(12 / 255, -3)
W = QuantParams((0.0078125, 0.015625, 0.03125, 0.0625), (0,) * 4, DType.INT8, PerAxis(0))
WEIGHTS = normal(4, 8, spread=0.4)


def test_parameters_of_pairs_are_those_of_the_result():
    """Those of activations, in either type of 8 bits, and those of weights, per channel."""
    net = Net()
    x = pair(net, net.input(1, 8), X)
    unsigned = QuantParams(Y.scales, (Y.zero_point + 128,), DType.UINT8)
    model = net.model(pair(net, dense(net, x, dequantized(net, "w", WEIGHTS, W)), unsigned))
    assert has_trained_ranges(model)
    made = quantized(model, data=None).model
    assert kinds(made) == ["QUANTIZE", "FULLY_CONNECTED", "DEQUANTIZE"]
    layer = made.main.ops[1]
    assert [t.params for t in (layer.inputs[0], layer.inputs[1], layer.outputs[0])] == [X, W, Y]
    np.testing.assert_array_equal(layer.inputs[1].data, quantize(WEIGHTS, W))


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
@pytest.mark.parametrize("mark", ["fake", "pair"])
def test_no_mark_is_left(mark, mode):
    net = Net()

    def marked(x: Tensor, spread: float) -> Tensor:
        return fake(net, x, -spread, spread) if mark == "fake" else pair(net, x, one_scale(spread / 127))

    x = marked(net.input(1, 4, 4, 3, name="image"), 4)
    x = marked(net.conv(x, normal(6, 3, 3, 3, spread=0.3), normal(6), activation=1), 8)
    x = marked(net("RESHAPE", [x, np.int32([1, 96])], (1, 96)), 8)
    model = net.model(net("SOFTMAX", [marked(net.dense(x, normal(5, 96, spread=0.1)), 6)], beta=1.0))
    result = quantized(model, data=None, mode=mode)
    assert kinds(result.model) == ["QUANTIZE", "CONV_2D", "RESHAPE", "FULLY_CONNECTED", "SOFTMAX", "DEQUANTIZE"]
    assert not broken_laws(result)


@given(
    low=st.floats(-100, 0, width=32),
    high=st.floats(0, 100, width=32),
    bits=st.sampled_from([2, 3, 4, 8]),
)
def test_fake_quantized_constants_are_what_the_kernel_makes_of_them(low, high, bits):
    """Their values, and a grid that holds these exactly."""
    assume(high - low > 1e-3)
    data = np.linspace(1.5 * low - 1, 1.5 * high + 1, 64, dtype=np.float32).reshape(4, 16)
    net = Net()
    w = fake(net, data, low, high, numBits=bits)
    model = net.model(dense(net, net.input(1, 16), w))
    kernel = build.one_op(
        "FAKE_QUANT",
        [build.act("x", 4, 16)],
        build.act("y", 4, 16),
        options="FakeQuantOptions",
        min=low,
        max=high,
        numBits=bits,
    )
    (computed,) = Session(kernel).run([data])
    prepared = copy_model(model)
    trained = take_trained(prepared, OPS)
    ((constant, grid),) = trained.constants.items()
    step = grid.scale
    if grid.is_symmetric:  # weights do without the lowest integer
        computed = np.maximum(computed, (DType.INT8.min + 1) * np.float32(step))
    halfway = np.abs(data / np.float32(step) % 1 - 0.5) < 1e-3  # between two integers, either is right
    np.testing.assert_allclose(constant.data[~halfway], computed[~halfway], atol=step * 1e-3)
    np.testing.assert_allclose(constant.data, computed, atol=step * 1.001)
    np.testing.assert_allclose(dequantize(quantize(constant.data, grid), grid), constant.data, atol=step * 1e-3)
    assert kinds(prepared) == ["FULLY_CONNECTED"]


@pytest.mark.parametrize("bits", [4, 8])
def test_a_narrow_range_ends_at_the_same_distance_on_both_sides(bits):
    """LiteRT has no kernel for these: they are meant to be taken out."""
    net = Net()
    data = np.linspace(-2, 2, 64, dtype=np.float32).reshape(4, 16)
    model = net.model(dense(net, net.input(1, 16), fake(net, data, -1, 1, numBits=bits, narrowRange=True)))
    ((constant, grid),) = take_trained(model, OPS).constants.items()
    assert (grid.scale, grid.zero_point) == (pytest.approx(1 / (2 ** (bits - 1) - 1)), 0)
    assert (constant.data.min(), constant.data.max()) == (pytest.approx(-1), pytest.approx(1))


def test_a_tensor_that_is_read_through_two_marks_has_both():
    """As where every layer was trained with a quantizer of its own at its input."""
    net = Net()
    x = net.input(1, 8)
    fine, coarse = one_scale(1 / 127), one_scale(8 / 127)
    sums = net("ADD", [pair(net, x, fine), pair(net, x, coarse)])
    model = net.model(pair(net, sums, one_scale(9 / 127)))
    add = next(op for op in zeropoint.quantize(model).model.main.ops if op.kind == "ADD")
    assert [t.params for t in add.inputs] == [fine, coarse]


def test_what_follows_from_trained_ranges_is_known():
    """Along ops that move values, through ReLU, at fixed outputs, and of a mean in place of a pool."""
    net = Net()
    x = fake(net, net.input(1, 4, 4, 4, name="image"), -3, 3)
    x = fake(net, net.conv(x, normal(4, 1, 1, 4), name="conv"), -6, 6)
    x = net("RELU", [x])
    x = net("AVERAGE_POOL_2D", [x], (1, 1, 1, 4), filterWidth=4, filterHeight=4, strideW=4, strideH=4, padding=1)
    x = net("RESHAPE", [x, np.int32([1, 4])], (1, 4))
    model = net.model(net("LOGISTIC", [x]))
    result = quantized(model, data=None)
    assert not result.skipped
    assert not broken_laws(result)


def partly_marked() -> Model:
    net = Net()
    x = fake(net, net.input(1, 8), -4, 6.2)
    return net.model(fake(net, net.dense(net.dense(x, WEIGHTS, name="inner"), normal(3, 4), name="y"), -8, 12.4))


def test_what_has_no_range_is_listed_and_data_fill_it_in():
    model = partly_marked()
    with pytest.raises(InvalidSample) as refusal:
        zeropoint.quantize(model)
    assert refusal.value.args[:2] == ("1 tensor has no range:", "  'inner'")
    assert "(data=)" in str(refusal.value)
    samples = samples_for(model)
    result = quantized(model, samples)
    first, second = (op for op in result.model.main.ops if op.kind == "FULLY_CONNECTED")
    for tensor, scale in ((first.inputs[0], 0.04), (second.outputs[0], 0.08)):
        assert (tensor.params.scale, tensor.params.zero_point) == (pytest.approx(scale, rel=1e-6), 100 - 128)
    seen = inner_values(model, samples)
    assert first.outputs[0].params.range() == (
        pytest.approx(seen.min(), rel=0.5),
        pytest.approx(seen.max(), rel=0.5),
    )


def inner_values(model: Model, samples: Sequence[Any]) -> Array:
    exposed = copy_model(model)
    exposed.signatures.clear()
    exposed.main.outputs = [exposed.main.tensor("inner")]
    return outputs_of(exposed, samples)[0]


def turned(net: Net, name: str, data: Array, order: tuple[int, ...], params: QuantParams) -> Tensor:
    """Float weights behind a pair, then in another order of axes, as litert-torch writes what PT2E has quantized."""
    back = pair(net, build.const(name, data), params)
    axes = build.const(f"{name}/order", np.int32(order))
    result = build.act(f"{name}/turned", *(data.shape[k] for k in order))
    net.ops.append(build.op("TRANSPOSE", [back, axes], result, options="TransposeOptions"))
    return result


@pytest.mark.parametrize("per_channel", [True, False])
def test_weights_of_pt2e_keep_their_scales_along_the_axis_that_was_turned(per_channel: bool):
    net = Net()
    x = net.input(1, 6, 6, 3, name="x")
    sides = {"options": "Conv2DOptions", "strideW": 1, "strideH": 1}
    data, bias = normal(4, 3, 3, 3), build.const("b", np.zeros(4, np.float32))
    scales = np.abs(data).max(axis=(1, 2, 3)) / 127
    scales = tuple(float(np.float32(s)) for s in (scales if per_channel else scales.max(keepdims=True)))
    params = QuantParams(scales, (0,) * len(scales), DType.INT8, *([PerAxis(0)] if per_channel else []))
    kernel = turned(net, "w", data, (0, 2, 3, 1), params)
    source, y = pair(net, x, one_scale(0.05)), build.act("y", 1, 6, 6, 4)
    net.ops.append(build.op("CONV_2D", [source, kernel, bias], y, **sides))
    depth = normal(4, 1, 3, 3)
    own = tuple(float(np.float32(s)) for s in np.abs(depth).max(axis=(1, 2, 3)) / 127)
    deep = turned(net, "d", depth, (1, 2, 3, 0), QuantParams(own, (0,) * 4, DType.INT8, PerAxis(0)))
    z = build.act("z", 1, 6, 6, 4)
    sides = {"options": "DepthwiseConv2DOptions", "strideW": 1, "strideH": 1, "depthMultiplier": 1}
    net.ops.append(build.op("DEPTHWISE_CONV_2D", [pair(net, y, one_scale(0.2, 3)), deep, bias], z, **sides))
    result = zeropoint.quantize(net.model(pair(net, z, one_scale(0.9))), target="integer", effort="quick")
    assert not result.skipped
    convolution, depthwise = (o for o in result.model.main.ops if o.kind.endswith("CONV_2D"))
    assert convolution.inputs[1].params.scales in (scales, scales * 4)
    assert (depthwise.inputs[1].params.scales, depthwise.inputs[1].params.axis) == (own, 3)
    assert [o.outputs[0].params.scale for o in (convolution, depthwise)] == [np.float32(0.2), np.float32(0.9)]
    np.testing.assert_array_equal(convolution.inputs[1].data, quantize(data, params).transpose(0, 2, 3, 1))


def test_models_without_marks_have_nothing_trained():
    model = build.float_cnn()
    before = str(model)
    assert not has_trained_ranges(model)
    trained = take_trained(model, OPS)
    assert not trained.ranges.entries
    assert not trained.implied.entries
    assert str(model) == before


# The same graph in TensorFlow.


def marked_network(tf: Any) -> Any:
    """Fake quantization per tensor and per channel, on activations and weights, as in training."""
    rng = np.random.default_rng(0)
    fq, per_channel = (
        tf.quantization.fake_quant_with_min_max_vars,
        tf.quantization.fake_quant_with_min_max_vars_per_channel,
    )

    class Network(tf.Module):
        def __init__(self) -> None:
            self.kernel = tf.Variable(rng.normal(0, 0.3, (3, 3, 3, 8)).astype(np.float32))
            self.bias = tf.Variable(rng.normal(0, 0.1, 8).astype(np.float32))
            self.dense = tf.Variable(rng.normal(0, 0.3, (8, 5)).astype(np.float32))

        @tf.function(input_signature=[tf.TensorSpec((1, 8, 8, 3))])
        def __call__(self, x: Any) -> Any:
            x = fq(x, -2.5, 2.0)
            kernel = per_channel(self.kernel, -np.linspace(0.5, 1, 8), np.linspace(0.5, 1, 8), narrow_range=True)
            x = fq(tf.nn.relu6(tf.nn.conv2d(x, kernel, 1, "SAME") + self.bias), 0.0, 5.0)
            x = tf.nn.max_pool2d(x, 2, 2, "SAME")
            shifted = fq(x + 0.5, 0.0, 5.0)
            x = fq(tf.reduce_mean(tf.concat([x, shifted], 2), [1, 2]), 0.0, 3.0)
            x = fq(tf.matmul(x, fq(self.dense, -0.9, 0.9, narrow_range=True)), -3.0, 3.5)
            return tf.nn.softmax(x)

    return Network()


@pytest.fixture(scope="module")
def both() -> tuple[Model, Model]:
    """The graph as TensorFlow's converter leaves it, and as it quantizes it."""
    with unwarned():
        tf = tensorflow()
        network = marked_network(tf)
        functions = [network.__call__.get_concrete_function()]
        plain, whole = (tf.lite.TFLiteConverter.from_concrete_functions(functions, network) for _ in range(2))
        whole.optimizations = [tf.lite.Optimize.DEFAULT]
        return zeropoint.load(plain.convert()), zeropoint.load(whole.convert())


@pytest.mark.parametrize("with_data", [False, True], ids=["no data", "data"])
def test_outputs_are_those_of_tensorflow(both, with_data):
    source, theirs = both
    assert {op.kind for op in source.main.ops} & set(MARKS)
    samples = samples_for(source, 100)
    result = zeropoint.quantize(source, data=samples if with_data else None, strict=True)
    assert kinds(result.model) == kinds(theirs)
    unit = result.model.main.ops[-1].inputs[0].params.scale
    (ours,), (reference,) = (outputs_of(m, samples, "reference") for m in (result.model, theirs))
    assert np.abs(ours - reference).max() <= unit * 1.001


def test_a_trained_model_needs_no_samples_at_the_front_door(both):
    source, _ = both
    converter = zeropoint.lite.TFLiteConverter.from_tflite(source)
    converter.optimizations = [zeropoint.lite.Optimize.DEFAULT]
    converter.target_spec.supported_ops = [zeropoint.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = np.int8
    made = zeropoint.load(converter.convert())
    assert not set(kinds(made)) & set(MARKS)
    assert {t.dtype for t in (*made.main.inputs, *made.main.outputs)} == {DType.INT8}


@pytest.mark.parametrize("bits", [2, 4, 6])
def test_trained_grids_of_few_bits_are_used_as_they_are(bits):
    """Activations with few levels are held in int8 such that it ends where they do; weights keep their steps."""
    most = 2 ** (bits - 1) - 1
    step = np.float32(0.7) / np.float32(most)
    rounded = np.clip(np.round(normal(6, 8, spread=0.4) / step), -most, most).astype(np.float32) * step

    def network(marked: bool) -> Model:
        net = Net()
        x = fake(net, net.input(1, 8), -1.0, 1.0)
        kernel = fake(net, rounded, -0.7, 0.7, numBits=bits, narrowRange=True) if marked else rounded
        hidden = fake(net, net("RELU", [net("FULLY_CONNECTED", [x, kernel, None], (1, 6))]), 0.0, 1.5, numBits=bits)
        last = net("FULLY_CONNECTED", [hidden, normal(3, 6, seed=1), None], (1, 3), "z")
        return net.model(fake(net, last, -4.0, 4.0))

    samples = [np.random.default_rng(k).uniform(-1.5, 1.5, (1, 8)).astype(np.float32) for k in range(40)]
    result = zeropoint.quantize(network(True), "int8", target="integer")
    found, wanted = (outputs_of(one, [[row] for row in samples])[0] for one in (result.model, network(False)))
    assert np.abs(found - wanted).max() <= 8.1 / 255  # a step of the output
    rectified = [t for t in result.model.main.tensors if t.params and t.params.zero_points == (128 - 2**bits,)]
    assert rectified
    weights = next(op for op in result.model.main.ops if op.kind == "FULLY_CONNECTED").inputs[1]
    assert len(np.unique(weights.data)) <= 2**bits - 1


def test_pairs_of_uint4_are_weights_without_a_zero_point():
    """What TensorFlow's converter makes of `fake_quant(num_bits=4, narrow_range=True)`: zero is at 8."""
    net = Net()
    x = fake(net, net.input(1, 8), -1.0, 1.0)
    kernel = dequantized(net, "w", normal(6, 8, spread=0.4), one_scale(0.1, 8, DType.UINT4))
    model = net.model(fake(net, dense(net, x, kernel), -4.0, 4.0))
    result = zeropoint.quantize(model, "int8", target="integer")
    weights = next(op for op in result.model.main.ops if op.kind == "FULLY_CONNECTED").inputs[1]
    assert weights.params.zero_points == (0,)
    assert weights.params.scales == (float(np.float32(0.1)),)
    assert len(np.unique(weights.data)) <= 16
