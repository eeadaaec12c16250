"""The benchmark of the measure of error: what it counts, on a zoo of one task."""

from __future__ import annotations

import sys

import pytest

from benchmarks import error_measure
from benchmarks.error_measure import Agreement, Version, rank_correlation

WAYS = ("int8, quick", "int8, 3-bit weights, quick", "weights, 2 bits", "dynamic")


def version(way: str, lost: float, error: float, level: str) -> Version:
    return Version("task", way, 1 - lost, lost, error, level, ("classes",), (error,))


def test_ranks_are_compared_and_equal_values_share_one():
    assert rank_correlation([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 1, 2], [5, 5, 9]) == pytest.approx(1)


def test_steps_are_counted_between_what_is_said_and_what_is_lost():
    found = [
        version("a", 0.0, 0.001, "good"),
        version("b", 0.03, 0.05, "good"),
        version("c", 0.2, 0.3, "good"),
        version("d", 0.2, 0.4, "unknown"),
    ]
    assert [one.steps for one in found] == [0, 1, 2, 1]
    agreement = Agreement.of(found)
    assert agreement.steps == 1
    assert agreement.bad_called_good == 1
    assert agreement.correlation > 0.9


def test_a_task_is_judged_scored_and_drawn(zoo, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(error_measure, "WAYS", {way: error_measure.WAYS[way] for way in WAYS})
    files = tmp_path / "out.md", tmp_path / "out.svg"
    kept = tmp_path / "kept"
    given = [
        "--zoo",
        str(zoo),
        "--tasks",
        "digits",
        "--keep",
        str(kept),
        "--page",
        str(files[0]),
        "--plot",
        str(files[1]),
    ]
    for _ in range(2):  # the second time with scores that are kept
        monkeypatch.setattr(sys, "argv", ["error_measure", *given])
        error_measure.main()
    printed = capsys.readouterr().out
    assert "mean rank correlation" in printed
    lines = [line.split(" | ") for line in files[0].read_text().splitlines() if line.startswith("| ")]
    by_way = {cells[0].removeprefix("| "): cells for cells in lines}
    assert set(WAYS) < set(by_way)
    assert float(by_way["dynamic"][3]) < float(by_way["int8, 3-bit weights, quick"][3]) < 1
    assert by_way["digits"][-1] == "0 |"
    assert len(list(kept.iterdir())) == len(WAYS) + 1
    assert "<svg" in files[1].read_text()
