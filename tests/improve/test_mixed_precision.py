"""Mixed precision: layers that few bits cost too much are held in 8, if that is worth its bytes."""

from __future__ import annotations

import re

import numpy as np
import pytest

import zeropoint
from tests.build import act, const
from tests.nets import Net, normal, outputs_of, samples_for
from zeropoint.affine import QuantParams
from zeropoint.dtypes import DType
from zeropoint.graph import Model
from zeropoint.graph.model import Op
from zeropoint.graph.query import Use
from zeropoint.improve import rounding_steps
from zeropoint.improve.mixed_precision import MOST_GROWTH, NarrowLayer, first_and_last, worth_widening
from zeropoint.ops import OPS
from zeropoint.recipe_files import recipe_from

FORM = QuantParams((1.0,), (0,), DType.INT4)


def narrow(size: int) -> NarrowLayer:
    """A layer of so many bytes in 4 bits."""
    op = Op("FULLY_CONNECTED", [act("x", 1, 2), const("w", np.zeros((2, 2), np.float32))], [act("y", 1, 2)])
    return NarrowLayer((Use(op, 1),), FORM, size, size)


def test_a_small_layer_that_does_most_of_the_harm_is_widened() -> None:
    small, large = narrow(10), narrow(1000)
    found = worth_widening({small: 0.9, large: 0.1}, rest=0.01)
    assert found is not None
    assert found.layers == (small,)
    assert found.text(9.1) == "1 of 2 layers in 8 bits: +10 B, +9.1 dB"
    assert found.text(-0.5).endswith("-0.5 dB on the samples that judge, which may be chance")


def test_equal_layers_stay_as_they_are() -> None:
    """Widening one brings no more for its bytes than another bit for all of them would."""
    assert worth_widening({narrow(100): 1.0 for _ in range(20)}) is None
    assert worth_widening({}) is None


def test_layers_are_widened_together_if_only_all_of_them_are_worth_their_bytes() -> None:
    """The first of several equal layers brings little as long as the others are left."""
    several, large = [narrow(28) for _ in range(8)], narrow(896)
    harms = {large: 0.0, **dict.fromkeys(several, 1 / 8)}
    found = worth_widening(harms, rest=1e-3)
    assert found is not None
    assert set(found.layers) == set(several)
    assert worth_widening(harms, rest=1.0) is None


@pytest.mark.parametrize("seed", range(8))
def test_no_more_is_added_than_the_limit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    harms = {
        narrow(int(size)): float(harm) for size, harm in zip(rng.integers(10, 500, 30), rng.pareto(1, 30), strict=True)
    }
    found = worth_widening(harms, rest=1e-3)
    layers = () if found is None else found.layers
    assert sum(layer.growth for layer in layers) <= MOST_GROWTH * sum(layer.size for layer in harms)
    assert len(layers) < len(harms)


