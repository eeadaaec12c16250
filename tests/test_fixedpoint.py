"""Fixed-point multipliers against exact arithmetic with Python's fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeropoint.fixedpoint import INT32_MAX, divided, multiply, multiply_wide, shift_right, to_fixed_point


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


# As kernels apply them.

WIDE = st.integers(-(2**31), 2**31 - 1)
FACTORS = st.floats(2.0**-20, 0.999)


def nearest(exact: Fraction) -> set[int]:
    return {math.floor(exact + Fraction(1, 2)), math.ceil(exact - Fraction(1, 2))}


@given(WIDE, st.integers(0, 31))
def test_shift_right_is_to_the_nearest_with_halves_away_from_zero(x, bits):
    exact = Fraction(x, 2**bits)
    found = int(shift_right(np.array([x]), bits)[0])
    assert found in nearest(exact)
    assert abs(found) >= abs(exact) or abs(abs(exact) - abs(found)) < Fraction(1, 2)


@given(WIDE, FACTORS)
def test_multiply_is_within_a_unit_of_the_product(x, real):
    multiplier, shift = to_fixed_point(real)
    exact = x * Fraction(multiplier) * Fraction(2) ** (shift - 31)
    assert abs(int(multiply(np.array([x]), multiplier, shift)[0]) - exact) <= Fraction(3, 4)


@given(st.integers(-(2**46), 2**46), st.floats(2.0**-30, 2.0**-16))
def test_multiply_wide_has_sixteen_bits_of_the_multiplier(x, real):
    multiplier, shift = to_fixed_point(real)
    reduced = min((multiplier + (1 << 15)) >> 16, 0x7FFF)
    exact = x * Fraction(reduced) * Fraction(2) ** (shift - 15)
    assert int(multiply_wide(np.array([x]), multiplier, shift)[0]) == math.floor(exact + Fraction(1, 2))


@given(st.integers(-(2**40), 2**40), st.integers(1, 2**30))
def test_integers_are_divided_towards_zero(x, by):
    assert int(divided(np.int64(x), by)) == math.trunc(Fraction(x, by))
