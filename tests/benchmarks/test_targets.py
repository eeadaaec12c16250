"""Models made for targets, side by side."""

from __future__ import annotations

import json

from benchmarks import targets
from benchmarks.rows import INSTRUCTIONS


def test_every_version_has_its_numbers(zoo, tmp_path, capsys):
    wanted = [
        "--zoo",
        str(zoo),
        "--only",
        "digits",
        "--against",
        "",
        "--samples",
        "8",
        "--limit",
        "20",
        "--rounds",
        "2",
    ]
    assert targets.main([*wanted, "-o", str(tmp_path / "targets.json")]) == 0
    found = json.loads((tmp_path / "targets.json").read_text())
    rows = {row["tool"]: row for row in found["rows"]}
    assert set(rows) == {"float", "cpu", "integer", targets.MEASURED}
    assert rows["float"]["speed"] == 1
    assert rows["cpu"]["plain"] == 0 < rows["integer"]["plain"]
    assert all(row["score"] > 0.8 and row["milliseconds"] > 0 for row in rows.values())
    assert set(found["instructions"]) <= set(INSTRUCTIONS)
    assert "integer" in capsys.readouterr().out


def test_unknown_tasks_and_tools_are_refused(zoo, capsys):
    assert targets.main(["--zoo", str(zoo), "--only", "nonesuch"]) == 2
    assert "nonesuch" in capsys.readouterr().err
