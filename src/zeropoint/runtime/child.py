"""Runs LiteRT in a child process for untrusted files, so that nothing in a file can crash or hang this process."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np

from .. import errors
from ..dtypes import Array
from ..errors import RuntimeFailure, argument, spelled
from ..parallel import cached_property
from .interpreter import Clock, Kernels
from .messages import Message, receive, send

SECONDS = 60.0
"""Default time limit for one run of a model."""

MOST_IDLE = 4
"""Idle child processes kept for reuse."""

PRINTED = 1 << 16
"""How many bytes of LiteRT's output are examined."""

_seconds: ContextVar[float | None] = ContextVar("seconds", default=None)


@contextlib.contextmanager
def isolated(seconds: float | None = None) -> Iterator[None]:
    """Run models in child processes within this context: a run that would crash this process, or takes longer than
    `seconds`, raises RuntimeFailure."""
    token = _seconds.set(SECONDS if seconds is None else seconds)
    try:
        if not _idle:
            _idle.append(Worker())  # starts up while the file is being read
        yield
    finally:
        _seconds.reset(token)


def trusting(trusted: bool) -> contextlib.AbstractContextManager[None]:
    """Return the context that public functions run in. A trusted model runs wherever the caller's context says: by
    default, in this process."""
    return contextlib.nullcontext() if trusted else isolated()


def within(seconds: float | None) -> contextlib.AbstractContextManager[None]:
    """Return a context with the time limit `seconds`, as returned by `time_limit` elsewhere; None means no
    isolation."""
    return contextlib.nullcontext() if seconds is None else isolated(seconds)


def time_limit() -> float | None:
    """Return the seconds that a run may take; None if files are trusted."""
    return _seconds.get()


class Died(Exception):
    """A child process ended unexpectedly, for the given `reason`."""

    def __init__(self, reason: str, printed: str) -> None:
        super().__init__(reason)
        self.reason, self.printed = reason, printed


class Worker:
    """A child process, used by one model at a time."""

    def __init__(self) -> None:
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        start = f"import sys; sys.path[:] = {sys.path!r}; from zeropoint.runtime.worker import serve; serve()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._printed
        )
        self._owner = os.getpid()
        _all.add(self)

    def call(self, message: Message, arrays: list[Array]) -> tuple[Message, list[Array]]:
        """Send a message and return the child's answer. Raises Died if there is none; an interrupted worker cannot be
        reused."""
        if self._owner != os.getpid():
            raise Died("belongs to another process", "")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        start = time.monotonic()
        try:
            try:
                send(self._process.stdin, message, arrays)
                return receive(self._process.stdout)
            except (EOFError, OSError, ValueError):
                code = self._process.wait()
                late = time.monotonic() - start >= message["seconds"]
                raise Died("late" if late else _how(code), self.printed()) from None
        except BaseException:
            self.end()
            raise

    def printed(self) -> str:
        """Return what native code in the child has printed since the last call."""
        if self._printed.closed:
            return ""
        self._printed.seek(0, os.SEEK_END)
        self._printed.seek(max(0, self._printed.tell() - PRINTED))
        text = self._printed.read().decode("utf-8", "replace")
        self._printed.truncate(0)
        return text

    @property
    def is_alive(self) -> bool:
        return self._owner == os.getpid() and self._process.poll() is None

    def end(self) -> None:
        """End the process, unless it is the child of another process."""
        for stream in (self._process.stdin, self._process.stdout, self._printed):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        if self._owner == os.getpid():
            self._process.kill()
            self._process.wait()
        _all.discard(self)


_idle: list[Worker] = []
_all: weakref.WeakSet[Worker] = weakref.WeakSet()


def _end_all() -> None:
    for worker in list(_all):
        worker.end()


atexit.register(_end_all)
if hasattr(os, "register_at_fork"):  # not on Windows; a fork of this process is not the parent of its workers
    os.register_at_fork(after_in_child=_idle.clear)


def _how(code: int) -> str:
    if code == -getattr(signal, "SIGKILL", 9):
        return "was killed, most likely because it ran out of memory"
    try:
        return f"crashed ({signal.Signals(-code).name})"
    except ValueError:
        return f"ended with code {code}"


class Obituary:
    """Explains how a model ended its process. The location is determined only when the message is read, because that
    takes seconds and often another version of the model is tried instead."""

    def __init__(self, death: Died, seconds: float, where: Callable[[], str]) -> None:
        self._death, self._seconds, self._where = death, seconds, where

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        where = self._where()
        if self._death.reason == "late":
            return (
                f"a run{where} did not finish within {self._seconds:g} s; if the model is that slow, allow more time "
                f"({spelled('zeropoint.runtime.isolated(seconds)', '--time-limit')}), or, if you trust the file, "
                f"run it with {argument('trusted', True)}"
            )
        said = "".join(f"; it said: {line}" for line in error_lines(self._death.printed)[:2])
        return f"LiteRT {self._death.reason}{where}: the model is damaged, or this is a bug of LiteRT{said}"


