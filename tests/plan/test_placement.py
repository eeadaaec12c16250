"""For a target with costs, ops that it lacks in integers are float if that is quicker, and everything is delegated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
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


def depthwise_net(side: int = 16, *, bent: bool = True) -> Model:
    """An inverted bottleneck with a padded depthwise layer before, and if it is `bent` behind, a HARD_SWISH."""
    net = Net()
    x = net.conv(net.input(1, side, side, 8), normal(64, 1, 1, 8))
    x = net("HARD_SWISH", [x]) if bent else x
    x = net("PAD", [x, [[0, 0], [2, 2], [2, 2], [0, 0]]], (1, side + 4, side + 4, 64))
    kernel, bias = normal(1, 5, 5, 64, seed=1, spread=0.2), np.zeros(64, np.float32)
    steps = {"strideH": 1, "strideW": 1, "depthMultiplier": 1}
    x = net("DEPTHWISE_CONV_2D", [x, kernel, bias], (1, side, side, 64), name="each", padding=1, **steps)
    return net.model(net.conv(net("HARD_SWISH", [x]), normal(8, 1, 1, 64, seed=2)))


def with_costs(**changed) -> Target:
    assert CPU.costs is not None
    return replace(CPU, costs=replace(CPU.costs, **changed))


def test_depthwise_layers_are_float_where_that_saves_conversions_if_the_costs_say_so() -> None:
    usual, other = (made(depthwise_net(), target=t) for t in (CPU, with_costs(float_depthwise=True, table=None)))
    assert [scheme.label for op, scheme in usual.plan.schemes.items() if op.kind == "DEPTHWISE_CONV_2D"] == ["int8"]
    assert [(op.name, scheme.label) for op, scheme in other.plan.dynamic.items()] == [("each", "weights")]
    unpacked = ["DEQUANTIZE"]  # its weights are integers in the file
    island = ["DEQUANTIZE", "HARD_SWISH", "PAD", "DEPTHWISE_CONV_2D", "HARD_SWISH", "QUANTIZE"]
    assert kinds(other.model) == unpacked + steps("CONV_2D", *island, "CONV_2D")
    assert undelegated(other) == []


def test_padding_goes_with_the_convolution_that_reads_it() -> None:
    """The delegate then makes one op of both. By its size alone, a PAD would rather move bytes."""
    targets = [with_costs(float_depthwise=True, integer=3.0, fused_pads=fused) for fused in (True, False)]
    together, apart = (kinds(made(depthwise_net(bent=False), target=target).model) for target in targets)
    assert together.index("PAD") + 1 == together.index("DEPTHWISE_CONV_2D")
    assert apart[apart.index("PAD") + 1] == "DEQUANTIZE"


def test_nothing_is_split_off_where_everything_is_fast() -> None:
    net = Net()
    x = net.conv(net.input(1, 8, 8, 8), normal(8, 3, 3, 8))
    model = net.model(net("ADD", [x, net.conv(x, normal(8, 3, 3, 8, seed=1))]))
    both = [zeropoint.to_bytes(recorded(made(model, target=target).model, None)) for target in (CPU, INTEGER)]
    assert both[0] == both[1]


def pooled_net() -> Model:
    net = Net()
    x = net("HARD_SWISH", [net.conv(net.input(1, 16, 16, 8), normal(32, 1, 1, 8))])
    window = {"filterHeight": 2, "filterWidth": 2, "strideH": 2, "strideW": 2}
    x = net("MAX_POOL_2D", [x], (1, 8, 8, 32), **window)
    return net.model(net.conv(net("MEAN", [x, [1, 2]], (1, 1, 1, 32), keepDims=True), normal(8, 1, 1, 32, seed=1)))


def test_functions_of_one_value_are_tables_between_integers() -> None:
    """XNNPACK looks them up byte by byte, so that what follows them need not be float to save a conversion."""
    usual, other = (kinds(made(pooled_net(), target=target).model) for target in (CPU, with_costs(table=None)))
    island = ["DEQUANTIZE", "HARD_SWISH", "QUANTIZE"]
    assert usual == steps("CONV_2D", *island, "MAX_POOL_2D", "MEAN", "CONV_2D")
    assert other == steps("CONV_2D", *island[:2], "MAX_POOL_2D", "MEAN", island[2], "CONV_2D")


def test_functions_in_a_row_share_one_table() -> None:
    net = Net()
    x = net.conv(net.input(1, 16, 16, 8), normal(16, 1, 1, 8))
    model = net.model(net.conv(net("HARD_SWISH", [net("ABS", [x])]), normal(8, 1, 1, 16, seed=1)))
    assert kinds(made(model).model) == steps("CONV_2D", "DEQUANTIZE", "ABS", "HARD_SWISH", "QUANTIZE", "CONV_2D")
