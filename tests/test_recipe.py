"""Recipes: which rule decides, what a file may say, and models of several types."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

import zeropoint
from zeropoint.affine import PerTensor
from zeropoint.calibration import calibrate
from zeropoint.dtypes import DType
from zeropoint.errors import InvalidRecipe
from zeropoint.graph import Model
from zeropoint.recipe import FLOAT, INT8, INT16X8, Recipe, Rule, keep_float, preset
from zeropoint.recipe_files import load_recipe, recipe_from

from . import build
from .nets import Net, kinds, normal, quantized
from .plan.laws import broken_laws

# Which rule decides.


@pytest.mark.parametrize(("name", "dtype"), [("int8", DType.INT8), ("int16x8", DType.INT16)])
def test_presets_ask_for_one_type_everywhere(name, dtype):
    made = quantized(build.float_cnn(), mode=name, bound=0.1)
    assert made.skipped == ()
    assert {t.dtype for op in made.model.main.ops[1:-1] for t in op.outputs} == {dtype}


@pytest.mark.parametrize("name", ["float", "int4", "INT8", ""])
def test_unknown_presets_are_refused(name):
    with pytest.raises(InvalidRecipe, match="choose from int8, int16x8"):
        zeropoint.quantize(build.float_cnn(), name)


OP = build.op("CONV_2D", [], build.act("net/block1/conv;net/block1/relu", 1), build.act("second", 1))

MATCHES = [
    ({}, True),
    ({"ops": "CONV_2D"}, True),
    ({"ops": "conv_*"}, True),
    ({"ops": "CONV"}, False),
    ({"ops": "DEPTHWISE_CONV_2D"}, False),
    ({"name": "net/block1/*"}, True),
    ({"name": "*relu"}, True),
    ({"name": "net/block1/conv"}, True),
    ({"name": "second"}, True),
    ({"name": "block1"}, False),
    ({"name": "NET/*"}, False),
    ({"regex": "block[0-9]"}, True),
    ({"regex": "^net/.*relu$"}, True),
    ({"regex": "block2"}, False),
    ({"scope": "net"}, True),
    ({"scope": "net/block1"}, True),
    ({"scope": "net/block1/"}, True),
    ({"scope": "net/block"}, False),
    ({"scope": "second"}, True),
    ({"ops": "CONV_2D", "scope": "net", "regex": "relu", "name": "*"}, True),
    ({"ops": "ADD", "scope": "net"}, False),
    ({"ops": "CONV_2D", "scope": "other"}, False),
]


@pytest.mark.parametrize(("asked", "expected"), MATCHES, ids=str)
def test_a_rule_matches_by_kind_glob_regex_and_scope(asked, expected):
    assert Rule(FLOAT, **asked).matches(OP) is expected


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("CONV_2D", "CONV_2D"),
        ("*POOL*", "MAX_POOL_2D"),
        ("stem", "CONV_2D"),
        ("d*", "DEPTHWISE_CONV_2D"),
        ("MEAN", "MEAN"),
    ],
)
def test_keeping_float_is_by_kind_or_name(pattern, matches):
    result = quantized(build.float_cnn(), bound=0.1, keep_float=[pattern])
    assert [s.op.kind for s in result.skipped] == [matches]
    assert result.warnings == ()


def test_one_pattern_may_stand_alone():
    kept = [
        zeropoint.quantize(build.float_cnn(), "dynamic", min_elements=0, keep_float=k) for k in ("CONV_2D", ["CONV_2D"])
    ]
    assert str(kept[0].plan) == str(kept[1].plan)


def test_nothing_to_keep_in_float_may_be_none_and_else_has_to_be_names():
    made = [zeropoint.quantize(build.float_cnn(), "dynamic", min_elements=0, keep_float=k) for k in (None, (), [])]
    assert len({zeropoint.to_bytes(one.model) for one in made}) == 1
    with pytest.raises(InvalidRecipe, match="keep_float= takes names or patterns, not 3"):
        zeropoint.quantize(build.float_cnn(), "dynamic", keep_float=3)


def test_keeping_float_by_a_name_in_capitals():
    net = Net()
    model = net.model(net.dense(net.input(1, 8), normal(4, 8), name="LOGITS"), net("ABS", [net.inputs[0]]))
    assert [s.op.name for s in quantized(model, keep_float=["LOGITS"]).skipped] == ["LOGITS"]


def test_the_last_rule_that_matches_decides():
    rules = (Rule(FLOAT, ops="CONV_2D"), Rule(INT16X8, name="second"), Rule(INT8), Rule(INT16X8, scope="net"))
    for count, scheme in enumerate((FLOAT, FLOAT, INT16X8, INT8, INT16X8)):
        assert Recipe(rules[:count]).scheme(OP) == scheme


def test_a_rule_that_matches_nothing_warns_if_that_is_allowed():
    patterns = ["stem", "no/such/*", "LSTM"]
    result = quantized(build.float_cnn(), bound=0.1, keep_float=patterns, allow_unmatched=True)
    assert len(result.warnings) == 2
    assert "no/such/*" in result.warnings[0]
    assert "LSTM" in result.warnings[1]


@pytest.mark.parametrize("pattern", ["first", "RELU", "second"])
def test_rules_know_ops_by_the_names_they_came_with(pattern):
    """An op that could take in the ReLU behind it does not, if the two are treated differently."""
    net = Net()
    x = net.dense(net.input(1, 8), normal(8, 8), name="first")
    model = net.model(net.dense(net("RELU", [x], name="second"), normal(4, 8), name="third"))
    result = quantized(model, keep_float=[pattern])
    assert result.warnings == ()
    (skipped,) = result.skipped
    assert pattern in (skipped.op.name, skipped.op.kind)


# Files.

CONTENT = {
    "rules": [
        {"scheme": "int8"},
        {"ops": "CONV_2D", "scheme": "int16x8"},
        {"name": "head/*", "scheme": "float"},
        {"regex": "^x", "scope": "a/b", "scheme": "int8", "symmetric": True, "per_tensor": True, "range": "minmax"},
        {"ops": "MEAN", "scheme": "int8", "weights": "int8"},
    ]
}

RECIPE = Recipe(
    (
        Rule(INT8),
        Rule(INT16X8, ops="CONV_2D"),
        Rule(FLOAT, name="head/*"),
        Rule(
            dataclasses.replace(INT8, symmetric=True, granularity=PerTensor(), range="minmax"), regex="^x", scope="a/b"
        ),
        Rule(INT8, ops="MEAN"),
    )
)


def toml(content: dict[str, Any]) -> str:
    rules = ("\n".join(f"{key} = {json.dumps(value)}" for key, value in rule.items()) for rule in content["rules"])
    return "".join(f"[[rules]]\n{rule}\n" for rule in rules)


@pytest.mark.parametrize(("suffix", "write"), [("json", json.dumps), ("toml", toml)])
def test_json_and_toml_say_the_same(tmp_path, suffix, write):
    path = tmp_path / f"recipe.{suffix}"
    path.write_text(write(CONTENT), "utf-8")
    assert load_recipe(path) == recipe_from(CONTENT) == RECIPE


def rules(*given: Any) -> str:
    return json.dumps({"rules": list(given)})


MALFORMED = {
    "": "not valid JSON",
    "{": "not valid JSON",
    "[" * 100_000: "not valid JSON",
    "null": "needs a list 'rules'",
    "[]": "needs a list 'rules'",
    "{}": "needs a list 'rules'",
    '{"rules": {}}': "needs a list 'rules'",
    rules(): "at least one rule",
    '{"rules": [{"scheme": "int8"}], "more": 1}': "needs a list 'rules'",
    rules({"scheme": "int8"}, 7): "rule 2 of .* needs a 'scheme'",
    rules({"ops": "ADD"}): "rule 1 of .* needs a 'scheme': int8, int16x8, uint8, dynamic, weights, float16, float",
    rules({"scheme": "int7"}): "'int7'; choose from int8, int16x8, uint8, dynamic, weights, float16, float",
    rules({"scheme": ["int8"]}): r"\['int8'\]; choose from int8, int16x8, uint8, dynamic, weights, float16, float",
    rules({"scheme": None}): "None; choose from int8, int16x8, uint8, dynamic, weights, float16, float",
    rules({"scheme": "int8", "op": "ADD"}): r"unknown keys op; did you mean ops\? known are asymmetric, block, effort",
    rules({"schema": "int8"}): r"unknown keys schema; did you mean scheme\? known are",
    rules({"scheme": "int8", "ops": 3}): "'ops' is a text",
    rules({"scheme": "int8", "name": ["a", "b"]}): "'name' is a text",
    rules({"scheme": "int8", "regex": "("}): "is not a regular expression",
    rules({"scheme": "int8", "symmetric": "yes"}): "'symmetric' is true or false",
    rules({"scheme": "int8", "per_tensor": 1}): "'per_tensor' is true or false",
    rules({"scheme": "int8", "weights": "float16"}): "weights of type 'float16' are not supported",
    rules({"scheme": "int8", "range": 3}): "'range' is a text",
    rules({"scheme": "float", "weights": "int4"}): "weights of type 'int4' are not supported",
    rules({"scheme": "dynamic", "block": "32"}): "'block' is a whole number",
    rules({"scheme": "dynamic", "weights": "int4", "block": 48}): "blocks of 48 are not supported; choose 32, 64, 128",
    rules({"scheme": "dynamic", "block": 32}): "blocks need the mode dynamic and 4-bit weights",
    rules({"scheme": "weights", "weights": "int4", "block": 32}): "blocks need the mode dynamic and 4-bit weights",
    rules({"scheme": "dynamic", "asymmetric": True}): "asymmetric weights need the mode weights",
    rules({"scheme": "int8", "effort": "much"}): "unknown effort 'much'; choose quick, standard, high or max",
    rules({"scheme": "dynamic", "min_elements": -1}): "cannot be -1",
    rules({"scheme": "dynamic", "min_elements": True}): "'min_elements' is a whole number",
}


@pytest.mark.parametrize(("text", "words"), MALFORMED.items(), ids=[t[:60] for t in MALFORMED])
def test_a_malformed_recipe_is_refused(tmp_path, text, words):
    path = tmp_path / "recipe.json"
    path.write_text(text, "utf-8")
    with pytest.raises(InvalidRecipe, match=words) as refused:
        load_recipe(path)
    assert "recipe.json" in str(refused.value)


def test_what_is_no_text_is_refused(tmp_path):
    (tmp_path / "recipe.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidRecipe, match="is not valid JSON"):
        load_recipe(tmp_path / "recipe.json")
    (tmp_path / "recipe.toml").write_text("[[rules]\n", "utf-8")
    with pytest.raises(InvalidRecipe, match="is not valid TOML"):
        load_recipe(tmp_path / "recipe.toml")
    with pytest.raises(InvalidRecipe, match=r"cannot read .*: no such file"):
        load_recipe(tmp_path / "none.json")


def test_an_unknown_range_method_is_refused():
    recipe = recipe_from({"rules": [{"scheme": "int8", "range": "median"}]})
    with pytest.raises(InvalidRecipe, match="unknown range method 'median'; choose from minmax"):
        zeropoint.quantize(build.float_cnn(), data=[normal(1, 4, 4, 1)], recipe=recipe)


@pytest.mark.parametrize("mode", ["int8", "dynamic"])
def test_an_unknown_effort_is_refused(mode):
    with pytest.raises(InvalidRecipe, match="unknown effort 'much'; choose quick, standard, high or max"):
        zeropoint.quantize(build.float_cnn(), mode, effort="much")


def test_a_mode_and_a_recipe_contradict_each_other():
    with pytest.raises(InvalidRecipe, match="not both"):
        zeropoint.quantize(build.float_cnn(), "int8", recipe=preset("int8"))


# What a scheme does.


def chain(schemes: str) -> tuple[Model, Recipe]:
    """Dense layers in a row; a letter for each says how it is computed."""
    named = {"8": INT8, "6": INT16X8, "f": FLOAT}
    net = Net()
    x = net.input(1, 8)
    for k in range(len(schemes)):
        x = net.dense(x, normal(8, 8, seed=k, spread=0.5), name=f"layer{k}")
    return net.model(x), Recipe(tuple(Rule(named[s], name=f"layer{k}") for k, s in enumerate(schemes)))


@pytest.mark.parametrize("schemes", ["8", "6", "86", "68", "8f8", "f8f", "6f8", "868", "88ff66", "8686"])
def test_conversions_are_exactly_where_neighbours_differ(schemes):
    model, recipe = chain(schemes)
    result = quantized(model, bound=0.05, recipe=recipe)
    assert broken_laws(result) == []
    wanted = []
    for before, after in zip(f"f{schemes}", f"{schemes}f", strict=True):
        if before != after:
            wanted.append("DEQUANTIZE" if after == "f" else "QUANTIZE")
        wanted.append("FULLY_CONNECTED")
    assert kinds(result.model) == wanted[:-1]


def test_mixed_branches():
    """One tensor in three forms, and back into one sum."""
    net = Net()
    x = net.dense(net.input(1, 8), normal(8, 8), name="stem")
    wide, exact = net.dense(x, normal(8, 8, seed=1), name="wide"), net.dense(x, normal(8, 8, seed=2), name="exact")
    model = net.model(net("ADD", [net("ADD", [x, wide]), exact], name="sum"))
    recipe = preset("int8").then(Rule(INT16X8, name="wide"), Rule(FLOAT, name="exact"))
    result = quantized(model, recipe=recipe)
    assert broken_laws(result) == []
    forms = {op.name: op.outputs[0].dtype.label for op in result.model.main.ops if op.kind == "FULLY_CONNECTED"}
    assert forms == {"stem": "int8", "wide": "int16", "exact": "float32"}


def test_one_scale_for_each_layer():
    net = Net()
    flat = net("RESHAPE", [net.conv(net.input(1, 2, 2, 4), normal(4, 3, 3, 4)), np.int32([1, 16])], (1, 16))
    model = net.model(net.dense(flat, normal(4, 16), normal(4)))
    recipe = recipe_from({"rules": [{"scheme": "int8", "per_tensor": True}]})
    conv, _, dense = quantized(model, recipe=recipe).model.main.ops[1:4]
    assert [len(t.params.scales) for t in dense.inputs] == [1, 1, 1]
    assert [len(t.params.scales) for t in conv.inputs] == [1, 1, 1]


def test_symmetric_activations():
    scheme = dataclasses.replace(INT8, symmetric=True)
    net = Net()
    model = net.model(net.dense(net.dense(net.input(1, 8), normal(8, 8), activation=1), normal(4, 8)))
    made = quantized(model, recipe=Recipe((Rule(scheme),))).model
    assert all(t.params.is_symmetric for t in made.main.tensors if t.params is not None)


def test_each_rule_has_its_own_range_method():
    net = Net()
    first = net.dense(net.input(1, 64), normal(64, 64), name="first")
    model = net.model(net.dense(first, normal(64, 64, seed=1), name="second"))
    samples = [normal(1, 64, seed=k) for k in range(40)]
    stats = calibrate(model, samples)
    average, everything = (dataclasses.replace(INT8, range=method) for method in ("average", "minmax"))
    recipe = Recipe((Rule(average), Rule(everything, name="second")))
    made = zeropoint.quantize(model, stats=stats, recipe=recipe, range="minmax").model.main

    def width(name: str) -> float:
        low, high = made.tensor(name).params.range()
        return high - low

    def seen(name: str) -> float:
        return stats.tensors[name].high.value - stats.tensors[name].low.value

    assert width("second/int8") == pytest.approx(seen("second"), rel=0.01)
    assert width("x0/int8") < 0.9 * seen("x0")


def test_a_rule_reads_like_what_it_does():
    assert str(Rule(FLOAT)) == "everything -> float"
    assert str(Rule(INT16X8, ops="ADD", scope="head")) == "ops 'ADD', scope 'head' -> int16x8"
    assert "'head/*'" in str(keep_float("head/*"))
