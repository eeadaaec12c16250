"""Fixed-point multipliers against exact arithmetic with Python's integers and fractions."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeropoint.fixedpoint import (
    INT32_MAX,
    INT32_MIN,
    from_fixed_point,
    multiply,
    rounding_divide_by_power_of_two,
    saturating_rounding_doubling_high_mul,
    to_fixed_point,
)

CORNERS = sorted(
    {
        sign * (base + delta)
        for base in (0, 1 << 15, 1 << 16, 1 << 30, 1 << 31)
        for delta in (-2, -1, 0, 1, 2)
        for sign in (-1, 1)
        if INT32_MIN <= sign * (base + delta) <= INT32_MAX
    }
)
int32s = st.sampled_from(CORNERS) | st.integers(INT32_MIN, INT32_MAX)


def half_away(x: Fraction) -> int:
    return int(math.copysign(1, x)) * math.floor(abs(x) + Fraction(1, 2))


def high_mul(a: int, b: int) -> int:
    """Exactly: halves go up, and the one overflow saturates."""
    return min(math.floor(Fraction(a * b, 1 << 31) + Fraction(1, 2)), INT32_MAX)


def test_the_high_multiply_is_exact_in_the_corners():
    a, b = np.array(list(itertools.product(CORNERS, CORNERS))).T
    expected = [high_mul(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    assert saturating_rounding_doubling_high_mul(a, b).tolist() == expected


@given(st.lists(st.tuples(int32s, int32s), min_size=1, max_size=50))
def test_the_high_multiply_is_exact(pairs):
    a, b = np.array(pairs, np.int32).T
    assert saturating_rounding_doubling_high_mul(a, b).tolist() == [high_mul(x, y) for x, y in pairs]


@given(st.lists(int32s, min_size=1, max_size=50), st.integers(0, 31))
def test_division_rounds_half_away_from_zero(values, exponent):
    expected = [half_away(Fraction(x, 1 << exponent)) for x in (*CORNERS, *values)]
    assert rounding_divide_by_power_of_two(np.array([*CORNERS, *values], np.int32), exponent).tolist() == expected


@pytest.mark.parametrize("exponent", [-1, 32])
def test_division_has_bounds(exponent):
    with pytest.raises(ValueError, match="outside"):
        rounding_divide_by_power_of_two(np.int32([1]), exponent)


below_a_power = st.integers(-31, 29).map(lambda k: math.nextafter(2.0**k, 0))


@given(st.floats(2.0**-32, 2.0**29.9) | below_a_power)
def test_a_multiplier_is_the_nearest(real):
    multiplier, shift = to_fixed_point(real)
    assert 1 << 30 <= multiplier <= INT32_MAX
    assert -31 <= shift <= 30
    assert abs(Fraction(real) * Fraction(2) ** (31 - shift) - multiplier) <= Fraction(1, 2)


@given(st.floats(2.0**-32, 2.0**30, exclude_max=True) | below_a_power)
def test_a_multiplier_is_right_to_31_bits(real):
    assert abs(Fraction(from_fixed_point(*to_fixed_point(real))) / Fraction(real) - 1) <= Fraction(1, 1 << 31)


@given(st.integers(1 << 30, INT32_MAX), st.integers(-31, 30))
def test_a_multiplier_comes_back(multiplier, shift):
    assert to_fixed_point(from_fixed_point(multiplier, shift)) == (multiplier, shift)


@given(st.floats(0, 2.0**-32, exclude_max=True))
def test_too_small_is_nothing(real):
    # Rounding may still carry the very largest of them to 2**-32.
    assert to_fixed_point(real) in {(0, 0), (1 << 30, -31)}


@given(st.floats(2.0**30, allow_infinity=False))
def test_too_large_saturates(real):
    assert to_fixed_point(real) == (INT32_MAX, 30)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_a_multiplier_is_a_finite_size(bad):
    with pytest.raises(ValueError, match="multiplier"):
        to_fixed_point(bad)


@given(st.lists(int32s, min_size=1, max_size=50), st.floats(2.0**-32, 2.0**20))
def test_multiplying_is_within_one_of_the_product(values, real):
    """Two roundings of at most a half each, where the result fits; saturated where it does not."""
    multiplier, shift = to_fixed_point(real)
    limit = INT32_MAX >> max(shift, 0)
    x = [v for v in (*CORNERS, *values) if abs(v) <= limit]
    scaled = multiply(np.array(x, np.int32), multiplier, shift)
    exact = Fraction(multiplier) * Fraction(2) ** (shift - 31)
    assert all(abs(int(s) - v * exact) <= 1 for s, v in zip(scaled, x, strict=True))
