"""A matrix product of a transposed tensor with itself is right in LiteRT's delegate too, which transposes it once."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from zeropoint.graph import Model

from ..nets import Net, kinds, normal, outputs_of, worst

SHAPES = {(0, 1, 2): (1, 3, 3), (0, 2, 1): (1, 3, 3), (1, 0, 2): (3, 3, 3), (0, 2, 1, 3): (1, 3, 3, 3)}


def gram(order: tuple[int, ...], *, read_elsewhere: bool = False) -> Model:
    """The product with itself of a tensor whose axes were put into another order, or into the same."""
    net = Net()
    scaled = net("MUL", [net.input(*SHAPES[order]), normal(*SHAPES[order], seed=9)])
    turned = net("TRANSPOSE", [scaled, np.int32(order)])
    return net.model(net("BATCH_MATMUL", [turned, turned]), *([net("ABS", [turned])] if read_elsewhere else []))


@pytest.mark.parametrize("keep", [(), ("TRANSPOSE", "BATCH_MATMUL")], ids=["integers", "floats"])
@pytest.mark.parametrize("mode", ["int8", "int16x8", "float16"])
@pytest.mark.parametrize("order", SHAPES, ids=str)
def test_a_transposed_tensor_times_itself(order, mode, keep):
    model = gram(order)
    samples = [(normal(*SHAPES[order], seed=k),) for k in range(8)]
    data = None if mode == "float16" else samples
    settings = {"effort": "quick", "min_elements": 1, "keep_float": keep, "target": "integer"}
    result = zeropoint.quantize(model, mode, data=data, **settings)
    assert kinds(result.model).count("TRANSPOSE") == (2 if keep or mode == "float16" else 1)
    assert worst(outputs_of(model, samples, "optimized"), outputs_of(result.model, samples, "delegate")) <= 0.05


def test_a_transposed_tensor_that_others_read_is_transposed_once():
    """The delegate leaves it alone."""
    model = gram((0, 2, 1, 3), read_elsewhere=True)
    made = zeropoint.quantize(model, "float16", effort="quick", min_elements=1).model
    assert kinds(made).count("TRANSPOSE") == 1
    samples = [(normal(1, 3, 3, 3, seed=k),) for k in range(8)]
    assert worst(outputs_of(model, samples, "optimized"), outputs_of(made, samples, "delegate")) <= 0.01
