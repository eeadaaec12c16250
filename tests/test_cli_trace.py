"""`zeropoint trace`: what it prints is what the trace says, and wrong use costs one line."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import zeropoint
from zeropoint.demo import digits as digits_data

from .test_cli import refused

ADD = "digits_1/residual_1/Add"


@pytest.fixture(scope="module")
def home(digits, tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("trace")
    images = digits_data()["calibration"][:20]
    np.savez(home / "x.npz", image=images)
    (home / "m.tflite").write_bytes(digits)
    zeropoint.quantize(digits, data=[image[None] for image in images], effort="quick").save(home / "q.tflite")
    zeropoint.quantize(digits, "dynamic").save(home / "d.tflite")
    return home


@pytest.fixture(autouse=True)
def _in_home(home, monkeypatch):
    monkeypatch.chdir(home)


def test_one_number_in_the_terminal_and_as_json(run):
    place = ["--tensor", ADD, "--at", "0,3,4,2", "--sample", 1]
    code, out, _ = run("trace", "q.tflite", "--data", "x.npz", "--float", "m.tflite", *place)
    assert code == 0
    trace = zeropoint.simulate("q.tflite", np.load("x.npz")["image"][1:2], float_model="m.tflite")
    found = trace.explain(ADD, (0, 3, 4, 2))
    assert f"residual_1/Add[0,3,4,2] = {found.value} int8" in out
    assert "Float model" in out
    code, out, _ = run("trace", "q.tflite", "--data", "x.npz", *place, "--json")
    assert (code, json.loads(out)["value"]) == (0, found.value)


def test_every_op_is_summed_up(run):
    code, out, _ = run("trace", "q.tflite", "--data", "x.npz", "--kernels", "xnnpack")
    assert code == 0
    assert "xnnpack kernels" in out
    assert out.count("CONV_2D") == 4


def test_a_dynamic_model_shows_what_it_made_of_its_data(run):
    code, out, _ = run("trace", "d.tflite", "--data", "x.npz")
    assert (code, "1 layer rounds float data to integers" in out) == (0, True)
    made = zeropoint.load("d.tflite").main
    layer = next(op for op in made.ops if any(t is not None and t.is_quantized for t in op.inputs))
    index = ",".join("0" for _ in layer.outputs[0].shape)
    code, out, _ = run("trace", "d.tflite", "--data", "x.npz", "--tensor", layer.outputs[0].name, "--at", index)
    assert code == 0
    assert "input zero point" in out
    assert "sum of products" in out


@pytest.mark.parametrize(
    ("words", "arguments"),
    {
        "go together": ["q.tflite", "--tensor", ADD],
        "whole numbers separated by commas": ["q.tflite", "--tensor", ADD, "--at", "0,x"],
        "is not an index into it": ["q.tflite", "--tensor", ADD, "--at", "0,99,0,0"],
        "no tensor called": ["q.tflite", "--tensor", "nothing", "--at", "0"],
        "quantize it first": ["m.tflite"],
        "counted from 0": ["q.tflite", "--sample", "99"],
        "cannot be simulated": ["d.tflite", "--kernels", "tflm"],
        "name a folder": ["q.tflite", "--ops", "ADD"],
    }.items(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_use(run, words, arguments):
    model, *others = arguments
    assert words in refused(run("trace", model, "--data", "x.npz", *others))


def test_the_report_knows_the_command_for_any_number(run):
    """Its first number, explained by the command that the page shows."""
    code, _, err = run(
        "quantize", "m.tflite", "-o", "r.tflite", "--data", "x.npz", "--report", "r.html", "--effort", "quick"
    )
    assert code == 0, err
    data = json.loads(re.search(r'id="data">(.*?)</script>', Path("r.html").read_text(), re.S)[1])
    op = next(op for op in data["ops"] if op["kind"] == "CONV_2D")
    number = op["numbers"][0]
    _, *words = shlex.split(data["trace"])
    code, out, _ = run(*words, "--tensor", op["outputs"][0], "--at", number["index"], "--json")
    found = json.loads(out)
    texts = {row["label"]: row["text"] for row in number["rows"]}
    assert texts["Value"] == f"{found['value']} int8"
    assert texts["Float model"].startswith(f"{found['float_model']:.6g}")
