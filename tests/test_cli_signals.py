"""Signals and scarce memory: no half-written file, no traceback, and the exit codes that shells know."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from zeropoint.cli.signals import Terminated, orderly_end
from zeropoint.demo import digits as digits_data
from zeropoint.errors import RuntimeFailure

STRIKE = """
import os, signal, sys, threading, time
import zeropoint

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore interrupts
number, moment = int(sys.argv.pop(1)), float(sys.argv.pop(1)) + time.process_time()

def strike():
    begun.wait()
    while time.process_time() < moment:
        time.sleep(0.0005)
    os.kill(os.getpid(), number)

begun = threading.Event()
threading.Thread(target=strike, daemon=True).start()
from zeropoint.__main__ import run
begun.set()
run()
"""
"""The command line in a process that signals itself after some of its own time, however busy the machine is."""


@pytest.fixture
def line(tmp_path, digits) -> list[str]:
    (tmp_path / "model.tflite").write_bytes(digits)
    np.savez(tmp_path / "samples.npz", digits_data()["calibration"][:20])
    names = ["model.tflite", "--data", "samples.npz", "-o", "out.tflite"]
    return ["quantize", *(str(tmp_path / n) if "." in n else n for n in names)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
@pytest.mark.parametrize("moment", [0.0, 0.06, 0.15, 0.3, 0.5])
def test_a_signal_at_any_moment_is_an_orderly_end(tmp_path, line, number, moment):
    command = [sys.executable, "-c", STRIKE, str(int(number)), str(moment), *line]
    done = subprocess.run(command, capture_output=True, check=False)
    assert b"Traceback" not in done.stderr
    assert b"ignored" not in done.stderr
    before_handlers = number == signal.SIGTERM and done.returncode == -number  # the system ends it: 143 for a shell
    assert done.returncode in (128 + number, 0) or before_handlers
    assert done.returncode == 0 or before_handlers or b"no file was left half-written\n" in done.stderr
    left = {path.name for path in tmp_path.iterdir()} - {"model.tflite", "samples.npz"}
    assert left == ({"out.tflite"} if done.returncode == 0 else set())


WRITE = """
import os, signal, sys
from zeropoint.cli.signals import orderly_end
from zeropoint.files import write_whole

def pieces():
    yield b"first"
    assert any(name.endswith(".part") for name in os.listdir(sys.argv[1]))
    os.kill(os.getpid(), int(sys.argv[2]))
    yield b"second"

signal.signal(int(sys.argv[2]), signal.SIG_DFL)  # the tests may run under nohup
with orderly_end():
    write_whole(os.path.join(sys.argv[1], "out"), pieces())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda s: s.name)
def test_a_signal_while_writing_leaves_nothing(tmp_path, number):
    command = [sys.executable, "-c", WRITE, str(tmp_path), str(int(number))]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 128 + number
    assert done.stderr.endswith(b"no file was left half-written\n")
    assert done.stderr.count(b"\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_signals_are_as_before_afterwards():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)]
    with pytest.raises(SystemExit) as end, orderly_end():
        signal.raise_signal(signal.SIGTERM)
    assert end.value.code == 143
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)] == before


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with orderly_end():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_terminated_is_no_exception_that_others_catch():
    assert not issubclass(Terminated, Exception | SystemExit)


# Memory.

BLAS = """
import os, signal, sys, types

class Loader:  # NumPy as it is where OpenBLAS gets no memory for its threads
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            signal.raise_signal(signal.SIGINT)
            raise ImportError("out of luck")

sys.meta_path.insert(0, Loader())
signal.signal(signal.SIGINT, signal.default_int_handler)
from zeropoint.cli.signals import import_numpy
try:
    import_numpy()
except MemoryError:
    print("memory")
"""


def test_openblas_without_memory_is_no_interrupt():
    done = subprocess.run([sys.executable, "-c", BLAS], capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"memory\n", b"")


LIMIT = 3_000_000_000


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "error: not enough memory: this process may use 3.00 GB (ulimit -v)"),
        (ImportError(""), "error: not enough memory: "),
        (SystemError("error return without exception set"), "error: not enough memory: "),
        (RuntimeError("can't start new thread"), "error: not enough memory: "),
        (RuntimeFailure("failed to prepare"), "error: failed to prepare\n  perhaps out of memory: "),
    ],
    ids=lambda value: type(value).__name__,
)
def test_under_a_limit_the_message_says_memory(run, tmp_path, digits, monkeypatch, error, words):
    def refuse(*arguments: object) -> None:
        raise error

    (tmp_path / "m.tflite").write_bytes(digits)
    monkeypatch.setattr("zeropoint.report.inspection.inspect", refuse)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (LIMIT, LIMIT))
    code, out, err = run("inspect", tmp_path / "m.tflite")
    assert (code, out) == (2, "")
    assert err.startswith(words)


def test_a_file_that_does_not_fit_into_memory_is_not_called_damaged(run, tmp_path, digits, monkeypatch):
    def refuse(*arguments: object) -> None:
        raise MemoryError

    path = tmp_path / "m.tflite"
    path.write_bytes(digits)
    monkeypatch.setattr(np, "fromfile", refuse)
    code, _, err = run("inspect", path)
    assert code == 2
    assert err.startswith("error: not enough memory")
    assert Path(path).exists()
