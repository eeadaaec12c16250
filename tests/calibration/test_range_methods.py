"""The choice of a range: what each method promises, on any statistics."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zeropoint
from zeropoint.affine import QuantParams, dequantize, quantize
from zeropoint.calibration import METHODS, Grid, Settings, Stats, calibrate, choose_range, choose_ranges
from zeropoint.calibration.histogram import Histogram
from zeropoint.calibration.range_methods import ExpectedErrors
from zeropoint.calibration.stats import TensorStats, stats_of
from zeropoint.dtypes import Array, DType
from zeropoint.errors import InvalidRecipe

from .. import build
from ..nets import Net, normal
from .facts import expected_error

GRIDS = [Grid(bits, symmetric) for bits in (4, 8, 16) for symmetric in (False, True)]


def measured(*runs: Array) -> TensorStats:
    found = [stats_of(np.float32(values), number) for number, values in enumerate(runs)]
    total = found[0]
    for part in found[1:]:
        total = total.merge(part)
    return total


@st.composite
def statistics(draw: st.DrawFn) -> TensorStats:
    """Normal, uniform, rectified or constant values, on any scale, with outliers or without."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = draw(st.integers(1, 3000))
    shapes = [rng.normal(size=size), rng.uniform(-1, 1, size), rng.exponential(size=size), np.full(size, rng.normal())]
    values = shapes[draw(st.integers(0, 3))] + draw(st.sampled_from([0.0, 0.5, -3.0, 20.0]))
    values = np.maximum(values, 0) if draw(st.booleans()) else values
    values[: draw(st.integers(0, 3))] *= draw(st.sampled_from([10.0, -1000.0]))
    return measured(values * draw(st.sampled_from([1e-40, 1e-6, 1.0, 1e5, 1e30])))


def outliers() -> Array:
    """A normal distribution, and one value in 200,000 far away at both ends."""
    values = np.random.default_rng(0).normal(size=400_000).astype(np.float32)
    values[:4] = 40, -40, 30, -30
    return values


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("grid", GRIDS, ids=str)
@settings(max_examples=40)
@given(stats=statistics())
def test_a_chosen_range_lies_within_the_observed_one(method, grid, stats):
    low, high = choose_range(stats, method, grid)
    slack = 1e-9 * max(abs(stats.low.value), abs(stats.high.value))
    assert stats.low.value - slack <= low <= high <= stats.high.value + slack
    QuantParams.from_range(low, high, DType.INT8)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@settings(max_examples=40)
@given(stats=statistics())
def test_mse_has_no_more_error_than_minmax(grid, stats):
    chosen, full = (choose_range(stats, method, grid) for method in ("mse", "minmax"))
    least, error = (expected_error(stats.histogram, bounds, grid) for bounds in (chosen, full))
    assert least <= error * (1 + 1e-9)


@pytest.mark.parametrize("grid", [Grid(4), Grid(8), Grid(4, True), Grid(8, True)], ids=str)
@pytest.mark.parametrize("shape", ["normal", "skewed", "outliers", "rectified"])
def test_mse_is_close_to_the_best_there_is(shape, grid):
    rng = np.random.default_rng(0)
    normal = rng.normal(size=20_000)
    shapes = {
        "normal": normal,
        "skewed": np.where(normal > 0, 20 * normal, normal),
        "outliers": np.concatenate([normal, [-90, 200]]),
        "rectified": np.maximum(rng.standard_t(3, 20_000), 0),
    }
    stats = measured(shapes[shape])
    ends = np.linspace(0.005, 1, 40)
    pairs = [(stats.low.value * a, stats.high.value * b) for a in ends for b in ends]
    best = min(expected_error(stats.histogram, bounds, grid) for bounds in pairs)
    assert expected_error(stats.histogram, choose_range(stats, "mse", grid), grid) <= 1.05 * best


def test_minmax_is_everything():
    assert choose_range(measured([1, -2], [5, 0]), "minmax", Grid()) == (-2, 5)


def test_average_is_between_the_runs():
    low, high = choose_range(measured([0, 1], [-1, 3]), "average", Grid())
    assert low == pytest.approx(-1 / 1.99)
    assert high == pytest.approx((0.99 * 1 + 3) / 1.99)


@settings(max_examples=30)
@given(share=st.sampled_from([90.0, 99.0, 99.9, 99.99]), seed=st.integers(0, 99))
def test_a_percentile_cuts_its_share_from_each_end(share, seed):
    values = np.random.default_rng(seed).normal(size=100_000).astype(np.float32)
    stats = measured(values)
    low, high = choose_range(stats, "percentile", Grid(), share)
    width, cut = stats.histogram.width, 1 - share / 100
    assert np.mean(values > high + width) <= cut <= np.mean(values > high - width)
    assert np.mean(values < low - width) <= cut <= np.mean(values < low + width)


