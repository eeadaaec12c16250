"""Handles signals: no half-written file, no traceback, and the exit code that shells expect."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from ..streams import unredirected

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Terminated(BaseException):
    """A signal asked the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


def _raise(number: int, _: FrameType | None) -> None:
    raise Terminated(number)


@contextlib.contextmanager
def orderly_end() -> Iterator[None]:
    """Unwind the stack when a signal asks the process to end, so that partially written files are removed."""
    is_main = threading.current_thread() is threading.main_thread()
    # A signal that is ignored, as by `nohup`, stays ignored.
    caught = [number for number in ENDING if is_main and signal.getsignal(number) is signal.SIG_DFL]
    before = {number: signal.signal(number, _raise) for number in caught}
    if is_main:
        before[signal.SIGINT] = signal.getsignal(signal.SIGINT)  # `ignore_interrupts` changes it
    try:
        yield
    except KeyboardInterrupt:
        ignore_interrupts()
        with unredirected():
            print("interrupted; no file was left half-written", file=sys.stderr, flush=True)
        sys.exit(128 + signal.SIGINT)
    except Terminated as end:
        ignore_interrupts()
        with unredirected():
            print(f"ended by {end}; no file was left half-written", file=sys.stderr, flush=True)
        sys.exit(end.code)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_interrupts() -> None:
    """Ignore further Ctrl-C while the process ends: it would only show a traceback."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def import_numpy() -> None:
    """Import NumPy, and raise MemoryError if there is too little memory for it.

    OpenBLAS sends its own process an interrupt, like Ctrl-C, if there is no memory for its threads. So interrupts are
    blocked meanwhile, and their sender is examined afterwards.
    """
    if "numpy" in sys.modules or not hasattr(signal, "sigtimedwait"):  # not on macOS, nor on Windows
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        import numpy  # noqa: F401
    finally:
        sent = signal.sigtimedwait({signal.SIGINT}, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if sent is not None:
            raise MemoryError if sent.si_pid == os.getpid() else KeyboardInterrupt
