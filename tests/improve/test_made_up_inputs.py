"""Without data, rounding that cancels is kept where no kind of made-up inputs speaks against it."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from zeropoint.dtypes import Array, DType
from zeropoint.graph import Model
from zeropoint.graph.edit import copy_model, set_constant
from zeropoint.improve.made_up_inputs import KINDS, never_further_off
from zeropoint.ops import OPS

from ..nets import Net, normal


def layer(weights: Array) -> Model:
    net = Net()
    return net.model(net.conv(net("RELU", [net.input(1, 8, 8, 4)]), weights))


def shifted(model: Model, by: float) -> Model:
    """The same with all weights off by so much."""
    copy = copy_model(model)
    weights = copy.main.ops[-1].inputs[1]
    set_constant(weights, weights.data + np.float32(by), DType.FLOAT32, None)
    return copy


def test_the_closer_model_is_recognized():
    model = layer(normal(4, 3, 3, 4))
    near, far = shifted(model, 1e-4), shifted(model, 1e-2)
    assert never_further_off(model, near, far, OPS)
    assert not never_further_off(model, far, near, OPS)
    assert never_further_off(model, near, near, OPS)


def test_one_kind_of_inputs_is_enough_to_reject():
    """Rounding errors that cancel over a window do nothing to waves, but to noise they do."""
    model = layer(normal(4, 3, 3, 4))
    made = copy_model(model)
    weights = made.main.ops[-1].inputs[1]
    checks = np.where(np.indices((3, 3)).sum(axis=0) % 2, 0.01, -0.01).astype(np.float32)
    checks -= checks.mean()
    set_constant(weights, weights.data + checks[None, :, :, None], DType.FLOAT32, None)
    assert not never_further_off(model, made, shifted(model, 2e-3), OPS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(5,), (1, 12), (2, 6, 5, 3)])
def test_made_up_inputs_have_the_shape_that_is_asked_for(kind, shape):
    made = kind(np.random.default_rng(0), shape)
    assert made.shape == shape
    assert np.isfinite(made).all()
    assert made.std() > 0.05


def test_what_cannot_be_fed_is_rounded_to_the_nearest():
    """Token numbers could be any, and most are none."""
    net = Net()
    table = normal(50, 64)
    rows = net("GATHER", [table, net.input(8, dtype=DType.INT32)], (8, 64))
    model = net.model(net.dense(net("RELU", [rows]), normal(64, 64)))
    made = zeropoint.quantize(model, "weights", record=False)
    quick = zeropoint.quantize(model, "weights", effort="quick", record=False)
    assert zeropoint.to_bytes(made.model) == zeropoint.to_bytes(quick.model)
    assert any("nearest rounding" in note for note in made.notes)
