"""Transposed convolutions of few channels become convolutions whose channels are moved; the model computes the same."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from zeropoint.dtypes import DType
from zeropoint.graph import Model
from zeropoint.graph.edit import copy_model, drop_unused
from zeropoint.graph.model import Tensor
from zeropoint.plan.pixel_shuffle import FEW_CHANNELS, shuffle_pixels
from zeropoint.recipe import FLOAT, INT8, Recipe, Rule, preset

from ..nets import Net, kinds, normal, outputs_of, samples_for


def upsampling(channels: int = 1, kernel: int = 2, stride: int = 2, *, bias: bool = True, activation: int = 0) -> Model:
    net = Net()
    x = net.conv(net.input(1, 6, 10, 8), normal(16, 3, 3, 8, spread=0.2))
    shape = (1, 6 * stride, 10 * stride, channels)
    weights = normal(channels, kernel, kernel, 16, seed=1)
    operands = [np.array(shape, np.int32), weights, x, *([normal(channels, seed=2)] if bias else [])]
    options = {"strideW": stride, "strideH": stride, "fusedActivationFunction": activation}
    y = net("TRANSPOSE_CONV", operands, shape, name="mask", **options)
    net.ops[-1].version = 3
    return net.model(net("LOGISTIC", [y], name="probability"))


def shuffled(model: Model, recipe: Recipe | None = None) -> Model:
    copy = copy_model(model)
    shuffle_pixels(copy.main, recipe or preset("int8"))
    drop_unused(copy.main)
    return copy


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(("bias", "activation"), [(True, 0), (False, 0), (True, 1)])
def test_the_model_computes_the_same(channels: int, size: int, bias: bool, activation: int) -> None:
    model = upsampling(channels, size, size, bias=bias, activation=activation)
    made = shuffled(model)
    assert kinds(made) == ["CONV_2D", "CONV_2D", "DEPTH_TO_SPACE", "LOGISTIC"]
    wanted, got = (outputs_of(m, samples_for(model, 4)) for m in (model, made))
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "model", [upsampling(FEW_CHANNELS + 1), upsampling(kernel=3), upsampling(kernel=1), upsampling(kernel=1, stride=1)]
)
def test_others_stay_as_they_are(model: Model) -> None:
    """Those with enough channels for a kernel, and those whose windows overlap or leave gaps."""
    assert "TRANSPOSE_CONV" in kinds(shuffled(model))


def test_rules_that_name_the_op_come_first() -> None:
    for scheme in (FLOAT, INT8):
        assert "TRANSPOSE_CONV" in kinds(shuffled(upsampling(), preset("int8").then(Rule(scheme, name="mask"))))
    for mode in ("dynamic", "int16x8"):
        assert "TRANSPOSE_CONV" in kinds(shuffled(upsampling(), preset(mode)))


def test_it_is_done_for_cpu_alone_and_ranges_end_where_the_sigmoid_does() -> None:
    model = upsampling()
    wide = next(op for op in model.main.ops if op.kind == "TRANSPOSE_CONV")
    weights = wide.inputs[1]
    assert weights is not None
    wide.inputs[1] = Tensor.constant("wide", np.asarray(weights.data) * 100, DType.FLOAT32)
    model.main.tensors.append(wide.inputs[1])
    drop_unused(model.main)
    made = {
        t: zeropoint.quantize(model, data=samples_for(model, 8), effort="quick", target=t) for t in ("cpu", "integer")
    }
    assert "TRANSPOSE_CONV" in kinds(made["integer"].model)
    assert kinds(made["cpu"].model)[-4:] == ["CONV_2D", "DEPTH_TO_SPACE", "LOGISTIC", "DEQUANTIZE"]
    plan = made["cpu"].plan
    ends = [plan.stored[t].range() for t in plan.graph.tensors if t.name.startswith("mask") and t in plan.stored]
    assert len(ends) == 2
    assert all(-12 < low < high < 12 for low, high in ends)


def test_all_steps_take_what_it_makes() -> None:
    """In the middle of a network, with channels that equalization would like to scale."""
    net = Net()
    x = net.conv(net.input(1, 8, 8, 8), normal(16, 3, 3, 8, spread=0.2), activation=1)
    weights = normal(2, 2, 2, 16, seed=1) * np.array([1, 100], np.float32)[:, None, None, None]
    shape = (1, 16, 16, 2)
    operands = [np.array(shape, np.int32), weights, x, normal(2, seed=2)]
    x = net("TRANSPOSE_CONV", operands, shape, strideW=2, strideH=2, fusedActivationFunction=1)
    net.ops[-1].version = 3
    model = net.model(net.conv(x, normal(4, 3, 3, 2, seed=3) * np.array([100, 1], np.float32)))
    result = zeropoint.quantize(model, data=samples_for(model, 24), effort="high")
    assert "DEPTH_TO_SPACE" in kinds(result.model)
    assert result.verdict.snr > 20


def test_weights_that_are_fixed_are_left_alone() -> None:
    made = copy_model(upsampling())
    weights = next(op for op in made.main.ops if op.kind == "TRANSPOSE_CONV").inputs[1]
    shuffle_pixels(made.main, preset("int8"), {weights})
    assert "TRANSPOSE_CONV" in kinds(made)
