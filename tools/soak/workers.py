"""Cases in child processes that may die of them. A child that ends or takes too long is a finding, not an accident."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..children import ROOT, Child, Ended

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
        arguments = [campaign, json.dumps(settings), str(limits.gigabytes)]
        self.child = Child("tools.soak.child", arguments, [ROOT / "src", ROOT])
        self.limits = limits

    def run(self, first: int, count: int) -> Iterator[Outcome]:
        """The outcomes of cases `first` to `first + count - 1`; what kills a batch is looked for case by case."""
        answer = self.child.ask(json.dumps([first, count]), self.limits.seconds * (1 if count == 1 else 2))
        if not isinstance(answer, Ended):
            yield from (Outcome(*entry) for entry in json.loads(answer))
        elif count > 1:
            for case in range(first, first + count):
                yield from self.run(case, 1)
        elif answer.code is None:
            yield Outcome(first, "hang", f"no end within {self.limits.seconds:.0f} s")
        else:
            yield Outcome(first, "crash", str(answer))

    def close(self) -> None:
        self.child.close()


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
