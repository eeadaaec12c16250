"""What all commands have in common: exit codes, --quiet and --verbose, pipes and terminals, examples, interrupts."""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import typer.main

import zeropoint
from zeropoint.cli import app
from zeropoint.demo import digits as digits_data
from zeropoint.tflite import save

from .diagnosis.faults import narrow_range
from .test_cli import outside, refused

GROUP = typer.main.get_command(app)
COMMANDS = GROUP.commands  # type: ignore[attr-defined]  # a group has them

SCRIPT = """
import os, signal
import numpy as np

def good():
    return [np.full((1, 8, 8, 1), k / 5, np.float32) for k in range(5)]

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore interrupts

def interrupted():
    yield from good()
    os.kill(os.getpid(), signal.SIGINT)
    yield from good() * 20

def score(outputs):
    return 0.5
"""

MODEL, INT8, DATA = "model.tflite", "int8.tflite", "samples.npz"
LINES: dict[str, list[str]] = {
    "inspect": [MODEL],
    "calibrate": [MODEL, "--data", DATA, "-o", "out.stats"],
    "quantize": [MODEL, "--data", DATA, "-o", "out.tflite", "--effort", "quick"],
    "tune": [MODEL, "--data", DATA, "-o", "out.tflite", "--max-drop", "60", "--trials", "1", "--workers", "1"],
    "train": [MODEL, "--data", DATA, "-o", "out.tflite", "--steps", "2"],
    "compare": [MODEL, INT8, "--data", DATA],
    "doctor": [MODEL, INT8, "--data", DATA],
    "trace": [INT8, "--data", DATA],
    "check": [MODEL],
    "targets": [],
    "report": [MODEL, "-o", "page.html"],
    "benchmark": [MODEL, "--rounds", "2", "--quick", "--threads", "1"],
    "export": [INT8, "--c", "firmware"],
    "edit": [INT8, "-o", "out.tflite", "--set", "*/Mean: min=0, max=6"],
    "demo": [],
}
"""A good use of every command."""

WRITERS = ("calibrate", "quantize", "tune", "report", "export", "edit")
"""Their result is a file, or a folder. So is that of `train`, which the tests of training run."""

QUICK = [name for name in LINES if name != "train"]
WITH_MODEL = [name for name in LINES if name not in ("demo", "targets")]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def home(tmp_path_factory, digits) -> Path:
    folder = tmp_path_factory.mktemp("home")
    images = digits_data()["calibration"][:20]
    (folder / MODEL).write_bytes(digits)
    np.savez(folder / DATA, images)
    zeropoint.quantize(digits, data=[image[None] for image in images]).save(folder / INT8)
    (folder / "mine.py").write_text(SCRIPT, "utf-8")
    return folder


@pytest.fixture
def folder(home, tmp_path, monkeypatch) -> Path:
    """The working folder, with a model, a quantized one and data."""
    for path in home.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def anywhere(run: Run, command: str, *arguments: object) -> tuple[int, str, str]:
    """In this process, except for training: frameworks want to be loaded in one of their own."""
    if command != "train":
        return run(command, *arguments)
    done = outside(command, *arguments)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


# Exit codes.


def test_every_command_is_tried_here():
    assert set(LINES) == set(COMMANDS)


@pytest.mark.parametrize("command", LINES)
def test_an_unknown_option_is_bad_use(run, folder, command):
    code, out, err = run(command, *LINES[command], "--no-such-option")
    assert (code, out) == (2, "")
    assert "no-such-option" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("command", WITH_MODEL)
@pytest.mark.parametrize("content", [None, b"", b"hello\n"], ids=["missing", "empty", "text"])
def test_a_bad_model_is_bad_input(run, folder, command, content):
    if content is not None:
        Path("bad.tflite").write_bytes(content)
    before = contents(folder)
    assert "bad.tflite" in refused(anywhere(run, command, "bad.tflite", *LINES[command][1:]))
    assert contents(folder) == before


@pytest.mark.parametrize("command", [name for name in LINES if "--data" in LINES[name]])
@pytest.mark.parametrize("data", ["none.npz", "mine.py:none", "mine.py", "."])
def test_bad_data_is_bad_input(run, folder, command, data):
    given = [data if word == DATA else word for word in LINES[command]]
    before = contents(folder)
    assert data.partition(":")[0] in refused(anywhere(run, command, *given))
    assert contents(folder) == before


