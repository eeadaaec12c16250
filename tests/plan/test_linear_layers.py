"""Convolutions without an activation between them become one; the model computes the same."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from zeropoint.calibration import Range, Ranges
from zeropoint.graph import Model
from zeropoint.graph.edit import copy_model, drop_unused
from zeropoint.graph.model import Tensor
from zeropoint.plan.linear_layers import merge_linear_layers
from zeropoint.recipe import FLOAT, INT8, Recipe, Rule, preset

from ..nets import Net, kinds, normal, outputs_of, samples_for


def bottleneck(
    inner: int = 8, outer: int = 6, size: int = 1, *, activation: int = 0, biases: tuple[bool, bool] = (True, True)
) -> Net:
    """A network that ends in two convolutions, from 8 channels to `inner` and on to `outer`."""
    net = Net()
    x = net.input(1, 9, 7, 8)
    for k, (shape, has_bias) in enumerate(zip(((inner, size, size, 8), (outer, 1, 1, inner)), biases, strict=True)):
        name, bias = ("narrow", "wide")[k], normal(shape[0], seed=k + 2)
        x = net.conv(x, normal(*shape, seed=k), bias, name=name, activation=(activation, 1)[k])
        net.ops[-1].inputs = net.ops[-1].inputs[: 3 if has_bias else 2]
    return net


def last(net: Net) -> Tensor:
    return net.ops[-1].outputs[0]


def merged(model: Model, recipe: Recipe | None = None) -> Model:
    copy = copy_model(model)
    merge_linear_layers(copy.main, recipe or preset("int8"))
    drop_unused(copy.main)
    return copy


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("biases", [(True, True), (False, True), (True, False)])
def test_the_model_computes_the_same(size: int, biases: tuple[bool, bool]) -> None:
    net = bottleneck(size=size, biases=biases)
    for op in net.ops:  # a kernel without a bias cannot be run in LiteRT; what is merged has one
        op.inputs = [*op.inputs, build_zeros(op.outputs[0])][:3]
    model = net.model(last(net))
    wanted = outputs_of(model, samples_for(model, 4))
    for op, has_bias in zip(model.main.ops, biases, strict=True):
        op.inputs = op.inputs[:3] if has_bias else op.inputs[:2]
    drop_unused(model.main)
    made = merged(model)
    assert kinds(made) == ["CONV_2D"]
    np.testing.assert_allclose(outputs_of(made, samples_for(model, 4)), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1e20, 1e-25])
def test_products_that_float32_does_not_hold_are_not_made(size: float) -> None:
    """They would be infinite, or 0 where the input makes up for it."""
    net = Net()
    x = net.input(1, 9, 7, 8)
    for k in range(2):
        x = net.conv(x, normal(8, 1, 1, 8, seed=k) * np.float32(size), np.zeros(8, np.float32), name=f"layer{k}")
    model = net.model(last(net))
    assert kinds(merged(model)) == ["CONV_2D", "CONV_2D"]
    samples = [(row[0] / np.float32(size),) for row in samples_for(model, 4)]
    made = zeropoint.quantize(model, "int8", data=samples, effort="quick")
    (exact,), (found,) = outputs_of(model, samples), outputs_of(made.model, samples)
    assert np.abs(exact - found).max() <= 0.05 * np.abs(exact).max()


def build_zeros(output: Tensor) -> Tensor:
    return Tensor.constant(f"{output.name}/zeros", np.zeros(output.shape[-1], np.float32), output.dtype)


def test_strides_are_those_of_the_first() -> None:
    net = Net()
    shape = (1, 4, 4, 8)
    x = net("CONV_2D", [net.input(1, 8, 8, 4), normal(8, 3, 3, 4), normal(8)], shape, strideH=2, strideW=2)
    model = net.model(net.conv(x, normal(8, 1, 1, 8, seed=1), normal(8, seed=2)))
    made = merged(model)
    assert [(op.option("strideH"), op.option("strideW")) for op in made.main.ops] == [(2, 2)]
    wanted, got = (outputs_of(m, samples_for(model, 4)) for m in (model, made))
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_a_chain_becomes_one() -> None:
    net = bottleneck(outer=8)
    net.ops[-1].options = net.ops[0].options
    assert kinds(merged(net.model(net.conv(last(net), normal(8, 1, 1, 8, seed=9))))) == ["CONV_2D"]


def test_others_stay_as_they_are() -> None:
    """Bottlenecks, which have fewer multiplications, layers with an activation, and what others read or return."""
    read, returned, strided, wide = bottleneck(), bottleneck(), bottleneck(), bottleneck()
    others = [
        (net := bottleneck(inner=2, outer=8)).model(last(net)),
        (net := bottleneck(activation=1)).model(last(net)),
        read.model(last(read), read("RELU", [read.ops[0].outputs[0]])),
        returned.model(last(returned), returned.ops[0].outputs[0]),
        strided.model(strided("CONV_2D", [last(strided), normal(2, 1, 1, 6), normal(2)], (1, 5, 4, 2), **TWO)),
        wide.model(wide.conv(last(wide), normal(2, 3, 3, 6))),
    ]
    assert [len(merged(model).main.ops) for model in others] == [2, 2, 3, 2, 2, 2]


TWO = {"strideH": 2, "strideW": 2}


def test_rules_that_name_a_layer_come_first() -> None:
    net = bottleneck()
    model = net.model(last(net))
    for name in ("narrow", "wide"):
        for scheme in (FLOAT, INT8):
            assert len(merged(model, preset("int8").then(Rule(scheme, name=name))).main.ops) == 2
    for mode in ("dynamic", "int16x8"):
        assert len(merged(model, preset(mode)).main.ops) == 2


def test_what_is_fixed_is_left_alone() -> None:
    for slot in (0, 1):
        net = bottleneck()
        copy = net.model(last(net))
        merge_linear_layers(copy.main, preset("int8"), {copy.main.ops[1].inputs[slot]})
        assert len(copy.main.ops) == 2


def test_it_is_done_for_cpu_unless_the_range_between_was_given() -> None:
    net = bottleneck()
    model, asked = net.model(last(net)), {"effort": "quick"}
    data = samples_for(model, 8)
    ranges = Ranges({"narrow": Range(-30.0, 30.0)})
    once = zeropoint.quantize(model, data=data, **asked)
    twice = [zeropoint.quantize(model, data=data, target="integer", **asked)]
    twice.append(zeropoint.quantize(model, data=data, ranges=ranges, **asked))
    assert kinds(once.model).count("CONV_2D") == 1
    assert [kinds(each.model).count("CONV_2D") for each in twice] == [2, 2]
    assert once.verdict.snr > twice[0].verdict.snr  # one rounding less
