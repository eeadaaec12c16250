"""The other two commands: how things grow, and what has become slower."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from benchmarks import growth, micro


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = {"samples": (4.0, 8.0), "ops": (2.0, 4.0), "parameters": (512.0, 1024.0)}
    series = [growth.Series(s.name, s.label, steps[s.name], s.build, s.jobs) for s in growth.SERIES]
    monkeypatch.setattr(growth, "SERIES", tuple(series))


def test_growth_leaves_points_and_a_plot(tmp_path, monkeypatch):
    small(monkeypatch)
    monkeypatch.setattr(growth, "LAYERS", 2)
    monkeypatch.setattr(growth, "LIMIT", 100.0)  # times of two tiny models say nothing
    assert growth.main(["--only", "samples", "ops", "-o", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "growth.json").read_text())
    assert [point["x"] for point in found["points"]["ops"]] == [2, 4]
    stages = {"read", "calibrate", "quantize", "write", "weights alone", "quantize with data"}
    assert set(found["points"]["ops"][0]["seconds"]) == stages
    assert set(found["exponents"]["samples"]) == {"seconds, calibrate", "memory, calibrate"}
    assert ElementTree.parse(tmp_path / "growth.svg").getroot().tag.endswith("svg")


def test_exponents_are_those_of_power_laws():
    xs = [1.0, 10.0, 100.0, 1000.0]
    assert growth.exponent(xs, [7 * x for x in xs]) == pytest.approx(1.0)
    assert growth.exponent(xs, [x**2 for x in xs]) == pytest.approx(2.0)
    assert growth.exponent([9e9, *xs], [5.0, *xs]) == pytest.approx(1.0)  # only the last ones count


def test_what_takes_too_long_is_told_and_not_tried_again(tmp_path, monkeypatch, capsys):
    small(monkeypatch)
    monkeypatch.setattr(growth, "_tried", lambda *_: "took longer than 1 s")
    assert growth.main(["--only", "samples", "-o", str(tmp_path)]) == 1
    assert "took longer than 1 s on 4 samples" in capsys.readouterr().out


def test_a_regression_is_flagged(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(micro, "LAYERS", 3)
    monkeypatch.setattr(micro, "SIZE", 30_000)
    monkeypatch.setattr(micro, "STORED", tmp_path / "micro.json")
    asked = ["--only", "read", "solve", "--rounds", "2"]
    assert micro.main(asked) == 0  # nothing is stored yet
    assert micro.main([*asked, "--update"]) == 0
    ratios = json.loads((tmp_path / "micro.json").read_text())
    assert set(ratios) == {"read", "solve"}
    (tmp_path / "micro.json").write_text(json.dumps({"read": 1e9, "solve": 1e-9}))
    capsys.readouterr()
    assert micro.main(asked) == 1
    lines = capsys.readouterr().out.splitlines()
    assert ["SLOWER" in line for line in lines if line.startswith(("read", "solve"))] == [False, True]


def test_an_unknown_case_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(micro, "LAYERS", 3)
    monkeypatch.setattr(micro, "SIZE", 30_000)
    with pytest.raises(SystemExit, match="2"):
        micro.main(["--only", "raed"])
    assert "there is no case raed; choose from read, write" in capsys.readouterr().err


def test_every_case_has_a_stored_ratio(tmp_path, monkeypatch):
    monkeypatch.setattr(micro, "SIZE", 30_000)
    monkeypatch.setattr(micro, "LAYERS", 3)
    assert set(json.loads(micro.STORED.read_text())) == set(micro.cases(tmp_path))
