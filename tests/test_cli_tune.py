"""`zeropoint tune`: exit codes, what is written where, and that the command it prints makes the same file."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from zeropoint.demo import digits as digits_data
from zeropoint.recipe import preset
from zeropoint.report.tuning import ROWS, plot_lines
from zeropoint.tuning.budget import Budget
from zeropoint.tuning.evaluation import Drop
from zeropoint.tuning.result import Baseline, Scale, Tuned
from zeropoint.tuning.trial import Configuration, Trial

from .test_cli import refused

LINE = ["tune", "model.tflite", "-o", "best.tflite", "--data", "calibration.npz", "--trusted", "--workers", "1"]
SCORED = [*LINE, "--eval", "eval.npz", "--labels", "y.npy"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, digits) -> Path:
    data = digits_data()
    monkeypatch.chdir(tmp_path)
    Path("model.tflite").write_bytes(digits)
    np.savez("calibration.npz", data["calibration"][:40])
    np.savez("eval.npz", data["test_images"][:200])
    np.save("y.npy", data["test_labels"][:200])
    return tmp_path


def test_the_command_that_is_printed_makes_the_same_file(run):
    code, out, err = run(*LINE, "--max-drop", 30, "--trials", 4)
    assert (code, err) == (0, "")
    (line,) = [line.strip() for line in out.splitlines() if line.strip().startswith("zeropoint quantize")]
    best = Path("best.tflite").read_bytes()
    words = shlex.split(line)[1:]
    assert "--limit" in words  # half of the data calibrated
    assert run(*words, "--overwrite", "--quiet")[0] == 0
    assert Path("best.tflite").read_bytes() == best


def test_the_command_that_is_printed_transposes_the_data_as_well(run):
    np.savez("first.npz", np.moveaxis(digits_data()["calibration"][:40], -1, -3))
    line = [word.replace("calibration.npz", "first.npz") for word in LINE]
    code, out, err = run(*line, "--transpose", "--max-drop", 30, "--trials", 1)
    assert (code, err) == (0, "")
    (line,) = [line.strip() for line in out.splitlines() if line.strip().startswith("zeropoint quantize")]
    assert run(*shlex.split(line)[1:], "--overwrite", "--quiet")[0] == 0


def test_the_same_command_goes_on_and_replaces_what_it_wrote(run):
    assert run(*SCORED, "--max-drop", 5, "--trials", 1)[0] == 0
    before = Path("best.tflite").read_bytes()
    code, out, err = run(*SCORED, "--max-drop", 5, "--trials", 2, "--report", "tune.html")
    assert (code, err) == (0, "")
    assert Path("best.tflite").read_bytes() != before
    assert "best: dynamic" in out
    table = out[out.index("what nothing else beats") :].splitlines()
    assert table[1].endswith("  dynamic, chosen")
    page = Path("tune.html").read_text("utf-8")
    assert page.count("<circle") == 2
    assert "scheme = " in page
    assert "http" not in page
    Path("best.tflite").write_bytes(b"mine")
    assert "exists already" in refused(run(*SCORED, "--max-drop", 5, "--trials", 2))


def test_a_budget_that_is_not_met_is_exit_code_1(run):
    code, out, err = run(*SCORED, "--max-drop", 5, "--max-size", 100, "--trials", 2, "--json")
    assert code == 1
    assert err.splitlines()[-1].startswith("check failed: no model keeps the budget; the closest is dynamic")
    assert not json.loads(out)["met"]
    assert not Path("best.tflite").exists()
    code, _, err = run(*SCORED, "--max-drop", 5, "--max-size", 100, "--trials", 2, "--closest")
    assert code == 1
    assert Path("best.tflite").exists()


def test_models_with_the_same_score_are_plotted_in_one_line():
    def lines(losses) -> list[str]:
        trials = tuple(
            Trial(Configuration(str(k), preset("int8")), 100 + k, Drop(0.9, loss, 0.0, 9))
            for k, loss in enumerate(losses)
        )
        scale = Scale("top-1", 0.01, True)
        known = Budget(max_drop=1), "smallest", scale, 0.01, Baseline(400, 0.9), trials, trials[0], None, ()
        return [line for line in plot_lines(Tuned(*known)) if "│" in line]

    assert len(lines([0.0, 0.0])) == 1
    assert len(lines([0.0, 0.5])) == ROWS


def test_a_dry_run_estimates_and_writes_nothing(run, folder):
    before = sorted(folder.iterdir())
    code, out, err = run("tune", "model.tflite", "--data", "calibration.npz", "--max-drop", 1, "--dry-run")
    assert (code, err) == (0, "")
    assert "int8: about 2." in out
    assert "float16: about 1." in out
    assert "training" not in out
    out = run("tune", "model.tflite", "--data", "x.npz", "--max-drop", 1, "--dry-run", "--allow-training")[1]
    assert "training of at most 3" in out
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "budget is empty"),
        (["--max-drop", "lots"], "--max-drop is 'lots'"),
        (["--max-drop", 1, "--smallest", "--fastest"], "contradict"),
        (["--max-drop", 1, "--labels", "eval.npz"], "labels"),
        (["--max-drop", 1, "--labels", "model.tflite"], "cannot read labels"),
        (["--max-drop", 1, "--metric", "none.py:f"], "none.py"),
        (["--max-drop", 1, "--target", "toaster"], "toaster"),
        (["--max-drop", 1, "--store", "model.tflite"], "model.tflite"),
        (["--max-drop", 1, "-o", "model.tflite"], "one of the inputs"),
    ],
    ids=str,
)
def test_bad_use_is_refused_at_once(run, folder, options, words):
    before = sorted(folder.iterdir())
    assert words in refused(run(*SCORED, *options))
    assert sorted(folder.iterdir()) == before


def test_an_output_is_needed(run):
    assert "-o" in refused(run("tune", "model.tflite", "--data", "calibration.npz", "--max-drop", 1))
