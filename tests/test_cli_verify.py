"""`zeropoint compare`, `doctor` and `benchmark`, on the digits model that comes with the package."""

from __future__ import annotations

import json

import numpy as np
import pytest

import zeropoint
from zeropoint.demo import digits as digits_data
from zeropoint.graph.edit import copy_model
from zeropoint.graph.model import Signature
from zeropoint.recipe_files import load_recipe
from zeropoint.tflite import save

from .calibration.test_state import recurrent, sequences
from .diagnosis.faults import drowned_concat_input
from .nets import Net, normal


@pytest.fixture(scope="module")
def home(tmp_path_factory, digits):
    """The model, a quantized one, data, and a metric."""
    folder = tmp_path_factory.mktemp("home")
    images = digits_data()["calibration"][:40]
    (folder / "model.tflite").write_bytes(digits)
    np.save(folder / "data.npy", images)
    zeropoint.quantize(digits, data=[i[None] for i in images]).save(folder / "int8.tflite")
    (folder / "score.py").write_text("def confident(outputs): return sum(float(o[0].max()) for o in outputs)\n")
    return folder


def test_compare_prints_the_worst_ops_first(run, home):
    code, out, err = run(
        "compare", home / "model.tflite", home / "int8.tflite", "--data", home / "data.npy", "--top", 2
    )
    assert (code, err) == (0, "")
    assert "2 of" in out
    assert "same top-1 in" in out
    assert "\x1b" not in out


def test_compare_prints_json_with_a_metric(run, home):
    options = ("--data", home / "data.npy", "--limit", 5, "--json", "--metric", f"{home / 'score.py'}:confident")
    code, out, err = run("compare", home / "model.tflite", home / "int8.tflite", *options)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["samples"] == 5
    assert found["metric"]["name"] == "confident"
    assert found["quantized_bytes"] < found["float_bytes"]
    assert {"own", "accumulated", "occupancy", "macs", "execution"} <= set(found["ops"][0])


@pytest.mark.parametrize("command", ["compare", "doctor"])
def test_mistakes_are_told_in_a_line(run, home, command):
    models = (home / "model.tflite", home / "int8.tflite")
    code, out, err = run(command, *models, "--data", home / "data.npy", "--metric", "nowhere.py:f")
    assert (code, out) == (2, "")
    assert err.startswith("error: --metric nowhere.py:f")
    assert err.count("\n") == 1


def test_comparing_nothing_passes_no_check(run, home, tmp_path):
    net = Net()
    shape = zeropoint.load(home / "model.tflite").main.inputs[0].shape
    pooled = net("MEAN", [net.input(*shape), np.int32([1, 2])], (1, shape[-1]))
    save(net.model(net.dense(pooled, normal(7, shape[-1]))), tmp_path / "other.tflite")
    models = (home / "model.tflite", tmp_path / "other.tflite")
    code, out, err = run("compare", *models, "--data", home / "data.npy", "--min-snr", 30)
    assert (code, out) == (2, "")
    assert "the models cannot be compared" in err


def test_doctor_says_that_a_healthy_model_is_healthy(run, home, tmp_path):
    files = ("--apply", tmp_path / "out.tflite", "--save-recipe", tmp_path / "recipe.json")
    code, out, err = run("doctor", home / "model.tflite", home / "int8.tflite", "--data", home / "data.npy", *files)
    assert code == 0
    assert "Nothing to fix." in out
    assert "no file was written" in err
    assert "no recipe was written" in err
    assert not any(tmp_path.iterdir())


def test_doctor_applies_what_it_proposes(run, tmp_path):
    patient = drowned_concat_input()
    save(patient.model, tmp_path / "model.tflite")
    save(patient.quantized, tmp_path / "spoilt.tflite")
    np.save(tmp_path / "data.npy", np.concatenate([x for (x,) in patient.data]))
    options = ("--data", tmp_path / "data.npy", "--apply", tmp_path / "out.tflite")
    files = ("--save-recipe", tmp_path / "recipe.json")
    code, out, err = run("doctor", tmp_path / "model.tflite", tmp_path / "spoilt.tflite", *options, *files)
    assert (code, err) == (0, "")
    assert "[drowned_input]" in out
    assert "before" in out
    assert "after" in out
    before = zeropoint.compare(patient.model, tmp_path / "spoilt.tflite", patient.data)
    after = zeropoint.compare(patient.model, tmp_path / "out.tflite", patient.data)
    assert after.snr > before.snr + 3
    again = zeropoint.quantize(patient.model, data=patient.data, recipe=load_recipe(tmp_path / "recipe.json"))
    assert zeropoint.compare(patient.model, again.model, patient.data).snr > before.snr + 3