@pytest.mark.parametrize("command", ["calibrate", "quantize"])
@pytest.mark.parametrize(
    ("output", "words"),
    [
        (MODEL, "one of the inputs"),
        (f"./{DATA}", "one of the inputs"),
        (os.devnull, "not a regular file"),
        ("none/out", "no folder"),
        (".", "is a folder"),
    ],
)
def test_an_output_that_cannot_be_is_refused_at_once(run, folder, command, output, words):
    given = [*LINES[command], "-o", output, "--overwrite"]
    before = contents(folder)
    assert words in refused(run(command, *given))
    assert contents(folder) == before


@pytest.mark.parametrize("given", ["MODEL", "--data", "-o"])
def test_links_in_a_circle_are_bad_input(run, folder, given):
    Path("circle.npz").symlink_to("circle.npz")
    line = dict(zip(["MODEL", "--data", "-o"], LINES["calibrate"][0:1] + LINES["calibrate"][2::2], strict=True))
    line[given] = "circle.npz"
    err = refused(run("calibrate", line["MODEL"], "--data", line["--data"], "-o", line["-o"]))
    assert "circle.npz" in err


def test_a_folder_without_permission_is_refused_at_once(run, folder, monkeypatch):
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)
    assert "no permission" in refused(run("calibrate", *LINES["calibrate"]))


def test_two_outputs_need_two_names(run, folder):
    line = [*LINES["doctor"], "--apply", "same", "--save-recipe", "same"]
    assert "same" in refused(run("doctor", *line))


def test_models_in_the_wrong_order_are_noticed(run, folder):
    assert "float model first" in refused(run("compare", INT8, MODEL, "--data", DATA))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--min-snr", 150], "--min-snr asks for 150"),
        (["--metric", "mine.py:score", "--min-metric", 0.75], "score is 0.5, --min-metric asks for 0.75"),
        (["--min-snr", 150, "--json"], "--min-snr"),
    ],
    ids=str,
)
def test_a_failed_check_is_exit_code_1(run, folder, options, words):
    code, out, err = run("compare", *LINES["compare"], *options)
    assert code == 1
    assert out  # the comparison is shown all the same
    assert err.startswith("check failed: ")
    assert words in err


def test_a_check_that_holds_is_exit_code_0(run, folder):
    checks = ["--min-snr", 10, "--min-agreement", 0.5, "--metric", "mine.py:score", "--min-metric", 0.5]
    code, _, err = run("compare", *LINES["compare"], *checks)
    assert (code, err) == (0, "")
    code, _, err = run("doctor", *LINES["doctor"], "--check")
    assert (code, err) == (0, "")


def test_the_doctor_can_be_a_check(run, folder):
    patient = narrow_range()
    save(patient.model, "float.tflite")
    save(patient.quantized, "spoilt.tflite")
    np.save("data.npy", np.concatenate([x for (x,) in patient.data]))
    line = ["doctor", "float.tflite", "spoilt.tflite", "--data", "data.npy"]
    code, out, err = run(*line, "--check")
    assert code == 1
    assert "[clipping]" in out
    assert err.startswith("check failed: accuracy is lost to clipping")
    assert run(*line)[0] == 0


def test_a_check_without_anything_to_look_at_is_bad_use(run, folder):
    assert "--metric" in refused(run("compare", *LINES["compare"], "--min-metric", 0.5))


def broken(*arguments: object) -> None:
    raise TypeError("two\nlines")


def test_a_bug_of_ours_is_no_failed_check(run, folder, monkeypatch):
    monkeypatch.setattr("zeropoint.report.inspection.inspect", broken)
    code, out, err = run("inspect", MODEL)
    assert (code, out) == (70, "")
    assert err.startswith("internal error: TypeError: two\n")
    assert "Traceback" not in err
    code, out, err = run("inspect", MODEL, "--verbose")
    assert (code, out) == (70, "")
    assert "in broken" in err


