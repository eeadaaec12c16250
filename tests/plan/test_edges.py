"""Where other quantizers are wrong: one test for each."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import zeropoint
from zeropoint.affine import PerTensor, QuantParams, dequantize
from zeropoint.dtypes import DType
from zeropoint.ops import OPS, Rescale
from zeropoint.recipe import INT8, Recipe, Rule
from zeropoint.runtime import Session

from .. import build
from ..nets import KERNELS, Net, constants, conversions, kinds, normal, outputs_of, quantized, samples_for, steps, worst

IMAGE = (1, 6, 6, 4)


# Constants with several readers.


def test_shared_weights_are_stored_once():
    net = Net()
    x, kernel = net.input(*IMAGE), build.const("w", normal(4, 3, 3, 4, spread=0.2))
    model = net.model(net.conv(net.conv(x, kernel), kernel))
    made = quantized(model).model
    assert len(constants(made, "w")) == 1
    first, second = (op for op in made.main.ops if op.kind == "CONV_2D")
    assert first.inputs[1] is second.inputs[1]


def test_shared_weights_are_stored_once_for_each_form():
    net = Net()
    x, kernel = net.input(1, 8), build.const("w", normal(8, 8) * np.float32(2.0 ** np.arange(-4, 4))[:, None])
    model = net.model(net.dense(net.dense(x, kernel, name="first"), kernel, name="second"))
    recipe = Recipe((Rule(INT8), Rule(dataclasses.replace(INT8, granularity=PerTensor()), name="second")))
    made = quantized(model, recipe=recipe, effort="quick").model
    whole, split = sorted(constants(made, "w"), key=lambda t: len(t.params.scales))
    assert (len(whole.params.scales), len(split.params.scales)) == (1, 8)
    assert not np.array_equal(whole.data, split.data)


def test_shared_biases_fit_each_layer():
    """One bias behind two inputs of different scales."""
    net = Net()
    x, kernel, bias = net.input(1, 8), build.const("w", normal(8, 8)), build.const("b", normal(8, seed=1))
    model = net.model(net.dense(net.dense(x, kernel, bias), kernel, bias))
    made = quantized(model).model
    for op in (op for op in made.main.ops if op.kind == "FULLY_CONNECTED"):
        data, weights, bias = (t.params for t in op.inputs)
        assert bias.scales == pytest.approx(np.array(weights.scales) * data.scale, rel=1e-6)


def test_a_constant_is_split_between_ops_that_want_other_parameters():
    """Weights are symmetric, what is added is not, and what a maximum takes has its output's parameters."""
    net = Net()
    x, shared = net.input(4, 4), build.const("c", np.abs(normal(4, 4)))
    model = net.model(net("MAXIMUM", [net("ADD", [net.dense(x, shared), shared]), shared]))
    made = quantized(model).model
    copies = constants(made, "c")
    assert len(copies) == len({t.params for t in copies}) == len({t.name for t in copies}) == 3
    assert all(t.dtype is DType.INT8 for t in copies)


def test_a_constant_stays_float_for_float_readers():
    net = Net()
    x, shared = net.input(4, 4), build.const("c", normal(4, 4))
    model = net.model(net("MUL", [net("ADD", [x, shared]), shared]))
    made = quantized(model, keep_float=["MUL"]).model
    assert sorted(t.dtype.label for t in constants(made, "c")) == ["float32", "int8"]


# Inputs and outputs.


def test_an_output_that_is_used_inside():
    net = Net()
    x = net.input(*IMAGE)
    middle = net.conv(x, normal(4, 3, 3, 4), name="middle")
    model = net.model(middle, net.conv(middle, normal(4, 1, 1, 4, seed=1), name="last"))
    made = quantized(model).model
    assert [t.name for t in made.main.outputs] == ["middle", "last"]
    assert kinds(made).count("CONV_2D") == 2
    assert sorted(conversions(made)) == ["DEQUANTIZE", "DEQUANTIZE", "QUANTIZE"]


