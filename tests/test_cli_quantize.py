"""`zeropoint quantize` and `zeropoint demo`, from a file to a file: on the digits model that comes with the package."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

import zeropoint
from zeropoint.demo import accuracy, lenet_model
from zeropoint.demo import digits as digits_data
from zeropoint.dtypes import Array
from zeropoint.graph import Model
from zeropoint.graph.names import short_names
from zeropoint.recipe import MODES
from zeropoint.streams import quiet_stderr
from zeropoint.tflite import load, save

from . import build
from .calibration.test_state import streaming_net
from .test_cli import refused


@pytest.fixture(scope="session")
def images() -> dict[str, Array]:
    return digits_data()


@pytest.fixture(scope="session")
def home(tmp_path_factory, digits, images) -> Path:
    """A folder with the model, data, statistics and ranges for it."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "model.tflite").write_bytes(digits)
    np.savez(folder / "data.npz", images["calibration"][:60])
    stats = zeropoint.calibrate(digits, [image[None] for image in images["calibration"][:60]])
    stats.save(folder / "model.stats")
    ranges = {name: {"min": t.low.value, "max": t.high.value} for name, t in stats.tensors.items()}
    (folder / "ranges.json").write_text(json.dumps(ranges), "utf-8")
    return folder


@pytest.fixture
def quantize(run, home, tmp_path):
    """Run the command on the digits model: what it printed, and where it wrote."""

    def call(*options: object, output: str = "out.tflite") -> tuple[str, Path]:
        path = tmp_path / output
        code, out, err = run("quantize", home / "model.tflite", "-o", path, *options)
        assert (code, err) == (0, "")
        assert "\x1b" not in out
        return out, path

    return call


SOURCES = {"data": ["--data", "data.npz"], "stats": ["--stats", "model.stats"], "ranges": ["--ranges", "ranges.json"]}


def at_home(home: Path, source: str) -> list[object]:
    option, name = SOURCES[source]
    return [option, home / name]


# From a file to a file.


def test_files_say_how_they_were_made_unless_told_not_to(quantize, run):
    _, path = quantize("--mode", "dynamic")
    assert "Made by  zeropoint" in run("inspect", path, "--summary")[1]
    _, path = quantize("--mode", "dynamic", "--no-record", output="other.tflite")
    assert "Made by" not in run("inspect", path, "--summary")[1]


def test_what_samples_are_for_without_ranges_is_said(quantize, home):
    out, _ = quantize("--mode", "dynamic", "--data", home / "data.npz")
    assert "the samples: biases were corrected with them" in out
    assert "This mode has no ranges of activations" in out
    out, _ = quantize("--mode", "float16", "--data", home / "data.npz", output="half.tflite")
    assert "the samples: the verdict is about them" in out


def test_that_samples_were_one_sequence_is_said_once(run, tmp_path):
    model, samples = streaming_net()
    save(model, tmp_path / "model.tflite")
    np.save(tmp_path / "data.npy", np.concatenate(samples))
    line = ("quantize", tmp_path / "model.tflite", "--data", tmp_path / "data.npy", "-o", tmp_path / "out.tflite")
    code, out, _ = run(*line)
    assert code == 0
    assert out.count("the samples were run as one sequence") == 1
    code, out, _ = run(*line, "--overwrite", "--json")
    assert code == 0
    assert out.count("the samples were run as one sequence") == 1


def test_percentiles_and_decays_are_options(quantize, home, run):
    _, path = quantize("--data", home / "data.npz", "--percentile", 99)
    assert "range percentile" in run("inspect", path, "--summary")[1]
    quantize("--data", home / "data.npz", "--range", "average", "--decay", 0.5, output="b.tflite")
    given = ("quantize", home / "model.tflite", "--data", home / "data.npz", "--dry-run")
    assert "--percentile is for --range percentile" in refused(run(*given, "--range", "mse", "--percentile", 99))
    assert "the percentile must be above 50" in refused(run(*given, "--percentile", 10))
    assert "decay of the moving average" in refused(run(*given, "--decay", 2))


