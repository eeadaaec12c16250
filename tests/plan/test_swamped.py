"""Concatenations whose common scale leaves hardly a step to an input: split where that is possible, or else named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import zeropoint
from tests.nets import Net, kinds, normal, outputs_of, samples_for
from zeropoint.bench.errors import ErrorSum, decibels
from zeropoint.graph.model import Model
from zeropoint.recipe import INT8, Rule, preset

BOXES, SCORES = 12, 4
SAMPLES = 24


def detector(*, far: float = 640.0, read_whole: bool = False, behind: bool = False) -> Model:
    """Coordinates of hundreds beside scores below 1; a layer may read both, or a reshape lie behind."""
    net = Net()
    x = net.input(1, 16)
    boxes = net.dense(x, normal(BOXES, 16, seed=1, spread=far / 16), name="boxes")
    scores = net("LOGISTIC", [net.dense(x, normal(SCORES, 16, seed=2, spread=0.3))], name="scores")
    made = net("CONCATENATION", [boxes, scores], (1, BOXES + SCORES), "joined", axis=1)
    if behind:
        made = net("RESHAPE", [made, np.array([1, BOXES + SCORES, 1], np.int32)], (1, BOXES + SCORES, 1))
    if read_whole:
        made = net.dense(made, normal(3, BOXES + SCORES, seed=3))
    return net.model(made)


def quantized(model: Model, **options: Any) -> Any:
    stats = zeropoint.calibrate(model, samples_for(model, SAMPLES))
    return zeropoint.quantize(model, "int8", stats=stats, **options)


def snr_of_scores(model: Model, made: Model) -> float:
    samples, total = samples_for(model, SAMPLES), ErrorSum()
    for wanted, found in zip(outputs_of(model, samples), outputs_of(made, samples), strict=True):
        total.add(wanted.reshape(-1)[-SCORES:], found.reshape(-1)[-SCORES:])
    return decibels(total.relative)


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize(
    ("options", "least"), [({"target": "cpu"}, 25), ({"target": "integer"}, 20), ({"strict": True}, 20)]
)
def test_what_only_leaves_the_graph_is_joined_without_a_common_scale_of_8_bits(behind, options, least):
    model = detector(behind=behind)
    result = quantized(model, **options)
    assert snr_of_scores(model, result.model) > least
    reasons = [s.reason for s in result.skipped] or list(result.plan.wide_ops.values())
    assert "in one scale with 'boxes', 'scores' would have 1 step of 256" in reasons[0]
    assert len(reasons) == 1 + behind


def test_the_layers_before_stay_in_integers():
    result = quantized(detector(), target="cpu")
    assert [s.op.kind for s in result.skipped] == ["CONCATENATION"]
    assert "DEQUANTIZE" in kinds(result.model)


def test_what_has_steps_enough_stays_as_it_is():
    for options in ({"target": "cpu"}, {"target": "integer"}):
        result = quantized(detector(far=4.0), **options)
        assert not result.skipped
        assert not result.plan.wide_ops


@pytest.mark.parametrize("options", [{"read_whole": True}, {}])
def test_what_has_to_share_a_scale_is_named_with_what_it_costs(options):
    """A layer reads all of it, or the caller gets integers."""
    ends = {} if options else {"output_type": "int8", "target": "integer"}
    result = quantized(detector(**options), **ends)
    assert not result.plan.wide_ops
    assert not result.skipped
    (note,) = (note for note in result.notes if "CONCATENATION" in note)
    assert "'joined' gives 'scores' 1 step of 256, because 'boxes' needs the others" in note
    assert "dB" in note


def test_the_cost_is_that_of_the_input_alone():
    """The SNR in the note is what rounding it to the common scale really gives."""
    model = detector()
    result = quantized(model, output_type="int8", target="integer")
    (note,) = (note for note in result.notes if "CONCATENATION" in note)
    told = float(note.rsplit("leaves it ", 1)[1].split(" dB")[0])
    step = result.model.main.outputs[0].params.scale
    total = ErrorSum()
    for wanted in outputs_of(model, samples_for(model, SAMPLES)):
        scores = wanted.reshape(-1)[-SCORES:]
        total.add(scores, step * np.rint(scores / step))
    assert told == pytest.approx(decibels(total.relative), abs=0.2)


def test_a_rule_that_asks_for_integers_by_name_is_kept():
    recipe = preset("int8").then(Rule(INT8, ops="CONCATENATION"))
    model = detector()
    stats = zeropoint.calibrate(model, samples_for(model, SAMPLES))
    assert not zeropoint.quantize(model, stats=stats, recipe=recipe, target="cpu").skipped
