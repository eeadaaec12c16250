"""What users say about outputs: it counts everywhere, and mistakes are named."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import zeropoint
from zeropoint import JudgedOutputs
from zeropoint.bench.bench import Bench
from zeropoint.bench.errors import EXACT
from zeropoint.bench.judged_outputs import KINDS
from zeropoint.bench.verdict import verdict
from zeropoint.errors import InvalidRecipe
from zeropoint.sources.ports import entry
from zeropoint.tflite import save

from ..nets import Net, normal, samples_for
from ..test_cli import refused


def two_outputs(bad: float = 1.0):
    """`bad` is what is left of the second one."""
    net = Net()
    x = net.input(1, 16)
    made = [net("TANH", [net.dense(x, normal(3, 16, seed=k, spread=0.25))]) for k in range(2)]
    left = np.float32([1.0, bad])
    return net.model(*(net("MUL", [made[k], left[k]], name=f"y{k}") for k in range(2)))


SAMPLES = samples_for(two_outputs(), 24)


def judged(outputs: JudgedOutputs):
    return verdict(Bench(two_outputs(), SAMPLES, outputs=outputs), two_outputs(0.0))


def test_an_output_of_weight_0_is_not_compared():
    plain = judged(JudgedOutputs())
    assert [one.level for one in plain.outputs] == ["good", "broken"]
    assert plain.level == "broken"
    without = judged(JudgedOutputs(weights={"y1": 0}))
    assert [one.name for one in without.outputs] == [plain.outputs[0].name]
    assert (without.level, without.error) == ("good", 0)
    assert judged(JudgedOutputs(weights={"y0": 0})).error == plain.outputs[1].error


def test_weights_say_how_much_an_output_counts():
    alone = judged(JudgedOutputs(weights={"y0": 0})).error
    for weight in (0.25, 1.0, 4.0):
        found = judged(JudgedOutputs(weights={"y1": weight}))
        assert found.error == pytest.approx(alone * weight / (1 + weight))
        assert found.level == ("doubtful" if weight < 1 else "broken")


def test_compare_and_doctor_judge_the_same_outputs():
    model, spoilt = two_outputs(), two_outputs(0.0)
    said = JudgedOutputs(kinds={"y1": "points"}, weights={"y1": 0})
    plain, without = (zeropoint.compare(model, spoilt, SAMPLES, outputs=one) for one in (None, said))
    assert plain.error > 0.1
    assert without.snr == EXACT
    assert [row.kind for row in without.outputs] == ["values", "points"]
    assert [row.weight for row in without.outputs] == [1, 0]
    alone = plain.outputs[1].deviation.error
    assert plain.error == pytest.approx(alone / (1 + alone) / 2 / (1 - alone / (1 + alone) / 2), rel=1e-3)
    found = zeropoint.doctor(model, SAMPLES, quantized=spoilt, outputs=said, seconds=1)
    assert found.verdict.level == "good"
    assert zeropoint.doctor(model, SAMPLES, quantized=spoilt, seconds=1).verdict.level == "broken"


def test_outputs_are_known_by_their_names_in_the_file_and_in_the_signature():
    where = entry(two_outputs())
    assert where.output_names != tuple(t.name for t in where.graph.outputs)
    for name, tensor in zip(where.output_names, where.graph.outputs, strict=True):
        for known in (name, tensor.name):
            assert JudgedOutputs({known: "mask"}, {known: 2.0}).of(where) == JudgedOutputs(
                {tensor.name: "mask"}, {tensor.name: 2.0}
            )


def test_mistaken_names_are_named_with_the_right_ones():
    where = entry(two_outputs())
    first, second = where.output_names
    with pytest.raises(InvalidRecipe, match=f"no output '{first}s'; did you mean '{first}'"):
        JudgedOutputs(weights={f"{first}s": 1}).of(where)
    with pytest.raises(InvalidRecipe, match=f"no output 'nothing like it'; it has '{first}', '{second}'"):
        JudgedOutputs(kinds={"nothing like it": "mask"}).of(where)
    with pytest.raises(InvalidRecipe, match="no output 'y7'"):
        zeropoint.quantize(two_outputs(), data=SAMPLES, effort="quick", outputs=JudgedOutputs(weights={"y7": 1}))


def test_mistaken_kinds_are_named_with_all_that_there_are():
    with pytest.raises(InvalidRecipe, match=f"unknown kind 'box' of the output 'y0'; choose {', '.join(KINDS)}"):
        JudgedOutputs(kinds={"y0": "box"})


@pytest.mark.parametrize("weight", [-1, math.nan, math.inf])
def test_weights_are_0_or_more(weight):
    with pytest.raises(InvalidRecipe, match="the weight of the output 'y0' must be 0 or more"):
        JudgedOutputs(weights={"y0": weight})


def test_something_has_to_be_compared():
    with pytest.raises(InvalidRecipe, match="every output has the weight 0"):
        zeropoint.quantize(
            two_outputs(), data=SAMPLES, effort="quick", outputs=JudgedOutputs(weights={"y0": 0, "y1": 0})
        )


# On the command line.


@pytest.fixture
def files(tmp_path):
    """A model, a spoilt version of it, and samples."""
    save(two_outputs(), tmp_path / "model.tflite")
    save(two_outputs(0.0), tmp_path / "spoilt.tflite")
    np.savez(tmp_path / "data.npz", np.concatenate([x for (x,) in SAMPLES]))
    return tmp_path


def compared(run, files, *options: object):
    return run("compare", files / "model.tflite", files / "spoilt.tflite", "--data", files / "data.npz", *options)


def test_options_say_what_outputs_are_and_how_much_they_count(run, files):
    options = ("--output-weight", "y1=0", "--output-weight", "y0=2.5", "--output-kind", "y0=points", "--json")
    code, out, err = compared(run, files, *options)
    assert (code, err) == (0, "")
    rows = json.loads(out)["outputs"]
    assert [row["weight"] for row in rows] == [2.5, 0]
    assert rows[0]["kind"] == "points"
    output = files / "out.tflite"
    code, out, err = run(
        "quantize", files / "model.tflite", "--data", files / "data.npz", "-o", output, "--output-kind", "y0=embedding",
        "--effort", "quick",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert "embedding 'out0'" in out
    assert output.exists()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--output-kind", "out0"], "--output-kind takes NAME=KIND, with the name of an output, not 'out0'"),
        (["--output-kind", "=mask"], "--output-kind takes NAME=KIND"),
        (["--output-weight", "out0="], "--output-weight takes NAME=W"),
        (["--output-kind", "out0=box"], "unknown kind 'box' of the output 'out0'; choose classes, scores"),
        (["--output-weight", "out0=much"], "'much'"),
        (["--output-weight", "out0=-1"], "must be 0 or more"),
        (["--output-weight", "out00=1"], "the model has no output 'out00'; did you mean 'out0'?"),
        (["--output-weight", "out0=0", "--output-weight", "out1=0"], "every output has the weight 0"),
    ],
)
def test_mistakes_in_options_cost_one_line(run, files, options, complaint):
    assert complaint in refused(compared(run, files, *options))
