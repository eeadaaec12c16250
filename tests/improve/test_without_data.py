"""Few bits without data: what the inputs are like is read from biases, and layers are judged on such inputs."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from zeropoint.dtypes import Array, DType
from zeropoint.graph import Model
from zeropoint.improve.likely_inputs import input_level, likely_rows
from zeropoint.ops import OPS

from ..nets import Net, normal, outputs_of

MEAN = -20.0


def centred(weights: Array, mean: Array | float, spread: float = 0.1) -> Array:
    """Biases for which the layer's outputs are spread around zero at this mean of its inputs."""
    sums = weights @ np.broadcast_to(np.asarray(mean, np.float32), weights.shape[1:])
    return (spread * np.abs(sums).mean() * normal(len(weights), seed=9) - sums).astype(np.float32)


def dense_network(biased: bool = True) -> Model:
    """Three dense layers, the biases of the first as if it had been trained on inputs around `MEAN`."""
    net = Net()
    first = 0.1 * normal(64, 128, seed=1)
    bias = centred(first, MEAN) if biased else normal(64, seed=8)
    x = net.dense(net.input(1, 128), first, bias, activation=1)
    x = net.dense(x, 0.2 * normal(64, 64, seed=2), 0.1 * normal(64, seed=3), activation=1)
    return net.model(net.dense(x, 0.2 * normal(32, 64, seed=4), np.zeros(32, np.float32)))


@pytest.mark.parametrize("mean", [MEAN, 0.5, 120.0])
def test_biases_tell_the_mean_of_the_inputs(mean: float) -> None:
    net = Net()
    weights = normal(48, 96, seed=1)
    model = net.model(net.dense(net.input(1, 96), weights, centred(weights, mean)))
    level = input_level(model.main, OPS)
    assert level.is_known
    assert level.mean.mean() == pytest.approx(mean, rel=0.2)


def test_the_channels_of_an_image_may_have_means_of_their_own() -> None:
    net, means = Net(), np.array([110.0, 90.0, 70.0])
    kernel = normal(32, 3, 3, 3, seed=1)
    bias = centred(kernel.sum(axis=(1, 2)), means, spread=0.02)
    model = net.model(net.conv(net("PAD", [net.input(1, 8, 8, 3), np.zeros((4, 2), np.int32)]), kernel, bias))
    level = input_level(model.main, OPS)
    assert level.is_known
    np.testing.assert_allclose(level.mean, means, rtol=0.25)


def test_biases_that_have_another_reason_tell_nothing_but_the_size() -> None:
    level = input_level(dense_network(biased=False).main, OPS)
    assert not level.is_known
    assert not level.mean.any()
    net = Net()
    none = input_level(net.model(net.dense(net.input(1, 16), normal(8, 16))).main, OPS)
    assert (none.is_known, none.size) == (False, 1.0)


def test_there_are_no_likely_tokens() -> None:
    net = Net()
    rows = net("GATHER", [normal(50, 64), net.input(8, dtype=DType.INT32)], (8, 64))
    assert likely_rows(net.model(rows), OPS, 4) == ([], False)


def snr(model: Model, made: Model, mean: float) -> float:
    """On inputs that the network was made for, and that nothing has seen before."""
    rng = np.random.default_rng(5)
    samples = [((mean + 4 * rng.standard_normal((1, 128))).astype(np.float32),) for _ in range(50)]
    wanted, found = (np.array(outputs_of(version, samples)) for version in (model, made))
    return float(10 * np.log10(np.square(wanted).sum() / np.square(wanted - found).sum()))


@pytest.mark.parametrize("mode", ["dynamic", "weights"])
def test_weights_are_rounded_for_what_the_biases_tell(mode: str) -> None:
    model = dense_network()
    made = zeropoint.quantize(model, mode, weight_bits=4, min_elements=0)
    plain = zeropoint.quantize(model, mode, weight_bits=4, min_elements=0, effort="quick")
    assert any("first layer's biases" in note for note in made.notes)
    assert snr(model, made.model, MEAN) > snr(model, plain.model, MEAN) + 6


@pytest.mark.parametrize(("method", "chosen"), [("auto", "mse"), ("entropy", "entropy")])
def test_statistics_without_histograms_give_minmax_ranges_and_say_so(method: str, chosen: str) -> None:
    model, samples = dense_network(), [normal(1, 128, seed=k) for k in range(8)]
    stats = zeropoint.calibrate(model, samples, zeropoint.Settings(histograms=False))
    result = zeropoint.quantize(model, stats=stats, range=method)
    assert f"ranges by minmax: {chosen} needs histograms, which the statistics lack" in result.notes
    assert any(note.startswith("biases are not corrected") for note in result.notes)
    plain = zeropoint.quantize(model, stats=stats, range="minmax", record=False)
    assert not any("histograms, which" in note for note in plain.notes)
    assert zeropoint.to_bytes(plain.model) == zeropoint.to_bytes(
        zeropoint.quantize(model, stats=stats, range=method, record=False).model
    )
