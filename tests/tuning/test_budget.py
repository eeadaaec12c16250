"""Budgets say what they mean, and nonsense is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeropoint import Budget
from zeropoint.errors import InvalidRecipe
from zeropoint.recipe import preset
from zeropoint.tuning.evaluation import Drop
from zeropoint.tuning.excess import used_drop
from zeropoint.tuning.trial import Configuration, Trial

SCORES = st.floats(0.1, 100)


@given(SCORES, st.floats(0, 0.4))
def test_points_are_of_the_metrics_unit(score, points):
    assert Budget(max_drop=points).allowed_drop(score, 0.01, True) == pytest.approx(points / 100)


@given(SCORES, st.floats(0, 100), st.booleans())
def test_percent_are_of_the_float_score(score, percent, higher):
    allowed = Budget(max_drop=f"{percent}%").allowed_drop(-score, 1.0, higher)
    assert allowed == pytest.approx(score * percent / 100)


@given(SCORES, st.floats(0, 10))
def test_the_narrower_of_two_limits_counts(score, room):
    budget = Budget(max_drop="5%", min_metric=score - room)
    assert budget.allowed_drop(score, 1.0, True) == pytest.approx(min(room, score / 20), abs=1e-9)
    assert Budget(min_metric=score + room).allowed_drop(score, 1.0, False) == pytest.approx(room, abs=1e-9)


def test_without_a_limit_on_the_score_anything_goes():
    assert Budget(max_size="10kB").allowed_drop(0.9, 0.01, True) == math.inf


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [("200kB", "size", 200e3), (2048, "size", 2048), ("1.5MiB", "size", 1.5 * 2**20), ("5ms", "seconds", 5e-3)],
)
def test_quantities_have_units(given, name, value):
    budget = Budget(max_size=given) if name == "size" else Budget(max_latency=given)
    assert getattr(budget, name) == pytest.approx(value)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"max_drop": -1},
        {"max_drop": "much"},
        {"max_drop": math.nan},
        {"max_size": "5 apples"},
        {"max_size": 0},
        {"max_latency": "fast"},
        {"min_metric": math.inf},
    ],
)
def test_nonsense_is_refused(given):
    with pytest.raises(InvalidRecipe, match=next(iter(given), "empty")):
        Budget(**given)


def test_a_budget_that_the_float_model_fails_is_refused():
    with pytest.raises(InvalidRecipe, match="the float model itself scores"):
        Budget(min_metric=0.95).allowed_drop(0.9, 0.01, True)


def test_half_a_point_of_a_share_is_not_half_of_it():
    """A function that gives 0.52 and a drop of 0.5 is a mistake of units."""
    with pytest.raises(InvalidRecipe, match="percent"):
        Budget(max_drop=0.5).allowed_drop(0.52, 1.0, True)


def test_an_error_close_to_0_may_grow_by_more_than_itself():
    assert Budget(max_drop=0.02).allowed_drop(0.0178, 1.0, False) == 0.02


@given(st.floats(-0.05, 0.05), st.floats(0, 0.02), st.floats(0.001, 0.05))
def test_a_gain_on_a_path_is_luck_and_a_standard_error_counts(value, error, allowed):
    mode, place = (
        Trial(Configuration("mixed", preset("weights"), path=path), drop=Drop(0.9, value, error, 100))
        for path in ("", "weights")
    )
    assert (used_drop(place, allowed) <= 1) == (max(0.0, value) + error <= allowed * (1 + 1e-9))
    assert (used_drop(mode, allowed) <= 1) == (value + error / 2 <= allowed * (1 + 1e-9))
    assert used_drop(replace(place, drop=None), allowed) == math.inf