@pytest.mark.parametrize(
    ("input_type", "output_type", "count"),
    [("float32", "float32", 2), ("int8", "float32", 2), ("float32", "int8", 1), ("int8", "int8", 0)],
)
def test_an_output_that_is_an_input(input_type, output_type, count):
    net = Net()
    x = net.input(1, 8)
    model = net.model(x, net.dense(x, normal(4, 8)), x)
    made = quantized(model, input_type=input_type, output_type=output_type).model
    assert list(made.signatures[0].inputs) == ["in0"]
    assert made.main.inputs[0].name == "x0"
    assert made.main.outputs[0] is made.main.outputs[2]
    assert len(conversions(made)) == count


@pytest.mark.parametrize("keep", [[], ["ADD"]], ids=["integer", "float"])
@pytest.mark.parametrize("output_type", ["float32", "int8", "uint8"])
def test_an_output_that_is_a_constant(output_type, keep):
    net = Net()
    x, constant = net.input(1, 8), build.const("c", normal(1, 8))
    model = net.model(net.dense(net("ADD", [x, constant]), normal(4, 8)), constant)
    made = quantized(model, output_type=output_type, keep_float=keep).model
    assert [t.dtype.label for t in made.main.outputs] == [output_type] * 2
    assert made.main.outputs[1].name == "c"


def test_an_unused_input():
    net = Net()
    x, _ = net.input(1, 8), net.input(1, 3, name="unused")
    model = net.model(net.dense(x, normal(4, 8)))
    for types in ({}, {"input_type": "int8"}):
        made = quantized(model, **types).model
        assert [t.name for t in made.main.inputs] == ["x0", "unused"]
        assert list(made.signatures[0].inputs) == ["in0", "in1"]


def test_a_batch_of_any_size():
    net = Net()
    x = net.input(1, 8)
    hidden = net.dense(x, normal(6, 8), activation=1)
    model = net.model(net("SOFTMAX", [net.dense(hidden, normal(3, 6))], beta=1.0))
    for tensor in (x, *(t for op in net.ops for t in op.outputs)):
        tensor.shape_signature = (-1, *tensor.shape[1:])
    made = quantized(model).model
    assert all(t.shape_signature[0] == -1 for t in made.main.tensors if not t.is_constant)
    batches = [(normal(n, 8, seed=n),) for n in (1, 2, 5)]
    for batch in batches:
        for kernels in KERNELS:
            assert worst(outputs_of(model, [batch]), outputs_of(made, [batch], kernels)) < 0.03


def test_a_model_without_signatures():
    net = Net()
    model = net.model(net.dense(net.input(1, 8), normal(4, 8)), signed=False)
    made = quantized(model).model
    assert made.signatures == []
    assert kinds(made) == steps("FULLY_CONNECTED")


@pytest.mark.parametrize("types", [{}, {"input_type": "int8", "output_type": "int8"}], ids=["float", "int8"])
def test_integer_inputs_are_left_alone(types):
    net = Net()
    x, indices = net.input(1, 8), net.input(2, dtype=DType.INT32, name="indices")
    model = net.model(net("GATHER", [net.dense(x, normal(4, 8)), indices], (1, 2), axis=1), indices)
    made = quantized(model, **types).model
    assert [t.dtype for t in (made.main.inputs[1], made.main.outputs[1])] == [DType.INT32] * 2
    assert made.main.inputs[1].quantization is None


# Operands of one op.


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
@pytest.mark.parametrize(
    ("kind", "options"), [("ADD", {}), ("MUL", {}), ("SUB", {}), ("CONCATENATION", {"axis": 1}), ("MAXIMUM", {})]
)
def test_an_op_fed_twice_by_one_tensor(kind, options, mode):
    net = Net()
    x = net.input(1, 8)
    model = net.model(net(kind, [x, x], (1, 16) if options else (), **options))
    assert kinds(quantized(model, mode=mode).model) == steps(kind)


