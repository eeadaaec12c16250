"""Fixed-point multipliers against exact arithmetic with Python's fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeropoint.fixedpoint import INT32_MAX, to_fixed_point


def value(multiplier: int, shift: int) -> Fraction:
    """The real number that a multiplier and a shift stand for."""
    return multiplier * Fraction(2) ** (shift - 31)


below_a_power = st.integers(-31, 29).map(lambda k: math.nextafter(2.0**k, 0))


@given(st.floats(2.0**-32, 2.0**29.9) | below_a_power)
def test_a_multiplier_is_the_nearest(real):
    multiplier, shift = to_fixed_point(real)
    assert 1 << 30 <= multiplier <= INT32_MAX
    assert -31 <= shift <= 30
    assert abs(Fraction(real) * Fraction(2) ** (31 - shift) - multiplier) <= Fraction(1, 2)


@given(st.floats(2.0**-32, 2.0**30, exclude_max=True) | below_a_power)
def test_a_multiplier_is_right_to_31_bits(real):
    assert abs(value(*to_fixed_point(real)) / Fraction(real) - 1) <= Fraction(1, 1 << 31)


@given(st.integers(1 << 30, INT32_MAX), st.integers(-31, 30))
def test_a_multiplier_comes_back(multiplier, shift):
    assert to_fixed_point(float(value(multiplier, shift))) == (multiplier, shift)


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
