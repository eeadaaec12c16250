"""Measuring side by side: times taken in turns, peak memory of a fresh process, and a table to print them."""

from __future__ import annotations

import importlib
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Times:
    """Seconds of several jobs that took turns: `rounds[name][k]` belongs to round k. Slow jobs stop early."""

    rounds: Mapping[str, tuple[float, ...]]

    def median(self, name: str) -> float:
        return statistics.median(self.rounds[name])

    def ratio(self, name: str, reference: str) -> float:
        """The median over rounds of time(name) / time(reference): what slows down a whole round cancels out."""
        pairs = zip(self.rounds[name], self.rounds[reference], strict=False)
        return statistics.median(own / other for own, other in pairs)


def take_turns(
    jobs: Mapping[str, Callable[[], object]],
    rounds: int,
    patience: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> Times:
    """Run each job once unmeasured, then all of them `rounds` times, every other round in reverse order.

    A job that takes longer than `patience` seconds takes part in fewer rounds, but in two at least.
    """
    turns = {name: max(2, int(rounds * min(1.0, patience / timed(job)))) for name, job in jobs.items()}
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for k in range(rounds):
        for name in list(jobs) if k % 2 == 0 else reversed(list(jobs)):
            if k < turns[name]:
                seconds[name].append(timed(jobs[name], clock))
    return Times({name: tuple(taken) for name, taken in seconds.items()})


def processor_time() -> float:
    """Seconds that this process has kept processors busy so far, on all threads, with its children that have ended.

    Other work on the machine does not count, as it does on a clock.
    """
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def timed(job: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds that the job takes."""
    start = clock()
    job()
    return clock() - start


def peak_memory(prepare: str, *arguments: str) -> int:
    """Bytes that a job adds to the peak memory of a fresh process.

    `prepare` is "module:function". The function imports what its job needs and returns the job, which is called
    with `arguments`. The peak before the call is the baseline.
    """
    command = [sys.executable, "-m", "benchmarks.measure", prepare, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return int(done.stdout.split()[-1])


def peak() -> int:
    """The most memory this process has held so far, in bytes.

    Linux hands `ru_maxrss` of a parent down to the programs it starts, so a child of a large process would seem
    large from the start; VmHWM begins anew with each program.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    # macOS counts bytes, the others kilobytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns aligned: the first and the last to the left, numbers between them to the right."""
    lines = [header, *rows]
    widths = [max(len(line[k]) for line in lines) for k in range(len(header))]
    for line in lines:
        cells = [
            cell.ljust(width) if k in (0, len(header) - 1) else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
    print()


def _measure_job(prepare: str, *arguments: str) -> None:
    module, _, function = prepare.partition(":")
    job = getattr(importlib.import_module(module), function)()
    before = peak()
    job(*arguments)
    print(peak() - before)


if __name__ == "__main__":
    _measure_job(*sys.argv[1:])
