"""Names and characters that commands show: the same short names everywhere, in 80 columns, on plain terminals too."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import zeropoint
from zeropoint.calibration import Range, Ranges
from zeropoint.cli.plain_text import PLAIN, is_plain
from zeropoint.demo import digits_model

from .test_cli_habits import DATA, INT8, MODEL, folder, home, on_a_terminal  # noqa: F401  # fixtures

STEM, WHOLE = "stem_relu_1/Relu", "digits_1/stem_relu_1/Relu"

SHOWING = {
    "inspect": ["inspect", INT8, "--ops"],
    "dry run": ["quantize", MODEL, "--data", DATA, "--effort", "quick", "--dry-run", "--trusted"],
    "compare": ["compare", MODEL, INT8, "--data", DATA, "--top", "0", "--trusted"],
    "trace": ["trace", INT8, "--data", DATA, "--trusted"],
    "check": ["check", MODEL, "--all"],
}


@pytest.mark.parametrize("line", SHOWING.values(), ids=SHOWING)
def test_names_are_the_same_in_all_commands(run, folder, line):  # noqa: F811
    code, out, _ = run(*line)
    assert code in (0, 1)
    assert STEM in out
    told = "\n".join(part for part in out.splitlines() if "in the file:" not in part)
    assert WHOLE not in told
    assert "StatefulPartitionedCall" not in told
    assert "scores" in told or "trace" in line  # which shows integers: the scores are float


@pytest.mark.parametrize("line", SHOWING.values(), ids=SHOWING)
def test_they_fit_into_80_columns(folder, line):  # noqa: F811
    shown = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", on_a_terminal(*line))
    lines = [part.split("\r")[-1] for part in shown.replace("\r\n", "\n").split("\n")]
    assert max(map(len, lines)) <= 80
    assert any(STEM in part for part in lines)


def test_compare_calls_outputs_by_their_signature(run, folder):  # noqa: F811
    _, out, _ = run("compare", MODEL, INT8, "--data", DATA, "--json")
    (output,) = json.loads(out)["outputs"]
    assert (output["name"], output["tensor"]) == ("scores", "StatefulPartitionedCall:0")
    assert zeropoint.compare(digits_model(), INT8, DATA).outputs[0].name == "scores"


def test_errors_call_ops_by_the_same_names(run, folder):  # noqa: F811
    code, _, err = run("quantize", MODEL, "-o", "out.tflite", "--data", DATA, "--strict", "--keep-float", "ADD")
    assert code == 2
    assert "ADD 'residual_1/Add'" in err
    assert WHOLE not in err


def test_python_shows_names_as_the_file_has_them():
    """They are keys there: of statistics, of traces, of models."""
    assert WHOLE in str(zeropoint.quantize(digits_model(), "dynamic", min_elements=0).plan)


TAKING = {
    "kept float": ["quantize", MODEL, "-o", "out.tflite", "--data", DATA, "--effort", "quick", "--keep-float", STEM],
    "a pattern": ["quantize", MODEL, "-o", "out.tflite", "--data", DATA, "--effort", "quick", "--keep-float", "stem_*"],
    "ranges": ["quantize", MODEL, "-o", "out.tflite", "--ranges", "ranges.json", "--data", DATA, "--effort", "quick"],
    "traced": ["trace", INT8, "--data", DATA, "--tensor", STEM, "--at", "0,1,2,3"],
    "filtered": ["inspect", MODEL, "--filter", STEM],
    "edited": ["edit", INT8, "-o", "out.tflite", "--set", f"{STEM}: min=0, max=6"],
}


@pytest.mark.parametrize("line", TAKING.values(), ids=TAKING)
def test_what_is_shown_can_be_given(run, folder, line):  # noqa: F811
    Path("ranges.json").write_text(json.dumps({STEM: {"min": 0, "max": 6}}), "utf-8")
    code, out, err = run(*line)
    assert (code, err) == (0, "")
    assert STEM in out or Path("out.tflite").exists()


def test_edit_lists_changes_by_short_names(run, folder):  # noqa: F811
    _, out, err = run(*TAKING["edited"])
    assert f"{STEM}: int8" in out + err
    assert WHOLE not in out + err


def test_short_names_of_ranges_are_those_of_tensors():
    given = Ranges({STEM: Range(0, 6, "here")}).resolved(zeropoint.load(digits_model()))
    (name,) = given.entries
    assert name.startswith(f"{WHOLE};")


# Terminals that know fewer characters.

PLAIN_LINES = {
    "statistics": ["inspect", "s.stats"],
    "tensors": ["inspect", INT8, "--ops"],
    "summary": ["quantize", MODEL, "-o", "out.tflite", "--data", DATA, "--trusted"],
    "comparison": ["compare", MODEL, INT8, "--data", DATA, "--trusted"],
    "times": ["benchmark", MODEL, INT8, "--rounds", "2", "--quick", "--threads", "1", "--trusted"],
    "help": ["quantize", "--help"],
}
ENCODING, LOCALE = {"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C"}
PLACES = {**{name: (line, ENCODING) for name, line in PLAIN_LINES.items()}, "locale": (PLAIN_LINES["tensors"], LOCALE)}


@pytest.mark.parametrize(("line", "place"), PLACES.values(), ids=PLACES)
def test_plain_terminals_get_readable_text(run, folder, line, place):  # noqa: F811
    run("calibrate", MODEL, "--data", DATA, "-o", "s.stats", "--trusted")
    unset = ("PYTHONIOENCODING", "PYTHONUTF8", "LC_ALL", "LC_CTYPE", "LANG")
    environment = {**{k: v for k, v in os.environ.items() if k not in unset}, **place, "TERM": "dumb", "COLUMNS": "80"}
    done = subprocess.run([sys.executable, "-m", "zeropoint", *line], capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()
    assert not re.search(rb"\?|\\u|\\x", done.stdout)


def test_equivalents_of_characters_are_plain():
    assert all(character.isprintable() and not character.isascii() for character in PLAIN)
    assert all(text.isascii() and text.isprintable() for text in PLAIN.values())


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"LC_ALL": "C"}, True),
        ({"LANG": "POSIX"}, True),
        ({"LC_ALL": "C", "PYTHONIOENCODING": "utf-8"}, False),
        ({"LC_ALL": "de_DE.UTF-8", "LANG": "C"}, False),
        ({"LANG": "C.UTF-8"}, False),
        ({}, False),  # a container that nobody has configured: its terminal is most likely modern
    ],
    ids=str,
)
def test_the_locale_of_c_is_plain(environment, expected):
    assert is_plain(environment) == expected