def test_a_signature_without_samples_is_a_warning():
    model = build.branches()
    pairs = [(np.bool_(k % 2), np.float32([k, -k])) for k in range(6)]
    one = zeropoint.quantize(model, data={"just_add": [np.float32([9, 9])]}, target="integer")
    assert any("no samples for the signature 'serving_default'" in warning for warning in one.warnings)
    both = zeropoint.quantize(model, data={"serving_default": pairs, "just_add": [np.float32([9, 9])]})
    assert not any("no samples for" in warning for warning in both.warnings)


def test_quantize_compare_and_doctor_measure_the_same_at_the_same_place(quantize, home, run):
    out, path = quantize("--data", home / "data.npz")
    told = re.findall(r"SNR of the outputs (-?[\d.]+) dB, measured at ('[^']*' before SOFTMAX)", out)
    both = (home / "model.tflite", path, "--data", home / "data.npz")
    printed = [run("compare", *both)[1], run("doctor", *both)[1]]
    found = [re.findall(r"SNR (-?[\d.]+) dB, measured at ('[^']*' before SOFTMAX)", text)[0] for text in printed]
    assert len({where for _, where in (*told, *found)}) == 1
    numbers = [float(number) for number, _ in (*told, *found)]
    assert max(numbers) - min(numbers) < 2  # on parts of the same samples
    assert min(numbers) > 20
    assert "error -" not in out


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
@pytest.mark.parametrize("source", SOURCES)
def test_every_source_of_ranges_gives_a_good_model(quantize, home, images, source, mode):
    out, path = quantize("--mode", mode, *at_home(home, source), "--strict")
    model = load(path)
    assert accuracy(model, images) >= 0.97
    assert re.search(r"^Size +2\d\.\d kB -> 1\d\.\d kB +\(4\d%\)$", out, re.MULTILINE)
    assert re.search(r"^In integers +9 ops, 100\.0% of the arithmetic, 2 conversions$", out, re.MULTILINE)
    assert "Stayed float" not in out
    before = load(home / "model.tflite")
    assert [t.name for t in model.main.inputs] == [t.name for t in before.main.inputs]
    assert [t.name for t in model.main.outputs] == [t.name for t in before.main.outputs]
    assert [list(s.inputs) + list(s.outputs) for s in model.signatures] == [["image", "scores"]]


@pytest.mark.parametrize("method", ["minmax", "average", "percentile", "mse", "entropy"])
def test_data_and_statistics_of_it_give_the_same(quantize, home, images, method):
    paths = [quantize(*at_home(home, s), "--range", method, output=s)[1] for s in ("data", "stats")]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert accuracy(load(paths[0]), images) >= 0.97


def test_given_ranges_win_over_measured_ones(quantize, home, tmp_path):
    name = load(home / "model.tflite").main.inputs[0].name
    given = tmp_path / "ranges.json"
    given.write_text(json.dumps({name: {"scale": 0.5, "zero_point": 7}}), "utf-8")
    for source in ("data", "stats"):
        _, path = quantize(*at_home(home, source), "--ranges", given, "--target", "integer", output=source)
        params = load(path).main.ops[0].outputs[0].params
        assert (params.scale, params.zero_point) == (0.5, 7)


