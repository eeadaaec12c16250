"""Names from files, and of files, reach the terminal as text: nothing in them is obeyed."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

import zeropoint
from zeropoint.demo import digits as digits_data
from zeropoint.errors import InvalidModel, printable
from zeropoint.graph import Model, Op
from zeropoint.tflite import load, to_bytes

from .test_cli_habits import on_a_terminal

EVIL = "\x1b]0;owned\x07\x1b[31m\r\n\x9b2J\u202e[/red][link=x]"
"""Sets a title, colours, goes back, begins a line, clears the screen, turns the direction; and Rich's own markup."""

TYPED = EVIL.replace("\u202e", "")
"""Typer, which complains about command lines, leaves the direction to whoever typed it (Typer 0.29)."""

MODEL, INT8, DATA, CUSTOM = f"m{EVIL.replace('/', '')}.tflite", "int8\x1b[2J.tflite", "data\x1b[2J.npz", "custom.tflite"


def spoilt(content: bytes) -> Model:
    """The model with such text in everything that is one."""
    model = load(content)
    model.description = f"description{EVIL}"
    model.metadata = [(f"{name}{EVIL}", buffer) for name, buffer in model.metadata]
    for graph in model.graphs:
        graph.name += EVIL
        for k, tensor in enumerate(graph.tensors):
            tensor.name = f"{k}{EVIL}{tensor.name}"
    for signature in model.signatures:
        signature.key += EVIL
        signature.inputs = {f"{name}{EVIL}": t for name, t in signature.inputs.items()}
        signature.outputs = {f"{name}{EVIL}": t for name, t in signature.outputs.items()}
    return model


@pytest.fixture(scope="module")
def home(tmp_path_factory, digits) -> Path:
    folder = tmp_path_factory.mktemp("evil")
    model = spoilt(digits)
    file = io.BytesIO(to_bytes(model))
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(f"labels{EVIL}", b"")
    (folder / MODEL).write_bytes(file.getvalue())
    images = digits_data()["calibration"][:8]
    np.savez(folder / DATA, images)
    zeropoint.quantize(model, data=[image[None] for image in images], effort="quick").save(folder / INT8)
    model.main.ops[-1] = Op("CUSTOM", model.main.ops[-1].inputs, model.main.ops[-1].outputs, custom_code=f"op{EVIL}")
    (folder / CUSTOM).write_bytes(to_bytes(model))
    return folder


QUANTIZE = ["quantize", MODEL, "--data", DATA, "--overwrite"]
LINES = {
    "inspect": ["inspect", MODEL, "--ops", "--channels"],
    "inspect a custom op": ["inspect", CUSTOM, "--ops"],
    "inspect json": ["inspect", MODEL, "--json"],
    "calibrate": ["calibrate", MODEL, "--data", DATA, "-o", "stats\x1b[2J", "--overwrite"],
    "inspect statistics": ["inspect", "stats\x1b[2J"],
    "quantize": [*QUANTIZE, "-o", "out\x1b[2J.tflite", "--keep-float", "0*", "--keep-float", "SOFTMAX"],
    "quantize verbosely": [*QUANTIZE, "-o", "out\x1b[2J.tflite", "--effort", "quick", "--verbose"],
    "dry run": [*QUANTIZE, "--dry-run", "--effort", "quick", "--keep-float", "SOFTMAX"],
    "quantize weights": ["quantize", MODEL, "--mode", "weights", "--dry-run", "--min-elements", "0"],
    "refused": [*QUANTIZE, "-o", "out", "--strict", "--keep-float", "SOFTMAX"],
    "refused verbosely": [*QUANTIZE, "-o", "out", "--strict", "--keep-float", "SOFTMAX", "--verbose"],
    "custom ops": ["quantize", CUSTOM, "--data", DATA, "-o", "out", "--overwrite"],
    "missing": ["inspect", f"none{EVIL}.tflite"],
    "existing": ["calibrate", MODEL, "--data", DATA, "-o", INT8],
    "no data": ["calibrate", MODEL, "--data", f"none{EVIL}.npz", "-o", "out"],
    "compare": ["compare", MODEL, INT8, "--data", DATA],
    "compare json": ["compare", MODEL, INT8, "--data", DATA, "--json"],
    "compare the wrong way": ["compare", INT8, MODEL, "--data", DATA],
    "doctor": ["doctor", MODEL, INT8, "--data", DATA, "--seconds", "3"],
    "benchmark": ["benchmark", MODEL, INT8, "--rounds", "2", "--quick", "--threads", "1"],
    "no such command": [f"quantise{TYPED}"],
    "no such option": ["inspect", MODEL, f"--option{TYPED}"],
    "one argument too many": ["inspect", MODEL, f"more{TYPED}"],
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_names_are_shown_and_not_obeyed(run, home, monkeypatch, line):
    monkeypatch.chdir(home)
    code, out, err = run(*line)
    assert code in (0, 2)
    assert out + err
    for text in (out, err):
        assert [part for part in text.split("\n") if not part.isprintable()] == []


@pytest.mark.parametrize("name", ["inspect", "dry run", "doctor", "missing"])
def test_a_terminal_is_sent_colours_and_no_more(home, monkeypatch, name):
    monkeypatch.chdir(home)
    shown = on_a_terminal(*LINES[name])
    assert "\x1b]" not in shown
    assert "\x07" not in shown
    assert "\x9b" not in shown
    assert "\u202e" not in shown


def test_errors_and_models_are_printable(home):
    with pytest.raises(InvalidModel) as refusal:
        load(home / f"none{EVIL}.tflite")
    assert str(refusal.value).isprintable()
    for path in (MODEL, CUSTOM):
        model = load(home / path)
        assert all(line.isprintable() for line in str(model).split("\n"))
        assert all(repr(op).isprintable() for op in model.main.ops)


def test_text_that_can_be_shown_stays_as_it_is():
    for text in ("größe ≤ 3", "名前", "a/b;c:0", ""):
        assert printable(text) == text
    assert printable("\x1b[31m\n\u202e\udc80") == r"\x1b[31m\n\u202e\udc80"


def test_json_holds_the_names_themselves(run, home, monkeypatch):
    monkeypatch.chdir(home)
    _, out, _ = run("inspect", MODEL, "--json")
    assert any(EVIL in tensor["name"] for tensor in json.loads(out)["tensors"])