def test_doctor_prints_json(run, home):
    code, out, err = run("doctor", home / "model.tflite", "--data", home / "data.npy", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["findings"] == []


def test_doctor_looks_at_one_signature(run, home, tmp_path):
    model = zeropoint.load(home / "model.tflite")
    twin = copy_model(model).main
    twin.name = "twin"
    model.graphs.append(twin)
    model.signatures.append(Signature("twin", twin, {"image": twin.inputs[0]}, {"scores": twin.outputs[0]}))
    save(model, tmp_path / "two.tflite")
    line = ("doctor", tmp_path / "two.tflite", "--data", home / "data.npy", "--effort", "quick", "--seconds", 1)
    code, out, _ = run(*line, "--signature", "twin", "--limit", 8, "--json")
    assert code == 0
    assert json.loads(out)["comparison"]["samples"] == 8
    code, out, err = run(*line)
    assert (code, out) == (2, "")
    assert "several signatures" in err
    code, out, err = run(*line, "--signature", "none")
    assert (code, out) == (2, "")
    assert "no signature 'none'; it has 'serving_default', 'twin'" in err
    code, _, err = run(*line, "--signature", "twin", "--apply", tmp_path / "out.tflite")
    assert code == 2
    assert "--apply would write only one signature" in err


def test_doctor_keeps_the_state_or_starts_anew(run, tmp_path):
    model = recurrent()
    save(model, tmp_path / "model.tflite")
    np.save(tmp_path / "data.npy", np.concatenate(sequences(model, 24)))
    line = ("doctor", tmp_path / "model.tflite", "--data", tmp_path / "data.npy", "--effort", "quick", "--seconds", 1)
    told = [run(*line, option, "--json") for option in ("--keep-state", "--reset-state")]
    assert [code for code, _, _ in told] == [0, 0]
    kept, reset = (json.loads(out)["comparison"] for _, out, _ in told)
    assert kept["outputs"] != reset["outputs"]
    assert any("as one sequence" in note for note in kept["notes"])
    assert not any("as one sequence" in note for note in reset["notes"])
    code, _, err = run(*line, "--keep-state", "--reset-state")
    assert code == 2
    assert "--keep-state and --reset-state contradict each other" in err


def test_benchmark_draws_bars(run, home):
    models = (home / "model.tflite", home / "int8.tflite")
    code, out, err = run("benchmark", *models, "--rounds", 2, "--threads", "1")
    assert (code, err) == (0, "")
    assert "█" in out
    assert "runtimes do not report times of single ops" in out
    code, out, err = run("benchmark", *models, "--rounds", 2, "--quick", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)["models"]
    assert [m["name"] for m in told] == ["model.tflite", "int8.tflite"]
    assert [m["bytes"] for m in told] == [path.stat().st_size for path in models]
    code, _, err = run("benchmark", *models, "--threads", "many")
    assert code == 2
    assert "--threads many" in err


# Wrongly prepared samples.


@pytest.fixture
def pixels(home, tmp_path):
    np.save(tmp_path / "pixels.npy", 255 * np.load(home / "data.npy"))
    return tmp_path / "pixels.npy"


def test_doctor_names_wrongly_prepared_samples_first(run, home, pixels):
    model = home / "model.tflite"
    code, out, _ = run("doctor", model, "--data", pixels, "--check", "--seconds", 1)
    assert code == 1
    assert "1. data: the first layer's response to values of 0 to 255" in " ".join(out.split())
    assert "--scale 0.0039216" in out
    assert "Nothing to fix" not in out
    code, out, _ = run("doctor", model, "--data", home / "data.npy", "--calibration", pixels, "--json", "--seconds", 1)
    first = json.loads(out)["findings"][0]
    assert (code, first["cause"]) == (0, "other_normalization")
    assert first["title"].startswith("calibration: ")


def test_doctor_does_not_advise_to_make_good_samples_like_bad_ones(run, home, pixels):
    options = ("--data", pixels, "--calibration", home / "data.npy", "--json", "--seconds", 1)
    _, out, _ = run("doctor", home / "model.tflite", *options)
    causes = [finding["cause"] for finding in json.loads(out)["findings"]]
    assert causes[0] == "other_normalization"
    assert not {"unlike_data", "unnormalized_input"}.intersection(causes)


def test_calibrate_warns_of_wrongly_prepared_samples(run, home, pixels, tmp_path):
    model = home / "model.tflite"
    assert "--scale 0.0039216" in run("calibrate", model, "--data", pixels, "-o", tmp_path / "a.stats")[1]
    assert "Warning" not in run("calibrate", model, "--data", home / "data.npy", "-o", tmp_path / "b.stats")[1]