def test_what_stays_float_is_listed_with_the_reason(quantize, home):
    out, path = quantize(
        *at_home(home, "stats"),
        "--keep-float",
        "SOFTMAX",
        "--keep-float",
        "*wide*",
        "--keep-float",
        "x",
        "--allow-unmatched",
    )
    assert "Stayed float 2 ops" in out
    assert "1 SOFTMAX: the recipe keeps it in float" in out
    assert "1 CONV_2D: the recipe keeps it in float" in out
    assert re.search(r"Warning .*'x' -> float", out)
    assert {op.kind for op in load(path).main.ops if op.outputs[0].dtype.is_float} >= {"SOFTMAX", "CONV_2D"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("r.json", '{"rules": [{"scheme": "int8"}, {"ops": "CONV_2D", "scheme": "int16x8"}]}'),
        ("r.toml", '[[rules]]\nscheme = "int8"\n[[rules]]\nops = "CONV_2D"\nscheme = "int16x8"\n'),
    ],
)
def test_a_recipe_from_a_file(quantize, home, tmp_path, images, name, text):
    (tmp_path / name).write_text(text, "utf-8")
    _, path = quantize(*at_home(home, "stats"), "--recipe", tmp_path / name)
    model = load(path)
    types = {op.kind: op.outputs[0].dtype.label for op in model.main.ops}
    assert (types["CONV_2D"], types["DEPTHWISE_CONV_2D"]) == ("int16", "int8")
    assert accuracy(model, images) >= 0.97


def test_the_printed_lines_run_as_they_are(quantize, home, images):
    types = ["--input-type", "uint8", "--output-type", "int8"]
    out, path = quantize(*at_home(home, "stats"), *types)
    feed, read = (line for line in out.splitlines() if "interpreter." in line)
    with quiet_stderr():
        interpreter = Interpreter(str(path))
        interpreter.allocate_tensors()
    scope: dict[str, Any] = {"np": np, "interpreter": interpreter}
    right = 0
    for image, label in zip(images["test_images"][:100], images["test_labels"], strict=False):
        scope["x"] = image[None]
        exec(feed.strip(), scope)
        interpreter.invoke()
        exec(read.strip(), scope)
        right += int(np.argmax(scope["real"]) == label)
        assert np.sum(scope["real"]) == pytest.approx(1, abs=0.02)
    assert right >= 97


# Nothing is written.


@pytest.mark.parametrize("output", [[], ["-o", "out.tflite"]], ids=str)
def test_a_dry_run_prints_the_plan(run, home, tmp_path, monkeypatch, output):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("quantize", home / "model.tflite", *output, *at_home(home, "stats"), "--dry-run")
    assert (code, err) == (0, "")
    assert out.startswith("plan for 'main': 8 int8, 1 float\n")  # SOFTMAX, which XNNPACK lacks in int8
    assert out.count("CONV_2D int8") == 4
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_not_overwritten_unasked(run, quantize, home, tmp_path):
    path = tmp_path / "out.tflite"
    path.write_bytes(b"precious")
    arguments = ["quantize", home / "model.tflite", "-o", path, *at_home(home, "stats")]
    assert "out.tflite" in refused(run(*arguments))
    assert path.read_bytes() == b"precious"
    _, written = quantize(*at_home(home, "stats"), "--overwrite")
    assert load(written).main.ops


def test_strict_lists_every_offender_at_once(run, home, tmp_path):
    keep = ["--keep-float", "SOFTMAX", "--keep-float", "MEAN", "--keep-float", "ADD"]
    out = tmp_path / "out.tflite"
    code, printed, err = run("quantize", home / "model.tflite", "-o", out, *at_home(home, "stats"), "--strict", *keep)
    assert (code, printed) == (2, "")
    first, *offenders, last = err.splitlines()
    assert first == "error: 3 ops cannot be computed in integers:"
    assert [line.split()[0] for line in offenders] == ["ADD", "MEAN", "SOFTMAX"]
    assert all(line.startswith("  ") and "the recipe keeps it in float" in line for line in offenders)
    assert "--strict to keep them in float" in last
    assert not out.exists()
    *_, last = run("quantize", home / "model.tflite", "-o", out, *at_home(home, "stats"), "--strict", *keep[:2])
    assert "--strict to keep it in float" in last


@dataclass(frozen=True)
class Place:
    """Files to give to the command: those at home, and others that are made on the spot."""

    home: Path
    folder: Path

    @property
    def stats(self) -> list[object]:
        return ["--stats", self.home / "model.stats"]

    @property
    def data(self) -> list[object]:
        return ["--data", self.home / "data.npz"]

    def model(self, model: Model) -> Path:
        save(model, self.folder / "other.tflite")
        return self.folder / "other.tflite"

    def json(self, text: str) -> Path:
        (self.folder / "some.json").write_text(text, "utf-8")
        return self.folder / "some.json"

    def array(self, *shape: int) -> Path:
        np.save(self.folder / "array.npy", np.zeros(shape, np.float32))
        return self.folder / "array.npy"