def test_a_percentile_leaves_zero_alone():
    values = np.random.default_rng(0).exponential(size=10_000)
    low, high = choose_range(measured(values), "percentile", Grid(), 90)
    assert low == values.astype(np.float32).min()
    assert high == pytest.approx(np.quantile(values, 0.9), rel=0.01)


@pytest.mark.parametrize("percentile", [50, 0, -1, 100.1, np.nan])
def test_a_percentile_makes_sense(percentile):
    with pytest.raises(InvalidRecipe, match="above 50 and at most 100"):
        choose_range(measured([1, 2]), "percentile", Grid(), percentile)


def test_an_unknown_method_is_refused_with_the_choices():
    with pytest.raises(InvalidRecipe, match="unknown range method 'best'; choose from minmax, average"):
        choose_range(measured([1, 2]), "best", Grid())


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("method", ["percentile", "mse", "entropy"])
def test_rare_outliers_are_cut(method, symmetric):
    values = outliers()
    grid = Grid(8, symmetric)
    low, high = choose_range(measured(values), method, grid)
    assert -25 < low < -3
    assert 3 < high < 25
    clipped, full = (QuantParams.from_range(*r, DType.INT8) for r in ((low, high), (values.min(), values.max())))
    errors = [np.abs(dequantize(quantize(values, p), p) - values)[4:].mean() for p in (clipped, full)]
    assert errors[0] < errors[1] / 1.5


@pytest.mark.parametrize("method", ["mse", "entropy"])
def test_without_outliers_little_is_cut(method):
    values = np.random.default_rng(0).uniform(-1, 1, 100_000)
    low, high = choose_range(measured(values), method, Grid())
    assert low < -0.95
    assert high > 0.95


def test_entropy_does_not_cut_a_spike_at_the_end():
    """As ReLU6 makes it."""
    values = np.clip(np.random.default_rng(0).normal(3, 4, 100_000), 0, 6)
    assert choose_range(measured(values), "entropy", Grid()) == (0, 6)


@settings(max_examples=60)
@given(stats=statistics())
def test_entropy_leaves_nearly_all_values_unclipped(stats):
    low, high = choose_range(stats, "entropy", Grid())
    centers, width = stats.histogram.centers(), stats.histogram.width
    inside = (centers > low - width) & (centers < high + width)
    assert stats.histogram.counts[inside].sum() >= 0.99 * stats.histogram.total


def test_fewer_bits_cut_more():
    stats = measured(np.random.default_rng(0).normal(size=100_000))
    highs = [choose_range(stats, "mse", Grid(bits, True))[1] for bits in (2, 4, 8, 16)]
    assert highs == sorted(highs)
    assert highs[0] < 0.6 * highs[-1]


