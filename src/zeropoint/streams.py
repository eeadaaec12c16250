"""What native code prints: it writes to the file descriptors, past Python's streams."""

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
"""Descriptors belong to the whole process: two threads that swap them in turns would restore the wrong ones."""


def _forget_other_threads() -> None:
    """A thread that held the lock does not exist in a forked process, and would never let go of it there."""
    global _descriptors
    _descriptors = threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget_other_threads)


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Hold back whatever is printed while a framework is loaded, by other threads too: not for work in threads."""
    with _descriptors, Path(os.devnull).open("wb") as sink, _redirected(sink, 2):
        yield


@contextlib.contextmanager
def without_lines(remark: str) -> Iterator[None]:
    """Hold back lines on standard error that hold `remark`. All others, of any thread, are passed on at the end."""
    with _descriptors, tempfile.TemporaryFile() as sink:
        try:
            with _redirected(sink, 2):
                yield
        finally:
            sink.seek(0)
            others = b"".join(line for line in sink if remark.encode() not in line)
            with contextlib.suppress(OSError):  # closed, so nothing is seen of it anyway
                os.write(2, others)


@contextlib.contextmanager
def unredirected() -> Iterator[None]:
    """For what has to be seen: wait until no other thread holds back what is printed, though not for ever."""
    is_ours = _descriptors.acquire(timeout=1)
    try:
        yield
    finally:
        if is_ours:
            _descriptors.release()


@contextlib.contextmanager
def captured() -> Iterator[list[str]]:
    """A list that, at the end, holds the lines printed meanwhile: by Python, as warnings, and by native code."""
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
    """Python's own streams may be others than the descriptors, as in a notebook."""
    out, err = _Detour("stdout", sink), _Detour("stderr", sink)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("default")  # they are the converter's, and not for the user to repair
        warnings.showwarning = _print_warning
        try:
            yield
        finally:
            out.sink = err.sink = None


def _print_warning(message: Any, category: Any, filename: str, lineno: int, *_: object, **__: object) -> None:
    """As Python does it by default: others may have put something else in the place of that."""
    print(warnings.formatwarning(message, category, filename, lineno), file=sys.stderr, end="")


class _Detour(io.TextIOBase):
    """A stream into `sink`, and once that is None into Python's stream of this name: loggers may have kept it."""

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
            except OSError:  # closed, so nothing is seen of it anyway
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
