"""Plans as text, word for word: `--update-golden` writes them anew; read the diff.

A plan here follows from committed numbers alone: ranges are literals, weights have no logarithms in them, and no net
has functions or shapes that planning would try in LiteRT. So they are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import zeropoint
from tests.build import act, const, float_cnn, graph, op, sign, weights
from tests.conftest import GOLDEN
from tests.nets import Net
from zeropoint.calibration import Stats
from zeropoint.calibration.stats import stats_of
from zeropoint.dtypes import DType
from zeropoint.graph import Model
from zeropoint.graph.query import fingerprint, tensor_keys
from zeropoint.runtime import Runner
from zeropoint.targets import target_named

Ranges = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Measured:
    """A net, and the range of each tensor as if samples had been measured."""

    model: Model
    ranges: Ranges

    @property
    def stats(self) -> Stats:
        by_key = {tensor_keys(self.model)[t]: self.ranges[t.name] for t in self.activations}
        extremes = {key: np.array(bounds, np.float32) for key, bounds in by_key.items()}
        return Stats(fingerprint(self.model), 8, {key: stats_of(values, 0) for key, values in extremes.items()})

    @property
    def activations(self) -> list[Any]:
        tensors = [t for g in self.model.graphs for t in g.tensors]
        return [t for t in tensors if t.dtype is DType.FLOAT32 and not t.is_constant]


def cnn() -> Measured:
    """Every usual layer of an image network."""
    ranges = {"image": (-1.0, 1.0), "stem": (0.0, 6.5), "depthwise": (-9.0, 7.25), "sum": (-8.0, 12.0)}
    ends = {"pool": (-4.0, 12.0), "mean": (-2.0, 8.5), "logits": (-11.0, 13.0), "scores": (0.0, 1.0)}
    return Measured(float_cnn(), {**ranges, **ends})


def joined() -> Measured:
    """Two branches of like size in one tensor, cut and turned: scales that kernels want to be equal."""
    net = Net()
    x = net.input(1, 4, 4, 4)
    left = net.conv(x, weights(4, 3, 3, 4), weights(4), name="left", activation=1)
    right = net.conv(x, weights(4, 1, 1, 4, seed=1), name="right", activation=3)
    both = net("CONCATENATION", [left, right], (1, 4, 4, 8), "both", axis=3)
    flat = net("RESHAPE", [both, np.int32([1, 16, 8])], (1, 16, 8), "flat")
    turned = net("TRANSPOSE", [flat, np.int32([0, 2, 1])], (1, 8, 16), "turned")
    cut = net("SLICE", [turned, np.int32([0, 0, 0]), np.int32([1, 4, 16])], (1, 4, 16), "cut")
    ranges = dict.fromkeys(("left", "both", "flat", "turned"), (0.0, 9.0))
    ends = {"x0": (-2.0, 2.0), "right": (0.0, 6.0), "cut": (0.0, 7.5)}
    return Measured(net.model(cut, turned), {**ranges, **ends})


def detector() -> Measured:
    """Coordinates of hundreds beside scores below 1, in one tensor."""
    net = Net()
    x = net.input(1, 16)
    boxes = net.dense(x, weights(12, 16), name="boxes")
    logits = net.dense(x, weights(4, 16, seed=1), name="logits")
    scores = net("SOFTMAX", [logits], name="scores", beta=1.0)
    result = net("CONCATENATION", [boxes, scores], (1, 16), "result", axis=1)
    far = (-640.0, 640.0)
    return Measured(
        net.model(result),
        {"x0": (-3.0, 3.0), "boxes": far, "logits": (-9.0, 9.0), "scores": (0.0, 1.0), "result": far},
    )


def attention() -> Measured:
    """Products of activations, a softmax between them, and a residual sum."""
    net = Net()
    x = net.input(1, 8, 16)
    query, key, value = (net.dense(x, weights(16, 16, seed=k), name=name) for k, name in enumerate(("q", "k", "v")))
    products = net("BATCH_MATMUL", [query, key], (1, 8, 8), "products", adjY=True)
    shares = net("SOFTMAX", [products], name="shares", beta=1.0)
    mixed = net("BATCH_MATMUL", [shares, value], (1, 8, 16), "mixed")
    ranges = {"x0": (-2.0, 2.0), "q": (-12.0, 11.0), "k": (-10.0, 10.5), "v": (-9.0, 9.0), "products": (-40.0, 50.0)}
    return Measured(
        net.model(net("ADD", [x, mixed], name="sum")),
        {**ranges, "shares": (0.0, 1.0), "mixed": (-8.0, 8.0), "sum": (-9.0, 9.5)},
    )


def shared() -> Measured:
    """Two layers with the same weights, and one with its own behind them."""
    net = Net()
    kernel = const("shared", weights(32, 32))
    x = net.dense(net.dense(net.input(1, 32), kernel, name="first"), kernel, name="second")
    y = net.dense(x, weights(4, 32, seed=1), weights(4), name="last")
    ranges = {"x0": (-1.0, 1.0), "first": (-14.0, 15.0), "second": (-120.0, 90.0), "last": (-1000.0, 900.0)}
    return Measured(net.model(y), ranges)


def quotient() -> Measured:
    """A division by a constant, which becomes a multiplication."""
    net = Net()
    total = net("ADD", [net.input(1, 8), net.input(1, 8)], name="total")
    ranges = {"x0": (-4.0, 4.0), "x1": (0.5, 2.0), "total": (-3.5, 6.0), "share": (-1.75, 3.0)}
    return Measured(net.model(net("DIV", [total, np.full(8, 2.0, np.float32)], name="share")), ranges)


def branches() -> Measured:
    """A layer in each branch of a condition: graphs that an op calls."""

    def branch(name: str, seed: int) -> Any:
        x, y = act(f"{name}/x", 1, 4), act(f"{name}/y", 1, 4)
        layer = op(
            "FULLY_CONNECTED",
            [x, const(f"{name}/w", weights(4, 4, seed=seed)), None],
            y,
            options="FullyConnectedOptions",
        )
        return graph(name, [x], [y], layer)

    then, other = branch("then", 0), branch("else", 1)
    choice, x, y = act("choice", dtype=DType.BOOL), act("x", 1, 4), act("y", 1, 4)
    call = op("IF", [choice, x], y, options="IfOptions", thenSubgraphIndex=then, elseSubgraphIndex=other)
    model = Model([graph("main", [choice, x], [y], call), then, other])
    sign(model, "serving_default", model.main)
    inputs = dict.fromkeys(("x", "then/x", "else/x"), (-2.0, 2.0))
    return Measured(model, {**inputs, "then/y": (-6.0, 6.0), "else/y": (-3.0, 3.0), "y": (-6.0, 6.0)})


def recurrent() -> Measured:
    """A layer with a state, read by a dense one."""
    net = Net()
    x = net.input(1, 6, 5)
    states = [replace(act(name, 1, 4), is_variable=True) for name in ("h", "c")]
    gates = [*(weights(4, 5, seed=k) for k in range(4)), *(weights(4, 4, seed=k) for k in range(4, 8))]
    biases = [weights(4, seed=k) for k in range(4)]
    slots = [x, *gates, None, None, None, *biases, None, None, *states]
    h = net("UNIDIRECTIONAL_SEQUENCE_LSTM", slots, (1, 6, 4), "lstm", fusedActivationFunction=4)
    ranges = {"x0": (-2.0, 2.0), "h": (-0.75, 0.75), "c": (-1.5, 1.5), "lstm": (-0.75, 0.75), "y": (-2.0, 2.0)}
    return Measured(net.model(net.dense(h, weights(3, 4), name="y")), ranges)


PLANS: Mapping[str, tuple[Callable[[], Measured], Mapping[str, Any]]] = {
    "cnn_int8_cpu": (cnn, {"mode": "int8", "target": "cpu"}),
    "cnn_int8_integer": (cnn, {"mode": "int8", "target": "integer"}),
    "cnn_int8_tflm": (cnn, {"mode": "int8", "target": "tflm"}),
    "cnn_int8_ethos_u": (cnn, {"mode": "int8", "target": "ethos-u55-128"}),
    "cnn_int8_edgetpu": (cnn, {"mode": "int8", "target": "edgetpu", "input_type": "uint8", "output_type": "int8"}),
    "cnn_int8_4_bits": (cnn, {"mode": "int8", "weight_bits": 4, "target": "integer"}),
    "cnn_int16x8": (cnn, {"mode": "int16x8", "strict": True}),
    "cnn_uint8": (cnn, {"mode": "uint8"}),
    "cnn_dynamic": (cnn, {"mode": "dynamic", "min_elements": 1}),
    "cnn_weights": (cnn, {"mode": "weights", "min_elements": 1, "asymmetric": True}),
    "cnn_float16": (cnn, {"mode": "float16"}),
    "joined_int8": (joined, {"mode": "int8", "target": "integer"}),
    "detector_int8_cpu": (detector, {"mode": "int8", "target": "cpu"}),
    "detector_int8_integer": (detector, {"mode": "int8", "target": "integer"}),
    "attention_int8": (attention, {"mode": "int8", "target": "integer"}),
    "attention_int16x8": (attention, {"mode": "int16x8", "target": "integer", "keep_float": ["SOFTMAX"]}),
    "shared_int8": (shared, {"mode": "int8", "target": "integer", "keep_float": ["second"]}),
    "shared_blocks": (shared, {"mode": "dynamic", "weight_bits": 4, "block": 32, "min_elements": 1}),
    "quotient_int8": (quotient, {"mode": "int8", "target": "integer"}),
    "branches_int8": (branches, {"mode": "int8", "target": "integer"}),
    "recurrent_int8": (recurrent, {"mode": "int8", "target": "integer"}),
}


def plan_text(net: Measured, options: Mapping[str, Any]) -> str:
    if "target" in options:  # the device's own tool has no part in a plan
        options = {**options, "target": replace(target_named(options["target"]), tool=None)}
    plans = zeropoint.quantize(net.model, stats=net.stats, effort="quick", **options).plans
    return "".join(f"{plan}\n" for plan in plans)


@pytest.mark.parametrize("name", PLANS)
def test_the_plan_is_the_golden_one(name, golden, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a plan that asks LiteRT depends on the machine; take another net")

    monkeypatch.setattr(Runner, "__init__", refuse)
    build, options = PLANS[name]
    golden(f"plans/{name}.txt", plan_text(build(), options))


def test_every_golden_plan_is_compared():
    assert {path.stem for path in (GOLDEN / "plans").iterdir()} == PLANS.keys()


def test_nothing_of_a_machine_is_in_them():
    for path in (GOLDEN / "plans").iterdir():
        text = path.read_text("utf-8")
        assert zeropoint.__version__ not in text
        assert "/src/" not in text
        assert "tmp" not in text
