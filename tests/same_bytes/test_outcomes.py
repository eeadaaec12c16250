"""Whatever users see of a result is compared, and what differs is said."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from tools.same_bytes.outcomes import Outcome, differences

MODEL = Outcome(model="0f", size=10, notes=("a", "b"), warnings=("c",), skipped=("d",), seconds=1.0)
REFUSAL = Outcome(ending="UnsupportedOp: no kernel")


@pytest.mark.parametrize("outcome", [MODEL, REFUSAL])
def test_an_outcome_does_not_differ_from_itself_however_long_it_took(outcome):
    assert list(differences(outcome, replace(outcome, seconds=9.0))) == []


@pytest.mark.parametrize("name", [field.name for field in fields(Outcome) if field.name not in ("size", "seconds")])
def test_every_field_is_compared(name):
    changed = replace(MODEL, **{name: "other" if isinstance(getattr(MODEL, name), str) else ("other",)})
    for pair in ((MODEL, changed), (changed, MODEL)):
        (line,) = differences(*pair)
        assert line.startswith(name)


def test_lines_that_came_and_went_are_shown():
    (line,) = differences(MODEL, replace(MODEL, notes=("a", "new")))
    assert line == "notes: - b + new"


def test_another_refusal_is_a_difference():
    assert list(differences(REFUSAL, replace(REFUSAL, ending="UnsupportedOp: another"))) == [
        "ending: - UnsupportedOp: no kernel + UnsupportedOp: another"
    ]
    assert list(differences(REFUSAL, MODEL)) == ["ending: - UnsupportedOp: no kernel + a model"]
