"""Shapes that vary from sample to sample, or are not what the file says."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from zeropoint.bench.latency import TimingOptions, benchmark
from zeropoint.calibration import Settings, calibrate
from zeropoint.graph import Model

from .. import build
from .facts import exact, sums


def resizable(*, declared: bool) -> Model:
    """A length that varies; without `declared`, only the input says so."""
    tensors = [build.act(n, 1, 1, 4) for n in ("x", "y", "z", "logits")]
    x, y, z, logits = tensors
    weights = build.const("w", build.weights(4, 4))
    dense = build.op("FULLY_CONNECTED", [z, weights], logits, options="FullyConnectedOptions", keepNumDims=True)
    ops = [build.op("ABS", [x], y, options="AbsOptions"), build.op("MUL", [y, y], z, options="MulOptions"), dense]
    for tensor in tensors if declared else tensors[:1]:
        tensor.shape_signature = (1, -1, 4)
    return Model([build.graph("main", [x], [logits], *ops)])


@pytest.mark.parametrize("histograms", [True, False])
@pytest.mark.parametrize("declared", [True, False])
def test_lengths_may_vary(declared, histograms):
    rng = np.random.default_rng(0)
    samples = [rng.normal(size=(1, n, 4)).astype(np.float32) for n in (3, 1, 7, 7, 300, 2)]
    stats = calibrate(resizable(declared=declared), samples, Settings(histograms=histograms))
    everything = np.concatenate([s.reshape(-1) for s in samples])
    assert (stats.tensors["x"].low.value, stats.tensors["x"].high.value) == (everything.min(), everything.max())
    assert stats.tensors["z"].high.value == np.square(everything).max()
    assert stats.tensors["logits"].channels.low.shape == (4,)
    if histograms:
        assert all(t.count == t.histogram.total == everything.size for t in stats.tensors.values())
        assert stats.tensors["z"].mean == pytest.approx(np.square(everything).mean(), rel=1e-5)


@pytest.mark.parametrize("stored", [1, 4])
def test_a_free_batch_is_fed_row_by_row(stored):
    model = build.dynamic()
    for tensor in model.main.tensors:
        tensor.shape = (stored, 3)
    samples = [np.arange(6, dtype=np.float32).reshape(2, 3), np.full((1, 3), -1, np.float32)]
    stats = calibrate(model, samples)
    assert (stats.tensors["x"].runs, stats.tensors["x"].count, stats.samples) == (3, 9, 2)
    assert (stats.tensors["y"].high.value, stats.tensors["y"].high.sample) == (5, 0)
    assert stats.notes == ("samples are batches; they are fed row by row",)


def test_scalars_vectors_and_empty_tensors_are_measured():
    nothing = np.zeros(0, np.int32)
    stats = calibrate(build.empty(), [(np.float32([4]), nothing), (np.float32([-2]), nothing)])
    assert {(t.low.value, t.high.value, t.count) for t in stats.tensors.values()} == {(-2, 4, 2)}


def lengths(*counts: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(1, n, 4)).astype(np.float32) for n in counts]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nonfinite_values_are_left_out_whatever_the_length(value):
    samples = lengths(3, 9, 50)
    samples[1][0, 2, 1] = value
    found = calibrate(resizable(declared=True), samples, Settings(allow_nonfinite=True)).tensors["x"]
    finite = np.concatenate([s[np.isfinite(s)] for s in samples])
    assert (found.count, found.nonfinite, found.histogram.total) == (finite.size, 1, finite.size)
    assert (found.low.value, found.high.value) == (finite.min(), finite.max())


def test_all_elements_of_small_tensors_are_counted_where_the_file_says_that_they_are_large():
    model, samples = resizable(declared=True), lengths(10, 9, 50)
    for tensor in model.main.tensors:
        if not tensor.is_constant:
            tensor.shape = (1, 5000, 4)
    found = calibrate(model, samples)
    assert all(t.count == t.histogram.total == 4 * 69 for t in found.tensors.values())


def test_workers_agree_where_some_samples_do_not_fit_the_file():
    """What is done with a sample depends on its shape, not on what the same thread saw before."""
    x, y = build.act("x", 1, 64, 64, 8), build.act("y", 1, 64, 64, 8)
    x.shape_signature = (1, -1, 64, 8)  # and y, which is as high, does not say so
    model = Model([build.graph("main", [x], [y], build.op("ABS", [x], y, options="AbsOptions"))])
    rng = np.random.default_rng(0)
    samples = [rng.normal(size=(1, 60 if k % 9 == 4 else 64, 64, 8)).astype(np.float32) for k in range(24)]
    alone = calibrate(model, samples, Settings(workers=1))
    for workers in (2, 3):
        found = calibrate(model, samples, Settings(workers=workers))
        assert exact(found) == exact(alone)
        assert sums(found) == sums(alone)


def images(*sizes: tuple[int, int]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(1, *size, 3)).astype(np.float32) for size in sizes]


@pytest.mark.parametrize("mode", ["int8", "int16x8", "dynamic", "weights", "float16"])
@pytest.mark.parametrize("effort", ["quick", "standard", "high"])
def test_images_of_any_size_are_quantized_and_compared(mode, effort):
    """The model does not run at the size that stands in the file for an open one."""
    model, samples = build.open_sides(), images((9, 9), (9, 9), (12, 7), (20, 20))
    result = zeropoint.quantize(model, mode, samples, effort=effort, min_elements=None if "int" in mode else 1)
    (x,), (y,) = result.model.main.inputs, result.model.main.outputs
    assert (x.shape_signature, y.shape_signature) == ((1, -1, -1, 3), (1, -1, -1, 4))
    assert zeropoint.compare(model, result.model, samples).snr > 28


def test_images_of_any_size_are_diagnosed_and_timed():
    model, samples = build.open_sides(), images((9, 9), (12, 7))
    assert zeropoint.doctor(model, samples, seconds=5).comparison.snr > 28
    found = benchmark({"open": model}, TimingOptions(rounds=1))
    assert found.notes[0] == "open was run with input 'x' of shape [1, 8, 8, 3]: the file leaves it open"
