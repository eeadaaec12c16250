"""Numbers of all sizes in graphs: where kernels would abort or compute something else, ops stay float and say why."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from zeropoint.dtypes import DType
from zeropoint.graph import Model

from ..nets import Net, outputs_of, worst


def graph(kind: str, size: float) -> Model:
    """An op on numbers that others need in full, so that its range is not cut to what it looks at."""
    net = Net()
    x = net.input(1, 32)
    if kind == "GREATER":
        above = net(kind, [x, np.float32(size / 5)], (1, 32))
        above.dtype = DType.BOOL
        return net.model(net("SELECT_V2", [above, x, np.float32(0)], (1, 32)))
    return net.model(net(kind, [x], **({"beta": 1.0} if kind == "SOFTMAX" else {})), net("ABS", [x]))


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-5, 1e8])
@pytest.mark.parametrize("kind", ["RELU6", "LOGISTIC", "TANH", "SOFTMAX", "GREATER"])
def test_graphs_of_all_sizes_are_right(kind: str, size: float, mode: str) -> None:
    model, rng = graph(kind, size), np.random.default_rng(0)
    samples = [((rng.normal(size=(1, 32)) * size).astype(np.float32),) for _ in range(8)]
    made = zeropoint.quantize(model, mode, data=samples, effort="quick", target="integer")
    assert {skipped.code for skipped in made.skipped} <= {"scale"}
    wanted = outputs_of(model, samples, "optimized")
    for kernels in ("delegate", "optimized", "reference"):
        for exact, got in zip(wanted, outputs_of(made.model, samples, kernels), strict=True):
            assert np.abs(exact - got).mean() <= 0.05 * np.abs(exact).max(), kernels


def test_squared_differences_of_large_numbers_stay_float() -> None:
    """The kernel would end the process: 1000 is held in steps of 4, and its square in steps of 16."""
    net = Net()
    x = net.input(2, 16)
    model = net.model(net("SQUARED_DIFFERENCE", [x, np.float32(1000)]))
    rng = np.random.default_rng(0)
    samples = [(rng.uniform(999.99, 1000.01, (2, 16)).astype(np.float32),) for _ in range(4)]
    made = zeropoint.quantize(model, "int8", data=samples, effort="quick", target="integer")
    assert [(skipped.op.kind, skipped.code) for skipped in made.skipped] == [("SQUARED_DIFFERENCE", "scale")]
    assert worst(outputs_of(model, samples), outputs_of(made.model, samples)) <= 0.01


def test_biases_far_greater_than_what_is_added_to_them_remain() -> None:
    """Beside inputs of 1e-4 they have more integers than kernels can scale down to the output's 16 bits."""
    net = Net()
    x = net.input(1, 2, 2, 1)
    weights, biases = np.float32([0.1, 0.3]).reshape(2, 1, 1, 1), np.float32([16410, 150000])
    model = net.model(net("CONV_2D", [x, weights, biases], (1, 2, 2, 2), strideW=1, strideH=1))
    rng = np.random.default_rng(0)
    samples = [((rng.normal(size=(1, 2, 2, 1)) * 1e-4).astype(np.float32),) for _ in range(4)]
    made = zeropoint.quantize(model, "int16x8", data=samples, effort="quick", target="integer")
    assert not made.skipped
    for kernels in ("optimized", "reference"):
        assert worst(outputs_of(model, samples), outputs_of(made.model, samples, kernels)) <= 0.001


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
def test_probabilities_below_the_kernels_steps_stay_float(mode: str) -> None:
    """In steps of 1/256 or 1/32768 nothing would be left of them, whatever is computed with them later."""
    net = Net()
    chance = net("LOGISTIC", [net.input(1, 32)])
    model = net.model(net("MUL", [chance, np.float32([1e9])]))
    samples = [(np.linspace(-26, -22, 32, dtype=np.float32)[None] - k,) for k in range(4)]
    made = zeropoint.quantize(model, mode, data=samples, effort="quick", target="integer")
    reasons = {skipped.op.kind: skipped.reason for skipped in made.skipped}
    assert "none of its results reaches one" in reasons["LOGISTIC"]
    assert worst(outputs_of(model, samples), outputs_of(made.model, samples)) <= 0.01
