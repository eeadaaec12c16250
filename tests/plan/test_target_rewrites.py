"""Models that targets refuse as they are: rewritten they compute the same, and the targets' tools take them."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from zeropoint.calibration import calibrate
from zeropoint.dtypes import DType
from zeropoint.errors import InvalidModel
from zeropoint.graph import Model, Tensor
from zeropoint.graph.edit import copy_model
from zeropoint.improve.pipeline import run
from zeropoint.ops import OPS
from zeropoint.ops.layout import VALID
from zeropoint.plan.request import Request
from zeropoint.plan.target_rewrites import fit_to_target
from zeropoint.recipe import preset
from zeropoint.runtime import Session
from zeropoint.runtime.tflm import MicroSession
from zeropoint.runtime.vela import compile_model
from zeropoint.targets import INTEGER, TFLM, Target, TypedOp, target_named
from zeropoint.tflite import load, to_bytes

from .. import build
from ..conformance.samples import SAMPLES
from ..nets import Net, kinds, normal, samples_for

ETHOS = target_named("ethos-u55-128")


def quantized(model: Model, data: list, target: Target, mode: str = "int8", bits: int = 8) -> Model:
    request = Request(preset(mode, bits), calibrate(model, data), effort="quick", target=target)
    return run(model, request).model


def rows(*shape: int, count: int = 8) -> list:
    rng = np.random.default_rng(0)
    return [(rng.uniform(-2, 3, shape).astype(np.float32),) for _ in range(count)]


def flatten_by_shape() -> Model:
    """Reshapes to [batch, 4]: the batch is read from the input's shape, which is open."""
    x, y, shape = build.act("x", 1, 2, 2), build.act("y", 1, 4), build.act("shape", 3, dtype=DType.INT32)
    batch, sizes = build.act("batch", dtype=DType.INT32), build.act("sizes", 2, dtype=DType.INT32)
    relu = build.act("relu", 1, 2, 2)
    x.shape_signature, relu.shape_signature, y.shape_signature = (-1, 2, 2), (-1, 2, 2), (-1, 4)
    first = [build.const(name, np.array([k], np.int32)) for name, k in (("begin", 0), ("end", 1), ("step", 1))]
    four = build.const("four", np.array(4, np.int32))
    ops = [
        build.op("RELU", [x], relu),
        build.op("SHAPE", [relu], shape, options="ShapeOptions", outType=2),
        build.op("STRIDED_SLICE", [shape, *first], batch, options="StridedSliceOptions", shrinkAxisMask=1),
        build.op("PACK", [batch, four], sizes, options="PackOptions", valuesCount=2),
        build.op("RESHAPE", [relu, sizes], y, options="ReshapeOptions"),
    ]
    return Model([build.graph("main", [x], [y], *ops)])


def test_shapes_are_computed_once():
    model = flatten_by_shape()
    wanted = Session(model).run(rows(1, 2, 2)[0])
    fitted = copy_model(model)
    assert fit_to_target(fitted, TFLM, OPS) == {}
    assert [op.kind for op in fitted.main.ops] == ["RELU", "RESHAPE"]
    assert fitted.main.ops[1].inputs[1].data.tolist() == [1, 4]
    assert all(t.shape_signature is None for t in fitted.main.tensors)
    np.testing.assert_array_equal(Session(fitted).run(rows(1, 2, 2)[0])[0], wanted[0])
    untouched = copy_model(model)
    fit_to_target(untouched, target_named("integer"), OPS)
    assert [op.kind for op in untouched.main.ops] == [op.kind for op in model.main.ops]


def test_open_images_are_refused():
    model = flatten_by_shape()
    model.main.inputs[0].shape_signature = (-1, -1, 2)
    with pytest.raises(InvalidModel, match=r"'x' has dynamic dimensions \[-1, -1, 2\], and tflm needs fixed ones"):
        fit_to_target(model, TFLM, OPS)


def clamped(kind: str, is_fused: bool) -> Model:
    x, y = build.act("x", 1, 16), build.act("y", 1, 16)
    total = build.act("sum", 1, 16)
    bias = build.const("b", np.linspace(-0.1, 0.1, 16, dtype=np.float32))
    before = build.op("ADD", [x, bias], total, options="AddOptions") if is_fused else build.op("TANH", [x], total)
    return Model([build.graph("main", [x], [y], before, build.op(kind, [total], y))])


@pytest.mark.parametrize("kind", ["RELU_0_TO_1", "RELU_N1_TO_1"])
@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize("mode", ["int8", "int16x8"])
def test_clamps_become_ops_that_a_microcontroller_has(kind, is_fused, mode):
    model, data = clamped(kind, is_fused), rows(1, 16)
    made = quantized(model, data, TFLM, mode)
    assert kind not in {op.kind for op in made.main.ops}
    assert all(t.is_quantized for op in made.main.ops if op.kind != "DEQUANTIZE" for t in op.outputs)
    session, exact = MicroSession(to_bytes(made)), Session(model)
    steps = 255 if mode == "int8" else 32767
    for row in data:
        found, wanted = session.run(row)[0], exact.run(row)[0]
        np.testing.assert_allclose(found, wanted, atol=5.2 / steps)  # inputs over [-2, 3] are rounded as well


def test_selections_by_element_become_the_newer_op():
    whole, by_row = (s for s in SAMPLES if s.kind == "SELECT" and s.name in ("elements", "rows"))
    fitted = [s.model() for s in (whole, by_row)]
    for model in fitted:
        fit_to_target(model, TFLM, OPS)
    assert [m.main.ops[0].kind for m in fitted] == ["SELECT_V2", "SELECT"]
    made = quantized(whole.model(), whole.draw(4), TFLM)
    wanted, found = Session(made).run(whole.draw(1)[0]), MicroSession(to_bytes(made)).run(whole.draw(1)[0])
    np.testing.assert_allclose(found[0], wanted[0])


