"""What the graph picks of its tensors: elements as they are, spread evenly."""

from __future__ import annotations

import numpy as np
import pytest

from zeropoint.calibration.instrument import Instrumented, Manner, instrument
from zeropoint.calibration.raster import FEWEST, FLAT, Axis, raster_of
from zeropoint.dtypes import Array
from zeropoint.graph import Model
from zeropoint.graph.query import tensor_keys
from zeropoint.runtime import Session
from zeropoint.tflite import to_bytes

from .. import build

SHAPES = [
    (1, 1, 1, 1),
    (1, 5, 1, 64),
    (1, 7, 7, 960),
    (1, 14, 14, 24),
    (1, 25, 5, 64),
    (1, 33, 64, 3),
    (1, 112, 96, 32),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 14, 25, 112, 224])
@pytest.mark.parametrize("share", [1e-6, 0.01, 0.1, 0.3, 0.5, 0.7, 1.0])
def test_places_are_spread_evenly(size, share):
    axis = Axis.spread(size, share)
    places = [axis.first + k * axis.stride for k in range(axis.count)]
    assert places[0] >= 0
    assert places[-1] < size
    assert places[0] < axis.stride
    assert size - places[-1] <= axis.stride  # the next one would lie outside
    assert axis.count >= round(size * share)


def doubled(*shape: int) -> Model:
    x, y = build.act("x", *shape), build.act("y", *shape)
    return Model([build.graph("main", [x], [y], build.op("ADD", [x, x], y, options="AddOptions"))])


def picked(instrumented: Instrumented, sample: Array, kernels: str) -> Array:
    session = Session(to_bytes(instrumented.model), kernels=kernels, checked=True)
    session.resize([sample.shape], strict=False)
    place = instrumented.model.main.outputs.index(instrumented.picked.output)
    return session.run([sample])[place]


@pytest.mark.parametrize("kernels", ["delegate", "optimized"])
@pytest.mark.parametrize("manner", [Manner.SINGLE, Manner.BATCHED])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_elements_are_picked_as_they_are(shape, manner, kernels):
    model = doubled(*shape)
    made = instrument(model, model.main, histograms=True, manner=manner)
    assert not made.stacks
    count = 3 if manner is Manner.BATCHED else 1
    sample = np.random.default_rng(0).normal(0, 100, (count, *shape[1:])).astype(np.float32)
    parts = []
    for probe, factor in zip(made.probes, (1, 2), strict=True):
        raster = made.picked.rasters[probe]
        rows, columns = (slice(a.first, None, a.stride) for a in raster.axes)
        parts.append((factor * sample[:, rows, columns]).reshape(count, -1))
        assert parts[-1].shape[1] == raster.size
        assert all(a.count >= min(FEWEST, size) for a, size in zip(raster.axes, shape[1:3], strict=True))
    assert np.array_equal(picked(made, sample, kernels), np.concatenate(parts, axis=1))


def test_flat_tensors_are_taken_whole_unless_they_are_long():
    assert raster_of(build.act("x", 1, FLAT), 16).size == FLAT
    assert raster_of(build.act("x", 1, FLAT + 1), 16) is None


def test_what_is_no_image_or_of_no_fixed_size_is_read_from_outside():
    varying = build.act("x", 1, 4, 4, 3)
    varying.shape_signature = (1, -1, 4, 3)
    assert raster_of(varying, 16) is None
    assert raster_of(build.act("x", 1, 64, 384), 16) is None
    assert raster_of(build.act("x", 2, 4, 4, 3), 16) is None


def test_infinite_neighbours_spoil_nothing():
    """Zero times infinity is NaN, so such tensors are read from outside."""
    model = doubled(1, 32, 32, 4)
    keys = tensor_keys(model)
    made = instrument(model, model.main, histograms=True, manner=Manner.SINGLE, infinite={keys[model.main.outputs[0]]})
    assert [probe.tensor.name for probe in made.picked.rasters] == ["x"]
    assert [probe.tensor.name for stack in made.stacks for probe in stack.probes] == ["y"]
