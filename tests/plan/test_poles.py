"""Float ops that divide get no zeros that rounding made."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from zeropoint.graph import Model

from ..nets import Net, normal, outputs_of, samples_for, worst

SHAPE = (1, 64)


def quotient(least: float, between: str | None = None) -> Model:
    """x / (|y| + least), perhaps with another op before the division; no integer kernel divides."""
    net = Net()
    x, y = net.input(*SHAPE), net.input(*SHAPE)
    divisor = net("ADD", [net("ABS", [y], SHAPE), np.float32([least])], SHAPE)
    if between is not None:
        operands = [divisor, np.float32([0.05])] if between == "MAXIMUM" else [divisor]
        divisor = net(between, operands, SHAPE)
    return net.model(net("DIV", [x, divisor], SHAPE))


def samples(size: float) -> list[tuple[np.ndarray, ...]]:
    """For x ordinary numbers, for y those up to `size`, from 0."""
    rng = np.random.default_rng(0)
    return [(rng.normal(size=SHAPE).astype(np.float32), np.linspace(0, size, 64, dtype=np.float32)[None])] * 4


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
@pytest.mark.parametrize("between", [None, "RELU", "MAXIMUM"])
def test_a_divisor_that_rounding_would_bring_to_zero_stays_float(between: str | None, mode: str) -> None:
    model, data = quotient(0.1, between), samples(1e5)
    made = zeropoint.quantize(model, mode, data=data, effort="quick", target="integer")
    reasons = {skipped.op.kind: skipped.reason for skipped in made.skipped}
    assert "could give it a zero" in reasons["ADD"]
    wanted = outputs_of(model, data)
    for kernels in ("delegate", "optimized", "reference"):
        assert worst(wanted, outputs_of(made.model, data, kernels)) < 0.5


def test_a_divisor_that_came_from_coarser_integers_stays_float() -> None:
    """The last two of these numbers are around a thousand: steps of their own, but none of the whole input."""
    net = Net()
    x = net.input(*SHAPE)
    top = net("SLICE", [x, np.int32([0, 62]), np.int32([1, 2])], (1, 2))
    divisor = net("ADD", [net("ABS", [top], (1, 2)), np.float32([0.1])], (1, 2))
    model = net.model(net("DIV", [top, divisor], (1, 2)))
    data = [(np.r_[np.linspace(-1e6, -1e5, 62), np.linspace(1e3, 2e3, 2)].astype(np.float32)[None],)] * 4
    made = zeropoint.quantize(model, "int8", data=data, effort="quick", target="integer")
    assert "could give it a zero" in {skipped.op.kind: skipped.reason for skipped in made.skipped}["ADD"]
    for kernels in ("delegate", "optimized", "reference"):
        assert all(np.isfinite(v).all() for row in outputs_of(made.model, data, kernels) for v in row)


def test_a_divisor_far_from_zero_is_an_integer() -> None:
    made = zeropoint.quantize(quotient(1.0), "int8", data=samples(10.0), effort="quick", target="integer")
    assert made.skipped == ()


def test_a_kernel_that_takes_zeros_for_infinity_reads_none_that_rounding_made() -> None:
    """The greatest number that the integers hold is far beyond 1 / sqrt(0.1), as they hold a hundred thousand too."""
    net = Net()
    y, large = net.input(*SHAPE), net.input(*SHAPE)
    root = net("RSQRT", [net("ADD", [net("ABS", [y], SHAPE), np.float32([0.1])], SHAPE)], SHAPE)
    model = net.model(net("MAXIMUM", [root, large], SHAPE))
    data = [(np.linspace(0, 1e5, 64, dtype=np.float32)[None], row[1]) for row in samples(1e5)]
    made = zeropoint.quantize(model, "int8", data=data, effort="quick", target="integer")
    assert "RSQRT" in {skipped.op.kind for skipped in made.skipped}
    for kernels in ("delegate", "optimized", "reference"):
        assert worst(outputs_of(model, data), outputs_of(made.model, data, kernels)) < 0.01


def test_a_divisor_that_is_the_root_of_what_rounding_brings_to_zero_stays_float() -> None:
    """The least of these roots has six steps; but the number it is the root of has a seventh of one, and becomes 0."""
    net = Net()
    x, y = net.input(*SHAPE), net.input(*SHAPE)
    root = net("ABS", [net("SQRT", [net("ABS", [y], SHAPE)], SHAPE)], SHAPE)
    model = net.model(net("DIV", [x, net("ADD", [root, np.float32([0.1])], SHAPE)], SHAPE))
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=SHAPE).astype(np.float32), np.geomspace(7e7, 1.2e11, 64, dtype=np.float32)[None])] * 4
    made = zeropoint.quantize(model, "int8", data=data, effort="quick", target="integer").model
    for kernels in ("delegate", "optimized", "reference"):
        assert all(np.isfinite(v).all() for v in outputs_of(made, data, kernels))


def test_a_divisor_that_weights_of_four_bits_move_to_zero_stays_float() -> None:
    """The least of these sums has two steps of its own; but rounded weights move it by more."""
    rng = np.random.default_rng(0)
    weights, net = rng.normal(size=(64, 16)).astype(np.float32), Net()
    data = [(rng.normal(size=SHAPE).astype(np.float32), np.float32(3 * rng.normal(size=(1, 16)))) for _ in range(2)]
    least = np.min([y @ weights.T for _, y in data], axis=(0, 1))
    x, y = net.input(*SHAPE), net.input(1, 16)
    sums = net("FULLY_CONNECTED", [y, weights, np.float32(1.5 - least)], SHAPE)
    model = net.model(net("DIV", [x, net("ADD", [net("ABS", [sums], SHAPE), np.float32([0.1])], SHAPE)], SHAPE))
    made = zeropoint.quantize(model, "int8", data=data, effort="quick", target="integer", weight_bits=4)
    assert "could give it a zero" in {skipped.op.kind: skipped.reason for skipped in made.skipped}["ADD"]
    for kernels in ("delegate", "optimized", "reference"):
        assert all(np.isfinite(v).all() for v in outputs_of(made.model, data, kernels))


def test_a_divisor_that_is_the_mean_of_coarser_integers_stays_float() -> None:
    """Numbers around a thousand, in steps of eight thousand, become 0 before their mean gets steps of its own."""
    net = Net()
    x = net.input(*SHAPE)
    top = net("SLICE", [x, np.int32([0, 62]), np.int32([1, 2])], (1, 2))
    mean = net("MEAN", [top, np.int32([1])], (1, 1), keepDims=True)
    model = net.model(net("DIV", [top, net("ADD", [net("ABS", [mean], (1, 1)), np.float32([0.1])], (1, 1))], (1, 2)))
    data = [(np.r_[np.linspace(-1e6, 1e6, 62), np.linspace(1e3, 2e3, 2)].astype(np.float32)[None],)] * 4
    made = zeropoint.quantize(model, "int8", data=data, effort="quick", target="integer")
    assert any("could give it a zero" in skipped.reason for skipped in made.skipped)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_divisor_that_a_constant_keeps_from_zero_is_an_integer(sign: int) -> None:
    """Its steps come from numbers a thousand times as large, but it is a clamp that ends it."""
    net = Net()
    x, y = net.input(*SHAPE), net.input(*SHAPE)
    same = net.dense(y, np.eye(SHAPE[1], dtype=np.float32))
    clamped = net("MAXIMUM" if sign > 0 else "MINIMUM", [same, np.float32([2.0 * sign])])
    clamped = net("MINIMUM" if sign > 0 else "MAXIMUM", [clamped, np.float32([8.0 * sign])])
    model = net.model(net("RSQRT", [clamped]) if sign > 0 else net("DIV", [x, clamped]), net("ABS", [y]))
    data = [(normal(*SHAPE, seed=k), 1000 * normal(*SHAPE, seed=k + 9)) for k in range(4)]
    made = zeropoint.quantize(model, "int8", data=data, effort="quick", target="integer")
    assert not any("could give it a zero" in skipped.reason for skipped in made.skipped)
    assert all(np.isfinite(v).all() for v in outputs_of(made.model, data))


def test_what_a_maximum_keeps_from_zero_leaves_the_rest_in_integers() -> None:
    """log(max(|x|, 1e-5)), as audio is prepared: it ends at -11.5, however far off x is."""
    net = Net()
    energy = net("ABS", [net.dense(net.input(1, 16), normal(16, 16))])
    logarithm = net("LOG", [net("MAXIMUM", [energy, np.float32(1e-5)])])
    model = net.model(net.dense(logarithm, normal(8, 16, seed=1), name="after"))
    made = zeropoint.quantize(model, "int8", data=samples_for(model, 16), effort="quick", target="cpu")
    assert not any(s.op.kind == "FULLY_CONNECTED" for s in made.skipped), made.skipped
