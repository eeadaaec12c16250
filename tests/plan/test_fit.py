"""Operands fit what the target demands of them, so that the delegate takes every op."""

from __future__ import annotations

from dataclasses import replace

import zeropoint
from zeropoint.dtypes import DType
from zeropoint.graph import Model
from zeropoint.improve.pipeline import Result, run
from zeropoint.plan.request import Request
from zeropoint.recipe import preset
from zeropoint.runtime import Session
from zeropoint.targets import CPU, INTEGER, Target

from ..nets import Net, normal, outputs_of, samples_for, worst


def made(model: Model, target: Target) -> tuple[Result, list[str]]:
    """The result, and the ops that the delegate leaves to plain kernels."""
    samples = samples_for(model, 8)
    stats = zeropoint.calibrate(model, samples)
    result = run(model, Request(preset("int8"), stats, method="minmax", effort="quick", target=target))
    assert worst(outputs_of(model, samples), outputs_of(result.model, samples)) < 0.05
    taken = Session(result.model).delegated()
    return result, [op.kind for k, op in enumerate(result.model.main.ops) if k not in taken]


def products() -> Model:
    net = Net()
    left, right = net.input(2, 16, 32), net.input(2, 32, 24)
    shifted = net("ADD", [right, normal(24) + 2])
    return net.model(net("BATCH_MATMUL", [left, shifted], (2, 16, 24)))


def sums(small: float) -> Model:
    """A sum of large and very small numbers, of which another op reads the latter as well."""
    net = Net()
    x, y = net.input(1, 8, 8, 16), net.input(1, 8, 8, 16)
    tiny = net("MUL", [y, [small]])
    return net.model(net("ADD", [net("MUL", [x, [300.0]]), tiny]), net("MUL", [tiny, [7.0]]))


def test_the_right_side_of_a_product_is_symmetric() -> None:
    plain, left = made(products(), INTEGER)
    assert left == ["BATCH_MATMUL"]
    fitted, left = made(products(), CPU)
    assert left == []
    (product,) = [op for op in fitted.plan.schemes if op.kind == "BATCH_MATMUL"]
    assert fitted.plan.stored[product.inputs[1]].is_symmetric
    assert not plain.plan.stored[plain.plan.graph.ops[0].outputs[0]].is_symmetric


def test_scales_of_a_sum_are_brought_together() -> None:
    _, left = made(sums(0.01), INTEGER)
    assert left == ["ADD"]
    result, left = made(sums(0.01), CPU)
    assert left == []
    assert ["XNNPACK" in repair.text for repair in result.repairs] == [True]


def test_so_are_those_of_the_conversion_before_it() -> None:
    net = Net()
    x, y = net.input(1, 8, 8, 16), net.input(1, 8, 8, 16)
    model = net.model(net("ADD", [net("MUL", [x, [300.0]]), net("MUL", [y, [1e-5]])]))
    assert made(model, CPU)[1] == []
    assert made(sums(1e-5), CPU)[1] == ["QUANTIZE"]  # another op reads the small numbers, and needs their small scale


def test_conversions_that_the_delegate_takes_at_no_scale_are_left_alone() -> None:
    """What is joined in 16 bits is converted from 8, and kernels want one scale for all of it."""
    net = Net()
    places, scores = net("MUL", [net.input(1, 8, 4), [300.0]]), net("LOGISTIC", [net.input(1, 8, 4)])
    model = net.model(net("PACK", [places, scores], (2, 1, 8, 4), valuesCount=2))
    result, _ = made(model, replace(CPU, costs=None))
    (joined,) = [op for op in result.model.main.ops if op.kind == "PACK"]
    assert {t.params for t in (*joined.inputs, *joined.outputs)} == {joined.outputs[0].params}
    assert joined.outputs[0].dtype is DType.INT16


def test_long_concatenations_are_made_in_steps() -> None:
    net = Net()
    parts = [net("MUL", [net.input(1, 4, 4, 2), [k + 1.0]]) for k in range(13)]
    model = net.model(net("CONCATENATION", parts, (1, 4, 4, 26), name="all", axis=-1))
    assert made(model, INTEGER)[1] == ["CONCATENATION"]
    result, left = made(model, CPU)
    assert left == []
    joined = [op for op in result.model.main.ops if op.kind == "CONCATENATION"]
    assert [len(op.inputs) for op in joined] == [5, 5, 5]
    assert len({op.outputs[0].params for op in joined}) == 1


def test_clamps_that_the_delegate_lacks_are_made_of_others() -> None:
    net = Net()
    net_input = net.conv(net.input(1, 8, 8, 8), normal(8, 3, 3, 8, spread=0.02))
    model = net.model(net("RELU_0_TO_1", [net("ADD", [net_input, [0.5]])]))
    assert "RELU_0_TO_1" in made(model, INTEGER)[1]
    assert made(model, CPU)[1] == []
