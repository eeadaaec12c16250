"""Processes that answer lines with lines, and may die of what they are asked."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Ended:
    """How a process ended instead of answering: with this exit code, or None if it took too long and was stopped."""

    code: int | None

    def __str__(self) -> str:
        if self.code is None:
            return "no answer in time"
        return signal.Signals(-self.code).name if self.code < 0 else f"exit code {self.code}"


class Child:
    """A process that runs a module of this tree. It starts when it is first asked, and again after it ended.

    `path` is where it imports from beside the folder of this tree: the package that it runs.
    """

    def __init__(self, module: str, arguments: Sequence[str], path: Sequence[Path]) -> None:
        self.command = [sys.executable, "-m", module, *arguments]
        self.path = path
        self.process: subprocess.Popen[str] | None = None

    def ask(self, question: str, seconds: float) -> str | Ended:
        """Return the answer, one line, or how the process ended."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        stopped = threading.Event()
        watch = threading.Timer(seconds, self._stop, [stopped])
        watch.start()
        try:
            process.stdin.write(f"{question}\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            watch.cancel()
        if line.endswith("\n"):
            return line
        code = process.wait()
        self._forget()
        return Ended(None if stopped.is_set() else code)

    def _running(self) -> subprocess.Popen[str]:
        if self.process is None:
            self.process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, self.path))},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
        return self.process

    def _stop(self, stopped: threading.Event) -> None:
        if self.process is not None:
            stopped.set()
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self._forget()

    def _forget(self) -> None:
        assert self.process is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate()  # closes both ends
        self.process = None
