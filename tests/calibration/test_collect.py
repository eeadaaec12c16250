"""Calibration measures what LiteRT computes, whatever the number of workers, the shapes, and the data's faults."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

import zeropoint
from zeropoint.calibration import Grid, Settings, calibrate, choose_range
from zeropoint.calibration.stats import stats_of
from zeropoint.dtypes import Array, DType
from zeropoint.errors import InvalidModel, InvalidRecipe, InvalidSample, RuntimeFailure, UnsupportedOp
from zeropoint.graph import Model
from zeropoint.ops import OPS
from zeropoint.runtime import Session
from zeropoint.tflite import to_bytes

from .. import build
from .facts import bins, exact, expected_error, variance


def values(model: Model, samples: list[Array]) -> dict[str, list[Array]]:
    """Every float tensor that is no constant, for each sample: plain LiteRT with all of them as outputs."""
    (graph,) = model.graphs
    shown = [t for t in graph.tensors if t.dtype is DType.FLOAT32 and not t.is_constant]
    session = Session(Model([dataclasses.replace(graph, outputs=shown)]))
    runs = [session.run([sample]) for sample in samples]
    return {t.name: [run[k] for run in runs] for k, t in enumerate(shown)}


# What is measured.


def test_statistics_are_those_of_the_values(case):
    stats = calibrate(case.model, case.samples)
    expected = values(case.model, case.samples)
    assert stats.tensors.keys() == expected.keys()
    for name, arrays in expected.items():
        found, everything = stats.tensors[name], np.stack(arrays)
        assert (found.low.value, found.high.value) == (everything.min(), everything.max())
        assert found.low.sample == np.argmin([a.min() for a in arrays])
        assert found.high.sample == np.argmax([a.max() for a in arrays])
        assert (found.count, found.runs, found.nonfinite) == (everything.size, len(arrays), 0)
        assert found.mean == pytest.approx(everything.mean(dtype=np.float64), rel=1e-4, abs=1e-5)
        assert variance(found.histogram) == pytest.approx(everything.var(dtype=np.float64), rel=0.15, abs=1e-6)
        assert found.histogram.total == pytest.approx(everything.size, rel=0.1)


def test_channels_of_weighted_ops_are_kept(case):
    stats = calibrate(case.model, case.samples)
    expected = values(case.model, case.samples)
    weighted = {"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"}
    touched = {t.name for op in case.model.main.ops if op.kind in weighted for t in (op.inputs[0], op.outputs[0])}
    assert {name for name, t in stats.tensors.items() if t.channels is not None} == touched
    for name in touched:
        channels = stats.tensors[name].channels
        rows = np.concatenate(expected[name]).reshape(-1, expected[name][0].shape[-1])
        assert channels.count == len(rows)
        np.testing.assert_array_equal(channels.low, rows.min(axis=0))
        np.testing.assert_array_equal(channels.high, rows.max(axis=0))
        np.testing.assert_allclose(channels.mean, rows.mean(axis=0, dtype=np.float64), rtol=1e-4, atol=1e-5)


def test_small_tensors_are_counted_whole():
    samples = [np.full((1, 3), k, np.float32) for k in range(9)]
    found = calibrate(build.dynamic(), samples).tensors["x"].histogram
    assert found.total == 27
    assert found.counts[found.counts > 0].tolist() == [3] * 9


def test_large_tensors_are_sampled_alike_in_all_places():
    """A tenth of each value is counted as a tenth, where that value is anywhere in the tensor."""
    shape = (1, 64, 64, 20)
    model = build.one_op("ABS", [build.act("x", *shape)], build.act("y", *shape), options="AbsOptions")
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    rng = np.random.default_rng(0)
    stats = calibrate(model, [np.roll(x, rng.integers(x.size)) for _ in range(40)])
    found = stats.tensors["y"].histogram
    tenths = np.array([part.sum() for part in np.array_split(found.counts, 10)]) / found.total
    np.testing.assert_allclose(tenths, 0.1, atol=0.01)
    assert found.total == pytest.approx(stats.tensors["y"].count, rel=0.05)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("runs", [3, 30])
def test_a_sample_does_not_hide_how_far_rare_values_reach(runs, bits):
    """A range chosen by it is nearly as good, on everything, as one chosen by everything."""
    shape = (1, 32, 32, 16)
    model = build.one_op("ABS", [build.act("x", *shape)], build.act("y", *shape), options="AbsOptions")
    samples = [np.random.default_rng(k).standard_t(4, shape).astype(np.float32) for k in range(runs)]
    everything = np.concatenate(samples)
    complete = stats_of(everything, 0)
    found = calibrate(model, samples).tensors["x"]
    ranges = [choose_range(stats, "mse", Grid(bits)) for stats in (found, complete)]
    error, least = (expected_error(complete.histogram, bounds, Grid(bits)) for bounds in ranges)
    assert error <= 1.5 * least


def test_the_average_fades():
    samples = [np.full((1, 3), v, np.float32) for v in (1, 2, 5)]
    low, high = calibrate(build.dynamic(), samples).tensors["x"].average.range
    weights = 0.99 ** np.array([2, 1, 0])
    assert low == high == pytest.approx((weights * (1, 2, 5)).sum() / weights.sum())


def test_the_ends_of_a_graph_are_measured_whatever_reads_them():
    model = build.one_op("CAST", [build.act("x", 2)], build.act("y", 2, dtype=DType.INT32), options="CastOptions")
    stats = calibrate(model, [np.float32([1, 2])] * 3)
    assert (stats.tensors.keys(), stats.samples) == ({"x"}, 3)


def test_the_op_table_says_what_is_measured():
    tensors = [build.act(n, 1, 6) for n in ("x", "inner", "y")]
    chain = [build.op("ABS", [a], b, options="AbsOptions") for a, b in itertools.pairwise(tensors)]
    model = Model([build.graph("main", tensors[:1], tensors[2:], *chain)])
    samples = [np.ones((1, 6), np.float32)] * 3
    assert list(calibrate(model, samples).tensors) == ["x", "inner", "y"]
    without = {kind: spec for kind, spec in OPS.items() if kind != "ABS"}
    assert list(calibrate(model, samples, ops=without).tensors) == ["x", "y"]  # the graph's own ends


def test_constants_in_disguise_are_not_measured():
    stats = calibrate(build.sparse(), [np.ones((2, 4), np.float32)])
    assert stats.tensors.keys() == {"x", "y"}


def test_minima_and_maxima_alone_are_the_same(case):
    full, quick = calibrate(case.model, case.samples), calibrate(case.model, case.samples, Settings(histograms=False))
    assert full.tensors.keys() == quick.tensors.keys()
    for name, t in full.tensors.items():
        assert quick.tensors[name].high == t.high
        assert min(0.0, quick.tensors[name].low.value) == min(0.0, t.low.value)
        assert quick.tensors[name].histogram.total == 0


def test_tensors_come_in_order_of_execution():
    """Whether they are reduced in the graph or read from outside."""
    assert list(calibrate(build.shared(), [(np.float32([1, 2]),)]).tensors) == ["x", "y", "z", "last"]


# How it runs.


@pytest.mark.parametrize("histograms", [True, False])
@pytest.mark.parametrize("workers", [2, 3])
def test_workers_agree_bit_for_bit(case, workers, histograms, tmp_path):
    for count in (1, workers):
        calibrate(case.model, case.samples, Settings(workers=count, histograms=histograms)).save(tmp_path / str(count))
    assert (tmp_path / "1").read_bytes() == (tmp_path / str(workers)).read_bytes()


@pytest.mark.parametrize("build_model", [build.branches, build.loop, build.names, build.stateful, build.shared])
def test_workers_agree_on_what_is_read_from_outside(build_model, tmp_path):
    model = build_model()
    session = Session(model)
    samples = [tuple(build.sample(session.inputs, seed)) for seed in (3, 1, 2, 1, 3, 1, 2)] * 12
    samples = {"serving_default": samples} if model.signatures else samples
    for workers in (1, 3):
        calibrate(model, samples, Settings(workers=workers)).save(tmp_path / str(workers))
    assert (tmp_path / "1").read_bytes() == (tmp_path / "3").read_bytes()


def test_a_path_and_bytes_are_models_too(digits, digit_images, tmp_path):
    (tmp_path / "m.tflite").write_bytes(digits)
    samples = digit_images[:2, None]
    found = [zeropoint.calibrate(model, list(samples)) for model in (tmp_path / "m.tflite", digits)]
    assert exact(found[0]) == exact(found[1])


def test_the_model_is_left_alone(case):
    before = to_bytes(case.model)
    calibrate(case.model, case.samples[:3])
    assert to_bytes(case.model) == before


def test_progress_counts_up_to_the_number_of_runs(case):
    seen: list[int] = []
    calibrate(case.model, case.samples, progress=seen.append)
    assert seen == sorted(set(seen))
    assert seen[-1] == len(case.samples)


def test_a_limit_takes_no_more_samples_than_it_says(case):
    def endless():
        while True:
            yield from case.samples

    stats = calibrate(case.model, endless(), Settings(limit=25))
    assert stats.samples == 25
    assert exact(stats) == exact(calibrate(case.model, case.samples[:25]))


@pytest.mark.parametrize("settings", [{"limit": 0}, {"workers": 0}, {"workers": -1}])
def test_settings_make_sense(settings):
    with pytest.raises(InvalidRecipe, match="at least 1"):
        Settings(**settings)


# Several signatures.


def test_signatures_add_up():
    model = build.branches()
    pairs = [(np.bool_(k % 2), np.float32([k, -k])) for k in range(6)]
    both = calibrate(model, {"serving_default": pairs, "just_add": [np.float32([9, 9])]})
    parts = [calibrate(model, {"serving_default": pairs}), calibrate(model, {"just_add": [np.float32([9, 9])]})]
    assert exact(both) == exact(parts[0].merge(parts[1]))
    assert both.tensors["then::then/x"].high.value == 9


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([np.float32([1, 2])], r"several signatures \('serving_default', 'just_add'\); give samples as \{signature"),
        ({"absent": []}, r"no signature 'absent'; it has 'serving_default', 'just_add'"),
        ({"just_add": []}, "no samples were given"),
        ({}, "no samples were given"),
    ],
)
def test_signatures_are_asked_for_by_name(samples, message):
    with pytest.raises(InvalidSample, match=message):
        calibrate(build.branches(), samples)


def test_a_model_without_signatures_says_so():
    with pytest.raises(InvalidSample, match="no signature 'main'; it has none at all"):
        calibrate(build.dynamic(), {"main": [np.zeros((1, 3), np.float32)]})


# NaN and infinity.


def logarithm() -> Model:
    shape = (1, 2, 3)
    x, y, z = (build.act(n, *shape) for n in "xyz")
    ops = [build.op("LOG", [x], y), build.op("RELU", [y], z)]
    return Model([build.graph("main", [x], [z], *ops)])


GOOD = np.float32([[[1, 2, 3], [4, 5, 6]]])


def spoiled(value: float, at: int) -> Array:
    sample = GOOD.copy()
    sample.reshape(-1)[at] = value
    return sample


@pytest.mark.parametrize("histograms", [True, False])
@pytest.mark.parametrize("at", [0, 4, 5])
@pytest.mark.parametrize(("value", "tensor"), [(np.nan, "x"), (np.inf, "x"), (-np.inf, "x"), (-1.0, "y"), (0.0, "y")])
def test_nonfinite_values_are_refused_by_tensor_and_sample(value, tensor, at, histograms):
    samples = [GOOD] * 20 + [spoiled(value, at), GOOD]
    expected = f"sample 20 makes 1 of 6 values of '{tensor}' NaN or infinite; leave that sample out"
    with pytest.raises(InvalidSample, match=expected):
        calibrate(logarithm(), samples, Settings(histograms=histograms))


def test_the_first_tensor_in_order_of_execution_is_named():
    """Not the first that is looked at: here, tensors of one shape are looked at together."""
    x, mean, log, product = (
        build.act(n, *s) for n, s in zip("xmlp", ((1, 2, 3), (1, 3), (1, 3), (1, 2, 3)), strict=True)
    )
    ops = [
        build.op("MEAN", [x, build.const("axis", [1])], mean, options="ReducerOptions"),
        build.op("LOG", [mean], log),
        build.op("MUL", [x, log], product, options="MulOptions"),
    ]
    with pytest.raises(InvalidSample, match="sample 0 makes 3 of 3 values of 'l' NaN or infinite"):
        calibrate(Model([build.graph("main", [x], [product], *ops)]), [-GOOD])


@pytest.mark.parametrize("histograms", [True, False])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nonfinite_values_are_left_out_if_asked(value, histograms):
    samples = [GOOD, spoiled(value, 5), GOOD]
    settings = Settings(histograms=histograms, allow_nonfinite=True)
    found = calibrate(logarithm(), samples, settings).tensors["x"]
    assert (found.low.value, found.high.value, found.count, found.nonfinite) == (1, 6, 17, 1)
    assert np.isfinite(found.average.range).all()
    if histograms:
        assert found.mean == pytest.approx((3 * 21 - 6) / 17)
        assert found.histogram.total == 17


def test_a_run_without_any_finite_value_counts_for_nothing():
    nothing = np.full_like(GOOD, np.nan)
    found = calibrate(logarithm(), [nothing, GOOD, nothing], Settings(allow_nonfinite=True)).tensors["x"]
    alone = calibrate(logarithm(), [GOOD]).tensors["x"]
    assert (found.count, found.nonfinite) == (6, 12)
    assert found.average.range == pytest.approx(alone.average.range)
    assert bins(found.histogram) == bins(alone.histogram)
    assert (found.low.sample, found.high.sample) == (1, 1)


def test_a_tensor_that_is_never_finite_has_no_statistics():
    found = calibrate(logarithm(), [np.full_like(GOOD, -1.0)], Settings(allow_nonfinite=True))
    assert "x" in found.tensors
    assert "y" not in found.tensors


def test_tensors_read_from_outside_are_checked_too():
    model = build.shared()
    samples = [(np.float32([1, 2]),), (np.float32([np.nan, 2]),)]
    with pytest.raises(InvalidSample, match="sample 1 makes 1 of 2 values of 'x' NaN or infinite"):
        calibrate(model, samples)
    found = calibrate(model, samples, Settings(allow_nonfinite=True)).tensors["x"]
    assert (found.low.value, found.high.value, found.count, found.nonfinite) == (1, 2, 3, 1)


@pytest.mark.parametrize("histograms", [True, False])
def test_huge_values_are_not_infinite(histograms):
    sample = np.full((1, 2, 3), 3e38, np.float32) * np.float32([1, -1, 1])
    found = calibrate(logarithm_free(), [sample, -sample], Settings(histograms=histograms)).tensors["x"]
    assert (found.low.value, found.high.value) == (-np.float32(3e38), np.float32(3e38))
    assert found.mean == pytest.approx(0, abs=1e30)


def logarithm_free() -> Model:
    return build.one_op("ABS", [build.act("x", 1, 2, 3)], build.act("y", 1, 2, 3), options="AbsOptions")


# What cannot be calibrated.


@pytest.mark.parametrize("name", ["Fancy", "FlexErf"])
def test_ops_that_the_runtime_lacks_are_named(name):
    model = build.one_op("CUSTOM", [build.act("x", 2)], build.act("y", 2))
    model.main.ops[0].custom_code = name
    with pytest.raises((UnsupportedOp, InvalidModel), match=name):  # a Flex op is looked at where TensorFlow is there
        calibrate(model, [np.float32([1, 2])])


def test_a_quantized_model_is_refused():
    with pytest.raises(InvalidModel, match=r"quantized already: .* use the float model"):
        calibrate(build.quantized_cnn(), [])


def test_a_model_of_integers_is_refused():
    x, y = (build.act(n, 2, dtype=DType.INT32) for n in "xy")
    with pytest.raises(InvalidModel, match="without float arithmetic"):
        calibrate(build.one_op("ADD", [x, x], y, options="AddOptions"), [])


def test_a_failure_inside_the_runtime_names_the_sample():
    table = build.const("table", build.weights(4, 2))
    x = build.act("x", 3, dtype=DType.INT32)
    model = build.one_op("GATHER", [table, x], build.act("y", 3, 2), options="GatherOptions")
    with pytest.raises(RuntimeFailure, match=r"sample 1: .*GATHER"):
        calibrate(model, [np.int32([0, 1, 2]), np.int32([0, 9, 2])])


@pytest.mark.parametrize("histograms", [True, False])
@pytest.mark.parametrize("name", sorted(build.RUNNABLE.keys() - {"quantized_cnn"}))
def test_every_float_model_can_be_calibrated(name, histograms):
    model = build.RUNNABLE[name]()
    session = Session(model)
    samples = [tuple(build.sample(session.inputs, seed)) for seed in range(3)]
    given = {"serving_default": samples} if model.signatures else samples
    stats = calibrate(model, given, Settings(histograms=histograms))
    assert stats.samples == 3
    assert all(t.low.value <= t.high.value and t.runs <= 3 for t in stats.tensors.values())