WRONG: dict[str, Callable[[Place], list[object]]] = {
    "the ranges of the tensors are not known": lambda _: [],
    "none.tflite: no such file": lambda at: [at.folder / "none.tflite", *at.stats],
    "data.npz": lambda at: [at.home / "data.npz", *at.stats],
    "quantized already": lambda at: [at.model(build.quantized_cnn()), *at.stats],
    "collected on another model": lambda at: [at.model(build.float_cnn()), *at.stats],
    "samples are given as --data": lambda at: ["--stats", at.home / "data.npz"],
    "give --data or --stats, not both": lambda at: [*at.data, *at.stats],
    "options about samples were given, but no samples": lambda at: [*at.stats, "--limit", "8"],
    "none.npz": lambda at: ["--data", at.folder / "none.npz"],
    "'image'": lambda at: ["--data", at.array(3, 5, 5, 1)],
    "at least one: 'image' 0": lambda at: ["--data", at.array(0, 8, 8, 1)],
    "which the model does not have": lambda at: ["--ranges", at.json('{"y": {"min": 0, "max": 1}}')],
    "min 2.0 and max 1.0 are not a valid range": lambda at: ["--ranges", at.json('{"y": {"min": 2, "max": 1}}')],
    "is not JSON": lambda at: ["--ranges", at.json("min 2")],
    "unknown mode 'int4'": lambda at: ["--mode", "int4", *at.stats],
    "unknown mode ''": lambda at: ["--mode", "", *at.stats],
    "unknown range method 'median'": lambda at: ["--range", "median", *at.stats],
    "unknown effort 'none'": lambda at: ["--effort", "none", *at.stats],
    "input type 'int4'": lambda at: ["--input-type", "int4", *at.stats],
    "output type 'x'": lambda at: ["--output-type", "x", *at.stats],
    "none.json: no such file": lambda at: ["--recipe", at.folder / "none.json", *at.stats],
    "give a recipe, or a mode": lambda at: ["--mode", "int8", "--recipe", at.json('{"rules": [{"scheme": "int8"}]}')],
    "at least one rule": lambda at: ["--recipe", at.json('{"rules": []}'), *at.stats],
    "unknown range method 'x'": lambda at: [
        *("--recipe", at.json('{"rules": [{"scheme": "int8", "range": "x"}]}')),
        *at.stats,
    ],
}


@pytest.mark.parametrize(("words", "make"), WRONG.items(), ids=WRONG)
def test_wrong_input_costs_one_line_and_writes_nothing(run, home, tmp_path, words, make):
    arguments = make(Place(home, tmp_path))
    if not arguments or not isinstance(arguments[0], Path):
        arguments = [home / "model.tflite", *arguments]
    before = set(tmp_path.iterdir())
    assert words in refused(run("quantize", *arguments, "-o", tmp_path / "out.tflite"))
    assert set(tmp_path.iterdir()) == before


def test_where_to_write_has_to_be_said(run, home):
    assert "-o" in refused(run("quantize", home / "model.tflite", *at_home(home, "stats")))


def test_a_folder_that_is_not_there(run, home, tmp_path):
    arguments = ["quantize", home / "model.tflite", "-o", tmp_path / "none" / "out.tflite", *at_home(home, "stats")]
    assert "none" in refused(run(*arguments))
    assert list(tmp_path.iterdir()) == []


# The demo.


def test_the_demo_compares_every_mode(run):
    code, out, err = run("demo")
    assert (code, err) == (0, "")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.startswith("  ")}
    assert set(rows) == {"mode", "float32", *MODES}
    del rows["mode"]
    assert all(float(row[2].rstrip("%")) >= 98 and float(row[3].rstrip("x")) > 0 for row in rows.values())
    sizes = {mode: float(row[0]) for mode, row in rows.items()}
    assert sizes["float32"] > 500 > 3.5 * sizes["int8"]
    assert [rows[mode][-1] for mode in ("float32", "int8", "int16x8")] == ["0.0%", "99.9%", "100.0%"]


