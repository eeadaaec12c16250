"""Layers by themselves, in float and in int8."""

from __future__ import annotations

import json

from benchmarks import layers


def test_every_layer_is_timed_in_both_types(zoo, tmp_path, capsys):
    wanted = ["--zoo", str(zoo), "--only", "digits", "--samples", "4", "--rounds", "2"]
    assert layers.main([*wanted, "-o", str(tmp_path / "layers.json")]) == 0
    (row,) = json.loads((tmp_path / "layers.json").read_text())["rows"]
    assert {layer["kind"] for layer in row["layers"]} >= {"CONV_2D", "FULLY_CONNECTED"}
    sums = {key: sum(layer[key] for layer in row["layers"]) for key in ("float_ms", "int8_ms")}
    assert sums == {"float_ms": row["layers_float_ms"], "int8_ms": row["layers_int8_ms"]}
    assert 0 < row["layers_fastest_ms"] <= min(sums.values())
    assert "all int8" in capsys.readouterr().out


def test_an_unknown_task_is_refused(zoo, capsys):
    assert layers.main(["--zoo", str(zoo), "--only", "nonesuch"]) == 2
    assert "nonesuch" in capsys.readouterr().err