@pytest.mark.parametrize(
    ("error", "words"),
    [(MemoryError(), "not enough memory"), (OSError(28, "No space left on device"), "no space left on device")],
    ids=str,
)
def test_what_the_machine_refuses_is_no_bug(run, folder, monkeypatch, error, words):
    def refuse(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("zeropoint.report.inspection.inspect", refuse)
    assert words in refused(run("inspect", MODEL))


# --quiet and --verbose.


@pytest.mark.parametrize("command", QUICK)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_quiet_leaves_results_only(run, folder, command, after):
    line = [command, *LINES[command]]
    code, out, err = run(*line, "--quiet") if after else run("-q", *line)
    assert (code, err) == (0, "")
    assert (out == "") == (command in WRITERS)
    assert "Note" not in out
    if command in WRITERS:
        more = 2 if command == "tune" else 0  # the recipe, and the folder with the trials
        assert len(list(folder.iterdir())) == 5 + more


def test_quiet_hides_notes_and_no_more(run, folder):
    loud, still = (run("benchmark", MODEL, "--rounds", 2, *more)[1] for more in ([], ["--quiet"]))
    assert "Note" in loud
    assert "Note" not in still
    assert MODEL in still


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_verbose_adds_to_stderr_alone(run, folder, after):
    usual = run("inspect", MODEL)
    line = ["inspect", MODEL]
    code, out, err = run(*line, "-v") if after else run("--verbose", *line)
    assert (code, out) == usual[:2]
    first, last = err.splitlines()
    assert first.startswith(f"zeropoint {zeropoint.__version__}, Python {sys.version_info[0]}.")
    assert "ai-edge-litert" in first
    assert re.match(r"took \d+\.\d\d s", last)


def test_verbose_shows_where_data_of_the_user_failed(run, folder):
    Path("mine.py").write_text("def bad():\n    yield 1 / 0\n", "utf-8")
    line = ["calibrate", MODEL, "--data", "mine.py:bad", "-o", "out.stats"]
    code, _, err = run(*line)
    assert (code, err.count("\n")) == (2, 1)
    code, _, err = run(*line, "--verbose")
    assert code == 2
    assert "yield 1 / 0" in err


def test_quiet_and_verbose_at_once_make_no_sense(run, folder):
    assert "--verbose" in refused(run("--quiet", "inspect", MODEL, "--verbose"))


# Pipes and terminals.

PLAIN = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "NO_COLOR")}
COLOUR = re.compile(r"\x1b\[[\d;]*(?<!\d)(?:[34]\d|9\d)[\d;]*m")


def on_a_terminal(*arguments: str, **environment: str) -> str:
    """All that a terminal of 80 columns is sent."""
    ours, theirs = pty.openpty()
    env = {**PLAIN, "TERM": "xterm-256color", "COLUMNS": "80", **environment}
    command = [sys.executable, "-m", "zeropoint", *arguments]
    shown = b""
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:  # how Linux says that the other end is closed
            pass
        assert process.wait() in (0, 2)
    os.close(ours)
    return shown.decode()


SHOWN = {
    "results": ["inspect", MODEL],
    "help": ["compare", "--help"],
    "bad use": ["inspect"],
    "summary": ["quantize", MODEL, "-o", "out.tflite", "--data", DATA],
}


@pytest.mark.parametrize("line", SHOWN.values(), ids=SHOWN)
def test_no_color_is_respected(folder, line):
    def shown(**environment: str) -> str:
        Path("out.tflite").unlink(missing_ok=True)
        return on_a_terminal(*line, **environment)

    assert "\x1b[" in shown()
    assert not COLOUR.search(shown(NO_COLOR="1"))
    assert "\x1b" not in shown(TERM="dumb")


def test_colours_are_used_where_they_are_welcome(folder):
    assert COLOUR.search(on_a_terminal("inspect", MODEL))


def test_progress_is_shown_on_a_terminal_unless_quiet(folder):
    line = ["calibrate", MODEL, "--data", DATA, "-o"]
    assert "calibrating" in on_a_terminal(*line, "a.stats")
    assert on_a_terminal(*line, "b.stats", "--quiet") == ""
    assert Path("b.stats").exists()


@pytest.mark.parametrize("line", SHOWN.values(), ids=SHOWN)
def test_a_pipe_gets_plain_text(folder, line):
    done = subprocess.run([sys.executable, "-m", "zeropoint", *line], capture_output=True, env=PLAIN, check=False)
    assert done.stdout + done.stderr
    assert b"\x1b" not in done.stdout + done.stderr
    assert b"calibrating" not in done.stderr


LEAVING = {
    "text": (["inspect", MODEL, "--ops", "--channels"], 0),
    "json": (["inspect", MODEL, "--json"], 0),
    "help": (["--help"], 0),
    "version": (["--version"], 0),
    "error": (["inspect", "none"], 2),
    "check": (["compare", MODEL, INT8, "--data", DATA, "--min-snr", "150"], 1),
    "file": (["quantize", MODEL, "--mode", "dynamic", "-o", "out.tflite"], 0),
}


