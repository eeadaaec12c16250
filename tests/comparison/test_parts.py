"""The smaller parts: what counts of a tensor, ops by themselves, recipes as plain values, shares of arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest

import zeropoint
from zeropoint.bench.isolate import isolate
from zeropoint.comparison.sums import RelevantRange, relevant_ranges
from zeropoint.diagnosis.evidence import wide_share
from zeropoint.ops import OPS
from zeropoint.recipe import MODES, keep_float, preset
from zeropoint.recipe_files import plain_rules, recipe_content, recipe_from
from zeropoint.runtime import Session

from ..diagnosis.faults import conv_net, images, plainly
from ..nets import Net, normal


def test_what_saturating_ops_read_counts_between_their_ends():
    net = Net()
    x = net.dense(net.input(1, 8), normal(8, 8), name="only_clipped")
    y = net.dense(x, normal(8, 8), name="both")
    z = net("RELU6", [y], name="clipped")
    model = net.model(z, net.dense(y, normal(4, 8), name="whole"))
    made = plainly(model, [(normal(1, 8, seed=k),) for k in range(8)])
    found = {tensor.name: relevant for tensor, relevant in relevant_ranges(made.main, OPS).items()}
    assert "both" not in found
    net = Net()
    hidden = net(
        "RESHAPE", [net.dense(net.input(1, 8), normal(8, 8), name="hidden"), np.array([8], np.int32)], (8,), "moved"
    )
    made = plainly(net.model(net("RELU6", [hidden])), [(normal(1, 8, seed=k),) for k in range(8)])
    found = {tensor.name: relevant for tensor, relevant in relevant_ranges(made.main, OPS).items()}
    assert found["moved"] == found["hidden"] == RelevantRange(0.0, 6.0)


def test_what_a_float_island_does_not_tell_apart_does_not_count():
    """HARD_SWISH makes 0 of all that is below -3, so that ranges end there, whether it computes in integers or not."""
    net = Net()
    x = net.conv(net.input(1, 16, 16, 8), normal(16, 3, 3, 8), name="before")
    model = net.model(net.conv(net("HARD_SWISH", [x]), normal(8, 3, 3, 16, seed=1)))
    samples = [(normal(1, 16, 16, 8, seed=k),) for k in range(8)]
    made = zeropoint.quantize(model, data=samples, effort="quick", target="cpu").model
    assert [op.kind for op in made.main.ops].count("DEQUANTIZE") == 2
    found = {tensor.name: relevant for tensor, relevant in relevant_ranges(made.main, OPS).items()}
    assert found["before"] == RelevantRange(-3.0, math.inf)
    (row,) = (row for row in zeropoint.compare(model, made, samples).ops if row.name == "before")
    assert row.own.snr > 30


def test_before_a_softmax_only_the_greatest_count():
    relevant = RelevantRange(reach=20.0)
    values = np.array([[0.0, -30.0, 5.0], [-1e9, -2.0, -1.0]], np.float32)
    np.testing.assert_array_equal(relevant.of(values), [[0, -15, 5], [-21, -2, -1]])
    assert relevant != RelevantRange()
    assert RelevantRange().reach == math.inf


def test_ops_by_themselves_compute_what_they_do_in_their_place():
    model = conv_net()
    graph = model.main
    (sample,) = images(1)
    alone = isolate(graph, graph.ops, lambda t: t in graph.inputs)
    assert [op.name for op in alone.ops] == ["a"]
    (first,) = Session(alone.model).run(sample)
    everything = isolate(graph, graph.ops, lambda t: True)  # noqa: ARG005
    assert [op.name for op in everything.ops] == ["a", "b", "c", "pooled", "out"]
    fed = [sample[0] if t in graph.inputs else np.ones(t.shape, np.float32) for t in everything.fed]
    np.testing.assert_array_equal(Session(everything.model).run(fed)[0], first)


def test_what_unpacks_weights_in_two_steps_stays_in_order():
    net = Net()
    steps = net("ABS", [np.float32([-2.0])]), net("NEG", [net.ops[-1].outputs[0]])
    model = net.model(net("ADD", [net.input(1, 4), steps[1]]))
    chosen = [op for op in model.main.ops if op.kind != "NEG"]
    alone = isolate(model.main, chosen, lambda t: True)  # noqa: ARG005
    made = Session(alone.model).run([np.ones((1, 4), np.float32)])
    np.testing.assert_array_equal(made[1], -np.ones((1, 4)))


@pytest.mark.parametrize("mode", MODES)
def test_recipes_survive_being_written_as_plain_values(mode):
    recipe = preset(mode)
    assert recipe_from(recipe_content(plain_rules(recipe))) == recipe


def test_patterns_for_kinds_or_names_become_two_rules():
    again = recipe_from(recipe_content(plain_rules(preset("int8").then(keep_float("b")))))
    model = conv_net()
    assert [again.scheme(op).label for op in model.main.ops] == ["int8", "float", "int8", "int8", "int8"]


def test_arithmetic_with_more_bits_is_added_up():
    model = conv_net()
    assert wide_share(model, OPS) == 1
    assert wide_share(plainly(model, images()), OPS) == 0
    assert wide_share(plainly(model, images(), mode="int16x8"), OPS) == 1
    part = wide_share(plainly(model, images(), keep_float=["b"]), OPS)
    assert 0.3 < part < 0.7


def test_a_model_of_another_origin_is_noticed():
    other = conv_net()
    for op in other.main.ops[:3]:
        weights = op.inputs[1]
        weights.buffer.raw = np.ascontiguousarray(weights.data[::-1]).reshape(-1).view(np.uint8)
    found = zeropoint.compare(conv_net(), other, images(3))
    assert any("made from this float model?" in note for note in found.notes)
