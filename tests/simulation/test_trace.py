"""A model simulated is the model run: every tensor of it, in every mode and with every set of kernels."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from zeropoint.affine import QuantParams, quantize
from zeropoint.demo import digits as digits_data
from zeropoint.dtypes import DType
from zeropoint.errors import InvalidModel, InvalidRecipe, InvalidSample, UnsupportedOp
from zeropoint.graph import Model
from zeropoint.ops.execution import execution_of
from zeropoint.runtime import Runner
from zeropoint.simulation.rules import KERNEL_SETS
from zeropoint.simulation.trace import RUNTIMES

from .. import build

MODES = ("int8", "int16x8")


@pytest.fixture(scope="module")
def images() -> list[np.ndarray]:
    return [image[None] for image in digits_data()["calibration"][:20]]


@pytest.fixture(scope="module")
def models(digits, images) -> dict[str, Model]:
    made = {mode: zeropoint.quantize(digits, mode, data=images, effort="quick").model for mode in MODES}
    made["uint8"] = zeropoint.quantize(digits, data=images, effort="quick", input_type="uint8").model
    return made


def differences(model: Model, sample: np.ndarray, kernels: str) -> dict[str, float]:
    """By how much tensors differ from what the runtime has, where they do."""
    graph = model.main
    made = [t for op in graph.ops for t in op.outputs]
    runner = Runner.exposing(model, graph, made, kernels=RUNTIMES[kernels])
    trace = zeropoint.simulate(model, sample, kernels)
    found = runner.values([trace[graph.inputs[0].name]])
    off = {t.name: float(np.abs(trace.values[t].astype(np.float64) - v).max()) for t, v in found.items()}
    return {name: distance for name, distance in off.items() if distance}


@pytest.mark.parametrize("kernels", KERNEL_SETS)
@pytest.mark.parametrize("mode", [*MODES, "uint8"])
def test_every_tensor_is_what_the_runtime_has(models, images, mode, kernels):
    for image in images[:3]:
        assert differences(models[mode], image, kernels) == {}


def test_weights_of_four_bits(digits, images):
    made = zeropoint.quantize(digits, "int8", data=images, effort="quick", weight_bits=4).model
    assert any(t.dtype is DType.INT4 for t in made.main.tensors)
    assert differences(made, images[0], "reference") == {}


@pytest.mark.parametrize("kernels", ["reference", "xnnpack"])
@pytest.mark.parametrize("bits", [8, 4])
def test_weights_alone_in_integers(digits, images, bits, kernels):
    made = zeropoint.quantize(digits, "dynamic", weight_bits=bits).model
    assert any(execution_of(op) == "hybrid" for op in made.main.ops)
    for image in images[:3]:
        assert differences(made, image, kernels) == {}


def test_tensorflow_lite_micro_has_no_kernels_for_that(digits, images):
    made = zeropoint.quantize(digits, "dynamic").model
    with pytest.raises(UnsupportedOp, match=r"CONV_2D \(hybrid\) cannot be simulated"):
        zeropoint.simulate(made, images[0], "tflm")


def test_real_numbers_are_quantized_for_a_quantized_input(models, images):
    model = models["uint8"]
    params = model.main.inputs[0].params
    integers = quantize(images[0], params)
    given, by_name = zeropoint.simulate(model, images[0]), zeropoint.simulate(model, {"image": integers})
    np.testing.assert_array_equal(given.row[0], integers)
    np.testing.assert_array_equal(given.outputs[0], by_name.outputs[0])


def test_tensors_are_found_by_a_part_of_their_name(models, images):
    trace = zeropoint.simulate(models["int8"], images[0])
    whole = next(t.name for op in models["int8"].main.ops for t in op.outputs if ";" in t.name)
    assert trace.tensor(whole.split(";")[0]) is trace.tensor(whole)
    with pytest.raises(InvalidModel, match="no tensor called 'nothing'"):
        trace["nothing"]


# Bad input.


def test_a_float_model_has_no_integers(digits, images):
    with pytest.raises(InvalidModel, match="quantize it first"):
        zeropoint.simulate(digits, images[0])


def test_unknown_kernels(models, images):
    with pytest.raises(InvalidRecipe, match="choose from reference, xnnpack, tflm"):
        zeropoint.simulate(models["int8"], images[0], "neon")


def test_a_sample_that_does_not_fit(models):
    with pytest.raises(InvalidSample, match="does not fit"):
        zeropoint.simulate(models["int8"], np.zeros((1, 3, 3, 1), np.float32))


def unsimulated() -> Model:
    """int8 through REDUCE_PROD, whose kernels the op table does not trust."""
    scale = QuantParams((0.5,), (0,), DType.INT8)
    x, y = (build.act(name, 1, size, dtype=DType.INT8, params=scale) for name, size in (("x", 4), ("y", 1)))
    model = build.one_op("REDUCE_PROD", [x, build.const("axes", [1])], y, options="ReducerOptions", keepDims=True)
    model.main.ops[0].version = 2
    return model


def test_ops_without_a_simulation_are_named_and_can_be_left_to_litert():
    model, sample = unsimulated(), np.array([[2, 2, 2, 4]], np.int8)
    with pytest.raises(UnsupportedOp, match=r"REDUCE_PROD \(integer\) cannot be simulated: 'y'.*float_rest=True"):
        zeropoint.simulate(model, sample)
    trace = zeropoint.simulate(model, sample, float_rest=True)
    np.testing.assert_array_equal(trace["y"], Runner(model, kernels="reference").run([sample])[0])
    assert trace.explain("y", (0, 0)).note.startswith("computed by LiteRT")
