"""Where the ops of any file run on a target, as values, as text and by the command."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import zeropoint
from zeropoint.cli import app
from zeropoint.errors import InvalidRecipe, UnsupportedOp
from zeropoint.plan.request import Interface, interface_of, resolve_target
from zeropoint.recipe import INT8, Recipe, Rule, preset
from zeropoint.recipe_files import recipe_content, recipe_from
from zeropoint.targets import CPU, INTEGER, TARGETS, Target, check_model, target_named
from zeropoint.targets import TargetRule as Row

from ..nets import Net, normal, samples_for


def model() -> zeropoint.graph.Model:
    net = Net()
    x = net.conv(net.input(1, 8, 8, 8), normal(16, 3, 3, 8), name="first")
    return net.model(net.conv(net("HARD_SWISH", [x], name="bend"), normal(4, 3, 3, 16, seed=1), name="last"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model for each usual target."""
    folder = tmp_path_factory.mktemp("models")
    for target in ("cpu", "integer"):
        made = zeropoint.quantize(model(), data=samples_for(model(), 8), effort="quick", target=target)
        made.save(folder / f"{target}.tflite")
    return folder


def test_the_default_depends_on_what_callers_see() -> None:
    plain = preset("int8")
    assert resolve_target(None, plain, Interface(), strict=False) is CPU
    assert resolve_target(None, plain, Interface(), strict=True) is INTEGER
    assert resolve_target(None, plain, interface_of("int8", "float32"), strict=False) is INTEGER
    assert resolve_target("cpu", plain, interface_of("int8", "int8"), strict=True) is CPU
    assert resolve_target(INTEGER, plain, Interface(), strict=False) is INTEGER
    assert resolve_target(None, Recipe(plain.rules, "integer"), Interface(), strict=False) is INTEGER


def test_a_recipe_may_name_the_target() -> None:
    content = recipe_content(({"scheme": "int8"},), "integer")
    recipe = recipe_from(content).then(Rule(INT8, ops="CONV_2D"))
    assert recipe.target == "integer"
    made = zeropoint.quantize(model(), recipe=recipe, data=samples_for(model(), 8), effort="quick")
    assert made.target is INTEGER
    with pytest.raises(InvalidRecipe, match="target cpu and the recipe's target integer differ"):
        resolve_target("cpu", recipe, Interface(), strict=False)
    with pytest.raises(InvalidRecipe, match="'target' is the name"):
        recipe_from({"rules": [{"scheme": "int8"}], "target": 3})


def test_an_unknown_target_is_told_with_the_nearest() -> None:
    with pytest.raises(InvalidRecipe, match="did you mean integer"):
        target_named("integers")
    with pytest.raises(InvalidRecipe, match="choose from cpu, integer"):
        target_named("toaster")


def test_what_no_target_takes_is_refused_with_the_reason() -> None:
    convolutions = Row(("CONV_2D", "QUANTIZE", "DEQUANTIZE"))
    narrow = Target("narrow", "", "the device", (convolutions,), source="")
    with pytest.raises(
        UnsupportedOp, match=r"(?s)narrow refuses 1 op:.*HARD_SWISH 'bend.*not among the ops of the dev"
    ):
        zeropoint.quantize(model(), data=samples_for(model(), 8), effort="quick", target=narrow)
    recipe = Recipe((Rule(INT8), Rule(INT8, ops="HARD_SWISH")))
    with pytest.raises(InvalidRecipe, match=r"(?s)ops 'HARD_SWISH' -> int8, and the target narrow refuses that"):
        zeropoint.quantize(model(), recipe=recipe, data=samples_for(model(), 8), effort="quick", target=narrow)


def test_every_op_has_a_verdict(files) -> None:
    loaded = zeropoint.load(files / "integer.tflite")
    check = check_model(loaded, CPU)
    assert [c.op for c in check.ops] == loaded.main.ops
    assert [c.op.kind for c in check.having("slow")] == ["HARD_SWISH"]
    assert check.macs["fast"] == sum(c.macs for c in check.ops) > 0
    assert not check_model(zeropoint.load(files / "cpu.tflite"), CPU).having("slow")
    assert not check_model(loaded, INTEGER).having("slow")[1:]  # what gives floats to the caller
    content = check.to_json()
    assert content["totals"]["slow"] == {"ops": 1, "macs": 0}
    assert json.loads(json.dumps(content)) == content


def test_plans_say_where_each_op_runs() -> None:
    made = zeropoint.quantize(model(), data=samples_for(model(), 8), effort="quick", target="integer")
    assert "runs fast, integer kernels" in str(made.plan)
    made = zeropoint.quantize(
        model(), data=samples_for(model(), 8), effort="quick", keep_float="nothing", allow_unmatched=True
    )
    assert str(made.plan).count("runs fast, XNNPACK") == 3


def run(*arguments: object):
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_commands(files) -> None:
    listed = run("targets")
    assert listed.exit_code == 0
    assert all(name in listed.output and target.about[:20] in listed.output for name, target in TARGETS.items())
    good, slow = files / "cpu.tflite", files / "integer.tflite"
    assert run("check", good, "--no-fallback").exit_code == 0
    found = run("check", slow)
    assert found.exit_code == 0
    assert "HARD_SWISH" in found.output
    assert "XNNPACK has it in float32" in found.output
    assert run("check", slow, "--no-fallback").exit_code == 1
    everything = run("check", good, "--all")
    assert everything.output.count("CONV_2D") == 2
    assert json.loads(run("check", slow, "--json").output)["target"]["name"] == "cpu"
    assert run("check", slow, "--target", "toaster").exit_code == 2


def test_summary_tells_the_target_and_what_the_other_would_give(tmp_path) -> None:
    (tmp_path / "model.tflite").write_bytes(zeropoint.to_bytes(model()))
    import numpy as np

    np.savez(tmp_path / "data.npz", x0=np.concatenate([x for (x,) in samples_for(model(), 8)]))
    asked = ("quantize", tmp_path / "model.tflite", "--data", tmp_path / "data.npz", "--effort", "quick")
    cpu = run(*asked, "-o", tmp_path / "cpu.tflite")
    assert "cpu: 7 ops on XNNPACK" in cpu.output
    assert "--target integer would compute 1 more op in integers, 1 of them on plain kernels" in cpu.output
    integer = run(*asked, "-o", tmp_path / "integer.tflite", "--target", "integer")
    assert "--target cpu leaves such ops float" in integer.output
    assert "runs fast, XNNPACK" in run(*asked, "--dry-run").output


def test_conversions_belong_to_a_model_in_integers(digits):
    """What float inputs are quantized by is no op that misses an integer kernel."""
    made = zeropoint.load(digits)
    result = zeropoint.quantize(made, "int8", data=samples_for(made), strict=True, effort="quick")
    assert dict(result.check.counts) == {"fast": len(result.check.ops)}
    check = check_model(made, INTEGER)
    (why,) = {c.verdict.why for c in check.ops}
    assert why == "computes in float32, which is no type of integer kernels; quantize it"
