"""Where a drawback is shown: in the second line of the summary, in JSON, and in a notebook."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

import zeropoint
from zeropoint.bench import relative_speed
from zeropoint.report.quantization import SavedAs, print_result, result_json

from ..improve.test_drawback import convolutions, shared


@pytest.fixture(autouse=True)
def untimed(monkeypatch):
    monkeypatch.setattr(relative_speed, "relative_speeds", lambda _: None)


def printed(result):
    console = Console(file=io.StringIO(), width=400)
    print_result(result, saved(result), console)
    return console.file.getvalue().splitlines()


def saved(result):
    return SavedAs(None, len(zeropoint.to_bytes(result.model)), result.origin.bytes)


def larger():
    return zeropoint.quantize(shared(), "dynamic", keep_float=["second"])


def test_the_second_line_says_it():
    result = larger()
    first, second, *_ = printed(result)
    assert first.startswith("Size ")
    assert second == f"Larger      {result.drawback}"
    assert second.startswith("Larger      1.3")
    assert not any(line.startswith("Larger") for line in printed(zeropoint.quantize(convolutions(), "dynamic")))


def test_json_has_it():
    result = larger()
    told = json.loads(json.dumps(result_json(result, saved(result))))["drawback"]
    assert told["size"] == result.drawback.size > 1.3
    assert (told["is_larger"], told["is_slower"], told["speed"], told["target"]) == (True, False, None, "cpu")
    assert told["reasons"] == list(result.drawback.reasons)
    assert told["alternative"] == result.drawback.alternative
    good = zeropoint.quantize(convolutions(), "dynamic")
    assert result_json(good, saved(good))["drawback"] is None


def test_a_notebook_shows_it_beside_the_same_sizes():
    result = larger()
    shown = result._repr_html_()
    assert "Larger" in shown
    assert f"({result.drawback.size:.0%})" in shown


def test_the_command_line_spells_it_as_options(tmp_path, run):
    path = tmp_path / "model.tflite"
    path.write_bytes(zeropoint.to_bytes(shared()))
    options = ("--mode", "dynamic", "--keep-float", "second")
    code, out, err = run("quantize", path, "-o", tmp_path / "out.tflite", *options)
    assert code == 0
    second = (out or err).splitlines()[1]
    assert second.startswith("Larger      1.3")
    assert "--mode dynamic is 0." in " ".join((out or err).split())
