"""Who gave a tensor's parameters is told for each tensor: in plans, in JSON, in the report."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import zeropoint
from zeropoint.affine import QuantParams
from zeropoint.calibration import Range, Ranges, default_range, ranges_from_input_stats, ranges_from_json
from zeropoint.dtypes import DType
from zeropoint.plan import load_plan
from zeropoint.report.page_build import Evidence, page_of
from zeropoint.tflite import save

from .. import build
from ..nets import Net, normal, quantized, samples_for
from .test_qdq import WEIGHTS, W, X, Y, dense, dequantized, fake, pair

ENCODINGS = {
    "version": "1.0.0",
    "activation_encodings": [
        {"name": "sum", "bw": 8, "dtype": "INT", "offset": [-30], "scale": [0.05]},
        {"name": "scores", "bw": 8, "dtype": "INT", "offset": [0], "scale": [0.003]},
        {"name": "elsewhere", "bw": 8, "dtype": "INT", "offset": [0], "scale": [0.1]},
    ],
    "param_encodings": [
        {"name": "logits/w", "bw": 8, "dtype": "INT", "offset": [-128], "scale": [0.01]},
        {"name": "stem/b", "bw": 8, "dtype": "INT", "offset": [-128], "scale": [0.01]},
    ],
}
GIVEN = {"sum": "theirs.encodings", "pool": "theirs.encodings", "logits/w": "theirs.encodings"}
"""MAX_POOL_2D has the scale of what it reads. That of SOFTMAX is built in, and that of a bias follows from others."""


@pytest.fixture
def encodings(tmp_path):
    path = tmp_path / "theirs.encodings"
    path.write_text(json.dumps(ENCODINGS), "utf-8")
    return path


def test_parameters_that_were_given_are_told_from_those_that_were_measured(encodings):
    model = build.float_cnn()
    options = {"data": samples_for(model, 8), "target": "integer", "effort": "quick"}
    result = zeropoint.quantize(model, ranges=ranges_from_json(encodings), **options)
    assert result.given == GIVEN
    assert result.unmatched == ("elsewhere",)
    lines = [line.strip() for line in str(result.plan).split("\n") if "given:" in line]
    assert all(line.endswith("given: theirs.encodings") for line in lines)
    assert [line.split()[0] for line in lines] == ["out", "in", "out", "in", "in"]  # sum, pool, pool, mean, weights
    assert zeropoint.quantize(model, **options).given == {}


@pytest.mark.parametrize("mode", ["dynamic", "weights"])
def test_given_scales_of_weights_are_told_where_nothing_else_is_quantized(mode):
    given = Ranges({"logits/w": Range(-2, 2, "here")})
    result = zeropoint.quantize(build.float_cnn(), mode, ranges=given, min_elements=0, effort="quick")
    assert result.given == {"logits/w": "here"}


def trained_model(mark: str) -> Any:
    net = Net()
    if mark == "FAKE_QUANT":
        x = fake(net, net.input(1, 8, name="x"), -3, 3)
        return net.model(fake(net, dense(net, x, fake(net, WEIGHTS, -1.28, 1.27)), -6, 6))
    x = pair(net, net.input(1, 8, name="x"), X)
    return net.model(pair(net, dense(net, x, dequantized(net, "w", WEIGHTS, W)), Y))


@pytest.mark.parametrize("mark", ["FAKE_QUANT", "QUANTIZE"])
def test_scales_that_training_left_are_told(mark):
    given = list(quantized(trained_model(mark), data=None).given.values())
    assert sorted(given) == [f"{mark} in the model"] * 2 + ["scales in the model"]


def test_mean_and_std_and_made_up_ranges_are_told():
    model = build.float_cnn()
    stats = ranges_from_input_stats({"image": (0, 255)}, DType.UINT8)
    ends = {"input_type": "uint8", "target": "integer"}
    given = zeropoint.quantize(model, ranges=stats.merge(default_range(-6, 6)), **ends).given
    assert given.pop("image") == "mean and std"
    assert given
    assert set(given.values()) == {"default range"}


def test_ranges_that_follow_from_given_ones_are_theirs():
    """A ReLU cuts off what it reads; a reshape keeps it."""
    net = Net()
    x = net("RELU", [net.input(1, 8, name="x")], name="relu")
    model = net.model(net.dense(net("RESHAPE", [x, np.int32([8, 1])], (8, 1), "flat"), normal(3, 1)))
    entries = {"x": Range(-1, 1, "a.json"), model.main.outputs[0].name: Range(-2, 2, "b.json")}
    given = zeropoint.quantize(model, ranges=Ranges(entries), target="integer").given
    assert (given["relu"], given["flat"], given[model.main.outputs[0].name]) == ("a.json", "a.json", "b.json")


def test_parameters_that_were_learned_since_are_nobodys_gift(encodings):
    result = zeropoint.quantize(build.float_cnn(), data=samples_for(build.float_cnn(), 8), effort="quick",
                                ranges=ranges_from_json(encodings), target="integer")  # fmt: skip
    plan = result.plan
    pool = next(t for t in plan.graph.tensors if t.name == "pool")
    other = QuantParams((0.25,), (3,), DType.INT8)
    assert plan.origin(pool) == "theirs.encodings"
    assert replace(plan, stored={**plan.stored, pool: other}).origin(pool) is None


def test_saved_plans_tell_it_too(encodings, tmp_path):
    model = build.float_cnn()
    result = zeropoint.quantize(model, data=samples_for(model, 8), effort="quick", ranges=ranges_from_json(encodings))
    result.save_plan(tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json", result.prepared).plans[0].given == result.plan.given


def test_ranges_of_tensors_that_stay_float_are_told():
    """With a kernel that fixes another scale it would be an error; without one nobody asks for it."""
    model = build.float_cnn()
    given = Ranges({"scores": Range(0, 9, "here"), "pool": Range(0, 4, "here")})
    result = zeropoint.quantize(model, data=samples_for(model, 8), ranges=given, keep_float="SOFTMAX", effort="quick")
    (note,) = [note for note in result.notes if "not used" in note]
    assert note.endswith("kernels fix their scales: 'scores'")


# What people see.


@pytest.fixture
def command(encodings, tmp_path):
    model = build.float_cnn()
    save(model, tmp_path / "model.tflite")
    np.savez(tmp_path / "data.npz", np.concatenate([row[0] for row in samples_for(model, 8)]))
    options = ["--data", tmp_path / "data.npz", "--ranges", encodings, "--target", "integer", "--effort", "quick"]
    return ["quantize", tmp_path / "model.tflite", *options]


def test_a_dry_run_tells_it_and_lists_what_matched_nothing(run, command):
    code, out, _ = run(*command, "--dry-run")
    assert code == 0
    assert out.count("given: theirs.encodings") == 5
    assert "given for 'elsewhere', which the model does not have: not used" in out


def test_json_tells_it_and_lists_what_matched_nothing(run, command, tmp_path):
    _, out, _ = run(*command, "-o", tmp_path / "out.tflite", "--json")
    found = json.loads(out)
    assert {each["name"]: each["by"] for each in found["given"]} == GIVEN
    assert found["unmatched"] == ["elsewhere"]


def test_the_report_tells_it_beside_each_tensor(encodings):
    model = build.float_cnn()
    given = ranges_from_json(encodings).merge(Ranges({"image": Range(-4, 4, "here")}))
    result = zeropoint.quantize(model, data=samples_for(model, 8), effort="quick", ranges=given, target="integer")
    page = page_of(Evidence("out.tflite", result.model, 1000, result=result))
    told = {name: each["given"] for name, each in page.to_json()["tensors"].items() if each["given"] is not None}
    assert told == {**GIVEN, "image/int8": "here"}  # the float input has no parameters
    assert any("elsewhere" in remark for remark in page.remarks)
