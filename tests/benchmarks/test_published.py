"""The published results: the page says what the rows say, and has a reason for whatever another tool does better."""

from __future__ import annotations

from pathlib import Path

from benchmarks.behind import behind
from benchmarks.page import GUIDE, page_text
from benchmarks.reasons import REASONS
from benchmarks.rows import read_all

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def test_the_page_is_that_of_the_rows():
    """After a change of either: python -m benchmarks.page docs/results"""
    assert (RESULTS / "README.md").read_text() == page_text(*read_all(RESULTS / "results.json"), GUIDE)


def test_whatever_another_tool_does_better_has_a_reason():
    _, rows = read_all(RESULTS / "results.json")
    assert [case for case in behind(rows) if case.reason is None] == []


def test_every_reason_has_a_case():
    cases = behind(read_all(RESULTS / "results.json")[1])
    used = {case.reason for case in cases}
    assert [reason.text for reason in REASONS if reason.text not in used] == []
