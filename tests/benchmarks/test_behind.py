"""Where zeropoint is behind: every case is found, the best of the others is named, and noise is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import behind as module
from benchmarks import reasons
from benchmarks.behind import behind, lines
from benchmarks.reasons import Reason
from benchmarks.rows import Row

OURS = Row(
    "task",
    "int8",
    "zeropoint",
    score=0.9,
    float_score=0.9,
    size=100_000,
    whole=0.1,
    peak=10_000_000,
    latency={"1 of float": 0.5, "1 lowest": 0.48, "1 highest": 0.52},
)
THEIRS = replace(OURS, tool="tf")


def found(ours: Row, *others: Row) -> list[tuple[str, str, str, str]]:
    return [(one.measure, one.tool, one.ours, one.theirs) for one in behind([ours, *others])]


def test_equal_rows_are_behind_nowhere():
    assert found(OURS, THEIRS) == []
    assert list(lines([OURS, THEIRS])) == ["Nowhere."]


@pytest.mark.parametrize(
    ("better", "case"),
    [
        ({"score": 0.91}, ("score", "tf", "0.9000", "0.9100")),
        ({"size": 90_000}, ("size", "tf", "100 kB", "90 kB")),
        ({"latency": {"1 of float": 0.4, "1 highest": 0.41}}, ("latency", "tf", "0.50", "0.40")),
        ({"peak": 1_000_000}, ("memory", "tf", "10 MB", "1 MB")),
        ({"whole": 0.01}, ("time", "tf", "0.10 s", "0.01 s")),
    ],
)
def test_every_measure_is_looked_at(better, case):
    assert found(OURS, replace(THEIRS, **better)) == [case]


@pytest.mark.parametrize(
    "noise",
    [
        {"score": 0.904},
        {"score": 0.95, "float_score": 0.95},  # on other samples, where the float model is better as well
        {"size": 99_000},
        {"latency": {"1 of float": 0.4, "1 highest": 0.49}},  # the slowest of its runs is slower than our fastest
        {"peak": 3_000_000},
        {"whole": 0.06},
    ],
)
def test_what_may_be_chance_is_not_behind(noise):
    assert found(OURS, replace(THEIRS, **noise)) == []


def test_the_best_of_the_others_is_named_and_failures_do_not_count():
    close = replace(THEIRS, tool="aeq", size=95_000)
    failed = replace(THEIRS, tool="mct", size=10_000, error="its model does not run")
    variant = replace(OURS, variant="high", size=50_000)
    assert found(OURS, close, replace(THEIRS, size=80_000), failed, variant) == [("size", "tf", "100 kB", "80 kB")]


def test_what_only_another_tool_can_do_is_coverage():
    ours = Row("task", "int8", "zeropoint", error="refused")
    assert found(ours, THEIRS) == [("coverage", "tf", "refused", "done")]
    assert found(ours, replace(THEIRS, error="refused too")) == []


def test_cases_stand_with_their_reason_or_say_that_there_is_none(monkeypatch):
    rows = [
        OURS,
        replace(THEIRS, size=80_000),
        replace(OURS, mode="dynamic"),
        replace(THEIRS, mode="dynamic", whole=0.01),
    ]
    monkeypatch.setattr(reasons, "REASONS", (Reason("Because.", "size latency", tools="tf"),))
    text = "\n".join(lines(rows))
    assert "- int8, TensorFlow: task 100 kB (80 kB). Because." in text
    assert "- dynamic, TensorFlow: task 0.10 s (0.01 s). **no reason is known yet**" in text
    assert module.behind(rows)[0].reason == "Because."
