"""Dynamic layers that one scale for each run does not suit compute with floats, if there is data to see it."""

from __future__ import annotations

import numpy as np

import zeropoint
from zeropoint.recipe_files import recipe_from

from ..nets import Net, normal


def model():
    """A layer that hardly reads the first channel, which is large, and two more."""
    weights = normal(8, 3, 3, 4, seed=1)
    weights[..., 0] *= 1e-5
    net = Net()
    x = net.conv(net.input(1, 8, 8, 4), weights)
    x = net.conv(x, normal(8, 3, 3, 8, seed=2) / 8)
    return net.model(net.conv(x, normal(8, 3, 3, 8, seed=3) / 8))


def samples(large=1e3):
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(1, 8, 8, 4)) * [large, 1, 1, 1]).astype(np.float32) for _ in range(24)]


def unpacked(result):
    return {use.op.name for use, packed in result.plan.packed.items() if packed.unpacked}


def test_the_layer_that_loses_most_computes_with_floats():
    found = zeropoint.quantize(model(), "dynamic", data=samples(), min_elements=0)
    first = found.prepared.main.ops[0].name
    assert first in unpacked(found)
    assert any("dynamic layers compute with floats on integer weights" in note for note in found.notes)
    assert found.verdict.snr > 20
    blind = zeropoint.quantize(model(), "dynamic", min_elements=0)
    assert not unpacked(blind)


def test_where_inputs_suit_one_scale_all_layers_stay_dynamic():
    found = zeropoint.quantize(model(), "dynamic", data=samples(1.0), min_elements=0)
    assert not unpacked(found)
    assert not any("compute with floats" in note for note in found.notes)


def test_what_a_rule_names_stays_as_it_is_asked_for():
    rules = [{"scheme": "float"}, {"scheme": "dynamic", "ops": "CONV_2D", "min_elements": 0}]
    found = zeropoint.quantize(model(), recipe=recipe_from({"rules": rules}), data=samples())
    assert not unpacked(found)
