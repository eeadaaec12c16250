"""Functions that no longer change beyond some point: ranges end there, however the function is written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import zeropoint
from zeropoint.bench.bench import Bench
from zeropoint.graph import Tensor
from zeropoint.ops import OPS
from zeropoint.plan.saturation import curves, flat_ends

from ..nets import Net, normal, outputs_of, samples_for

SHAPE = (1, 4, 4, 4)


def silu(net: Net, x: Tensor) -> Tensor:
    return net("MUL", [x, net("LOGISTIC", [x])])


def mish(net: Net, x: Tensor) -> Tensor:
    grown = net("ADD", [net("EXP", [x]), np.float32(1)])
    return net("MUL", [x, net("TANH", [net("LOG", [grown])])])


def gelu(net: Net, x: Tensor) -> Tensor:
    """By its approximation with a hyperbolic tangent."""
    cube = net("MUL", [net("MUL", [x, x]), net("MUL", [x, np.float32(0.044715)])])
    inner = net("TANH", [net("MUL", [net("ADD", [x, cube]), np.float32(0.7978846)])])
    return net("MUL", [net("MUL", [x, np.float32(0.5)]), net("ADD", [inner, np.float32(1)])])


def hard_swish(net: Net, x: Tensor) -> Tensor:
    gate = net("RELU6", [net("ADD", [x, np.float32(3)])])
    return net("MUL", [net("MUL", [x, gate]), np.float32(1 / 6)])


def clipped(net: Net, x: Tensor) -> Tensor:
    return net("MINIMUM", [net("MAXIMUM", [x, np.float32(-2)]), np.float32(5)])


def leaky(net: Net, x: Tensor) -> Tensor:
    """Changes everywhere."""
    return net("MAXIMUM", [x, net("MUL", [x, np.float32(0.1)])])


def linear(net: Net, x: Tensor) -> Tensor:
    return net("ADD", [net("MUL", [x, np.float32(0.5)]), np.float32(3)])


def build(function, also_read: bool = False):
    net = Net()
    x = net.conv(net.input(*SHAPE), 8 * normal(4, 1, 1, 4))
    y = function(net, x)
    model = net.model(net.conv(y, normal(4, 1, 1, 4)), *([net("ABS", [x])] if also_read else []))
    return model, x.name


def stored_range(model, name, **options):
    result = zeropoint.quantize(model, "int8", data=samples_for(model), effort="quick", **options)
    return next(p for t, p in result.plan.stored.items() if t.name == name).range()


@pytest.mark.parametrize(
    ("function", "least", "greatest"),
    [(silu, -8, None), (mish, -8, None), (gelu, -4, None), (hard_swish, -3.2, None), (clipped, -2.2, 5.2)],
)
def test_ranges_end_where_a_function_no_longer_changes(function, least, greatest):
    model, name = build(function)
    low, high = stored_range(model, name)
    assert low >= least
    assert high <= greatest if greatest is not None else high > 15
    whole_low, whole_high = stored_range(model, name, ops=without_curves())
    assert whole_high - whole_low > 1.25 * (high - low)


def without_curves():
    """The op table of a world in which nothing is known to work element by element."""
    return {kind: replace(row, batch=None) for kind, row in OPS.items()}


@pytest.mark.parametrize("function", [leaky, linear])
def test_what_keeps_changing_keeps_its_range(function):
    model, name = build(function)
    assert stored_range(model, name) == stored_range(model, name, ops=without_curves())


def test_what_something_else_reads_keeps_its_range():
    model, name = build(silu, also_read=True)
    assert stored_range(model, name) == stored_range(model, name, ops=without_curves())
    assert not [c for c in curves(model.main, OPS) if c.tensor.name == name]


def test_tensors_on_the_way_are_limited_to_what_reaches_them():
    model, name = build(gelu)
    (curve,) = (c for c in curves(model.main, OPS) if c.tensor.name == name)
    seen = {curve.tensor: (-40.0, 20.0), curve.results[-1]: (-0.17, 20.0)}
    limits = curve.limits(seen, bits=8)
    low, high = limits[curve.tensor]
    assert low > -4
    assert high == 20
    halves = [t for t in curve.made if limits.get(t, (0, 0))[0] == pytest.approx(low / 2, rel=0.02)]
    assert halves
    assert limits[halves[0]][1] == pytest.approx(10, rel=0.02)


def test_more_bits_tell_more_apart():
    model, name = build(silu)
    (curve,) = (c for c in curves(model.main, OPS) if c.tensor.name == name)
    seen = {curve.tensor: (-40.0, 20.0), curve.results[-1]: (-0.3, 20.0)}
    assert curve.limits(seen, bits=16)[curve.tensor][0] < curve.limits(seen, bits=8)[curve.tensor][0] - 2


def test_flat_ends():
    values = np.float32([0, 0.01, 0, 5, 6, 7, 7, 7])
    assert flat_ends(values, 0.02) == (2, 2)
    assert flat_ends(values, 0.0) == (0, 2)
    assert flat_ends(np.float32([1, np.nan, 1]), 0.1) == (0, 0)
    assert flat_ends(np.ones(5, np.float32), 0.1) == (0, 0)  # nothing to choose a range from


def test_the_model_is_closer_to_the_float_one():
    model, _ = build(silu)
    samples = samples_for(model)
    bench = Bench(model, samples)
    cut, whole = (
        bench.error(zeropoint.quantize(model, "int8", data=samples, effort="quick", **options).model)
        for options in ({}, {"ops": without_curves()})
    )
    assert cut < 0.9 * whole


@pytest.mark.parametrize("size", [1e3, 2e4, 1e5, 1e12])
def test_a_function_that_goes_on_changing_is_not_cut_off_however_large_its_numbers(size):
    net = Net()
    x = net.input(1, 64)
    model = net.model(net("MUL", [net("MAXIMUM", [net("ABS", [x]), np.float32([0.05])]), np.float32([2])]))
    samples = [(np.linspace(-size, size, 64, dtype=np.float32)[None],)]
    made = zeropoint.quantize(model, "int8", samples, effort="quick", target="integer")
    assert not made.skipped
    assert outputs_of(made.model, samples)[0].max() == pytest.approx(2 * size, rel=0.01)


def test_a_jump_at_the_end_of_a_range_is_not_cut_off():
    """FLOOR makes 1 of the only value that is 1, and 0 of all others above zero."""
    net = Net()
    model = net.model(net("FLOOR", [net("MUL", [net.input(1, 64), np.float32([0.5])])]))
    samples = [(np.linspace(-0.1, 2, 64, dtype=np.float32)[None],)]
    made = zeropoint.quantize(model, "int16x8", samples, effort="quick", target="integer")
    assert [skipped.op.kind for skipped in made.skipped] == ["FLOOR"]
    _, high = made.plan.stored[made.plan.graph.ops[-1].inputs[0]].range()
    assert high > 0.9999


def test_what_is_made_of_a_tensor_reaches_as_far_as_its_symmetric_integers():
    """leaky(x) - x is 0 for all x above 0; but int16 holds them, and both have to be the same there."""
    net = Net()
    x = net("MUL", [net.input(1, 64), np.float32([0.5])])
    model = net.model(net("SUB", [net("LEAKY_RELU", [x], alpha=0.07), x]))
    samples = [(np.linspace(-3, 3.1, 64, dtype=np.float32)[None],)]
    made = zeropoint.quantize(model, "int16x8", samples, effort="quick", target="integer")
    assert outputs_of(made.model, samples)[0] == pytest.approx(outputs_of(model, samples)[0], abs=0.1)


def test_what_is_read_in_two_forms_keeps_its_range():
    """The difference has no int16 kernel and reads the input as it is, so that RELU must not read less of it."""
    net = Net()
    x = net.input(1, 32)
    model = net.model(net("SQUARED_DIFFERENCE", [x, net("RELU", [x])]))
    rows = [(np.linspace(-5, 9, 32, dtype=np.float32)[None],)]
    made = zeropoint.quantize(model, "int16x8", rows, effort="quick", target="integer")
    (found,) = outputs_of(made.model, rows)
    np.testing.assert_allclose(found[0], np.square(np.minimum(rows[0][0], 0)), atol=0.01)


def test_what_is_made_of_a_tensor_follows_a_range_that_kernels_widen():
    """x - c - x is constant, so that nothing of x matters; but all of x is there, its layer having coarse inputs."""
    net = Net()
    zeros = net.input(1, 4)
    x = net.dense(zeros, 100 * normal(8, 4), np.linspace(-2, 9.6, 8, dtype=np.float32))
    model = net.model(net("SUB", [net("SUB", [x, np.float32(0.2)]), x]))
    samples = [(np.zeros((1, 4), np.float32),)] * 4
    made = zeropoint.quantize(model, "int16x8", samples, effort="quick", target="integer")
    np.testing.assert_allclose(outputs_of(made.model, samples)[0], outputs_of(model, samples)[0], atol=0.01)
