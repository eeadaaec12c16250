"""The benchmark of devices: what it tells of models that are accepted, and of those that are refused."""

from __future__ import annotations

import json

import pytest

from benchmarks import devices
from zeropoint.errors import RuntimeFailure


def test_models_are_given_to_the_tools(zoo, tmp_path, capsys):
    asked = [
        "--zoo",
        str(zoo),
        "--only",
        "digits",
        "--targets",
        "tflm,ethos-u55-128",
        "--samples",
        "4",
        "--compared",
        "1",
    ]
    assert devices.main([*asked, "-o", str(tmp_path / "found.json")]) == 0
    assert "0 surprises" in capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text())
    accepted = [one for one in found if one["outcome"] == "accepted"]
    assert {(one["mode"], one["target"]) for one in accepted} >= {("int8", "tflm"), ("int8, 4 bits", "ethos-u55-128")}
    assert all(one["ulp"] < 20 for one in accepted if one["target"] == "tflm")
    assert all(one["milliseconds"] > 0 for one in accepted if one["target"] != "tflm")


def test_a_surprise_is_told(zoo, monkeypatch, capsys):
    def fail(*_: object) -> None:
        raise RuntimeFailure("it says no")

    monkeypatch.setattr(devices, "ask_tool", fail)
    monkeypatch.setattr(devices, "MODES", {"int8": ("int8", 8)})
    assert devices.main(["--zoo", str(zoo), "--only", "digits", "--targets", "tflm", "--samples", "2"]) == 1
    assert "SURPRISE" in capsys.readouterr().out


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
def test_what_a_device_lacks_is_refused_by_us(mode):
    from zeropoint.calibration import calibrate

    from ..conformance.samples import SAMPLES

    sample = next(s for s in SAMPLES if s.kind == "GELU")
    model, data = sample.model(), sample.draw(4)
    found = devices.outcome(("gelu", mode, "tflm"), model, calibrate(model, data), data)
    assert found.outcome == "refused by us"
    assert "GELU" in found.note
