"""Strided convolutions of few channels read neighbouring pixels as one; the integers they compute are the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import zeropoint
from zeropoint.graph import Model
from zeropoint.graph.edit import copy_model, drop_unused
from zeropoint.ops.layout import SAME, VALID
from zeropoint.plan.space_to_depth import fold_pixels
from zeropoint.recipe import FLOAT, INT8, Recipe, Rule, preset
from zeropoint.targets import CPU, Rewrite

from ..nets import Net, kinds, normal, outputs_of, samples_for

PLAIN = replace(CPU, rewrites=tuple(r for r in CPU.rewrites if r is not Rewrite.SPACE_TO_DEPTH))


def stem(
    stride: int = 2, taps: int = 3, channels: int = 3, width: int = 24, *, padding: int = SAME, pads: int = 0, **options
) -> Model:
    """A network that begins with a strided convolution, after `pads` zeros on each side."""
    net, height = Net(), 11
    x = net.input(1, height, width, channels)
    if pads:
        shape = (1, height + 2 * pads, width + 2 * pads, channels)
        x = net("PAD", [x, [[0, 0], [pads, pads], [pads, pads], [0, 0]]], shape)
    reach = taps - 1 if padding == VALID else 0
    sides = [-(-(n - reach) // stride) for n in x.shape[1:3]]
    strides = {"strideH": stride, "strideW": stride, "padding": padding, **options}
    operands = [x, normal(8, taps, taps, channels), normal(8, seed=1)]
    return net.model(net("CONV_2D", operands, (1, *sides, 8), "stem", fusedActivationFunction=1, **strides))


def folded(model: Model, recipe: Recipe | None = None) -> Model:
    copy = copy_model(model)
    fold_pixels(copy.main, recipe or preset("int8"))
    drop_unused(copy.main)
    return copy


@pytest.mark.parametrize(("padding", "pads"), [(SAME, 0), (VALID, 0), (VALID, 1), (VALID, 2)])
@pytest.mark.parametrize(("stride", "taps"), [(2, 3), (2, 4), (2, 5), (2, 7), (3, 7), (4, 4), (4, 7)])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_model_computes_the_same(stride: int, taps: int, channels: int, padding: int, pads: int) -> None:
    model = stem(stride, taps, channels, padding=padding, pads=pads)
    made = folded(model)
    assert "RESHAPE" in kinds(made) or pads  # with padding, the width that remains may not be whole
    wanted, got = (outputs_of(m, samples_for(model, 3)) for m in (model, made))
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_padding_of_frameworks_is_taken_over() -> None:
    """TensorFlow's SAME stays as it is; PyTorch's zeros on both sides become one padding of groups."""
    assert kinds(folded(stem())) == ["RESHAPE", "CONV_2D"]
    made = folded(stem(padding=VALID, pads=1))
    assert kinds(made) == ["RESHAPE", "PAD", "CONV_2D"]
    assert np.array_equal(made.main.ops[1].inputs[1].data, [[0, 0], [1, 1], [1, 0], [0, 0]])


@pytest.mark.parametrize("shape", [(), (1, 6), (1, 6, 12)])
def test_a_file_that_states_another_rank_stays_as_it_is(shape: tuple[int, ...]) -> None:
    """LiteRT computes shapes anew, so a damaged file may state any for the output."""
    model = stem()
    model.main.outputs[0].shape = shape
    assert kinds(folded(model)) == ["CONV_2D"]


@pytest.mark.parametrize("pads", [0, 1])
def test_integers_are_the_same_bit_for_bit(pads: int) -> None:
    model = stem(padding=VALID if pads else SAME, pads=pads)
    data = samples_for(model, 8)
    made = [zeropoint.quantize(model, data=data, effort="quick", target=target) for target in (CPU, PLAIN)]
    assert [kinds(each.model).count("RESHAPE") for each in made] == [1, 0]
    one, other = (outputs_of(each.model, data) for each in made)
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "model",
    [stem(stride=1), stem(channels=8), stem(width=25), stem(taps=1), stem(padding=VALID, dilationWFactor=2, taps=1)],
)
def test_others_stay_as_they_are(model: Model) -> None:
    """Where kernels would take no fewer steps, and where pixels do not make whole groups."""
    assert kinds(folded(model)) == ["CONV_2D"]


def test_a_padding_that_others_read_stays() -> None:
    model = stem(padding=VALID, pads=2)
    graph = model.main
    graph.outputs.append(graph.ops[0].outputs[0])
    made = folded(model)
    assert kinds(made)[0] == "PAD"
    wanted, got = (outputs_of(m, samples_for(model, 3)) for m in (model, made))
    for one, other in zip(wanted, got, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-4)


def test_rules_that_name_the_layer_come_first() -> None:
    for scheme in (FLOAT, INT8):
        assert kinds(folded(stem(), preset("int8").then(Rule(scheme, name="stem")))) == ["CONV_2D"]
    for recipe in (preset("dynamic"), preset("int16x8"), preset("int8", 4)):
        assert kinds(folded(stem(), recipe)) == ["CONV_2D"]


def test_weights_that_are_fixed_are_left_alone() -> None:
    made = copy_model(stem())
    fold_pixels(made.main, preset("int8"), {made.main.ops[0].inputs[1]})
    assert kinds(made) == ["CONV_2D"]


def test_batches_of_any_size_stay_possible() -> None:
    model = stem()
    for tensor in (model.main.inputs[0], model.main.outputs[0]):
        tensor.shape_signature = (-1, *tensor.shape[1:])
    data = samples_for(model, 8)
    made = zeropoint.quantize(model, data=data, effort="quick").model
    assert "RESHAPE" in kinds(made)
    together = [np.concatenate([x for (x,) in data[:3]])]
    each = np.concatenate([outputs_of(made, [sample])[0] for sample in data[:3]])
    np.testing.assert_array_equal(outputs_of(made, [together])[0].reshape(each.shape), each)


def test_all_steps_take_what_it_makes() -> None:
    """In the middle of a network, with channels that equalization would like to scale."""
    net = Net()
    factors = np.array([1, 100, 1, 1], np.float32)
    x = net.conv(net.input(1, 16, 16, 8), normal(4, 3, 3, 8, spread=0.2) * factors[:, None, None, None], activation=1)
    operands = [x, normal(16, 3, 3, 4, seed=1) / factors, normal(16, seed=2)]
    x = net("CONV_2D", operands, (1, 8, 8, 16), "strided", fusedActivationFunction=1, strideH=2, strideW=2)
    model = net.model(net.conv(x, normal(4, 1, 1, 16, seed=3)))
    result = zeropoint.quantize(model, data=samples_for(model, 24), effort="high")
    assert "RESHAPE" in kinds(result.model)
    assert result.verdict.snr > 20