def test_more_may_be_added_if_the_outputs_would_be_poor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer with half of all weights is beyond the usual limit."""
    net = Net()
    plain = np.random.default_rng(1).integers(-7, 8, (64, 64)).astype(np.float32) / 32  # which 4 bits hold exactly
    plain[:, 0] = 7 / 32
    spiked = 0.3 * normal(64, 64, seed=2)
    spiked[np.arange(64), np.arange(64)] = 3.0
    x = net.dense(net.input(1, 64, name="x"), plain, np.zeros(64, np.float32), name="plain")
    model = net.model(net.dense(x, spiked / np.float32(8), np.zeros(64, np.float32), name="spiked"))
    samples = samples_for(model, 40)
    found = zeropoint.quantize(model, "int8", data=samples, weight_bits=4, target="integer")
    assert types(found) == {"plain": "int4", "spiked": "int8"}
    monkeypatch.setattr(rounding_steps, "POOR", -100.0)
    usual = zeropoint.quantize(model, "int8", data=samples, weight_bits=4, target="integer")
    assert types(usual) == {"plain": "int4", "spiked": "int4"}
    assert error(found, model, samples) < 0.1 * error(usual, model, samples)


def network(looked_up: bool = False) -> Model:
    """Four dense layers. The second is small, and one weight of each of its rows is far larger than the others.

    They may read a row of a table.
    """
    net = Net()
    x = (
        net("GATHER", [normal(9, 64), net.input(1, dtype=DType.INT32)], (1, 64))
        if looked_up
        else net.input(1, 64, name="x")
    )
    narrowed = 0.3 * normal(8, 64, seed=2)
    narrowed[:, 0] = 6.0
    for k, kernel in enumerate((normal(64, 64, seed=1), narrowed, normal(64, 8, seed=3), normal(64, 64, seed=4))):
        bias = np.full(kernel.shape[0], 0.1, np.float32)
        x = net.dense(x, kernel / np.float32(np.sqrt(kernel.shape[1])), bias, name=f"layer{k}", activation=1)
    return net.model(x)


def types(result: zeropoint.Result) -> dict[str, str]:
    held = {use: form.dtype for use, form in result.plan.constants.grids.items()}
    held |= {use: result.plan.form(use).dtype for use in result.plan.packed}
    return {use.op.name: dtype.label for use, dtype in held.items() if use.slot == 1}


def error(result: zeropoint.Result, model: Model, samples: list[tuple[np.ndarray, ...]]) -> float:
    pairs = zip(outputs_of(model, samples), outputs_of(result.model, samples), strict=True)
    return float(sum(np.square(a - b).sum() for a, b in pairs))


@pytest.mark.parametrize(("mode", "options"), [("int8", {"target": "integer"}), ("dynamic", {"min_elements": 0})])
def test_the_layer_that_four_bits_cost_most_is_found_on_data(mode: str, options: dict[str, object]) -> None:
    model = network()
    samples = samples_for(model, 40)
    found = zeropoint.quantize(model, mode, data=samples, weight_bits=4, **options)
    assert types(found)["layer1"] == "int8"
    assert "int4" in types(found).values()
    (note,) = (note for note in found.notes if "in 8 bits" in note)
    told = re.fullmatch(r"(\d) of 4 layers in 8 bits: \+\d+ B, \+(\d+\.\d) dB", note)
    assert told is not None
    assert float(told[2]) > 1
    assert int(told[1]) == list(types(found).values()).count("int8")
    asked = {"scheme": mode, "weights": "int4", **({"min_elements": 0} if mode == "dynamic" else {})}
    target = {"target": "integer"} if mode == "int8" else {}
    forced = zeropoint.quantize(model, data=samples, recipe=recipe_from({"rules": [asked]}), **target)
    assert set(types(forced).values()) == {"int4"}
    assert not any("in 8 bits" in note for note in forced.notes)
    assert error(found, model, samples) < error(forced, model, samples)


@pytest.mark.parametrize(
    ("looked_up", "chosen_by"),
    [(False, "by what few bits cost on made-up inputs"), (True, "by the errors of their weights")],
)
def test_without_data_made_up_inputs_decide_or_weights_and_structure(looked_up: bool, chosen_by: str) -> None:
    model = network(looked_up)
    found = zeropoint.quantize(model, "dynamic", weight_bits=4, min_elements=0)
    assert types(found)["layer1"] == "int8"
    assert "int4" in types(found).values()
    assert any(re.fullmatch(rf"\d of \d layers in 8 bits: .* {chosen_by}", n) for n in found.notes)
    quick = zeropoint.quantize(model, "dynamic", weight_bits=4, min_elements=0, effort="quick")
    assert set(types(quick).values()) == {"int4"}


def test_a_rule_can_ask_for_mixed_precision() -> None:
    rules = [{"scheme": "dynamic", "weights": "int4", "mixed": True, "min_elements": 0}]
    assert types(zeropoint.quantize(network(), recipe=recipe_from({"rules": rules})))["layer1"] == "int8"


def test_first_and_last_layers_are_those_without_another_before_or_behind_on_some_way() -> None:
    net = Net()
    x = net.input(1, 4, name="x")
    kernel = np.eye(4, dtype=np.float32)
    first, second = net.dense(x, kernel, name="first"), net.dense(x, kernel, name="second")
    inner = net.dense(net("RELU", [first], (1, 4)), kernel, name="inner")
    last = net.dense(inner, kernel, name="last")
    model = net.model(net("RELU", [last], (1, 4)), second)
    assert {op.name for op in first_and_last(model.main, OPS)} == {"first", "second", "last"}
