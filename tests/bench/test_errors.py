"""How errors of two models are told apart: sample by sample, and only if chance does not explain the difference."""

from __future__ import annotations

import math

import numpy as np
import pytest

from zeropoint.bench.errors import ErrorSum, JudgedError


def judged(errors, power=1.0):
    return JudgedError.of([[ErrorSum(error, power)] for error in errors])


def test_the_value_is_the_relative_error_of_all_samples_and_parts_add_up_to_it():
    two = JudgedError.of([[ErrorSum(1.0, 4.0), ErrorSum(0.0, 1.0)], [ErrorSum(3.0, 12.0), ErrorSum(2.0, 1.0)]])
    assert two.value == pytest.approx((4 / 16 + 2 / 2) / 2)
    assert sum(two.parts) == pytest.approx(two.value)
    assert JudgedError.of([]).value == 0


def test_a_small_gain_on_all_samples_counts_and_a_large_one_on_a_single_loud_sample_does_not():
    before = [1.0] * 10 + [100.0]
    everywhere = [error * 0.99 for error in before[:10]] + [99.0]
    loud = [*before[:10], 50.0]
    assert judged(everywhere[:10]).beats(judged(before[:10]))
    assert judged(loud).value < judged(everywhere).value
    assert not judged(loud).beats(judged(before))


def test_chance_rarely_beats_anything():
    """Differences without a mean exceed their standard error in one case of six."""
    rng = np.random.default_rng(0)
    pairs = [(judged(rng.uniform(1, 2, 24)), judged(rng.uniform(1, 2, 24))) for _ in range(300)]
    assert 0.08 < np.mean([one.beats(other) for one, other in pairs]) < 0.25


def test_what_is_not_finite_never_wins_and_always_loses():
    broken, fine = judged([math.nan, 1.0]), judged([1.0, 1.0])
    assert fine.beats(broken)
    assert not broken.beats(fine)
    assert not broken.beats(broken)
    assert not fine.beats(fine)
    assert judged([1.0]).beats(judged([2.0]))  # of one sample no spread is known
