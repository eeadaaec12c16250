"""For a target with costs, ops that it lacks in integers are float if that is quicker, and everything is delegated."""

from __future__ import annotations

import pytest

import zeropoint
from zeropoint.graph import Model, Tensor
from zeropoint.improve.pipeline import Result, run
from zeropoint.plan.request import Request
from zeropoint.recipe import INT8, Recipe, Rule, preset
from zeropoint.runtime import Session
from zeropoint.targets import CPU, INTEGER, Target
from zeropoint.tflite.provenance import recorded

from ..nets import Net, conversions, kinds, normal, outputs_of, samples_for, steps, worst


def made(model: Model, recipe: Recipe | None = None, target: Target = CPU, **asked) -> Result:
    stats = zeropoint.calibrate(model, samples_for(model, 8))
    request = Request(recipe or preset("int8"), stats, method="minmax", effort="quick", target=target, **asked)
    result = run(model, request)
    wanted, got = (outputs_of(m, samples_for(model, 8)) for m in (model, result.model))
    assert worst(wanted, got) < 0.05
    return result


def undelegated(result: Result) -> list[str]:
    taken = Session(result.model).delegated()
    return [op.kind for k, op in enumerate(result.model.main.ops) if k not in taken]


def image_net(side: int = 16) -> Model:
    net = Net()
    x = net.conv(net.input(1, side, side, 8), normal(16, 3, 3, 8), name="first")
    x = net.conv(net("HARD_SWISH", [x], name="bend"), normal(16, 3, 3, 16, seed=1), name="last")
    return net.model(x)


def norm(net: Net, x: Tensor) -> Tensor:
    """Layer normalization, as converters write it."""
    mean = net("MEAN", [x, [-1]], (*x.shape[:-1], 1), keepDims=True)
    spread = net("MEAN", [net("SQUARED_DIFFERENCE", [x, mean]), [-1]], (*x.shape[:-1], 1), keepDims=True)
    factor = net("RSQRT", [net("ADD", [spread, [1e-3]])])
    return net("MUL", [net("SUB", [x, mean]), factor], x.shape)


def transformer() -> Model:
    net = Net()
    x = net.input(64, 128)
    for layer in range(2):
        hidden = net.dense(norm(net, x), normal(256, 128, seed=layer, spread=0.1))
        x = net("ADD", [x, net.dense(net("GELU", [hidden]), normal(128, 256, seed=layer + 2, spread=0.1))])
    return net.model(x)


def test_an_op_that_the_delegate_lacks_is_a_float_island() -> None:
    cpu, integer = (made(image_net(), target=target) for target in (CPU, INTEGER))
    assert undelegated(integer) == ["HARD_SWISH"]
    assert undelegated(cpu) == []
    assert kinds(cpu.model) == steps("CONV_2D", "DEQUANTIZE", "HARD_SWISH", "QUANTIZE", "CONV_2D")
    (skipped,) = cpu.skipped
    assert (skipped.op.name, skipped.code) == ("bend", "target")
    assert "XNNPACK" in skipped.reason


def test_what_saturates_in_float_saturates_all_the_same() -> None:
    """HARD_SWISH makes nothing of what lies below -3, in float as well: its input need not reach further."""
    plan = made(image_net()).plan
    assert plan.stored[plan.graph.tensor("first")].range()[0] == pytest.approx(-3, abs=0.2)


def test_rules_that_name_ops_come_first() -> None:
    result = made(image_net(), preset("int8").then(Rule(INT8, name="bend")))
    assert not result.skipped


def test_strict_leaves_no_float() -> None:
    assert not made(image_net(), strict=True).skipped


def test_sixteen_bits_stay() -> None:
    net = Net()
    model = net.model(net("TANH", [net.conv(net.input(1, 8, 8, 8), normal(8, 3, 3, 8, spread=0.02))]))
    assert not made(model, preset("int16x8")).skipped


def test_the_end_is_float_where_the_caller_wants_floats() -> None:
    net = Net()
    scores = net("SOFTMAX", [net.conv(net.input(1, 8, 8, 8), normal(32, 3, 3, 8, spread=0.1))], beta=1.0)
    assert kinds(made(net.model(scores)).model) == ["QUANTIZE", "CONV_2D", "DEQUANTIZE", "SOFTMAX"]


def test_dense_layers_between_floats_round_their_inputs_as_they_run() -> None:
    result = made(transformer())
    assert len(result.plan.dynamic) == 4
    assert not conversions(result.model)
    assert undelegated(result) == []
    weights = [op.inputs[1] for op in result.model.main.ops if op.kind == "FULLY_CONNECTED"]
    assert all(t is not None and t.dtype.label == "int8" and len(t.params.scales) > 1 for t in weights)
    assert not [s for s in result.skipped if s.op.kind == "FULLY_CONNECTED"]


def test_nothing_is_split_off_where_everything_is_fast() -> None:
    net = Net()
    x = net.conv(net.input(1, 8, 8, 8), normal(8, 3, 3, 8))
    model = net.model(net("ADD", [x, net.conv(x, normal(8, 3, 3, 8, seed=1))]))
    both = [zeropoint.to_bytes(recorded(made(model, target=target).model, None)) for target in (CPU, INTEGER)]
    assert both[0] == both[1]
