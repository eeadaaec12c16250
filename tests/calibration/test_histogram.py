"""Histograms add up: any split and any order of the data give the same one, count for count."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeropoint.calibration.histogram import BINS, FINEST, Histogram, bin_of, exponent_for
from zeropoint.dtypes import Array

from .facts import bins

FLOATS = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1e-45, -1e-45, 1e-38, -1e-38, 1e38, -1e38, 3.4e38, -3.4e38, 1.0, -1.0, 5.0]),
    st.floats(-8, 8, width=32),
)
DATA = st.lists(FLOATS, min_size=1, max_size=60).map(np.float32)


def histogram(values: Array) -> Histogram:
    return Histogram.of(values, float(values.min()), float(values.max()))


def total(parts: list[Histogram]) -> Histogram:
    result = Histogram.empty()
    for part in parts:
        result = result.merge(part)
    return result


@given(DATA, st.data())
def test_any_split_in_any_order_gives_the_same(values, data):
    places = st.integers(0, values.size)
    cuts = sorted(data.draw(st.lists(places, max_size=4)))
    parts = [histogram(part) for part in np.split(values, cuts) if part.size]
    assert bins(total(data.draw(st.permutations(parts)))) == bins(histogram(values))


@given(DATA, DATA, DATA)
def test_merging_is_associative(a, b, c):
    x, y, z = (histogram(values) for values in (a, b, c))
    assert bins(x.merge(y).merge(z)) == bins(x.merge(y.merge(z)))


@given(DATA)
def test_every_value_is_counted_in_its_own_bin(values):
    made = histogram(values)
    assert made.total == values.size
    assert 0 < made.counts.size <= BINS
    for value in values.tolist():
        place = bin_of(value, made.exponent) - made.first
        assert made.counts[place] > 0
        edges = made.edges()
        assert edges[place] <= value < edges[place + 1]


@given(DATA)
def test_a_mirror_image_counts_what_is_as_far_on_the_other_side(values):
    made = histogram(values)
    mirrored = made.mirrored()
    np.testing.assert_array_equal(mirrored.centers(), -made.centers()[::-1])
    np.testing.assert_array_equal(mirrored.counts, made.counts[::-1])
    assert bins(mirrored.mirrored()) == bins(made)


@given(DATA, DATA)
def test_growth_loses_no_counts(a, b):
    assert histogram(a).merge(histogram(b)).total == a.size + b.size


@given(DATA)
def test_the_width_is_the_finest_that_fits(values):
    low, high = float(values.min()), float(values.max())
    exponent = exponent_for(low, high)
    assert bin_of(high, exponent) - bin_of(low, exponent) < BINS
    finer = exponent - 1
    resolution = max(FINEST, math.frexp(max(abs(low), abs(high)))[1] - 24)
    assert finer < resolution or bin_of(high, finer) - bin_of(low, finer) >= BINS


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -7.5, 1e38, -3.4e38, 1e-45, -1e-40])
def test_a_constant_is_one_bin(value):
    values = np.full(5, value, np.float32)
    assert histogram(values).counts.tolist() == [5]


def test_nothing_is_neutral():
    some = histogram(np.float32([1, 2, 3]))
    assert bins(Histogram.empty().merge(some)) == bins(some) == bins(some.merge(Histogram.empty()))
    assert Histogram.empty().total == 0


def test_a_wide_range_keeps_half_of_the_bins_at_least():
    values = np.linspace(-3, 5, 100_000, dtype=np.float32)
    assert BINS / 2 <= histogram(values).counts.size <= BINS
