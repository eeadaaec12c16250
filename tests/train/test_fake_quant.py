"""Fake quantization against TensorFlow's kernels, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from zeropoint.affine import QuantParams, dequantize, quantize
from zeropoint.dtypes import Array, DType
from zeropoint.train.backend import array_of
from zeropoint.train.fake_quant import (
    ClipBounds,
    QuantLevels,
    fake_quant,
    nudge,
    round_and_clip,
    soft_round,
    symmetric_scale,
    symmetric_steps,
)

from .gradients import value_and_gradients

RANGES = [(-1, 2), (0, 0), (0.5, 3), (-3, -0.5), (-1.03, 1.7), (0, 6), (-6, 0), (-1e-3, 1e3), (-0.3, 0.3)]


def upstream(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


def values(low: float, high: float) -> Array:
    """Inside, outside, and exactly on the ends and on zero."""
    span = max(high - low, 1.0)
    drawn = np.random.default_rng(0).uniform(low - span, high + span, 400)
    return np.concatenate([drawn, [0.0, low, high, np.inf, -np.inf]]).astype(np.float32)


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8, 16])
@pytest.mark.parametrize(("low", "high"), RANGES)
def test_equals_tensorflow(low, high, bits, narrow):
    x, ends = values(low, high), (np.float32(low), np.float32(high))
    x = x[np.isfinite(x)] if (low, high) == (0, 0) else x
    weights = upstream(x.shape)
    found, gradients = value_and_gradients(
        lambda x, low, high: fake_quant(x, low, high, QuantLevels(bits, narrow)), (x, *ends), weights
    )
    wanted = tf.quantization.fake_quant_with_min_max_vars(x, low, high, bits, narrow)
    theirs = tf.quantization.fake_quant_with_min_max_vars_gradient(weights, x, low, high, bits, narrow)
    assert_same(found, np.asarray(wanted), (high - low) / QuantLevels(bits, narrow).steps)
    for ours, other in zip(gradients, theirs, strict=True):
        np.testing.assert_allclose(ours, other, rtol=1e-4, atol=1e-4)


def assert_same(found: Array, wanted: Array, step: float) -> None:
    """Equal to float rounding; what lies halfway between two steps to float rounding may go to either."""
    apart = np.abs(found - wanted) > 1e-5 * np.abs(wanted) + 1e-6 * max(step, 1e-6)
    assert apart.mean() <= 0.01
    assert (np.abs(found - wanted)[apart] <= 1.01 * step).all()


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_equals_tensorflow_for_each_channel(bits, narrow):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((4, 5, 6)).astype(np.float32)
    low, high = -rng.uniform(0, 1, 6).astype(np.float32), rng.uniform(0.1, 2, 6).astype(np.float32)
    low[0] = high[0] = 0
    low[1], high[2] = 0.05, high[2]
    weights = upstream(x.shape)
    found, gradients = value_and_gradients(
        lambda x, low, high: fake_quant(x, low, high, QuantLevels(bits, narrow), axis=2), (x, low, high), weights
    )
    options = {"num_bits": bits, "narrow_range": narrow}
    wanted = tf.quantization.fake_quant_with_min_max_vars_per_channel(x, low, high, **options)
    theirs = tf.raw_ops.FakeQuantWithMinMaxVarsPerChannelGradient(
        gradients=weights, inputs=x, min=low, max=high, **options
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    for ours, other in zip(gradients, theirs, strict=True):
        np.testing.assert_allclose(ours, np.reshape(other, ours.shape), rtol=1e-4, atol=1e-4)


def test_channels_may_lie_along_any_axis():
    x = np.random.default_rng(1).standard_normal((3, 4, 5)).astype(np.float32)
    low, high = -np.ones(4, np.float32), np.arange(1, 5, dtype=np.float32)
    along = array_of(fake_quant(x, low, high, axis=1))
    last = array_of(fake_quant(np.moveaxis(x, 1, 2), low, high, axis=2))
    np.testing.assert_array_equal(np.moveaxis(along, 1, 2), last)


@given(low=st.floats(-100, 0, width=32), high=st.floats(0, 100, width=32), x=st.floats(-200, 200, width=32))
def test_agrees_with_the_integers_that_are_stored(low, high, x):
    """What training sees is what quantizing and dequantizing gives, for ranges that hold zero."""
    if high - low < 1e-3:
        return
    params = QuantParams.from_range(low, high, DType.INT8)
    stored = dequantize(quantize(np.float32(x), params), params)
    seen = float(array_of(fake_quant(np.float32(x), np.float32(low), np.float32(high))))
    assert abs(seen - stored) <= params.scale * 1.001  # where x lies halfway, either neighbour will do
    middle = abs(x / params.scale - np.floor(x / params.scale) - 0.5) < 1e-3
    inside = params.range()[0] < x < params.range()[1]
    assert middle or not inside or abs(seen - stored) <= 1e-4 * max(1.0, abs(stored))


@given(low=st.floats(-50, 50, width=32), width=st.floats(0.125, 50, width=32))
def test_zero_is_always_on_the_grid(low, width):
    step = nudge(ops.convert_to_tensor(np.float32(low)), ops.convert_to_tensor(np.float32(low + width)), 255.0)
    first = float(array_of(step.low)) / float(array_of(step.scale))
    assert abs(first - round(first)) < 1e-3
    assert -255.001 <= first <= 0


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_weights_come_out_on_their_grid(bits):
    weights = np.random.default_rng(2).standard_normal((5, 3, 3, 4)).astype(np.float32)
    levels = QuantLevels(bits, narrow=True)
    scale = symmetric_scale(weights, levels, axis=0)
    steps = array_of(symmetric_steps(ops.convert_to_tensor(weights), scale, levels))
    assert np.array_equal(steps, np.round(steps))
    assert np.abs(steps).max() == levels.steps // 2
    error = np.abs(steps * array_of(scale) - weights)
    assert (error <= array_of(scale) * 0.50001).all()


@pytest.mark.parametrize("slope", [1.0, 0.5, 0.02])
def test_a_staircase_leads_from_a_line_to_rounding(slope):
    k = np.linspace(-3.99, 3.99, 401, dtype=np.float32)
    stairs, (gradient,) = value_and_gradients(lambda x: soft_round(x, slope), [k], np.ones_like(k))
    fraction = k - np.floor(k)
    rests = np.abs(fraction - 0.5) > slope / 2 + 1e-4
    climbs = np.abs(fraction - 0.5) < slope / 2 - 1e-4
    assert np.array_equal(stairs[rests], np.round(k[rests]))
    assert not gradient[rests].any()
    assert np.allclose(gradient[climbs], 1 / slope, rtol=1e-5)
    assert (np.diff(stairs) >= 0).all()
    if slope == 1.0:
        assert np.allclose(stairs, k, atol=1e-6)


@pytest.mark.parametrize(("bits", "low"), [(8, -128), (8, -3), (8, 0), (16, -32768), (4, 0), (1, 0)])
def test_the_fused_gradient_of_clipping_is_the_composed_one(bits, low):
    """Elements on the ends count as inside in both."""
    ends = np.float32(low), np.float32(low + 2**bits - 1)
    drawn = np.random.default_rng(3).uniform(2.0 * ends[0] - 9, 2.0 * ends[1] + 9, (50, 8))
    k = np.concatenate([drawn.reshape(-1), ends]).astype(np.float32)
    found = [
        value_and_gradients(
            lambda k, low, high, given=given: round_and_clip(k, ClipBounds(low, high, bits=given)),
            (k, *ends),
            upstream(k.shape),
        )[1]
        for given in (bits, None)
    ]
    for fused, composed in zip(*found, strict=True):
        np.testing.assert_allclose(fused, composed, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bits", [1, 17, 0])
def test_refuses_other_numbers_of_bits(bits):
    with pytest.raises(ValueError, match="2 to 16 bits"):
        QuantLevels(bits)
