"""A plan survives being saved: it prints the same, and rewriting gives the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import zeropoint
from zeropoint.calibration import Range, Ranges
from zeropoint.errors import InvalidRecipe
from zeropoint.graph.model import Model
from zeropoint.ops import OPS
from zeropoint.plan import build as build_model
from zeropoint.plan import load_plan
from zeropoint.plan.saved import plan_text, planned_from_text

from .. import build
from ..calibration.test_state import lstm
from ..nets import Net, normal, samples_for

MODES = [
    ("int8", {}),
    ("int8", {"target": "integer"}),
    ("int8", {"weight_bits": 4, "effort": "high"}),
    ("int8", {"input_type": "uint8", "output_type": "int8"}),
    ("int16x8", {}),
    ("dynamic", {"min_elements": 0}),
    ("dynamic", {"weight_bits": 4, "block": 32, "min_elements": 0}),
    ("weights", {"min_elements": 0}),
    ("float16", {}),
]


def net() -> Model:
    """Shared weights, an op without an integer kernel, a fixed output scale."""
    made = Net()
    shared = build.const("shared", normal(32, 32))
    x = made.dense(made.dense(made.input(1, 32), shared, name="first"), shared, name="second")
    return made.model(made("SOFTMAX", [made("SIN", [x], name="sine")], name="soft", beta=1.0))


@pytest.mark.parametrize(("mode", "options"), MODES, ids=lambda value: str(value))
def test_a_saved_plan_gives_the_same_bytes(mode, options, tmp_path: Path) -> None:
    model = net()
    result = zeropoint.quantize(model, mode, data=samples_for(model, 40), **options)
    result.save_plan(tmp_path / "plan.json")
    loaded = load_plan(tmp_path / "plan.json", result.prepared)
    assert [str(p) for p in loaded.plans] == [str(p) for p in result.plans]
    assert zeropoint.to_bytes(build_model(loaded, OPS)) == zeropoint.to_bytes(result.model)
    for plan, original in zip(loaded.plans, result.plans, strict=True):
        assert plan.groups == original.groups
        assert plan.skipped == original.skipped
        assert plan.repairs == original.repairs
        assert plan.constants.keys == original.constants.keys


def test_states_survive() -> None:
    model = lstm()
    rng = np.random.default_rng(0)
    data = [tuple(rng.normal(size=t.shape).astype(np.float32) for t in model.main.inputs) for _ in range(8)]
    result = zeropoint.quantize(model, "int8", data=data)
    loaded = planned_from_text(plan_text(result.planned), result.prepared)
    assert zeropoint.to_bytes(build_model(loaded, OPS)) == zeropoint.to_bytes(result.model)


def test_what_is_saved_is_plain_json() -> None:
    model = net()
    ranges = Ranges({t.name: Range(-1.0, 2.0, "test") for t in (*model.main.inputs, model.main.ops[1].outputs[0])})
    result = zeropoint.quantize(model, data=samples_for(model, 4), ranges=ranges, target="integer")
    json.loads(plan_text(result.planned), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_a_plan_for_another_model_is_refused(tmp_path: Path) -> None:
    model = net()
    result = zeropoint.quantize(model, data=samples_for(model, 4), effort="quick", target="integer")
    text = plan_text(result.planned)
    with pytest.raises(InvalidRecipe, match="another model"):
        planned_from_text(text, lstm())
    for damaged in ("", "[]", "{}", '{"format": "zeropoint-plan-1"}', '{"format": "else"}'):
        with pytest.raises(InvalidRecipe):
            planned_from_text(damaged, result.prepared)
    content = json.loads(text)
    content["plans"][0]["stored"]["items"][0][0] = 10_000
    with pytest.raises(InvalidRecipe, match="damaged"):
        planned_from_text(json.dumps(content), result.prepared)
    with pytest.raises(InvalidRecipe, match="cannot read"):
        load_plan(tmp_path / "none.json", result.prepared)
