"""Weights of 2 to 8 bits: in the type that LiteRT has for them, within their own integers, with the best scales."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from tests.nets import Net, normal, outputs_of, samples_for, worst
from zeropoint.dtypes import DType, Levels
from zeropoint.graph import Model
from zeropoint.plan.weights import weighted_scales
from zeropoint.recipe import WEIGHT_TYPES
from zeropoint.recipe_files import plain_rules, recipe_content, recipe_from

STORED = {2: "int2", 3: "int4", 4: "int4", 5: "int8", 6: "int8", 7: "int8", 8: "int8"}


def network() -> Model:
    net = Net()
    x = net.input(1, 5, 5, 8, name="x")
    hidden = net.conv(x, normal(16, 3, 3, 8, seed=1) / 8, normal(16), name="conv", activation=1)
    mean = net("MEAN", [hidden, np.array([1, 2], np.int32)], (1, 16))
    return net.model(net.dense(mean, normal(10, 16, seed=2) / 4, normal(10), name="dense"))


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("mode", ["int8", "int16x8", "dynamic", "weights"])
def test_weights_use_the_integers_of_their_bits_only(mode: str, bits: int) -> None:
    model, limit = network(), max(1, 2 ** (bits - 1) - 1)
    samples = samples_for(model, 20)
    rule = {"scheme": mode, "weights": f"int{bits}", **({"min_elements": 0} if mode in ("dynamic", "weights") else {})}
    data = samples if mode in ("int8", "int16x8") else None
    result = zeropoint.quantize(model, recipe=recipe_from({"rules": [rule]}), data=data)
    weights = [t for t in result.model.main.tensors if t.is_constant and t.is_quantized and len(t.shape) > 1]
    assert len(weights) == 2
    for tensor in weights:
        assert np.abs(tensor.data).max() == limit
        # Kernels for 2 bits are there for dense layers between floats alone.
        assert tensor.dtype.label in {STORED[bits], "int4" if bits == 2 else STORED[bits]}
    assert worst(outputs_of(model, samples), outputs_of(result.model, samples)) < 4.0 / limit


def test_layers_whose_kernels_have_no_packed_weights_keep_all_8_bits() -> None:
    net = Net()
    x = net.input(1, 5, 5, 8, name="x")
    y = net(
        "DEPTHWISE_CONV_2D",
        [x, normal(1, 3, 3, 8), np.zeros(8, np.float32)],
        (1, 3, 3, 8),
        strideH=1,
        strideW=1,
        depthMultiplier=1,
        padding=1,
    )
    model = net.model(y)
    result = zeropoint.quantize(model, data=samples_for(model, 10), weight_bits=3)
    (weights,) = (t for t in result.model.main.tensors if t.is_constant and len(t.shape) == 4)
    assert weights.dtype is DType.INT8
    assert np.abs(weights.data).max() == 127
    assert "1 DEPTHWISE_CONV_2D with int8 weights: LiteRT has no int4 kernel for it" in result.notes


def test_a_summary_says_how_narrow_weights_are_held() -> None:
    result = zeropoint.quantize(network(), data=samples_for(network(), 20), weight_bits=6)
    assert "2 layers with 6-bit weights, which int8 holds" in result.notes
    assert "int8 (6 bits used) 16 channels" in str(result.plan)


@pytest.mark.parametrize("name", WEIGHT_TYPES)
def test_recipes_with_any_bits_are_written_as_they_are_read(name: str) -> None:
    recipe = recipe_from({"rules": [{"scheme": "int8", "weights": name}]})
    assert recipe_from(recipe_content(plain_rules(recipe))) == recipe


@pytest.mark.parametrize(("bits", "scale", "error"), [(2, 1.224, 0.190), (3, 0.651, 0.0469), (4, 0.356, 0.0129)])
def test_scales_of_gaussian_weights_are_the_best_there_are(bits: int, scale: float, error: float) -> None:
    """The step of the uniform quantizer with 2**bits - 1 levels that is best for a normal distribution."""
    rows, levels = normal(8, 20000), Levels(DType.INT8, bits)
    found = weighted_scales(rows, np.ones(rows.shape[1]), levels, np.abs(rows).max(axis=1))
    np.testing.assert_allclose(found, scale, rtol=0.05)
    q = np.clip(np.rint(rows / found[:, None]), -levels.max, levels.max)
    np.testing.assert_allclose(np.square(q * found[:, None] - rows).mean(), error, rtol=0.01)


@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
def test_no_other_scale_is_much_better(bits: int) -> None:
    rng, levels = np.random.default_rng(bits), Levels(DType.INT8, bits)
    rows, importance = rng.standard_t(3, size=(20, 64)).astype(np.float32), rng.uniform(0, 1, 64)
    peaks = np.abs(rows).max(axis=1)

    def errors(scales: np.ndarray) -> np.ndarray:
        q = np.clip(np.rint(rows / scales[:, None]), -levels.max, levels.max)
        return np.square(q * scales[:, None] - rows) @ importance

    best = np.min([errors(peaks * share / levels.max) for share in np.linspace(0.05, 1.0, 200)], axis=0)
    assert (errors(weighted_scales(rows, importance, levels, peaks)) <= 1.25 * best + 1e-9).all()
