"""Layers by themselves, in float, in int8 and dynamic."""

from __future__ import annotations

import json

from benchmarks import layers


def test_every_layer_is_timed_in_every_version(zoo, tmp_path, capsys):
    wanted = ["--zoo", str(zoo), "--only", "digits", "--samples", "4", "--rounds", "2"]
    assert layers.main([*wanted, "-o", str(tmp_path / "layers.json")]) == 0
    (row,) = json.loads((tmp_path / "layers.json").read_text())["rows"]
    assert {layer["kind"] for layer in row["layers"]} >= {"CONV_2D", "FULLY_CONNECTED"}
    for version, total in row["sums"].items():
        assert total == sum(layer["ms"][version] for layer in row["layers"])
    assert 0 < row["fastest_ms"] <= min(row["sums"].values())
    assert "all int8" in capsys.readouterr().out


def test_an_unknown_task_is_refused(zoo, capsys):
    assert layers.main(["--zoo", str(zoo), "--only", "nonesuch"]) == 2
    assert "nonesuch" in capsys.readouterr().err
