"""Ranges that a user gives for weights, for outputs that kernels fix, and for everything at once."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from zeropoint.calibration import Range, Ranges, default_range
from zeropoint.errors import InvalidStats
from zeropoint.graph import Model
from zeropoint.graph.edit import with_written_ranges
from zeropoint.tflite import load, to_bytes

from .. import build

RNG = np.random.default_rng(3)
DATA = [RNG.normal(size=(1, 4)).astype(np.float32) for _ in range(8)]


def dense(weights: np.ndarray) -> Model:
    x, y, z = build.act("x", 1, 4), build.act("y", 1, 3), build.act("z", 1, 3)
    layer = build.op(
        "FULLY_CONNECTED",
        [x, build.const("w", weights), build.const("b", np.ones(3, np.float32))],
        y,
        options="FullyConnectedOptions",
    )
    softmax = build.op("SOFTMAX", [y], z, options="SoftmaxOptions", beta=1.0)
    return Model([build.graph("main", [x], [z], layer, softmax)])


WEIGHTS = RNG.uniform(-1, 1, (3, 4)).astype(np.float32)


def given(**ranges: Range) -> Ranges:
    return Ranges(ranges)


def made(mode: str, ranges: Ranges, **options: object) -> zeropoint.Model:
    data = DATA if mode == "int8" else None
    result = zeropoint.quantize(dense(WEIGHTS), mode, data, ranges=ranges, target="integer", **options)
    return result.model


def weights_of(model: Model):
    return next(t for g in model.graphs for t in g.tensors if t.name == "w")


@pytest.mark.parametrize("effort", ["quick", "standard", "high"])
@pytest.mark.parametrize(("low", "high"), [(-0.5, 0.25), (-4.0, 4.0)])
def test_weights_are_clipped_to_their_range_and_have_its_scale(effort, low, high):
    tensor = weights_of(made("int8", given(w=Range(low, high, "here")), effort=effort))
    assert tensor.params.scales == pytest.approx((max(-low, high) / 127,) * 3)
    real = tensor.data * np.array(tensor.params.scales)[:, None]
    assert real == pytest.approx(np.clip(WEIGHTS, low, high), abs=1.01 * tensor.params.scales[0])


def test_channels_of_weights_have_ranges_of_their_own():
    channels = ((-0.5, 0.5), (-0.25, 0.25), (-1.0, 1.0))
    tensor = weights_of(made("int8", given(w=Range(-1, 1, "here", channels=channels))))
    assert tensor.params.scales == pytest.approx((0.5 / 127, 0.25 / 127, 1 / 127))


@pytest.mark.parametrize("mode", ["dynamic", "weights"])
def test_ranges_of_weights_count_where_nothing_else_is_quantized(mode):
    tensor = weights_of(made(mode, given(w=Range(-2, 2, "here")), min_elements=0))
    assert tensor.params.scales == pytest.approx((2 / 127,) * 3)


def test_the_number_of_channels_has_to_fit():
    with pytest.raises(InvalidStats, match="'w' is given ranges of 2 channels, and has 3 channels"):
        made("int8", given(w=Range(-1, 1, "here", channels=((-1, 1),) * 2)))


def test_biases_take_no_range():
    with pytest.raises(InvalidStats, match="'b', which is a bias"):
        made("int8", given(b=Range(-1, 1, "here")))


def test_outputs_that_the_kernel_fixes_take_no_other_range():
    with pytest.raises(InvalidStats, match=r"the kernel of SOFTMAX has 0 to 0\.996094 built in"):
        made("int8", given(z=Range(0, 0.25, "here")))
    with pytest.raises(InvalidStats, match="built in"):
        made("int8", given(z=Range(0, 2, "here")))
    made("int8", given(z=Range(0, 1, "here")))
    made("int8", given(z=Range(0.1, 0.8, "measured")))


def test_a_default_range_takes_no_data_and_says_what_it_is_worth():
    result = zeropoint.quantize(dense(WEIGHTS), "int8", ranges=default_range(-6, 6), target="integer")
    assert not result.skipped
    assert any("ACCURACY IS MEANINGLESS" in note for note in result.notes)
    ranges = {t.name: t.params.range() for t in result.model.graphs[0].tensors if t.params and t.data is None}
    assert any(
        low == pytest.approx(-6, abs=0.05) and high == pytest.approx(6, abs=0.05) for low, high in ranges.values()
    )


def test_measured_ranges_come_before_the_default():
    result = zeropoint.quantize(dense(WEIGHTS), "int8", DATA, ranges=default_range(-60, 60), target="integer")
    assert not any("default range" in note for note in result.notes)


def test_written_ranges_are_those_of_scale_and_zero_point():
    model = load(to_bytes(with_written_ranges(made("int8", Ranges({})))))
    held = [t for t in model.graphs[0].tensors if t.params is not None]
    assert held
    for tensor in held:
        low, high = tensor.params.range()
        assert min(tensor.quantization.min) == pytest.approx(low, rel=1e-6)
        assert max(tensor.quantization.max) == pytest.approx(high, rel=1e-6)
        assert len(tensor.quantization.min) == len(tensor.params.scales)


def test_a_result_is_saved_with_ranges_if_asked(tmp_path):
    result = zeropoint.quantize(dense(WEIGHTS), "int8", DATA, target="integer")
    plain, ranged = (result.save(tmp_path / f"{k}.tflite", write_ranges=bool(k)) for k in (0, 1))
    assert plain < ranged
