"""Other scales for a model that is quantized already."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from zeropoint.affine import dequantize
from zeropoint.calibration import Range, Ranges, ranges_from
from zeropoint.errors import InvalidStats
from zeropoint.graph import Model
from zeropoint.rescaling import rescale

from .nets import Net, normal, outputs_of, samples_for


def network() -> Model:
    """A convolution, what only moves its output, another one, and a softmax."""
    net = Net()
    hidden = net.conv(net.input(1, 4, 4, 2), normal(3, 3, 3, 2), normal(3))
    flat = net("RESHAPE", [hidden, np.int32([1, 48])], (1, 48))
    logits = net.dense(flat, normal(4, 48), normal(4))
    return net.model(net("SOFTMAX", [logits], (1, 4), "SoftmaxOptions", beta=1.0))


FLOAT = network()
SAMPLES = samples_for(FLOAT, 8)
QUANTIZED = zeropoint.quantize(FLOAT, "int8", SAMPLES, target="int8", input_type="int8", output_type="int8").model
CONV, MOVED, DENSE, SOFTMAX = QUANTIZED.main.ops


def test_a_wider_range_is_passed_on_to_what_is_tied_and_to_biases():
    name = CONV.outputs[0].name
    made = rescale(QUANTIZED, Ranges({name: Range(-40, 40, "here")}))
    conv, moved, dense, _ = made.model.main.ops
    assert conv.outputs[0].params == moved.outputs[0].params
    assert conv.outputs[0].params.scale == pytest.approx(80 / 255)
    bias, old = dense.inputs[2], DENSE.inputs[2]
    assert bias.params.scales == pytest.approx(
        np.array(dense.inputs[1].params.scales) * conv.outputs[0].params.scale, rel=1e-6
    )
    np.testing.assert_allclose(
        dequantize(bias.data, bias.params), dequantize(old.data, old.params), atol=max(bias.params.scales)
    )
    assert {c.why for c in made.changes} == {"given", f"tied to '{name}'", "follows from data and weights"}
    assert "->" in str(made.changes[0])
    (got,), (wanted,) = outputs_of(made.model, SAMPLES), outputs_of(QUANTIZED, SAMPLES)
    np.testing.assert_allclose(got, wanted, atol=0.1)


def test_weights_are_rounded_again():
    name = CONV.inputs[1].name
    made = rescale(QUANTIZED, Ranges({name: Range(-0.5, 0.4, "here")}))
    weights = made.model.main.ops[0].inputs[1]
    old = dequantize(CONV.inputs[1].data, CONV.inputs[1].params)
    assert weights.params.scales == pytest.approx((0.5 / 127,) * 3)
    np.testing.assert_allclose(dequantize(weights.data, weights.params), np.clip(old, -0.5, 0.4), atol=0.51 * 0.5 / 127)
    assert [c.why for c in made.changes].count("follows from data and weights") == 1


def test_the_model_that_was_given_is_left_alone():
    before = zeropoint.to_bytes(QUANTIZED)
    rescale(QUANTIZED, Ranges({CONV.outputs[0].name: Range(-40, 40, "here")}))
    assert zeropoint.to_bytes(QUANTIZED) == before


def test_outputs_may_have_another_scale():
    made = rescale(QUANTIZED, Ranges({QUANTIZED.main.inputs[0].name: Range(-9, 9, "here")}))
    assert made.model.main.inputs[0].params.scale == pytest.approx(18 / 255)


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        (CONV.inputs[2].name, {"min": -1, "max": 1}, "is a bias"),
        (SOFTMAX.outputs[0].name, {"min": 0, "max": 2}, "SOFTMAX, whose kernel has .* built in"),
        (MOVED.inputs[1].name, {"min": 0, "max": 2}, "has no scale to change"),
        ("none", {"min": 0, "max": 2}, "the model does not have"),
        (CONV.outputs[0].name, {"scale": 1, "zero_point": 0, "type": "int16"}, "is int8, and is given .* int16"),
        (CONV.inputs[1].name, {"min": [-1, -1], "max": [1, 1]}, "2 channels; here it has 3"),
    ],
)
def test_what_cannot_be_changed(name, values, says):
    with pytest.raises(InvalidStats, match=says):
        rescale(QUANTIZED, ranges_from({name: values}, "here"))


# The command.


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.tflite"
    path.write_bytes(zeropoint.to_bytes(QUANTIZED))
    return path


def test_the_command_lists_what_changed(run, file, tmp_path):
    name, out = CONV.outputs[0].name, tmp_path / "out.tflite"
    code, printed, err = run("edit", file, "-o", out, "--set", f"{name}: min=-40, max=40")
    assert (code, err) == (0, "")
    assert name in printed
    assert "tensors changed" in printed
    assert zeropoint.load(out).main.ops[0].outputs[0].params.scale == pytest.approx(80 / 255)
    assert run("edit", file, "-o", out, "--set", f"{name}: min=-40, max=40")[0] == 2  # it exists


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "say what to change"),
        (("--set", "min=1"), "is not of the form"),
        (("--set", "a: min"), "is not of the form"),
        (("--set", "a: min=1, max=low"), "could not convert"),
        (("--set", "a: min=-1, max=1"), "the model does not have"),
    ],
)
def test_mistakes_at_the_keyboard(run, file, tmp_path, options, says):
    code, _, err = run("edit", file, "-o", tmp_path / "out.tflite", *options)
    assert code == 2
    assert says in " ".join(err.split())
    assert not (tmp_path / "out.tflite").exists()