OPERANDS = {
    "same shape": normal(4, 8),
    "row": normal(8),
    "column": normal(4, 1),
    "scalar": np.float32(0.7),
    "one element": np.float32([[-1.5]]),
    "zero": np.float32(0),
    "all alike": np.full((4, 8), 3, np.float32),
    "far from zero": normal(8) + 100,
}


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
@pytest.mark.parametrize("kind", ["ADD", "MUL", "SUB"])
@pytest.mark.parametrize("side", [0, 1], ids=["left", "right"])
@pytest.mark.parametrize("constant", OPERANDS.values(), ids=OPERANDS)
def test_a_constant_on_either_side(kind, side, constant, mode):
    net = Net()
    x = net.input(4, 8)
    operands = [constant, x] if side == 0 else [x, constant]
    model = net.model(net(kind, operands, (4, 8)))
    # What is added is stored in 8 bits as well: 100 of it costs half a step of 100 / 255.
    reach = 1 + float(np.abs(constant).max()) / 8
    made = quantized(model, mode=mode, bound=(0.02 if mode == "int8" else 2e-4) * reach).model
    assert kinds(made) == steps(kind)


# Extreme weights.


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
@pytest.mark.parametrize("bias", [None, np.float32([0.5, -0.25, 0.3, 0])], ids=["no bias", "bias"])
@pytest.mark.parametrize("value", [0, 1e-42, 1e-30, -1e-38], ids=str)
@pytest.mark.parametrize("dead", [[1], [0, 1, 2, 3]], ids=["one", "all"])
def test_dead_channels_and_scales_that_underflow(value, bias, dead, mode):
    kernel = normal(4, 8)
    kernel[dead] = value
    net = Net()
    model = net.model(net.dense(net.input(1, 8), kernel, bias, name="y"))
    made = quantized(model, mode=mode, bound=0.02 if mode == "int8" else 2e-3).model
    assert kinds(made) == steps("FULLY_CONNECTED")
    weights = made.main.tensor("y/1")
    assert min(weights.params.scales) >= np.finfo(np.float32).tiny
    assert not weights.data[dead].any() or abs(value) > 1e-31


@pytest.mark.parametrize("kind", ["CONV_2D", "FULLY_CONNECTED"])
def test_a_bias_that_overflows_raises_its_channels_scale(kind):
    kernel, bias = normal(4, 4), np.float32([0.5, 3, -0.5, -2])
    kernel[[1, 3]] *= 1e-9
    net = Net()
    if kind == "CONV_2D":
        model = net.model(net.conv(net.input(*IMAGE), kernel.reshape(4, 1, 1, 4), bias, name="y"))
    else:
        model = net.model(net.dense(net.input(1, 4), kernel, bias, name="y"))
    result = quantized(model, bound=0.01)
    (repair,) = result.repairs
    assert repair.tensor.name == "y/2"
    assert "channel 1, 3" in repair.text
    stored = result.model.main.tensor("y/2")
    assert np.abs(stored.data.astype(np.int64)).max() <= 2**30
    assert dequantize(stored.data, stored.params) == pytest.approx(bias, abs=0.05)  # corrected for rounded weights


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
@pytest.mark.parametrize("shape", [(1, 6), (6, 1), (2, 3), (1, 1, 1, 6)], ids=str)
def test_a_bias_may_have_any_shape(shape, mode):
    """Kernels count its elements."""
    net = Net()
    bias = np.float32([0.5, -0.25, 0.3, 0, 2, -1]).reshape(shape)
    model = net.model(net.dense(net.input(1, 4), normal(6, 4), bias, name="y"))
    assert quantized(model, mode=mode, bound=0.02).skipped == ()


def test_int16_biases_are_wide_enough():
    net = Net()
    kernel, bias = normal(4, 4) * 1e-3, np.float32([0.5, 3000, -0.5, -2e4])
    result = quantized(net.model(net.dense(net.input(1, 4), kernel, bias)), mode="int16x8", bound=1e-4)
    assert result.repairs == ()
    assert result.model.main.tensor("fully_connected/2").dtype is DType.INT64


# Parameters.


