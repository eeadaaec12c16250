"""What a file says about how it was made: small, the same every time, and no danger if it is damaged."""

from __future__ import annotations

import json

import numpy as np
import pytest

import zeropoint
from zeropoint.graph.model import Buffer, Model
from zeropoint.recipe import Recipe, keep_float, preset
from zeropoint.recipe_files import plain_rules
from zeropoint.tflite import load, to_bytes
from zeropoint.tflite.provenance import NAME, Provenance, provenance, recorded

from .. import build
from ..diagnosis.faults import conv_net, images
from ..improve.test_accuracy import attention, chain, inputs


def entry(model: Model) -> bytes:
    (found,) = (buffer.raw.tobytes() for name, buffer in model.metadata if name == NAME and buffer is not None)
    return found


def test_a_quantized_model_says_how_it_was_made_in_few_bytes():
    model = conv_net()
    model.metadata = [("min_runtime_version", Buffer(np.frombuffer(b"1.5.0", np.uint8)))]
    made = load(to_bytes(zeropoint.quantize(model, data=images(), effort="quick").model))
    assert [name for name, _ in made.metadata] == ["min_runtime_version", NAME]
    assert len(entry(made)) < 200
    assert json.loads(entry(made))["version"] == zeropoint.__version__
    assert str(provenance(made)) == f"zeropoint {zeropoint.__version__} with int8, for cpu, range auto, effort quick"


def test_the_record_is_the_same_every_time_and_can_be_left_out():
    made = [zeropoint.quantize(conv_net(), data=images(), effort="quick", record=r).model for r in (True, True, False)]
    first, second, without = map(to_bytes, made)
    assert first == second
    assert without == to_bytes(recorded(made[0], None))
    assert provenance(made[2]) is None
    assert len(first) - len(without) < 400


def test_quantizing_again_replaces_the_record():
    first = zeropoint.quantize(conv_net(), "float16").model
    again = zeropoint.quantize(first, "dynamic", min_elements=0).model
    assert [name for name, _ in again.metadata] == [NAME]
    assert provenance(again).settings["mode"] == "dynamic"
    assert provenance(zeropoint.quantize(first, "dynamic", record=False).model) is None


def test_rules_are_told_as_far_as_they_are_short():
    few = preset("int8").then(keep_float("b"))
    many = Recipe((*few.rules, *(keep_float("b" + k * "*") for k in range(50))))
    for rules in (few, many):
        made = zeropoint.quantize(conv_net(), data=images(), effort="quick", recipe=rules).model
        assert f"a recipe of {len(plain_rules(rules))} rules" in str(provenance(made))
        assert len(entry(made)) < 600


@pytest.mark.parametrize("net", [chain, attention], ids=["convolutions", "attention"])
def test_every_scaled_tensor_is_recorded(net):
    """With the recorded factors, no op of the equalized model differs from the float one by itself."""
    model = load(to_bytes(net()))
    samples = [(x,) for x in inputs(model)]
    made = load(to_bytes(zeropoint.quantize(model, data=samples, target="integer").model))
    known = provenance(made)
    assert known.factors
    assert str(known).endswith("; equalized")
    found = zeropoint.compare(model, made, samples)
    assert any("scaled on purpose" in note for note in found.notes)
    for row in found.ops:
        assert row.own.snr > row.accumulated.snr - 3
        assert row.own.snr > 20
    assert len(entry(made)) < 200 + 40 * len(known.factors) + 2 * sum(f.size for f in known.factors.values())


DAMAGE = {
    "text": b"not JSON",
    "no version": b"{}",
    "list": b"[1]",
    "deep": b"[" * 100_000,
    "outside": b'{"version": "1", "equalized": [[5, [4], 2]]}\0' + bytes(8),
    "negative": b'{"version": "1", "equalized": [[5, [-1, 4], 0]]}\0' + bytes(8),
    "zero": b'{"version": "1", "equalized": [[5, [4], 0]]}\0' + bytes(8),
    "huge": b'{"version": "1", "equalized": [[5, [99999999, 99999999], 0]]}\0' + bytes(8),
    "shape": b'{"version": "1", "equalized": [[5, "ab", 0]]}\0' + bytes(8),
    "infinite": b'{"version": "1", "equalized": [[1e999, [4], 0]]}\0' + bytes(8),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_record_is_none(damage):
    model = build.float_cnn()
    model.metadata = [(NAME, Buffer(np.frombuffer(DAMAGE[damage], np.uint8)))]
    assert provenance(load(to_bytes(model))) is None


def test_factors_survive_and_multiply():
    factors = np.float32([[0.5, 2.0, 4.0]])
    known = Provenance("1", {"mode": "int8"}, {}).scaled({"a": factors, "b": factors}).scaled({"a": factors})
    again = provenance(recorded(build.float_cnn(), known))
    np.testing.assert_array_equal(again.factors_of("a"), factors**2)
    np.testing.assert_array_equal(again.factors_of("b"), factors)
    assert again.factors_of("c") is None


def test_tensors_without_names_of_their_own_make_the_record_incomplete():
    model = load(to_bytes(chain()))
    samples = [(x,) for x in inputs(model)]
    for tensor in model.main.tensors:
        tensor.name = "same"
    made = load(to_bytes(zeropoint.quantize(model, data=samples, target="integer").model))
    assert not provenance(made).is_complete
    assert zeropoint.compare(model, made, samples[:2]).snr > 20


def test_a_model_of_which_nothing_was_quantized_says_nothing():
    assert provenance(zeropoint.quantize(build.branches(), "dynamic").model) is None


def test_tensors_without_a_counterpart_are_listed():
    model = conv_net()
    known = Provenance("1").without_counterparts(["a", "b"]).without_counterparts(["c"])
    again = provenance(load(to_bytes(recorded(model, known))))
    assert [again.has_counterpart(name) for name in "abcd"] == [False, False, False, True]
    assert again == known
    damaged = json.dumps({"version": "1", "unlike": ["x"]}).encode()
    model.metadata = [(NAME, Buffer(np.frombuffer(damaged, np.uint8)))]
    assert provenance(model) is None
