"""`zeropoint calibrate` and `zeropoint inspect STATS`, from the command line to the file."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from zeropoint.calibration import Settings, Stats, calibrate
from zeropoint.calibration.collect import collect_stats
from zeropoint.cli.examine import is_stats
from zeropoint.cli.sampled import SampledModel
from zeropoint.report.progress import progress_bar
from zeropoint.report.terminal import BLOCKS, print_stats, sketch
from zeropoint.sources.data import Data
from zeropoint.tflite import save

from .. import build
from .facts import exact

IMAGES = np.random.default_rng(0).normal(size=(20, 4, 4, 1)).astype(np.float32)

SCRIPT = """
import os, signal
import numpy as np

def good():
    return [np.full((1, 4, 4, 1), k, np.float32) for k in range(5)]

def broken():
    yield from good()
    raise OSError("disk on fire")

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore interrupts

def interrupted():
    yield from good()
    os.kill(os.getpid(), signal.SIGINT)
    yield from good()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The working folder, with a model and data."""
    monkeypatch.chdir(tmp_path)
    save(build.float_cnn(), "m.tflite")
    save(build.quantized_cnn(), "int8.tflite")
    save(build.branches(), "two.tflite")
    np.savez("d.npz", image=IMAGES)
    np.save("d.npy", IMAGES)
    np.save("nan.npy", np.full_like(IMAGES, np.nan))
    Path("mine.py").write_text(SCRIPT)
    return tmp_path


def expected(samples: object, settings: Settings | None = None) -> dict[str, object]:
    return exact(calibrate(build.float_cnn(), samples, settings))


def test_the_file_holds_what_python_measures(run, folder):
    code, out, err = run("calibrate", "m.tflite", "--data", "d.npz", "-o", "a.stats")
    assert (code, out, err) == (0, "a.stats  8 tensors on 20 samples\n", "")
    assert exact(Stats.load("a.stats")) == expected(list(IMAGES[:, None]))


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (["--limit", 7], Settings(limit=7)),
        (["--workers", 1], Settings(workers=1)),
        (["--quick"], Settings(histograms=False)),
        (["--keep-state", "--allow-nonfinite"], Settings(keep_state=True, allow_nonfinite=True)),
        (["--reset-state"], Settings(keep_state=False)),
        (["--signature", "serving_default"], Settings()),
    ],
    ids=str,
)
def test_options_are_settings(run, folder, options, settings):
    assert run("calibrate", "m.tflite", "--data", "d.npy", "-o", "a.stats", *options)[0] == 0
    assert exact(Stats.load("a.stats")) == expected(list(IMAGES[:, None]), settings)


def test_a_function_and_its_notes(run, folder):
    code, out, _ = run("calibrate", "m.tflite", "--data", "mine.py:good", "-o", "a.stats")
    assert (code, out.splitlines()[0]) == (0, "a.stats  8 tensors on 5 samples")
    assert "there are 5 samples" in out
    Path("mine.py").write_text("def batch():\n    import numpy\n    yield numpy.zeros((3, 4, 4, 1), 'uint8')\n")
    _, out, _ = run("calibrate", "m.tflite", "--data", "mine.py:batch", "-o", "b.stats")
    assert [line for line in out.splitlines() if not line.startswith("Warning")] == [
        "b.stats  8 tensors on 1 sample",
        "note: input 'in0': uint8 values were converted to float32, unscaled",
        "note: samples are batches; they are fed row by row",
    ]


GOOD = {"--data": "d.npz", "-o": "a.stats"}
WRONG: dict[str, tuple[str, dict[str, object], str]] = {
    "no model": ("none.tflite", GOOD, "none.tflite"),
    "no data": ("m.tflite", {**GOOD, "--data": "none.npz"}, "cannot read none.npz"),
    "data of another kind": ("m.tflite", {**GOOD, "--data": "m.tflite"}, "cannot read samples from m.tflite"),
    "an exception in the data": ("m.tflite", {**GOOD, "--data": "mine.py:broken"}, "OSError while making sample 5"),
    "no function": ("m.tflite", {**GOOD, "--data": "mine.py:none"}, "has no function 'none'"),
    "NaN": ("m.tflite", {**GOOD, "--data": "nan.npy"}, "sample 0 makes 16 of 16 values of 'in0' NaN or infinite"),
    "a quantized model": ("int8.tflite", {**GOOD, "--data": "mine.py:good"}, "quantized already"),
    "an unknown signature": ("m.tflite", {**GOOD, "--signature": "none"}, "no signature 'none'"),
    "several signatures": ("two.tflite", {**GOOD, "--data": "mine.py:good"}, "several signatures"),
    "normalization without images": ("m.tflite", {**GOOD, "--scale": 2}, "are for folders of images"),
    "a scale that is none": ("m.tflite", {**GOOD, "--scale": "1/0"}, "'1/0' is not a number, or a quotient"),
    "a mean that is none": ("m.tflite", {**GOOD, "--mean": "a,b"}, "is not a number"),
    "an output that exists": ("m.tflite", {**GOOD, "-o": "nan.npy"}, "nan.npy exists already"),
    "an output that is an input": ("m.tflite", {**GOOD, "-o": "d.npz"}, "d.npz is one of the inputs"),
    "an output that is a folder": ("m.tflite", {**GOOD, "-o": "."}, "is a folder"),
    "an output in no folder": ("m.tflite", {**GOOD, "-o": "none/a.stats"}, "there is no folder none"),
}


@pytest.mark.parametrize(("model", "options", "message"), WRONG.values(), ids=WRONG)
def test_wrong_use_costs_one_line_and_writes_nothing(run, folder, model, options, message):
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    code, out, err = run("calibrate", model, *(word for pair in options.items() for word in pair))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


@pytest.mark.parametrize("options", [["--limit", 0], ["--workers", 0], ["--data", "d.npz"], ["-o", "x"]], ids=str)
def test_options_that_make_no_sense_exit_with_2(run, folder, options):
    given = ["calibrate", "m.tflite", *options]
    given += ["--data", "d.npz", "-o", "a.stats"] if options[0] in ("--limit", "--workers") else []
    assert run(*given)[0] == 2
    assert not Path("a.stats").exists()


def test_an_output_is_replaced_if_asked(run, folder):
    Path("a.stats").write_bytes(b"old")
    assert run("calibrate", "m.tflite", "--data", "d.npz", "-o", "a.stats", "--overwrite")[0] == 0
    assert Stats.load("a.stats").samples == 20


def test_an_interrupt_leaves_no_file(folder):
    before = sorted(folder.iterdir())
    command = [sys.executable, "-m", "zeropoint", "calibrate", "m.tflite", "--data", "mine.py:interrupted"]
    done = subprocess.run([*command, "-o", "a.stats"], capture_output=True, check=False)
    assert done.returncode == 130
    assert b"Traceback" not in done.stderr
    assert sorted(folder.iterdir()) == before


# Showing statistics.


def test_inspect_shows_a_table(run, folder):
    run("calibrate", "m.tflite", "--data", "d.npz", "-o", "a.stats")
    code, out, err = run("inspect", "a.stats")
    lines = out.splitlines()
    assert (code, err, lines[0]) == (0, "", "a.stats  8 tensors on 20 samples")
    stats = Stats.load("a.stats")
    assert [line.strip() for line in lines[2::2]] == list(stats.tensors)
    for line, t in zip(lines[3::2], stats.tensors.values(), strict=True):
        low, high, mean, *samples = re.findall(r"-?[\d.]+(?:e-?\d+)?", line.rstrip(BLOCKS))
        assert (float(low), float(high)) == pytest.approx((t.low.value, t.high.value), rel=1e-4)
        assert float(mean) == pytest.approx(t.mean, rel=1e-3)
        assert [int(k) for k in samples] == [t.low.sample, t.high.sample]
        assert line.endswith(sketch(t.histogram).rstrip())


def test_the_table_fits_a_terminal():
    stats = calibrate(build.float_cnn(), [x[None] * 1e-9 for x in IMAGES] * 6)
    console = Console(force_terminal=True, width=80, record=True, file=io.StringIO())
    print_stats(stats, "a.stats", console)
    lines = console.export_text().splitlines()
    assert len(lines) == 2 + 2 * len(stats.tensors)
    assert max(map(len, lines)) <= 80


def test_nonfinite_values_and_missing_means_are_shown(capsys):
    sample = IMAGES[:1].copy()
    sample[0, 0] = np.nan
    settings = Settings(allow_nonfinite=True, histograms=False)
    print_stats(calibrate(build.float_cnn(), [sample], settings), "a.stats", Console())
    out = capsys.readouterr().out
    assert "4 values were NaN or infinite" in out
    assert " - " in out


def test_a_damaged_file_is_one_line(run, folder):
    Path("a.stats").write_bytes(Path("d.npz").read_bytes()[:100])
    code, out, err = run("inspect", "a.stats")
    assert (code, out) == (2, "")
    assert err.startswith("error: a.stats is not a statistics file, or is damaged")
    assert err.count("\n") == 1


def test_statistics_are_told_from_models(folder):
    assert is_stats(Path("d.npz"))
    assert not is_stats(Path("m.tflite"))
    assert not is_stats(Path("none"))
    assert not is_stats(folder)


def test_a_sketch_is_high_where_the_values_are():
    rng = np.random.default_rng(0)
    peak = calibrate(build.dynamic(), [np.clip(rng.normal(0, 0.1, (1, 3)), -1, 1) for _ in range(300)])
    drawn = sketch(peak.tensors["x"].histogram)
    assert len(drawn) == 24
    assert drawn[11] == drawn[12] == BLOCKS[-1]
    quick = calibrate(build.dynamic(), [np.ones((1, 3))], Settings(histograms=False))
    assert sketch(quick.tensors["x"].histogram) == ""


# Progress.


@pytest.mark.parametrize("count", [None, 20])
@pytest.mark.parametrize("limit", [None, 5])
def test_progress_ends_at_the_number_of_runs(count, limit, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "zeropoint.bench.bench.collect_stats",
        lambda *given, progress, **named: collect_stats(
            *given, progress=lambda done: (seen.append(done), progress(done)), **named
        ),
    )
    source = SampledModel(build.float_cnn(), Data(list(IMAGES[:, None]), count))
    source.calibrate(Settings(limit=limit), Console())
    assert seen[-1] == (limit or 20)


def test_a_bar_shows_rate_and_time_left(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with progress_bar("calibrating", 4, "samples", Console()) as report:
        for done in range(1, 4):
            report(done)
    out, err = capsys.readouterr()
    assert out == ""
    for part in ("calibrating", "3/4", "samples/s", "0:00:0"):
        assert part in err


def test_nothing_is_drawn_when_piped(capsys):
    with progress_bar("calibrating", 4, "samples", Console()) as report:
        report(2)
    assert capsys.readouterr() == ("", "")
