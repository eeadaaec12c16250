"""Layers with integer weights on float data: rows of every kind against LiteRT, arithmetic against exact numbers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import zeropoint
from zeropoint.affine import PerAxis, QuantParams
from zeropoint.dtypes import Array, DType
from zeropoint.graph import Model, Tensor
from zeropoint.runtime import Session
from zeropoint.simulation.dynamic_range import bfloat16, fused_multiply_add

from .. import build

RUNTIMES = {"reference": "reference", "xnnpack": "delegate"}


def rows(size: int) -> Array:
    """Of all magnitudes; with halves; of one sign; with zeros only; with a single number."""
    rng = np.random.default_rng(size)
    data = rng.normal(size=(600, size)) * 10.0 ** rng.uniform(-3, 3, (600, 1))
    data[:100] = np.round(data[:100] * 4) / 4
    data[100:200] = rng.integers(-255, 256, (100, size)) / 2
    data[200:300] = np.abs(data[200:300])
    data[300:302] = 0
    data[302:310, 1:] = 0
    return data.astype(np.float32)


def held(values: Array, per_channel: bool) -> Tensor:
    count = len(values) if per_channel else 1
    scales = tuple(float(np.float32(0.01 + 0.003 * k)) for k in range(count))
    granularity = {"granularity": PerAxis(0)} if per_channel else {}
    return Tensor.constant("w", values, DType.INT8, QuantParams(scales, (0,) * count, DType.INT8, **granularity))


def integers(*shape: int, low: int = -127) -> Array:
    return np.random.default_rng(len(shape)).integers(low, 128, shape).astype(np.int8)


def dense(weights: Tensor, *, asymmetric: bool) -> Model:
    outputs, inputs = weights.shape
    x, y, bias = build.act("x", 600, inputs), build.act("y", 600, outputs), build.const("b", build.weights(outputs))
    options = {"options": "FullyConnectedOptions", "asymmetricQuantizeInputs": asymmetric}
    model = build.one_op("FULLY_CONNECTED", [x, weights, bias], y, **options)
    model.main.ops[0].version = 12
    return model


@pytest.mark.parametrize("kernels", RUNTIMES)
@pytest.mark.parametrize("per_channel", [True, False], ids=["channels", "tensor"])
@pytest.mark.parametrize("asymmetric", [True, False], ids=["asymmetric", "symmetric"])
@pytest.mark.parametrize("size", [3, 8, 19])
def test_rows_are_rounded_as_litert_does(size, asymmetric, per_channel, kernels):
    model, data = dense(held(integers(6, size), per_channel), asymmetric=asymmetric), rows(size)
    wanted = Session(model, kernels=RUNTIMES[kernels]).run([data])[0]
    np.testing.assert_array_equal(zeropoint.simulate(model, data, kernels).outputs[0], wanted)


@pytest.mark.parametrize("kernels", RUNTIMES)
@pytest.mark.parametrize("size", [5, 16, 35])
def test_a_weight_of_the_least_integer(size, kernels):
    """LiteRT's own kernels on x86 get these wrong, sixteen at a time; the simulation says what they say."""
    weights = np.where(integers(6, size) < 0, np.int8(-128), integers(6, size))
    model, data = dense(held(weights, False), asymmetric=True), rows(size)
    wanted = Session(model, kernels=RUNTIMES[kernels]).run([data])[0]
    np.testing.assert_array_equal(zeropoint.simulate(model, data, kernels).outputs[0], wanted)


@pytest.mark.parametrize("kernels", RUNTIMES)
@pytest.mark.parametrize("per_channel", [True, False], ids=["channels", "tensor"])
def test_images_are_rounded_one_by_one(per_channel, kernels):
    x, y, bias = build.act("x", 3, 7, 6, 2), build.act("y", 3, 7, 6, 5), build.const("b", build.weights(5))
    strides = {"strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    inputs = [x, held(integers(5, 3, 3, 2), per_channel), bias]
    model = build.one_op("CONV_2D", inputs, y, options="Conv2DOptions", **strides)
    model.main.ops[0].version = 5
    data = rows(252)[:1].reshape(3, 7, 6, 2) * np.array([1, 10, 0.1], np.float32).reshape(3, 1, 1, 1)
    wanted = Session(model, kernels=RUNTIMES[kernels]).run([data])[0]
    np.testing.assert_array_equal(zeropoint.simulate(model, data, kernels).outputs[0], wanted)


def test_a_fused_product_and_sum_are_rounded_once():
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=2000).astype(np.float32) for _ in range(2))
    c = (-a.astype(np.float64) * b + rng.normal(size=2000) * 10.0 ** rng.uniform(-12, 0, 2000)).astype(np.float32)
    for x, y, z, made in zip(a, b, c, fused_multiply_add(a, b, c), strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        error = abs(Fraction(float(made)) - exact)
        for other in (np.nextafter(made, np.float32(np.inf)), np.nextafter(made, np.float32(-np.inf))):
            assert error <= abs(Fraction(float(other)) - exact)


def test_bfloat16_keeps_eight_bits():
    kept = np.array([1.0, -2.5, 0.0, 1.0078125], np.float32)
    np.testing.assert_array_equal(bfloat16(kept), kept)
    np.testing.assert_array_equal(bfloat16(np.array([1.00390625, 1.01171875], np.float32)), [1.0, 1.015625])
