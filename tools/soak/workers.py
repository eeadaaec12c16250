"""Cases in child processes that may die of them. A child that ends or takes too long is a finding, not an accident."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

FINE = frozenset({"right", "refused", "read", "unwritable"})
"""Outcomes that are as they should be."""


@dataclass(frozen=True)
class Outcome:
    """How case number `case` ended, and, unless it was fine, how that shows."""

    case: int
    kind: str
    detail: str = ""

    @property
    def is_fine(self) -> bool:
        return self.kind in FINE


@dataclass(frozen=True)
class Limits:
    """For one case: seconds by the clock; gigabytes of address space for the child that runs it."""

    seconds: float
    gigabytes: int = 8


class Worker:
    """A child process that runs cases of one campaign, one after the other, and is started again when it ends."""

    def __init__(self, campaign: str, settings: dict[str, Any], limits: Limits) -> None:
        self.command = [sys.executable, "-m", "tools.soak.child", campaign, json.dumps(settings), str(limits.gigabytes)]
        self.limits = limits
        self.process: subprocess.Popen[str] | None = None

    def run(self, first: int, count: int) -> Iterator[Outcome]:
        """The outcomes of cases `first` to `first + count - 1`; what kills a batch is looked for case by case."""
        finished, code = self._batch(first, count)
        if finished is not None:
            yield from finished
        elif count > 1:
            for case in range(first, first + count):
                yield from self.run(case, 1)
        elif code is None:
            yield Outcome(first, "hang", f"no end within {self.limits.seconds:.0f} s")
        else:
            yield Outcome(first, "crash", signal.Signals(-code).name if code < 0 else f"exit code {code}")

    def _batch(self, first: int, count: int) -> tuple[list[Outcome] | None, int | None]:
        """What the child says, or how it ended; None and None if it had to be stopped."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        stopped = threading.Event()
        watch = threading.Timer(self.limits.seconds * (1 if count == 1 else 2), self._stop, [stopped])
        watch.start()
        try:
            process.stdin.write(json.dumps([first, count]) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            watch.cancel()
        if line.endswith("\n"):
            return [Outcome(*entry) for entry in json.loads(line)], 0
        code = process.wait()
        self._forget()
        return None, None if stopped.is_set() else code

    def _running(self) -> subprocess.Popen[str]:
        if self.process is None:
            source = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
            self.process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": source},
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


def outcomes(workers: list[Worker], batches: Iterator[tuple[int, int]]) -> Iterator[Outcome]:
    """All outcomes, as they come; a batch is the number of its first case and how many there are."""
    found: queue.Queue[Outcome | None] = queue.Queue()
    turn = threading.Lock()

    def work(worker: Worker) -> None:
        try:
            while True:
                with turn:
                    batch = next(batches, None)
                if batch is None:
                    return
                for outcome in worker.run(*batch):
                    found.put(outcome)
        finally:
            found.put(None)

    threads = [threading.Thread(target=work, args=[w], daemon=True) for w in workers]
    for thread in threads:
        thread.start()
    working = len(threads)
    try:
        while working:
            outcome = found.get()
            if outcome is None:
                working -= 1
            else:
                yield outcome
    finally:
        for worker in workers:
            worker.close()
