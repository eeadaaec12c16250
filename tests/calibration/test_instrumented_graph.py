"""A graph that measures itself reads each element as rarely as it can."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from zeropoint.calibration import Settings, calibrate
from zeropoint.calibration.instrumented_graph import MeasureMode, instrument
from zeropoint.calibration.stats import stats_of
from zeropoint.calibration.task import CalibrationTask
from zeropoint.graph import Model
from zeropoint.ops import OPS
from zeropoint.runtime import Runner

from ..nets import Net, normal, samples_for

SIZE = 40
"""Side of images that are too large for many of them to be run together."""


def detector(size: int) -> Model:
    """Gates, padding and joined channels; values are far from zero, so that padding shows in minima and in maxima."""
    net = Net()
    x = net.input(1, size, size, 3)
    low = net.conv(x, normal(8, 1, 1, 3, seed=1, spread=0.01), np.full(8, -2, np.float32))
    high = net.conv(x, normal(8, 1, 1, 3, seed=2, spread=0.01), np.full(8, 2, np.float32))
    gates = [net(kind, [t]) for t in (low, high) for kind in ("LOGISTIC", "TANH", "RELU6")]
    joined = net("CONCATENATION", [low, *gates, high], shape=(1, size, size, 64), axis=3)
    sides = np.array([[0, 0], [1, 2], [0, 1], [0, 0]], np.int32)
    padded = [net("PAD", [t, sides], shape=(1, size + 3, size + 1, t.shape[3])) for t in (low, high, joined)]
    shut = net("PAD", [high, np.zeros((4, 2), np.int32)])
    along = net("CONCATENATION", [shut, high], shape=(1, 2 * size, size, 8), axis=1)
    return net.model(*padded, along)


@pytest.mark.parametrize("mode", [MeasureMode.SINGLE, MeasureMode.BATCHED])
def test_reductions_of_inputs_are_used_again(mode):
    model = detector(SIZE)
    made = instrument(CalibrationTask(model, model.main, Settings(), OPS), mode).model.main
    counts = Counter(op.kind for op in made.ops)
    read = ("x0", "conv_2d", "conv_2d2", "pad4", "concatenation2")
    derived = {op.inputs[0].name for op in made.ops if op.kind in ("REDUCE_MAX", "REDUCE_MIN")}
    assert derived == set(read)
    assert counts["REDUCE_MAX"] == counts["REDUCE_MIN"] == len(read)
    assert counts["SUM"] == len(read) + 6  # the mean of a function does not follow from that of its input


@pytest.mark.parametrize("size", [4, SIZE], ids=["many at once", "one by one"])
@pytest.mark.parametrize("histograms", [True, False])
def test_they_are_what_the_elements_give(size, histograms):
    model, count = detector(size), 5
    samples = samples_for(model, count)
    found = calibrate(model, samples, Settings(histograms=histograms)).tensors
    tensors = [t for op in model.main.ops for t in op.outputs]
    runner = Runner.exposing(model, model.main, tensors)
    values = [runner.values(row) for row in samples]
    for tensor in tensors:
        wanted = stats_of(np.concatenate([own[tensor] for own in values]), 0, by_channel=True)
        seen = found[tensor.name]
        assert seen.high.value == wanted.high.value
        assert min(0.0, seen.low.value) == min(0.0, wanted.low.value)  # all that is known without histograms
        if histograms:
            assert seen.low.value == wanted.low.value
            assert seen.mean == pytest.approx(wanted.mean, rel=1e-4, abs=1e-5)
        if histograms and seen.channels is not None:
            np.testing.assert_array_equal(seen.channels.high, wanted.channels.high)
            np.testing.assert_array_equal(seen.channels.low, wanted.channels.low)
