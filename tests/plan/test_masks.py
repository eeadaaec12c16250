"""Values that stand for minus infinity, in padding and in masks: they widen no range, and do what they did."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from zeropoint.calibration import Settings, calibrate
from zeropoint.dtypes import DType
from zeropoint.graph import Model, Tensor

from .. import build
from ..nets import Net, kinds, normal, outputs_of, quantized, samples_for, worst

IMAGE = (1, 6, 6, 4)
LOWEST = np.finfo(np.float32).min


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
@pytest.mark.parametrize("value", [-np.inf, LOWEST, -1e30, 0.0, -2.5], ids=str)
def test_padding_before_a_maximum(value, mode):
    net = Net()
    x = net.input(*IMAGE)
    around = np.int32([[0, 0], [1, 1], [1, 1], [0, 0]])
    padded = net("PADV2", [net.conv(x, normal(4, 1, 1, 4)), around, np.float32(value)], (1, 8, 8, 4))
    window = {"strideW": 1, "strideH": 1, "filterWidth": 3, "filterHeight": 3, "padding": 1}
    model = net.model(net("MAX_POOL_2D", [padded], IMAGE, **window))
    samples = samples_for(model)
    stats = calibrate(model, samples, Settings(allow_nonfinite=True))
    made = quantized(model, samples, bound=0.03 if mode == "int8" else 0.01, mode=mode, data=None, stats=stats).model
    assert kinds(made) == ["QUANTIZE", "CONV_2D", "PADV2", "MAX_POOL_2D", "DEQUANTIZE"]


def added(net: Net, scores: Tensor, shown: Tensor, value: float) -> Tensor:
    """As in BERT: (1 - shown) * value is added."""
    hidden = net("SUB", [np.float32(1), shown], shown.shape)
    return net("ADD", [scores, net("RESHAPE", [net("MUL", [hidden, np.float32(value)]), np.int32([1, 8])], (1, 8))])


def subtracted(net: Net, scores: Tensor, shown: Tensor, value: float) -> Tensor:
    """The same with the other sign."""
    hidden = net("SUB", [np.float32(1), shown], shown.shape)
    mask = net("RESHAPE", [net("MUL", [hidden, np.float32(-value)]), np.int32([1, 8])], (1, 8))
    return net("SUB", [scores, mask])


def added_before_a_difference(net: Net, scores: Tensor, shown: Tensor, value: float) -> Tensor:
    """What is masked is a minuend afterwards."""
    return net("SUB", [added(net, scores, shown, value), net("MUL", [shown, np.float32(0.1)])], scores.shape)


def selected(net: Net, scores: Tensor, shown: Tensor, value: float) -> Tensor:
    condition = net("GREATER", [shown, np.float32(0.5)])
    condition.dtype = DType.BOOL
    return net("SELECT_V2", [condition, scores, np.float32(value)], scores.shape)


def given(net: Net, scores: Tensor, shown: Tensor, value: float) -> Tensor:
    """The caller masks."""
    return net("ADD", [shown, scores], scores.shape)


def built_in(net: Net, scores: Tensor, shown: Tensor, value: float) -> Tensor:
    """No word looks ahead, whatever the caller says."""
    ahead = np.triu(np.full((4, 8), value, np.float32), 1)
    return net("ADD", [net("ADD", [scores, ahead]), net("MUL", [shown, np.float32(0.1)])], scores.shape)


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
@pytest.mark.parametrize("value", [-1e4, -1e9, LOWEST], ids=str)
@pytest.mark.parametrize("mask", [added, subtracted, added_before_a_difference, selected, given, built_in])
def test_a_mask_before_a_softmax_costs_no_resolution(mask, value, mode):
    net = Net()
    scores, shown = net.input(4, 8), net.input(8, name="shown")
    model = net.model(net("SOFTMAX", [mask(net, scores, shown, value)], beta=1.0))
    rng = np.random.default_rng(0)
    hide, show = (np.float32(value), np.float32(0)) if mask is given else (np.float32(0), np.float32(1))
    rows = [np.where(rng.random(8) < 0.3, hide, show) for _ in range(24)]
    samples = [(normal(4, 8, seed=k, spread=2), row) for k, row in enumerate(rows)]
    result = quantized(model, samples, mode=mode, bound=0.03 if mode == "int8" else 1e-3)
    assert {s.op.kind for s in result.skipped} <= {"GREATER"}


def test_rows_that_lie_below_others_are_no_masks():
    """Softmax compares the values of one row, and all of the second row are far below the first."""
    net = Net()
    rows = net("PACK", [net.input(1, 8), np.linspace(-140, -132, 8, dtype=np.float32)[None]], (2, 1, 8), valuesCount=2)
    model = net.model(net("SOFTMAX", [rows], beta=1.0))
    quantized(model, samples_for(model), mode="int16x8", bound=0.01, target="integer")


@pytest.mark.parametrize(("rows", "center"), [(slice(1), -2000), (slice(4), -1200)], ids=["one", "half"])
def test_values_far_above_those_of_other_rows_mask_none_of_them(rows, center):
    """Either they are too few, or those below differ by more than their distance from them."""
    net = Net()
    model = net.model(net("SOFTMAX", [net.input(8, 8)], beta=1.0))
    samples = [(normal(8, 8, seed=k, spread=300) + center,) for k in range(8)]
    for (values,) in samples:
        values[rows] = normal(8, seed=1) if rows.stop > 1 else np.where(np.arange(8) == 0, 0, values[rows])
    quantized(model, samples, mode="int16x8", bound=0.01, target="integer")


def test_what_a_softmax_scales_down_is_masked_further_below():
    net = Net()
    model = net.model(net("SOFTMAX", [net.input(4, 8)], beta=1e-3))
    samples = [(np.float32(np.where(np.arange(8) < 4, -3000, 0) + normal(4, 8, seed=k)),) for k in range(8)]
    quantized(model, samples, mode="int16x8", bound=0.01, target="integer")


@pytest.mark.parametrize("value", [-np.inf, LOWEST], ids=str)
def test_what_is_not_merely_compared_stays_float(value):
    """Clamped to the least of the others, a mask would no longer vanish in a sum of exponentials, or for a caller."""
    net = Net()
    x, shown = net.input(4, 8), net.input(4, 8, dtype=DType.BOOL, name="shown")
    chosen = net("SELECT_V2", [shown, net("MUL", [x, np.float32(0.5)]), np.float32(value)], (4, 8))
    alone = Model([build.graph("main", net.inputs, [chosen], *net.ops)])
    model = net.model(net("SUM", [net("EXP", [chosen]), np.int32([1])], (4,)))
    samples = samples_for(model)
    for each, bound in ((model, 0.05), (alone, 0.02)):
        stats = calibrate(each, samples, Settings(allow_nonfinite=True))
        made = zeropoint.quantize(each, stats=stats)
        assert "SELECT_V2" in {s.op.kind for s in made.skipped}
        wanted, got = (outputs_of(m, samples)[0] for m in (each, made.model))
        assert np.array_equal(wanted < -1e30, got < -1e30)
        finite = wanted > -1e30
        assert np.abs(wanted[finite] - got[finite]).max() <= bound * np.ptp(wanted[finite])


def test_values_that_stand_for_infinity_stay_float():
    """At such scales kernels would end the process."""
    net = Net()
    x = net.dense(net.input(1, 8), normal(8, 8))
    model = net.model(net("ADD", [x, net("MUL", [x, np.float32(3e37)])]))
    result = quantized(model)
    assert {s.op.kind for s in result.skipped} == {"ADD", "MUL"}
    assert all("stand for infinity" in s.reason for s in result.skipped)


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
@pytest.mark.parametrize(("kind", "end"), [("MINIMUM", 1e12), ("MAXIMUM", -1e12)])
def test_a_far_end_of_what_is_clamped_does_not_widen_its_range(kind: str, end: float, mode: str) -> None:
    """Keras limits 1 / x in this way when it normalizes a vector: both operands have one scale."""
    net = Net()
    model = net.model(net(kind, [net.input(1, 16), np.float32(end)]))
    samples = [(np.random.default_rng(k).uniform(-1, 1, (1, 16)).astype(np.float32),) for k in range(4)]
    made = zeropoint.quantize(model, mode, data=samples, effort="quick", target="integer")
    assert made.skipped == ()
    for kernels in ("delegate", "optimized", "reference"):
        assert worst(outputs_of(model, samples), outputs_of(made.model, samples, kernels)) <= 0.01


@pytest.mark.parametrize("target", ["cpu", "integer"])
@pytest.mark.parametrize("mode", ["int8", "int16x8"])
def test_normalized_vectors_keep_their_precision(mode: str, target: str) -> None:
    """x * min(1 / sqrt(sum(x**2)), 1e12), as Keras computes it: whatever is float takes no room for the 1e12."""
    net = Net()
    x = net.dense(net.input(1, 16), normal(16, 16))
    total = net("SUM", [net("MUL", [x, x]), np.int32([1])], (1, 1), keepDims=True)
    bounded = net("MINIMUM", [net("RSQRT", [total]), np.float32(1e12)])
    model = net.model(net.dense(net("MUL", [x, bounded], (1, 16)), normal(8, 16, seed=1)))
    samples = samples_for(model, 16)
    made = zeropoint.quantize(model, mode, data=samples, target=target)
    for kernels in ("delegate", "optimized", "reference"):
        assert worst(outputs_of(model, samples), outputs_of(made.model, samples, kernels)) <= 0.05