def test_what_does_not_fit_fixed_parameters_gets_a_conversion():
    """A probability beside values up to 8: clipping the latter to 1 would be wrong."""
    net = Net()
    x = net.input(1, 8)
    joined = net("CONCATENATION", [net("SOFTMAX", [x], beta=1.0), net("MUL", [x, np.float32(3)])], (1, 16), axis=1)
    made = quantized(net.model(joined)).model
    assert kinds(made).count("QUANTIZE") == 2
    assert made.main.outputs[0].dtype is DType.FLOAT32


@pytest.mark.parametrize("kind", ["SOFTMAX", "LOGISTIC"])
def test_equal_fixed_parameters_need_no_conversion(kind):
    net = Net()
    x = net.input(1, 8)
    softmax = net("SOFTMAX", [x], beta=1.0)
    other = net(kind, [net("MUL", [x, np.float32(-1)])], **({"beta": 1.0} if kind == "SOFTMAX" else {}))
    made = quantized(net.model(net("CONCATENATION", [softmax, other], (1, 16), axis=1))).model
    assert conversions(made) == ["QUANTIZE", "DEQUANTIZE"]
    assert made.main.tensor("concatenation/int8").params == QuantParams((1 / 256,), (-128,), DType.INT8)


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
def test_scales_stay_within_the_limits_of_the_kernels(mode):
    """Differences of large numbers: the output's scale would be too fine beside those of the inputs."""
    net = Net()
    x = net.input(1, 4)
    big = net.dense(x, normal(4, 4) * 1e4, np.float32([1e7] * 4), name="big")
    small = net("SUB", [big, big], name="difference")
    cancelled = net.dense(x, np.zeros((4, 4), np.float32), np.full(4, 1e-6, np.float32), name="tiny")
    model = net.model(small, net("ADD", [cancelled, small]), net.dense(big, normal(4, 4) * 1e-9, name="shrunk"))
    result = quantized(model, mode=mode, bound=np.inf)
    for op in result.model.main.ops:
        spec = OPS.get(op.kind)
        if spec is None or spec.rescale is Rescale.NONE or op.outputs[0].params is None:
            continue
        scales = [max(t.params.scales) for t in op.inputs if t is not None and t.params is not None]
        numerator = scales[0] * scales[1] if spec.rescale is Rescale.PRODUCT else max(scales)
        assert numerator / op.outputs[0].params.scale < spec.rescale_limit(op.outputs[0].dtype)
    assert any("kernel's limits" in r.text for r in result.repairs)
    for kernels in KERNELS:
        Session(result.model, kernels=kernels)


def test_given_ranges_win_over_measured_ones_they_are_tied_to():
    """A concatenation has one scale for all; who prescribes its range means that one."""
    net = Net()
    x = net.input(1, 4, 4, 3)
    joined = net("CONCATENATION", [net("RELU", [x]), net("ABS", [x])], (1, 4, 4, 6), axis=3)
    model = net.model(net("ABS", [joined]))
    given = zeropoint.calibration.Ranges({joined.name: zeropoint.calibration.Range(0.0, 0.5, "test")})
    result = zeropoint.quantize(model, data=samples_for(model, spread=3.0), ranges=given, target="integer")
    held = next(op for op in result.model.main.ops if op.kind == "CONCATENATION").outputs[0]
    assert held.params.scale == pytest.approx(0.5 / 255)


def test_a_constant_beside_a_probability_is_rounded_and_not_cut_off():
    """The range of a sigmoid's integers ends at 0.99609, and 0.99832 is more than half a step beyond."""
    net = Net()
    x = net.input(1, 16)
    above = net("GREATER", [x, np.float32(0.25)], (1, 16))
    above.dtype = DType.BOOL
    chosen = net("SELECT_V2", [above, net("LOGISTIC", [x]), np.float32([0.9983218])], (1, 16))
    model = net.model(net("ABS", [chosen]))
    made = zeropoint.quantize(model, data=samples_for(model), effort="quick", target="integer").model
    (held,) = (t for op in made.main.ops if op.kind == "SELECT_V2" for t in op.inputs if t.is_constant)
    assert abs(dequantize(held.data, held.params).item() - 0.9983218) <= 0.501 * held.params.scale
