"""The command line: what it prints, and that bad input costs one line and exit code 2."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import zeropoint
from zeropoint.tflite import load, save, to_bytes

from . import build
from .tflite.attacks import ATTACKS


@pytest.fixture
def quantized(tmp_path) -> Path:
    path = tmp_path / "quantized.tflite"
    save(build.quantized_cnn(), path)
    return path


def outside(*arguments: object, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """The CLI in a process of its own, with its output in pipes."""
    command = [sys.executable, "-m", "zeropoint", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, env={**os.environ, **environment}, check=False)


# Bad input.


def wrong_identifier(model: bytes) -> bytes:
    return model[:4] + b"TFL2" + model[8:]


def newline_in_a_name(model: bytes) -> bytes:
    """A broken graph whose tensors have names that would take more than a line, and colour it."""
    loaded = load(model)
    for tensor in loaded.main.tensors:
        tensor.name = "a\nb\x1b[31m\r"
    content = bytearray(to_bytes(loaded))
    at = content.index(np.array([32, 3, 3, 16], np.int32).tobytes())
    content[at : at + 4] = b"\x21\0\0\0"
    return bytes(content)


CONTENTS: dict[str, Callable[[bytes], bytes]] = {
    "not a model": lambda _: b"PK\x03\x04 this is a zip file, or so it says",
    "text": lambda _: b"hello\n",
    "short": lambda _: b"\0",
    "empty": lambda _: b"",
    "truncated": lambda model: model[: len(model) // 2],
    "truncated in the header": lambda model: model[:10],
    "random": lambda _: np.random.default_rng(0).bytes(5000),
    "random with the identifier": lambda _: b"\x20\0\0\0TFL3" + np.random.default_rng(1).bytes(5000),
    "wrong identifier": wrong_identifier,
    "offsets outside": lambda model: b"\xff\xff\xff\x7f" + model[4:],
    "control characters": newline_in_a_name,
    "bomb": lambda _: ATTACKS["ops in graphs"][0](5000),
}


def refused(result: tuple[int, str, str]) -> str:
    """Exit code 2, nothing on stdout, one line on stderr; that line."""
    code, out, err = result
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.endswith("\n")
    assert err[:-1].isprintable()
    return err


@pytest.mark.parametrize("make", CONTENTS.values(), ids=CONTENTS.keys())
def test_a_bad_file_costs_one_line(tmp_path, digits, run, make):
    path = tmp_path / "bad.tflite"
    path.write_bytes(make(digits))
    for options in ([], ["--json"], ["--ops"]):
        assert str(path) in refused(run("inspect", path, *options))


def folder(path: Path) -> None:
    path.mkdir()


def missing(path: Path) -> None:
    assert not path.exists()


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b"\x1c\0\0\0TFL3")
        file.truncate(2**31 + 8)  # sparse: takes no space


def pipe(path: Path) -> None:
    os.mkfifo(path)


def below_a_file(path: Path) -> None:
    path.parent.rmdir()
    path.parent.write_bytes(b"a file")


PLACES = {
    folder: "is a folder",
    missing: "no such file",
    huge: "over 2 GB",
    pipe: "not a regular file",
    below_a_file: "not a directory",
}


@pytest.mark.parametrize(("make", "words"), PLACES.items(), ids=lambda p: getattr(p, "__name__", ""))
def test_what_is_no_file_costs_one_line(tmp_path, run, make, words):
    path = tmp_path / "in" / "bad.tflite"
    path.parent.mkdir()
    make(path)
    assert words in refused(run("inspect", path))


def test_no_permission_costs_one_line(quantized, run, monkeypatch):
    def denied(*given: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(np, "fromfile", denied)
    assert "permission denied" in refused(run("inspect", quantized))


def test_another_process_says_the_same(tmp_path):
    path = tmp_path / "bad.tflite"
    path.write_bytes(b"nonsense")
    result = outside("inspect", path)
    refused((result.returncode, result.stdout.decode(), result.stderr.decode()))


@pytest.mark.parametrize("arguments", [["inspect"], ["no-such-command"], ["inspect", "x", "--no-such-option"]], ids=str)
def test_bad_use_is_exit_code_2(run, arguments):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert "Traceback" not in err


# Good input.


def test_inspect_prints_what_people_know_from_netron(run, quantized):
    code, out, err = run("inspect", quantized)
    assert (code, err) == (0, "")
    assert "-1.6488 ≤ 0.012566 * (q - 3) ≤ 1.5555" in out
    assert "100.0% integer" in out
    assert "\x1b" not in out


def test_inspect_shows_as_much_as_asked(run, quantized):
    printed = [run("inspect", quantized, *o)[1] for o in (["--summary"], [], ["--ops"], ["--ops", "--channels"])]
    assert [len(text) for text in printed] == sorted({len(text) for text in printed})
    assert all(text.startswith(printed[0]) for text in printed)


def test_inspect_filters(run, quantized):
    _, out, _ = run("inspect", quantized, "--json", "--filter", "*CONV*")
    shown = json.loads(out)
    assert [t["name"] for t in shown["tensors"]] == ["conv/w", "conv/b", "conv"]
    assert [o["kind"] for o in shown["ops"]] == ["CONV_2D"]


@pytest.mark.parametrize("options", [[], ["--ops", "--channels"], ["--summary"]], ids=str)
def test_json_is_everything_that_python_gives(run, quantized, options):
    code, out, _ = run("inspect", quantized, "--json", *options)
    assert code == 0
    model = zeropoint.load(quantized)
    assert json.loads(out) == zeropoint.inspect(model, quantized.stat().st_size).to_json()


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "cp1252"])
@pytest.mark.parametrize("options", [["--ops"], ["--json"]], ids=str)
def test_any_name_fits_through_any_pipe(tmp_path, encoding, options):
    path = tmp_path / "names.tflite"
    save(build.names(), path)
    result = outside("inspect", path, *options, PYTHONIOENCODING=encoding)
    assert (result.returncode, result.stderr) == (0, b"")
    assert b"\x1b" not in result.stdout


def test_version_and_help(run):
    assert run("--version") == (0, f"{zeropoint.__version__}\n", "")
    code, out, _ = run("--help")
    assert code == 0
    assert "inspect" in out


# What is neither a file nor a folder.

NO_FILES = {
    "model": ["inspect", "{}"],
    "data": ["calibrate", "model.tflite", "-o", "out", "--data", "{}.npz"],
    "array": ["calibrate", "model.tflite", "-o", "out", "--data", "{}.npy"],
    "script": ["calibrate", "model.tflite", "-o", "out", "--data", "{}.py:f"],
    "stats": ["quantize", "model.tflite", "-o", "out", "--stats", "{}"],
    "ranges": ["quantize", "model.tflite", "-o", "out", "--ranges", "{}"],
    "recipe": ["quantize", "model.tflite", "-o", "out", "--recipe", "{}.json"],
}


@pytest.mark.parametrize("line", NO_FILES.values(), ids=NO_FILES)
def test_a_pipe_or_a_device_is_not_opened(run, tmp_path, digits, monkeypatch, line):
    """A pipe would wait for its writer, and a device may have no end."""
    monkeypatch.chdir(tmp_path)
    Path("model.tflite").write_bytes(digits)
    for suffix in ("", ".npz", ".npy", ".py", ".json"):
        os.mkfifo(f"pipe{suffix}")
        Path(f"device{suffix}").symlink_to("/dev/zero")
    signal.alarm(60)  # rather than waiting for ever, should this be wrong
    try:
        for name in ("pipe", "device"):
            refused(run(*(word.format(name) for word in line)))
    finally:
        signal.alarm(0)


def test_images_that_are_pipes_are_left_out(run, tmp_path, digits, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("model.tflite").write_bytes(digits)
    Path("photos").mkdir()
    os.mkfifo("photos/a.png")
    assert "holds no images" in refused(run("calibrate", "model.tflite", "-o", "out", "--data", "photos"))
