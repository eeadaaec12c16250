"""What the graph picks of its tensors: elements as they are, spread evenly."""

from __future__ import annotations

import numpy as np
import pytest

from zeropoint.calibration import Settings
from zeropoint.calibration.instrumented_graph import InstrumentedGraph, MeasureMode, instrument
from zeropoint.calibration.sampling import FEWEST, WHOLE, Pick, Positions, sampling_stride
from zeropoint.calibration.task import CalibrationTask
from zeropoint.dtypes import Array
from zeropoint.graph import Model
from zeropoint.ops import OPS
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
    side = Positions.spread(size, share)
    places = [side.first + k * side.stride for k in range(side.count)]
    assert places[0] >= 0
    assert places[-1] < size
    assert places[0] < side.stride
    assert size - places[-1] <= side.stride  # the next one would lie outside
    assert side.count >= round(size * share)


def doubled(*shape: int) -> Model:
    x, y = build.act("x", *shape), build.act("y", *shape)
    return Model([build.graph("main", [x], [y], build.op("ADD", [x, x], y, options="AddOptions"))])


def instrumented(model: Model, mode: MeasureMode = MeasureMode.SINGLE) -> InstrumentedGraph:
    return instrument(CalibrationTask(model, model.main, Settings(), OPS), mode)


def picked(graph: InstrumentedGraph, sample: Array, kernels: str) -> Array:
    session = Session(to_bytes(graph.model), kernels=kernels, checked=True)
    session.resize([sample.shape], strict=False)
    return session.run([sample])[graph.model.main.outputs.index(graph.picked)]


@pytest.mark.parametrize("kernels", ["delegate", "optimized"])
@pytest.mark.parametrize("mode", [MeasureMode.SINGLE, MeasureMode.BATCHED])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_elements_are_picked_as_they_are(shape, mode, kernels):
    made = instrumented(doubled(*shape), mode)
    assert not made.sampled
    count = 3 if mode is MeasureMode.BATCHED else 1
    sample = np.random.default_rng(0).normal(0, 100, (count, *shape[1:])).astype(np.float32)
    parts = []
    for probe, factor in zip(made.probes, (1, 2), strict=True):
        pick = made.picks[probe]
        if pick.sides:
            rows, columns = (slice(side.first, None, side.stride) for side in pick.sides)
            parts.append((factor * sample[:, rows, columns]).reshape(count, -1))
            assert all(side.count >= min(FEWEST, size) for side, size in zip(pick.sides, shape[1:3], strict=True))
        else:
            parts.append(factor * sample.reshape(count, -1))
        assert parts[-1].shape[1] == pick.size
    assert np.array_equal(picked(made, sample, kernels), np.concatenate(parts, axis=1))


@pytest.mark.parametrize("shape", [(1, WHOLE), (1, 2, WHOLE // 2), (WHOLE // 4, 4), (1, 2, 2, WHOLE // 4)], ids=str)
def test_small_tensors_are_taken_whole(shape):
    assert Pick.of(build.act("x", *shape)) == Pick((), WHOLE)
    sample = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    found = picked(instrumented(doubled(*shape)), sample, "delegate")
    assert np.array_equal(found, np.concatenate([sample.reshape(1, -1), 2 * sample.reshape(1, -1)], axis=1))


def test_large_tensors_that_are_not_images_are_sampled_outside():
    for shape in ((1, WHOLE + 1), (1, 64, 384), (2, 40, 40, 3)):
        model = doubled(*shape)
        made = instrumented(model)
        assert [probe.tensor.name for probe in made.sampled] == ["x", "y"]
        assert model.main.outputs[0] in made.model.main.outputs


@pytest.mark.parametrize("size", [1, 7, WHOLE, WHOLE + 1, 64 * 384, 1 << 22])
def test_a_stride_visits_all_channels(size):
    stride = sampling_stride(size)
    assert np.gcd(stride, size) == 1
    assert (stride == 1) == (size <= WHOLE)
    assert -(-size // stride) <= WHOLE


def test_what_has_no_fixed_size_is_read_whole():
    model = doubled(1, 4, 4, 3)
    for tensor in model.main.tensors:
        tensor.shape_signature = (1, -1, 4, 3)
    assert [probe.tensor.name for probe in instrumented(model).read] == ["x", "y"]


def test_infinite_neighbours_spoil_nothing():
    """Zero times infinity is NaN, so such tensors are sampled outside."""
    x, y, z = (build.act(n, 1, 32, 32, 4) for n in "xyz")
    lowest = build.const("lowest", np.full((1, 32, 32, 4), -np.inf, np.float32))
    ops = [
        build.op("MAXIMUM", [x, lowest], y, options="MaximumMinimumOptions"),
        build.op("ABS", [y], z, options="AbsOptions"),
    ]
    made = instrumented(Model([build.graph("main", [x], [z], *ops)]))
    assert [probe.tensor.name for probe in made.picks] == ["x", "z"]
    assert [probe.tensor.name for probe in made.sampled] == ["y"]
