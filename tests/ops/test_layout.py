"""How the weights of layers lie: every view of them against what LiteRT computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from zeropoint.errors import InvalidModel
from zeropoint.graph import Model
from zeropoint.ops import OPS, Activation, Weight
from zeropoint.ops.layout import CONVOLUTION
from zeropoint.runtime import Session

from ..build import act, const, graph, op, weights
from ..conformance.samples import HYBRID_SAMPLES, SAMPLES, Sample

CONV, DEPTHWISE, DENSE = "Conv2DOptions", "DepthwiseConv2DOptions", "FullyConnectedOptions"
LAYERS: dict[str, dict[str, Any]] = {
    "FULLY_CONNECTED": {"shape": (1, 12), "weights": (6, 12), "out": (1, 6), "options": DENSE},
    "CONV_2D": {"shape": (1, 7, 6, 4), "weights": (6, 3, 3, 4), "out": (1, 4, 3, 6), "options": CONV, "stride": 2},
    "pointwise": {"shape": (1, 5, 5, 4), "weights": (6, 1, 1, 4), "out": (1, 5, 5, 6), "options": CONV},
    "grouped": {"shape": (1, 6, 6, 4), "weights": (6, 3, 3, 2), "out": (1, 6, 6, 6), "options": CONV},
    "DEPTHWISE_CONV_2D": {"shape": (1, 6, 6, 3), "weights": (1, 3, 3, 6), "out": (1, 6, 6, 6), "options": DEPTHWISE},
}
KINDS = {"pointwise": "CONV_2D", "grouped": "CONV_2D"}


def layer(name: str, seed: int = 0) -> Model:
    """A model of one weighted op, padded to keep the size."""
    about = LAYERS[name]
    rng = np.random.default_rng(seed)
    x, y = act("x", *about["shape"]), act("y", *about["out"])
    w = const("w", rng.normal(size=about["weights"]).astype(np.float32))
    b = const("b", rng.normal(size=about["out"][-1]).astype(np.float32))
    values = {} if name == "FULLY_CONNECTED" else {"strideH": about.get("stride", 1), "strideW": about.get("stride", 1)}
    if name == "DEPTHWISE_CONV_2D":
        values["depthMultiplier"] = 2
    only = op(KINDS.get(name, name), [x, w, b], y, options=about["options"], **values)
    return Model([graph("main", [x], [y], only)])


def is_product(sample: Sample) -> bool:
    only = sample.model().main.ops[0]
    layout = OPS[only.kind].layout
    if layout is None or not layout.applies_to(only) or only.option("fusedActivationFunction", 0):
        return False
    source, weights = only.inputs[layout.data], only.inputs[layout.weights]
    return source is not None and source.data is None and weights is not None and weights.data is not None


@pytest.mark.parametrize("sample", [s for s in (*SAMPLES, *HYBRID_SAMPLES) if is_product(s)], ids=str)
def test_patches_times_the_matrix_is_what_the_layer_computes(sample: Sample) -> None:
    model = sample.model()
    (only,) = model.main.ops
    (x,) = sample.draw(1)[0]
    layout, data, slot = OPS[only.kind].layout, only.inputs[1].data, OPS[only.kind].bias_slot
    has_bias = slot is not None and slot < len(only.inputs) and only.inputs[slot] is not None
    matrix = layout.matrix(only, data)
    (expected,) = Session(model).run([x])
    products = np.einsum("gni,goi->ngo", layout.patches(only, x, 10**6), matrix).reshape(expected.shape)
    bias = only.inputs[slot].data if has_bias else 0.0
    np.testing.assert_allclose(products + bias, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(layout.from_matrix(only, matrix), data)
    by_input = layout.by_input(only, data)
    assert by_input.shape[0] == expected.shape[-1]
    np.testing.assert_array_equal(layout.from_inputs(only, by_input), data)


@pytest.mark.parametrize("name", LAYERS)
def test_the_shift_accounts_for_padding(name: str) -> None:
    """On an input that is constant over the image, the shift is exact: padding included."""
    model = layer(name)
    (only,) = model.main.ops
    means = np.linspace(1, 2, model.main.inputs[0].shape[-1])
    x = np.broadcast_to(means, model.main.inputs[0].shape).astype(np.float32)
    error = np.random.default_rng(3).normal(size=only.inputs[1].shape).astype(np.float32)
    only.inputs[2] = None if name == "FULLY_CONNECTED" else const("zero", np.zeros(only.inputs[2].shape, np.float32))
    only.inputs[1] = const("error", error)
    model.main.tensors += [t for t in only.inputs[1:] if t is not None]
    (result,) = Session(model).run([x])
    wanted = result.reshape(-1, result.shape[-1]).mean(axis=0)
    layout = OPS[only.kind].layout
    np.testing.assert_allclose(layout.mean_shift(only, error, means), wanted, rtol=1e-4, atol=1e-3)
    products = layout.matrix(only, layout.mean_inputs(only, means) * error)
    np.testing.assert_allclose(products.sum(axis=-1).reshape(-1), wanted, rtol=1e-4, atol=1e-3)


def test_where_the_mean_of_the_input_is_not_by_channel_there_is_no_shift() -> None:
    (only,) = layer("FULLY_CONNECTED").main.ops
    assert OPS[only.kind].layout.mean_shift(only, only.inputs[1].data, np.ones(5)) is None
    assert OPS[only.kind].layout.mean_inputs(only, np.ones(5)) is None


def on_any_height(*, declared: bool) -> Model:
    """A convolution on images of any height; without `declared`, only the input says so."""
    x, y = act("x", 1, 1, 6, 3), act("y", 1, 1, 6, 4)
    for tensor in (x, y) if declared else (x,):
        tensor.shape_signature = (1, -1, *tensor.shape[2:])
    inputs = [x, const("kernel", weights(4, 3, 3, 3)), const("bias", weights(4))]
    conv = op("CONV_2D", inputs, y, options="Conv2DOptions", strideW=1, strideH=1)
    return Model([graph("main", [x], [y], conv)])


def test_where_the_size_is_open_every_tap_is_taken_to_lie_on_the_image() -> None:
    """The file says 1 for a size that is open, and so would have padding almost everywhere."""
    conv = on_any_height(declared=True).main.ops[0]
    error, means = weights(4, 3, 3, 3, seed=2), np.float32([1, -2, 3])
    shift = CONVOLUTION.mean_shift(conv, error, means)
    source, result = conv.inputs[0], conv.outputs[0]
    for tensor in (source, result):
        tensor.shape, tensor.shape_signature = (1, 1000, *tensor.shape[2:]), None
    np.testing.assert_allclose(shift, CONVOLUTION.mean_shift(conv, error, means), rtol=2e-2, atol=2e-2)


def test_patches_are_cut_from_images_of_the_stated_size_only() -> None:
    conv = on_any_height(declared=False).main.ops[0]
    with pytest.raises(InvalidModel, match=r"CONV_2D 'y' reads \[1, 3, 6, 3\] where the model says \[1, 1, 6, 3\]"):
        CONVOLUTION.patches(conv, np.zeros((1, 3, 6, 3), np.float32), 8)


@pytest.mark.parametrize("kind", [kind for kind, spec in OPS.items() if spec.layout is not None])
def test_layout_and_roles_agree(kind: str) -> None:
    """One scale for each output channel is one for each slice along that axis."""
    spec = OPS[kind]
    assert isinstance(spec.inputs[spec.layout.data], Activation)
    role = spec.held(spec.layout.weights)
    assert isinstance(role, Weight)
    assert role.axis == spec.layout.outputs
