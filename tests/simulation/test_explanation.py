"""What an explanation says adds up: products to the sum, the sum and the bias to the output."""

from __future__ import annotations

import json

import numpy as np
import pytest

import zeropoint
from zeropoint.demo import digits as digits_data
from zeropoint.errors import InvalidModel
from zeropoint.fixedpoint import multiply
from zeropoint.graph.query import Uses
from zeropoint.ops.execution import execution_of
from zeropoint.simulation.trace import Trace


@pytest.fixture(scope="module")
def trace(digits) -> Trace:
    images = [image[None] for image in digits_data()["calibration"][:20]]
    model = zeropoint.quantize(digits, data=images, effort="quick").model
    return zeropoint.simulate(model, images[0], float_model=digits)


def outputs(trace: Trace, *kinds: str) -> list[str]:
    return [trace.names[op.outputs[0]] for op in trace.entry.graph.ops if op.kind in kinds]


def places(trace: Trace, name: str) -> list[tuple[int, ...]]:
    """Corners, and somewhere in the middle."""
    shape = trace[name].shape
    return [tuple(int(k * share) for k in np.subtract(shape, 1)) for share in (0, 0.5, 1)]


def test_the_arithmetic_of_a_layer_adds_up(trace):
    names = outputs(trace, "CONV_2D", "DEPTHWISE_CONV_2D")
    assert len(names) == 4
    for name in names:
        for place in places(trace, name):
            found = trace.explain(name, place)
            total = sum(product.value for product in found.products)
            assert total == found.step("sum of products")
            accumulator = total + found.step("bias")
            rescaled = multiply(np.array([accumulator]), found.step("multiplier"), found.step("shift"))[0]
            assert rescaled == found.step("rescaled")
            limits = found.step("lower bound"), found.step("upper bound")
            assert found.value == np.clip(rescaled + found.step("zero point"), *limits) == trace[name][place]
            for product in found.products:
                if product.data is not None:
                    assert product.data.integer == trace[product.data.tensor][product.data.index]
                    assert product.value == product.data.centered * product.weight.centered


def test_windows_at_the_border_reach_the_padding(trace):
    (first, *_) = outputs(trace, "CONV_2D")
    corner, middle = trace.explain(first, (0, 0, 0, 0)), trace.explain(first, (0, 3, 3, 0))
    assert sum(product.data is None for product in corner.products) == 5
    assert all(product.data is not None for product in middle.products)


def test_other_ops_say_which_elements_they_read(trace):
    (add,), (pool,) = outputs(trace, "ADD"), outputs(trace, "MAX_POOL_2D")
    assert [element.index for element in trace.explain(add, (0, 1, 2, 3)).elements] == [(0, 1, 2, 3)] * 2
    found = trace.explain(pool, (0, 1, 2, 3))
    assert max(element.integer for element in found.elements) == found.value


def test_what_it_stands_for_and_what_the_float_model_has(trace):
    for name in outputs(trace, "CONV_2D", "ADD", "FULLY_CONNECTED"):
        for place in places(trace, name):
            found = trace.explain(name, place)
            assert found.real == pytest.approx(found.scale * (found.value - found.zero_point))
            assert abs(found.real - found.float_model) < 0.5


def test_every_tensor_can_be_explained_and_written_as_json(trace):
    graph, uses = trace.entry.graph, Uses(trace.entry.graph)
    for tensor in graph.tensors:
        if tensor.is_constant or uses.producer(tensor) or tensor in graph.inputs:
            name = trace.names[tensor]
            found = trace.explain(name, places(trace, name)[1])
            assert json.loads(json.dumps(found.to_json()))["value"] == found.value


@pytest.mark.parametrize("index", [(0,), (0, 0, 0, 99), (0, -1, 0, 0)])
def test_an_index_outside_of_the_tensor(trace, index):
    (add,) = outputs(trace, "ADD")
    with pytest.raises(InvalidModel, match="is not an index into it"):
        trace.explain(add, index)


def test_a_layer_on_float_data_shows_the_integers_that_it_makes_of_them(digits):
    images = [image[None] for image in digits_data()["calibration"][:1]]
    trace = zeropoint.simulate(zeropoint.quantize(digits, "dynamic").model, images[0], float_model=digits)
    layers = [op for op in trace.entry.graph.ops if execution_of(op) == "hybrid"]
    assert layers
    for op in layers:
        name = trace.names[op.outputs[0]]
        for place in places(trace, name):
            found = trace.explain(name, place)
            total = sum(product.value for product in found.products)
            assert total == found.step("sum of products")
            exact = total * found.step("input scale") * found.step("weight scale") + found.step("bias")
            assert found.step("before the activation") == pytest.approx(exact, rel=1e-5, abs=1e-6)
            zero_point = found.step("input zero point")
            for product in found.products:
                if product.data is not None:
                    assert product.data.centered == product.data.integer - zero_point
                    data = trace[product.data.tensor][product.data.index]
                    assert product.data.centered * found.step("input scale") == pytest.approx(
                        data, abs=0.51 * found.step("input scale")
                    )