class ChildInterpreter:
    """The methods of LiteRT's interpreter that `Session` uses, executed in a child process."""

    def __init__(self, content: bytes, kernels: Kernels, threads: int, seconds: float) -> None:
        self._worker = idle_worker()
        self._seconds = seconds
        self._waiting: list[tuple[str, tuple[Any, ...]]] = []
        self._arrays: list[Array] = []
        self._release = weakref.finalize(self, put_back, self._worker)
        self._release.atexit = False
        self._given: list[Array] = []
        self._where = partial(_accused, content, kernels)
        self._call("open", kernels, threads, arrays=[np.frombuffer(content, np.uint8)])

    def _later(self, name: str, *arguments: Any, arrays: Sequence[Array] = ()) -> None:
        """Queue a call, to be sent in one message with the next call that needs an answer."""
        self._waiting.append((name, arguments))
        self._arrays += arrays

    def _call(self, name: str, *arguments: Any, arrays: Sequence[Array] = ()) -> Any:
        self._later(name, *arguments, arrays=arrays)
        calls, given = self._waiting, self._arrays
        self._waiting, self._arrays = [], []
        if name != "open":
            self._given = given or self._given
        try:
            reply, found = self._worker.call({"calls": calls, "seconds": self._seconds}, given)
        except Died as death:
            raise RuntimeFailure(Obituary(death, self._seconds, partial(self._where, self._given))) from None
        if "refused" in reply:
            raise getattr(errors, reply["refused"])(reply["text"])
        if "error" in reply:
            raise RuntimeError("\n".join([reply["error"], *error_lines(self._worker.printed())]))
        return found[0] if found else reply["value"]

    def allocate_tensors(self) -> None:
        self._call("allocate_tensors")

    def resize_tensor_input(self, index: int, shape: Sequence[int], strict: bool = False) -> None:
        self._later("resize_tensor_input", int(index), [int(size) for size in shape], strict)

    def get_input_details(self) -> list[dict[str, Any]]:
        return [_detail(d) for d in self._call("get_input_details")]

    def get_output_details(self) -> list[dict[str, Any]]:
        return [_detail(d) for d in self._call("get_output_details")]

    def _get_tensor_details(self, index: int, graph: int) -> dict[str, Any]:
        return _detail(self._call("_get_tensor_details", int(index), graph))

    def get_tensor_details(self) -> list[dict[str, Any]]:
        return [_detail(d) for d in self._call("get_tensor_details")]

    def _get_ops_details(self) -> list[dict[str, Any]]:
        details: list[dict[str, Any]] = self._call("_get_ops_details")
        return details

    def set_tensor(self, index: int, value: Array) -> None:
        self._later("set_tensor", int(index), arrays=[value])

    def invoke(self) -> None:
        self._call("invoke")

    def timed(self, runs: int, clock: Clock) -> float:
        return float(self._call("timed", runs, clock))

    def get_tensor(self, index: int) -> Array:
        values: Array = self._call("get_tensor", int(index))
        return values

    def tensor(self, index: int) -> Callable[[], Array]:
        return lambda: self.get_tensor(index)

    def reset_all_variables(self) -> None:
        self._call("reset_all_variables")


def _detail(sent: dict[str, Any]) -> dict[str, Any]:
    dtype = sent["dtype"]
    return {**sent, "dtype": None if dtype is None else np.dtype(dtype).type}


def error_lines(printed: str) -> list[str]:
    """Return the lines that LiteRT printed as errors, without informational messages."""
    lines = [line.strip() for line in printed.splitlines()]
    return [line for line in lines if line and not line.startswith(("INFO:", "Timeout", "Thread", "File", "Current"))]


def idle_worker() -> Worker:
    """Return a child process that is not running a model."""
    while _idle:
        with contextlib.suppress(IndexError):  # another thread may have taken it
            worker = _idle.pop()
            if worker.is_alive:
                return worker
            worker.end()
    return Worker()


def put_back(worker: Worker) -> None:
    """Release the current model and keep the process for the next one."""
    if not worker.is_alive:
        return
    if len(_idle) >= MOST_IDLE:
        worker.end()
        return
    with contextlib.suppress(Died):
        worker.call({"calls": [("close", ())], "seconds": SECONDS}, [])
        worker.printed()
        _idle.append(worker)


def _accused(content: bytes, kernels: Kernels, given: list[Array]) -> str:
    from .blame import culprit

    op = culprit(content, kernels, given)
    return "" if op is None else f" at {op.label} '{op.name}'"
