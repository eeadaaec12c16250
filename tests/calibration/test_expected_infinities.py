"""Infinities of the model's own are left out of the statistics; those of the data, and NaN, are refused."""

from __future__ import annotations

import numpy as np
import pytest

from zeropoint.calibration import Settings, calibrate
from zeropoint.calibration.task import count_unexpected
from zeropoint.dtypes import DType
from zeropoint.errors import InvalidSample
from zeropoint.graph import Model
from zeropoint.quantization import quantize
from zeropoint.runtime import Session

from .. import build

SAMPLES = [np.random.default_rng(k).normal(0, 1 + k % 3, (1, 4, 4, 2)).astype(np.float32) for k in range(30)]
POOL = {"padding": 1, "strideW": 2, "strideH": 2, "filterWidth": 2, "filterHeight": 2}


def padded(border: float, *, pool: str = "MAX_POOL_2D") -> Model:
    """A border around an image, an op that moves it on, and a pool that looks past it."""
    x, wide, turned, y = (build.act(n, 1, s, s, 2) for n, s in (("x", 4), ("wide", 6), ("turned", 6), ("y", 3)))
    around = build.const("around", np.int32([[0, 0], [1, 1], [1, 1], [0, 0]]))
    ops = [
        build.op("PADV2", [x, around, build.const("border", np.float32(border))], wide, options="PadV2Options"),
        build.op("TRANSPOSE", [wide, build.const("order", np.int32([0, 2, 1, 3]))], turned, options="TransposeOptions"),
        build.op(pool, [turned], y, options="Pool2DOptions", **POOL),
    ]
    return Model([build.graph("main", [x], [y], *ops)])


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("histograms", [True, False])
@pytest.mark.parametrize("border", [-np.inf, np.inf])
def test_infinite_constants_are_left_out_wherever_they_are_moved(border, histograms, workers):
    stats = calibrate(padded(border, pool="AVERAGE_POOL_2D"), SAMPLES, Settings(histograms=histograms, workers=workers))
    x, wide, turned = (stats.tensors[name] for name in ("x", "wide", "turned"))
    assert x.nonfinite == 0
    for tensor in (wide, turned):
        assert (tensor.low, tensor.high, tensor.count) == (x.low, x.high, x.count)
        assert tensor.nonfinite == len(SAMPLES) * (6 * 6 - 4 * 4) * 2
        if histograms:
            assert tensor.mean == pytest.approx(x.mean, rel=1e-5)
            assert tensor.histogram.total == x.count


def test_what_a_maximum_leaves_of_them_is_finite():
    stats = calibrate(padded(-np.inf), SAMPLES)
    assert (stats.tensors["y"].nonfinite, stats.tensors["y"].high) == (0, stats.tensors["x"].high)


@pytest.mark.parametrize("histograms", [True, False])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_infinities_of_the_data_are_refused_all_the_same(value, histograms):
    bad = SAMPLES[0].copy()
    bad[0, 1, 1, 1] = value
    with pytest.raises(InvalidSample, match="sample 20 makes 1 of 32 values of 'x' NaN or infinite"):
        calibrate(padded(-np.inf), [*SAMPLES[:20], bad], Settings(histograms=histograms))


@pytest.mark.parametrize("histograms", [True, False])
def test_infinities_that_an_op_makes_are_refused_all_the_same(histograms):
    model = padded(-np.inf)
    x, given = model.main.inputs[0], build.act("given", 1, 4, 4, 2)
    model.main.ops.insert(0, build.op("EXP", [given], x, options="ExpOptions"))
    model.main.tensors.append(given)
    model.main.inputs = [given]
    huge = np.full((1, 4, 4, 2), 200, np.float32)
    with pytest.raises(InvalidSample, match="sample 1 makes 32 of 32 values of 'x' NaN or infinite"):
        calibrate(model, [SAMPLES[0], huge], Settings(histograms=histograms))


@pytest.mark.parametrize(("signs", "count"), [((), 3), ((-np.inf,), 2), ((np.inf,), 2), ((np.inf, -np.inf), 1)])
def test_nan_is_never_expected(signs, count):
    assert count_unexpected(np.float32([1, np.nan, np.inf, -np.inf]), frozenset(signs)) == count


def test_a_mask_of_minus_infinity_is_left_out():
    scores, chosen, y = (build.act(n, 1, 5) for n in ("scores", "chosen", "y"))
    keep = build.const("keep", np.array([[True, False, True, True, False]]))
    masked = build.op(
        "SELECT_V2", [keep, scores, build.const("masked", np.float32(-np.inf))], chosen, options="SelectV2Options"
    )
    softmax = build.op("SOFTMAX", [chosen], y, options="SoftmaxOptions", beta=1.0)
    model = Model([build.graph("main", [scores], [y], masked, softmax)])
    stats = calibrate(model, [np.float32([[1, 2, 3, 4, 5]]), np.float32([[5, 9, 3, -2, 1]])])
    assert (stats.tensors["chosen"].low.value, stats.tensors["chosen"].high.value) == (-2, 5)
    assert stats.tensors["chosen"].nonfinite == 4


def test_padding_with_minus_infinity_quantizes_and_runs():
    """What lies below all else stays below it, so pooling gives the same as in float, to a step."""
    model = padded(-np.inf)
    quantized = quantize(model, "int8", SAMPLES, target="integer")
    kinds = [op.kind for op in quantized.model.main.ops]
    assert {"PADV2", "MAX_POOL_2D"} <= set(kinds)
    assert all(t.dtype is not DType.FLOAT32 for t in quantized.model.main.tensors if t.name in ("wide", "turned"))
    before, after = Session(model), Session(quantized.model)
    step = (max(s.max() for s in SAMPLES) - min(s.min() for s in SAMPLES)) / 255
    for sample in SAMPLES:
        assert np.abs(after.run([sample])[0] - before.run([sample])[0]).max() <= step