@pytest.mark.parametrize("symmetric", [False, True])
@settings(max_examples=40)
@given(stats=statistics())
def test_the_expected_error_is_that_of_quantizing(symmetric, stats):
    """Up to the width of a bin, for data as it is after sampling: the centers of the bins."""
    centers = np.repeat(stats.histogram.centers(), stats.histogram.counts)
    bounds = (stats.low.value, stats.high.value)
    params = QuantParams.from_range(*bounds, DType.INT8, symmetric=symmetric, narrow=symmetric)
    real = np.mean((dequantize(quantize(centers, params), params) - centers) ** 2)
    expected = expected_error(stats.histogram, bounds, Grid(8, symmetric))
    assert expected <= params.scale**2
    assert abs(expected - real) <= params.scale**2


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@settings(max_examples=40)
@given(several=st.lists(statistics(), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_errors_by_running_sums_are_those_summed_over_the_bins(grid, several, seed):
    """For ranges within what was seen, as a search meets them, and for one that is empty."""
    rng = np.random.default_rng(seed)
    ends = np.array([[s.low.value, s.high.value] for s in several])[:, :, None]
    lows, highs = np.swapaxes(np.sort(ends[:, :1] + rng.random((len(several), 2, 8)) * np.diff(ends, axis=1), 1), 0, 1)
    lows[:, 0], highs[:, 0], lows[:, 1], highs[:, 1] = ends[:, 0, 0], ends[:, 1, 0], 0, 0
    found = ExpectedErrors([s.histogram for s in several], grid)
    direct = [
        [expected_error(s.histogram, bounds, grid) for bounds in zip(*rows, strict=True)]
        for s, *rows in zip(several, lows, highs, strict=True)
    ]
    # A histogram far away from zero has errors that are small beside its distance.
    size = np.array([[max(-s.low.value, s.high.value) ** 2] for s in several])
    assert (np.abs(found(lows, highs) - direct) <= 1e-7 * np.array(direct) + 1e-12 * size).all()
    best = found.least(lows, highs)
    assert (np.take_along_axis(found(lows, highs), best[:, None], 1)[:, 0] <= found(lows, highs).min(1)).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("grid", GRIDS, ids=str)
@settings(max_examples=10)
@given(several=st.lists(statistics(), max_size=40))
def test_ranges_chosen_together_are_those_chosen_one_by_one(method, grid, several):
    assert choose_ranges(several, method, grid) == [choose_range(s, method, grid) for s in several]


def test_more_counts_than_integers_can_sum_up_are_summed_up_all_the_same():
    stats = measured(np.random.default_rng(0).normal(size=10_000))
    many = dataclasses.replace(stats.histogram, counts=stats.histogram.counts * 10**12)
    assert choose_range(dataclasses.replace(stats, histogram=many), "mse", Grid()) == choose_range(stats, "mse", Grid())


DEGENERATE = {
    "a constant": measured([3, 3, 3]),
    "a negative constant": measured([-5, -5]),
    "zeros": measured([0, 0, 0]),
    "one value": measured([1e-3]),
    "the tiniest": measured([1e-45, 0]),
    "the largest": measured([3.4e38, -3.4e38]),
    "two values": measured([-1, 1]),
}


def without_histogram(stats: TensorStats, counts: Array | None = None) -> TensorStats:
    empty = Histogram.empty() if counts is None else Histogram(stats.histogram.exponent, stats.histogram.first, counts)
    return dataclasses.replace(stats, histogram=empty)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("stats", DEGENERATE.values(), ids=DEGENERATE)
def test_degenerate_statistics_give_a_usable_range(method, grid, stats):
    nothing = np.zeros_like(stats.histogram.counts)
    for each in (stats, without_histogram(stats), without_histogram(stats, nothing)):
        low, high = choose_range(each, method, grid)
        assert stats.low.value <= low <= high <= stats.high.value
        QuantParams.from_range(low, high, DType.INT8)


def test_a_decay_of_one_is_a_plain_mean_and_a_small_one_follows_the_last_run():
    runs = [np.float32([-k, k]) for k in (1, 2, 6)]
    samples = [(values,) for values in runs]
    model = build.one_op("ABS", [build.act("x", 2)], build.act("y", 2), options="AbsOptions")
    averages = {d: calibrate(model, samples, Settings(decay=d)).tensors["x"].average.range for d in (1.0, 1e-6)}
    np.testing.assert_allclose(averages[1.0], (-3, 3))
    np.testing.assert_allclose(averages[1e-6], (-6, 6), rtol=1e-4)
    both = [calibrate(model, part, Settings(decay=0.5)) for part in (samples[:2], samples[2:])]
    whole = calibrate(model, samples, Settings(decay=0.5)).tensors["x"].average
    assert both[0].merge(both[1]).tensors["x"].average == whole


@pytest.mark.parametrize("decay", [0.0, -1.0, 1.1, float("nan")])
def test_a_decay_that_does_not_fade_is_refused(decay):
    with pytest.raises(InvalidRecipe, match="decay of the moving average"):
        Settings(decay=decay)


def test_the_decay_is_saved_with_the_statistics(tmp_path):
    model = build.one_op("ABS", [build.act("x", 2)], build.act("y", 2), options="AbsOptions")
    calibrate(model, [(np.float32([1, 2]),)], Settings(decay=0.5)).save(tmp_path / "a.stats")
    assert Stats.load(tmp_path / "a.stats").tensors["x"].average.decay == 0.5


def test_the_percentile_of_a_request_reaches_the_ranges():
    net = Net()
    model = net.model(net.dense(net.input(1, 64, name="x"), normal(4, 64)))
    data = [(normal(1, 64, seed=k),) for k in range(20)]
    scales = []
    for percentile in (100.0, 90.0, 60.0):
        asked = {"range": "percentile", "percentile": percentile, "target": "integer", "input_type": "int8"}
        made = zeropoint.quantize(model, data=data, effort="quick", output_type="int8", **asked).model
        scales.append(made.main.inputs[0].params.scale)
    assert scales[0] > 1.5 * scales[1] > 2 * scales[2]
    with pytest.raises(InvalidRecipe, match="the percentile must be above 50"):
        zeropoint.quantize(model, data=data, percentile=20)