@pytest.mark.parametrize(("line", "code"), LEAVING.values(), ids=LEAVING)
def test_a_reader_that_leaves_early_changes_nothing(folder, line, code):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-m", "zeropoint", *line], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert done.returncode == code
    assert (done.stderr == b"") == (code == 0)
    assert Path("out.tflite").exists() == ("out.tflite" in line)


def test_a_closed_stdout_is_no_error(folder):
    command = shlex.join(
        [sys.executable, "-m", "zeropoint", "quantize", MODEL, "--mode", "dynamic", "-o", "out.tflite"]
    )
    done = subprocess.run(f"{command} >&-", shell=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert zeropoint.load("out.tflite").main.ops


# Help.


def examples(command: str) -> list[str]:
    """Lines of the help, as a shell would take them."""
    title, *lines = COMMANDS[command].epilog.splitlines()
    assert title == "Examples:"
    return "\n".join(lines).replace("\\\n", " ").splitlines()


def parse(line: str) -> str:
    """Parse a line for a shell and run nothing; the name of the command."""
    program, *arguments = shlex.split(line.partition(" | ")[0], comments=True)
    assert program == "zeropoint"
    with GROUP.make_context(program, list(arguments)) as context:
        name, command, rest = GROUP.resolve_command(context, arguments)  # type: ignore[attr-defined]
        with command.make_context(name, rest, parent=context):
            return str(name)


@pytest.mark.parametrize("command", LINES)
def test_every_example_can_be_typed(command):
    lines = examples(command)
    assert lines
    assert {parse(line) for line in lines} == {command}


def test_an_example_with_a_mistake_would_be_noticed():
    with pytest.raises(Exception, match="no-such"):
        parse("zeropoint inspect model.tflite --no-such")


@pytest.mark.parametrize("command", LINES)
def test_help_shows_the_examples_unbroken(run, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = run(command, "--help")
    assert (code, err) == (0, "")
    printed = [line.rstrip() for line in out.splitlines()]
    for line in COMMANDS[command].epilog.splitlines():
        assert f" {line}" in printed
    assert "…" not in out  # nothing is cut off
    assert "<bool>" not in out
    assert all(f"--{name}" in out for name in ("quiet", "verbose"))


@pytest.mark.parametrize("command", LINES)
def test_python_minus_m_is_the_same(command):
    done = outside(command, "--help", COLUMNS="80")
    assert (done.returncode, done.stderr) == (0, b"")
    assert f"python -m zeropoint {command}" in done.stdout.decode()


def test_the_help_of_all_commands_names_no_types(run):
    assert "<bool>" not in run("--help")[1]


@pytest.mark.parametrize("command", LINES)
def test_no_part_of_a_help_text_is_taken_for_markup(command):
    texts = [COMMANDS[command].help, *(getattr(p, "help", None) for p in COMMANDS[command].params)]
    assert not [text for text in texts if re.search(r"\[[a-z#/@]", text or "")]  # Rich prints none of "[default: 60]"


def test_help_tells_the_exit_codes(run):
    assert "Exit codes: 0 success, 1 a check failed, 2 bad usage" in run("--help")[1]


# Interrupts.


@pytest.mark.parametrize("command", ["calibrate", "quantize", "tune", "compare", "doctor"])
def test_an_interrupt_leaves_no_file(folder, command):
    given = ["mine.py:interrupted" if word == DATA else word for word in LINES[command]]
    before = contents(folder)
    done = outside(command, *given)
    assert done.returncode == 130
    assert done.stdout == b""
    assert done.stderr == b"interrupted; no file was left half-written\n"
    assert contents(folder) == before


LISTENING = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import zeropoint.__main__ as m; m.run()"
)
"""The command line where interrupts are not ignored, as they are in what a shell runs in the background."""


def test_an_interrupt_from_outside(folder):
    command = [sys.executable, "-c", LISTENING, "benchmark", MODEL, "--rounds", "1000000000", "--verbose"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith(b"zeropoint ")  # it has begun
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130
    assert err.endswith(b"interrupted; no file was left half-written\n")


def test_an_interrupt_in_a_native_module_is_still_an_interrupt(run, folder, monkeypatch):
    def load(*arguments: object) -> None:
        raise ImportError("initialization failed") from KeyboardInterrupt()

    monkeypatch.setattr("zeropoint.report.inspection.inspect", load)
    assert run("inspect", MODEL) == (130, "", "interrupted; no file was left half-written\n")
