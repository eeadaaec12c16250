"""Relative speeds, from timers that say what they are told to."""

from __future__ import annotations

import itertools

import pytest

import zeropoint
from zeropoint.bench import relative_speed
from zeropoint.bench.relative_speed import FEWEST_TURNS, MOST_TURNS, SHORTEST, compared, relative_speeds

from ..nets import Net, normal


class Clock:
    """Gives the same seconds again and again, and counts how often it is asked."""

    def __init__(self, *seconds: float) -> None:
        self.seconds, self.runs = itertools.cycle(seconds), 0

    def __call__(self) -> float:
        self.runs += 1
        return next(self.seconds)


def test_the_median_of_the_turns_counts():
    found = compared([Clock(1e-3), Clock(2e-3, 2e-3, 1e-3), Clock(5e-4)])
    assert found == pytest.approx((0.5, 2.0))


@pytest.mark.parametrize(("speed", "turns"), [(2, FEWEST_TURNS), (0.5, FEWEST_TURNS), (0.9, MOST_TURNS)])
def test_only_what_is_unclear_takes_many_turns(speed, turns):
    first, other = Clock(1e-3), Clock(1e-3 / speed)
    compared([first, other])
    assert (first.runs, other.runs) == (turns, turns)


@pytest.mark.parametrize(("speed", "turns"), [(2, 1), (0.1, 1), (0.9, FEWEST_TURNS)])
def test_time_is_bounded(speed, turns):
    first = Clock(10.0)
    compared([first, Clock(10.0 / speed)])
    assert first.runs == turns


def test_models_that_hardly_compute_are_not_compared():
    assert compared([Clock(SHORTEST / 2), Clock(1.0)]) is None


def test_a_model_that_does_not_run_has_no_speed(monkeypatch):
    net = Net()
    model = net.model(net.conv(net.input(1, 32, 32, 16), normal(64, 3, 3, 16)))
    monkeypatch.setattr(relative_speed, "sample_for", lambda _: [normal(1, 2)])
    assert relative_speeds([model, model]) is None


def test_a_model_is_about_as_fast_as_itself(monkeypatch):
    net = Net()
    model = net.model(net.conv(net.input(1, 32, 32, 16), normal(64, 3, 3, 16)))
    monkeypatch.setattr(relative_speed, "SHORTEST", 0.0)
    (speed,) = relative_speeds([model, zeropoint.load(zeropoint.to_bytes(model))])
    assert 0.1 < speed < 10