def test_lstm_layers_name_all_inputs():
    sample = next(s for s in SAMPLES if s.kind == "UNIDIRECTIONAL_SEQUENCE_LSTM" and s.name == "plain")
    made = quantized(sample.model(), sample.draw(8), TFLM)
    (lstm,) = [op for op in made.main.ops if "LSTM" in op.kind]
    assert len(lstm.inputs) == 24
    session, litert = MicroSession(to_bytes(made)), Session(made)
    unit = lstm.outputs[0].params.scale
    for row in sample.draw(3):
        session.reset()
        litert.reset()
        np.testing.assert_allclose(session.run(row)[0], litert.run(row)[0], atol=1.01 * unit)
    assert [left.kind for left in compile_model(to_bytes(made), ETHOS.name).left_to_cpu] == ["DEQUANTIZE", "QUANTIZE"]


def test_narrow_weights_are_as_narrow_as_the_target_takes(digits):
    model = load(digits)
    data = [(np.random.default_rng(k).uniform(0, 1, model.main.inputs[0].shape).astype(np.float32),) for k in range(4)]
    micro, npu = (quantized(model, data, target, bits=4) for target in (TFLM, ETHOS))
    held = {op.kind: op.inputs[1].dtype for op in micro.main.ops if op.kind in ("CONV_2D", "FULLY_CONNECTED")}
    assert held == {"CONV_2D": DType.INT4, "FULLY_CONNECTED": DType.INT8}
    MicroSession(to_bytes(micro)).run(data[0])
    assert not any(t.dtype is DType.INT4 for t in npu.main.tensors)
    compile_model(to_bytes(npu), ETHOS.name)


def test_it_is_said_who_takes_no_narrow_weights(digits):
    model = load(digits)
    data = [(np.random.default_rng(k).uniform(0, 1, model.main.inputs[0].shape).astype(np.float32),) for k in range(4)]
    request = Request(preset("int8", 4), calibrate(model, data), effort="quick", target=ETHOS)
    notes = [note for note in run(model, request).notes if "int8 weights" in note]
    assert {note.partition(": ")[2] for note in notes if "CONV_2D" in note.split()} == {
        "ethos-u55-128 has no int4 kernel for it"
    }


def test_biases_are_as_large_as_the_target_takes():
    """A channel with vanishing weights has a scale that makes a huge integer of its bias."""
    weights = np.ones((2, 1, 1, 1), np.float32) * np.array([1, 1e-8], np.float32).reshape(2, 1, 1, 1)
    x, y = build.act("x", 1, 4, 4, 1), build.act("y", 1, 4, 4, 2)
    operands = [x, build.const("w", weights), build.const("b", np.float32([0.1, 3]))]
    model = build.one_op("CONV_2D", operands, y, options="Conv2DOptions", strideW=1, strideH=1, padding=1)
    plain, fitted = (quantized(model, rows(1, 4, 4, 1), t, "int16x8") for t in (target_named("integer"), ETHOS))
    for made in (plain, fitted):
        (layer,) = [op for op in made.main.ops if op.kind == "CONV_2D"]
        assert ETHOS.verdict(TypedOp.of_file(layer)).speed == ("slow" if made is plain else "fast")
        on_cpu = [left.kind for left in compile_model(to_bytes(made), ETHOS.name).left_to_cpu]
        assert ("CONV_2D" in on_cpu) is (made is plain)


def strided(net: Net, x: Tensor) -> Tensor:
    operands = [x, normal(8, 3, 3, 4, seed=1), normal(8, seed=2)]
    return net("CONV_2D", operands, (1, 8, 8, 8), strideH=2, strideW=2)


def linear(net: Net, x: Tensor) -> Tensor:
    return net.conv(net.conv(x, normal(4, 3, 3, 4, seed=1)), normal(4, 1, 1, 4, seed=2))


def upsampled(net: Net, x: Tensor) -> Tensor:
    operands = [np.array([1, 32, 32, 1], np.int32), normal(1, 2, 2, 4, seed=1), x]
    return net("TRANSPOSE_CONV", operands, (1, 32, 32, 1), strideH=2, strideW=2, padding=VALID)


def joined(net: Net, x: Tensor) -> Tensor:
    parts = [net.conv(x, normal(4, 1, 1, 4, seed=k)) for k in range(6)]
    return net("CONCATENATION", parts, (1, 16, 16, 24), axis=3)


@pytest.mark.parametrize("rest", [strided, linear, upsampled, joined])
def test_layers_that_are_integers_in_the_file_stay_as_they_are(rest):
    """Audio models come with integers from the spectrogram on: only what is before it is quantized. What is rewritten
    there has to have integers as well."""
    net = Net()
    x = net("MUL", [net.input(1, 16, 16, 4), normal(4)], name="front")
    model = net.model(rest(net, net("RELU6", [x])))
    data = samples_for(model, 12)
    given = zeropoint.quantize(model, data=data, effort="quick", target=INTEGER, keep_float="front").model
    layers = [kind for kind in kinds(given) if kind in ("CONV_2D", "TRANSPOSE_CONV")]
    made = zeropoint.quantize(given, data=data, effort="quick", target="cpu")
    assert [kind for kind in kinds(made.model) if kind in ("CONV_2D", "TRANSPOSE_CONV")] == layers
    assert made.verdict.snr > 20
