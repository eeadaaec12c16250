"""Samples far beyond the others are found whatever the units and their order; homogeneous ones are not accused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeropoint.calibration import Settings
from zeropoint.calibration.collect import collect_stats
from zeropoint.calibration.loud_samples import LoudSamples, Reaches, ReachTable, loud_samples
from zeropoint.dtypes import Array

from ..nets import Net, normal, samples_for

ENDS = {"t0"}
SEEDS = st.integers(0, 2**32 - 1)


def table(values: Array) -> ReachTable:
    count, tensors = values.shape
    return ReachTable(tuple(range(count)), tuple(f"t{k}" for k in range(tensors)), values.astype(np.float32))


def reaches(seed: int, count: int = 60, tensors: int = 12, spread: float = 0.3) -> Array:
    """Samples that vary alike, in tensors that differ in size and in how much samples vary there."""
    rng = np.random.default_rng(seed)
    spreads = spread * rng.uniform(0, 1, tensors)
    return np.exp(rng.uniform(-1.5, 1.5, (count, tensors)) * spreads) * np.exp(rng.normal(0, 4, tensors))


@given(SEEDS, st.integers(1, 300), st.floats(0, 2))
def test_homogeneous_samples_are_not_accused(seed, count, spread):
    assert loud_samples(table(reaches(seed, count, spread=spread)), ENDS) is None


@given(SEEDS, st.integers(12, 300), st.integers(0, 11), st.floats(0.0, 0.5))
def test_one_that_is_a_hundred_times_as_large_is_found(seed, count, which, spread):
    values = reaches(seed, count, spread=spread)
    values[which] *= 100
    found = loud_samples(table(values), ENDS)
    assert found is not None
    assert found.numbers == (which,)
    assert found.factors[0] == pytest.approx(100, rel=1.5)


@given(SEEDS)
def test_units_do_not_matter_and_order_only_permutes(seed):
    rng = np.random.default_rng(seed)
    values = reaches(seed, spread=0.5) * rng.choice([1, 30], (60, 1), p=[0.95, 0.05])
    found = loud_samples(table(values), ENDS)
    numbers = () if found is None else found.numbers
    scaled = loud_samples(table(values * 2.0 ** rng.integers(-20, 20, 12)), ENDS)
    assert scaled == found
    order = rng.permutation(60)
    permuted = loud_samples(table(values[order]), ENDS)
    assert sorted(order[k] for k in (permuted.numbers if permuted else ())) == list(numbers)


def test_loud_samples_do_not_hide_each_other():
    values = reaches(1, 60)
    for number, factor in zip(range(5, 11), (1000, 400, 100, 40, 20, 10), strict=True):
        values[number] *= factor
    found = loud_samples(table(values), ENDS)
    assert found is not None
    assert found.numbers == (5, 6, 7, 8, 9, 10)
    assert list(found.factors) == sorted(found.factors, reverse=True)


@pytest.mark.parametrize(("count", "loud"), [(60, 7), (9, 1), (19, 2)])
def test_more_than_a_tenth_is_how_the_data_are_distributed(count, loud):
    values = reaches(2, count)
    values[:loud] *= 100
    assert loud_samples(table(values), ENDS) is None


def test_one_inner_tensor_decides_nothing():
    values = reaches(3)
    values[7, 5] *= 100
    assert loud_samples(table(values), ENDS) is None
    assert loud_samples(table(values), {"t5"}) is not None
    values[7, 6:8] *= 100  # a quarter of them, with this one
    found = loud_samples(table(values), ENDS)
    assert found is not None
    assert found.numbers == (7,)


def test_tensors_that_are_zero_for_most_samples_say_nothing():
    """Those behind a ReLU."""
    values = reaches(4)
    values[:, ::2] *= np.arange(60)[:, None] < 20
    assert loud_samples(table(values), ENDS) is None
    values[40] *= 100
    found = loud_samples(table(values), ENDS)
    assert found is not None
    assert found.numbers == (40,)
    assert loud_samples(table(np.zeros((60, 12))), ENDS) is None
    assert loud_samples(Reaches().table, ENDS) is None


def test_they_are_named():
    one = LoudSamples((3,), (54.321,), "x")
    assert str(one) == "sample 3 drives values to 54.3 times the median of all samples ('x')"
    some = LoudSamples((3, 17, 40), (14.0, 315.0, 20.0), "x")
    assert (
        str(some) == "samples 3, 17 and 40 drive values to 14 to 315 times the median of all samples (most of all 'x')"
    )
    assert replace(some, numbers=tuple(range(12))).names == "samples 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 others"
    assert one.renumbered(range(10, 20)).names == "sample 13"


def two_layers():
    net = Net()
    hidden = net.dense(net.input(1, 8), normal(16, 8), normal(16), activation=1)
    return net.model(net.dense(hidden, normal(4, 16, seed=1), normal(4)))


@pytest.mark.parametrize("settings", [Settings(), Settings(histograms=False), Settings(workers=3)], ids=str)
def test_calibration_collects_how_far_each_sample_drives_each_tensor(settings):
    model = two_layers()
    samples = samples_for(model, 70)
    collected = Reaches()
    collect_stats(model, samples, settings, reaches=collected)
    alone = Reaches()
    for number, sample in enumerate(samples):
        stats = collect_stats(model, [sample], settings)
        reach = [max(-one.low.value, one.high.value) for one in stats.tensors.values()]
        alone.keep([number], [*stats.tensors], np.array([reach]))
    found, wanted = collected.table, alone.table
    assert (found.numbers, found.keys) == (wanted.numbers, wanted.keys)
    np.testing.assert_array_equal(found.values, wanted.values)


def test_a_sample_of_several_runs_reaches_as_far_as_any_of_them():
    model = two_layers()
    samples = [x for (x,) in samples_for(model, 60)]
    single, batches = Reaches(), Reaches()
    collect_stats(model, samples, Settings(), reaches=single)
    collect_stats(model, [np.concatenate(samples[k : k + 4]) for k in range(0, 60, 4)], Settings(), reaches=batches)
    assert batches.table.numbers == tuple(range(15))
    wanted = single.table.values.reshape(15, 4, -1).max(axis=1)
    np.testing.assert_array_equal(batches.table.values, wanted)


def test_memory_for_them_is_limited():
    collected = Reaches(most=3)
    for number in range(5):
        collected.keep([number], ["x"], np.ones((1, 1)))
    assert collected.table.numbers == (0, 1, 2)
