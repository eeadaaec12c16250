"""Handles the output of native code, which writes to file descriptors and bypasses Python's streams."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO

_descriptors = threading.RLock()
"""Descriptors are shared by the process: two threads that swap them alternately would restore the wrong ones."""


def _forget_other_threads() -> None:
    """Replace the lock in a forked process: a thread that held it does not exist there and would never release it."""
    global _descriptors
    _descriptors = threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget_other_threads)


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Suppress everything printed while a framework is imported, also by other threads; do not use it around parallel
    work."""
    with _descriptors, Path(os.devnull).open("wb") as sink, _redirected(sink, 2):
        yield


@contextlib.contextmanager
def without_lines(remark: str) -> Iterator[None]:
    """Suppress lines on standard error that contain `remark`. All others, from any thread, are passed on at the end."""
    with _descriptors, tempfile.TemporaryFile() as sink:
        try:
            with _redirected(sink, 2):
                yield
        finally:
            sink.seek(0)
            others = b"".join(line for line in sink if remark.encode() not in line)
            with contextlib.suppress(OSError):  # closed, so nobody would see the output anyway
                os.write(2, others)


@contextlib.contextmanager
def unredirected() -> Iterator[None]:
    """Wait until no other thread suppresses output, with a timeout, so that what is printed here is seen."""
    is_ours = _descriptors.acquire(timeout=1)
    try:
        yield
    finally:
        if is_ours:
            _descriptors.release()


@contextlib.contextmanager
def captured() -> Iterator[list[str]]:
    """Yield a list that finally holds all lines printed meanwhile: by Python, as warnings, and by native code."""
    lines: list[str] = []
    with _descriptors, tempfile.TemporaryFile() as sink:
        try:
            with _redirected(sink, 1, 2), _python_to(sink):
                yield lines
        finally:
            sink.seek(0)
            text = sink.read().decode("utf-8", "replace")
            lines += (line.rstrip() for line in text.splitlines() if line.strip())


@contextlib.contextmanager
def _python_to(sink: BinaryIO) -> Iterator[None]:
    """Redirect Python's own streams, which may differ from the descriptors, as in a notebook."""
    out, err = _Detour("stdout", sink), _Detour("stderr", sink)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("default")  # the warnings are the converter's, and the user cannot fix them
        warnings.showwarning = _print_warning
        try:
            yield
        finally:
            out.sink = err.sink = None


def _print_warning(message: Any, category: Any, filename: str, lineno: int, *_: object, **__: object) -> None:
    """Print a warning as Python does by default, in case another handler is installed."""
    print(warnings.formatwarning(message, category, filename, lineno), file=sys.stderr, end="")


class _Detour(io.TextIOBase):
    """A stream that writes to `sink` and, once that is None, to Python's stream of this name: loggers may keep a
    reference."""

    def __init__(self, name: str, sink: BinaryIO) -> None:
        self.stream = name
        self.sink: BinaryIO | None = sink

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        if self.sink is not None:
            self.sink.write(text.encode("utf-8", "replace"))
            self.sink.flush()
        else:
            current = getattr(sys, self.stream)
            (getattr(sys, f"__{self.stream}__") if current is self else current).write(text)
        return len(text)


@contextlib.contextmanager
def _redirected(sink: BinaryIO, *descriptors: int) -> Iterator[None]:
    streams = [stream for stream in (sys.stdout, sys.stderr) if stream is not None]
    with contextlib.ExitStack() as stack:
        _flush(streams)
        for descriptor in descriptors:
            try:
                saved = os.dup(descriptor)
            except OSError:  # closed, so nobody would see the output anyway
                continue
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, descriptor)
            os.dup2(sink.fileno(), descriptor)
        stack.callback(_flush, streams)
        yield


def _flush(streams: Sequence[TextIO]) -> None:
    for stream in streams:
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