def test_the_network_of_the_demo_is_float_throughout():
    model = lenet_model()
    assert {t.dtype.label for t in model.main.tensors} <= {"float32", "int32"}
    assert {op.kind for op in model.main.ops}.isdisjoint({"DEQUANTIZE", "QUANTIZE"})
    assert accuracy(model, digits_data()) == pytest.approx(444 / 450)


def test_tensor_names_in_the_plan_are_those_of_the_model(run, home):
    _, out, _ = run("quantize", home / "model.tflite", *at_home(home, "stats"), "--dry-run")
    known = set(short_names(load(home / "model.tflite")).values())
    assert set(re.findall(r"'([^']+)'", out)) - {"main"} <= known


def test_the_last_line_is_a_verdict(quantize, home):
    out, _ = quantize("--data", home / "data.npz")
    last = out.splitlines()[-1]
    assert re.match(
        r"Verdict +good: classes: the same in \d+ of \d+ .*; error .* of what it varies by \(SNR .* dB\)", last
    )
    out, _ = quantize("--mode", "dynamic", output="dynamic.tflite")
    assert out.splitlines()[-1].startswith("Verdict     unknown: nothing was measured")


def test_check_fails_on_a_broken_result_after_writing_it(run, home, images, tmp_path):
    np.savez(tmp_path / "wrong.npz", np.concatenate([images["calibration"][:60], 3000 * images["calibration"][60:61]]))
    path = tmp_path / "out.tflite"
    code, out, err = run(
        "quantize", home / "model.tflite", "-o", path, "--data", tmp_path / "wrong.npz",
        "--range", "minmax", "--mode", "int8", "--check",
    )  # fmt: skip
    assert code == 1
    assert "BROKEN" in out
    assert err.startswith("check failed: the result is broken")
    assert path.exists()


def test_check_needs_data(run, home, tmp_path):
    code, _, err = run("quantize", home / "model.tflite", "-o", tmp_path / "o.tflite", "--mode", "dynamic", "--check")
    assert code == 2
    assert "--data" in err


def test_the_summary_as_json(run, home, tmp_path):
    output = tmp_path / "out.tflite"
    code, out, err = run("quantize", home / "model.tflite", "-o", output, "--data", home / "data.npz", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert (told["output"], told["bytes"]) == (str(output), output.stat().st_size)
    assert told["verdict"]["level"] == "good"
    assert told["signatures"][0]["inputs"][0]["name"] == "image"
    assert told["ops"]["integer"] > 5
    page = (Path(__file__).parents[1] / "docs" / "quantize-json.md").read_text("utf-8")
    assert all(f"`{name}`" in page for name in told)
    refusal = run("quantize", home / "model.tflite", "--dry-run", "--json", "--data", home / "data.npz")
    assert "omit --json" in refused(refusal)


def test_it_says_what_it_wrote(quantize, home):
    out, path = quantize(*at_home(home, "stats"))
    assert f"Wrote       {path}\n" in out


@pytest.mark.parametrize("pattern", ["CONV2D", "conv2d"])
def test_a_misspelt_pattern_is_refused_before_any_work(run, home, tmp_path, pattern):
    line = ("quantize", home / "model.tflite", "-o", tmp_path / "out.tflite", *at_home(home, "stats"))
    message = refused(run(*line, "--keep-float", pattern))
    assert "did you mean CONV_2D?" in message
    assert "--allow-unmatched" in message


def test_data_or_statistics_not_both(run, home, tmp_path):
    both = ("--data", home / "data.npz", "--stats", home / "model.stats")
    message = refused(run("quantize", home / "model.tflite", "-o", tmp_path / "out.tflite", *both))
    assert "give --data or --stats, not both" in message
