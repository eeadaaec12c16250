"""`quantize` with data at standard effort, against an earlier state of this source: processor time in all, after
calibration and within LiteRT, and peak memory beside that of a process which imports as much and runs the float model
once, and of one that imports NumPy and LiteRT alone: no source can take less than these.

`git worktree add --detach OLD COMMIT; python -m benchmarks.history OLD/src [--zoo ../shared/zoo] [--only TASK ...]`
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zeropoint

from .measure import peak, print_table
from .zoo import load_zoo

MEASURED = ("kws_dscnn", "resnet8_cifar10", "vww_mobilenetv1")
CALLED = {"zeropoint.bench.bench": "collect_stats", "zeropoint.quantize.search": "calibrate"}
"""What `quantize` calls to calibrate, by module: now, and in the first states of this source."""


BARE = (
    "import numpy, ai_edge_litert.interpreter; status = open('/proc/self/status').read(); "
    "print(int(status.split('VmHWM:')[1].split()[0]) << 10)"
)
"""Prints the peak of a process that only imports what quantizing and running a model needs."""


@dataclass(frozen=True)
class Spent:
    """Seconds of the processor for one `quantize`, for the calibration in it, and for loading and running models."""

    total: float
    calibration: float
    runs: float

    @property
    def after(self) -> float:
        return self.total - self.calibration


@dataclass(frozen=True)
class Job:
    """What a process of its own measures: with `samples` of a task, on the source in `source`."""

    task: str
    samples: int
    zoo: str
    source: str

    def run(self, what: str, rounds: int = 1) -> Any:
        """What the functions below print, in a process with that source."""
        here = str(Path(__file__).resolve().parents[1])
        # One thread computes as much on one core as several do, and takes the same time with other work beside it.
        only = ["taskset", "-c", str(min(os.sched_getaffinity(0)))]
        command = [*only, sys.executable, "-m", "benchmarks.history", "--child", what, self.task, str(rounds)]
        given = ["--zoo", self.zoo, "--samples", str(self.samples)]
        paths = {"PYTHONPATH": os.pathsep.join((self.source, here))}
        done = subprocess.run([*command, *given], env=os.environ | paths, stdout=subprocess.PIPE, check=True, text=True)
        return json.loads(done.stdout.splitlines()[-1])


class Stopwatch:
    """The processor's seconds that LiteRT takes to load and to run models, in all threads of this process."""

    def __init__(self) -> None:
        from ai_edge_litert.interpreter import Interpreter

        self.seconds = 0.0
        for name in ("__init__", "allocate_tensors", "invoke"):
            setattr(Interpreter, name, self._timing(getattr(Interpreter, name)))

    def _timing(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **named: Any) -> Any:
            start = time.thread_time()
            try:
                return method(*given, **named)
            finally:
                self.seconds += time.thread_time() - start

        return timed


def times(path: str, samples: list[Any], rounds: int) -> list[tuple[float, float, float]]:
    """By round, seconds of `quantize`, of the calibration in it, and within LiteRT; one more round comes before."""
    spent, watch = 0.0, Stopwatch()
    for name, called in CALLED.items():
        try:
            module: Any = importlib.import_module(name)
        except ImportError:
            continue
        calibrate: Callable[..., Any] = getattr(module, called)

        def timed(*given: Any, calibrate: Callable[..., Any] = calibrate, **named: Any) -> Any:
            nonlocal spent
            start = time.process_time()
            found = calibrate(*given, **named)
            spent += time.process_time() - start if not spent else 0.0  # later ones are part of the search
            return found

        setattr(module, called, timed)
    found = []
    for _ in range(rounds + 1):
        spent, watch.seconds, start = 0.0, 0.0, time.process_time()
        zeropoint.quantize(path, data=samples)
        found.append((time.process_time() - start, spent, watch.seconds))
    return found[1:]


def memory(path: str, samples: list[Any], rounds: int) -> int:
    """Bytes at the peak of a process that quantizes; with 0 rounds, of one that only runs the float model."""
    from ai_edge_litert.interpreter import Interpreter

    zeropoint.quantize  # noqa: B018 - imports what it needs
    if rounds:
        zeropoint.quantize(path, data=samples)
        return peak()
    interpreter = Interpreter(model_path=path)
    interpreter.allocate_tensors()
    for detail, values in zip(interpreter.get_input_details(), samples[0], strict=True):
        interpreter.set_tensor(detail["index"], values)
    interpreter.invoke()
    return peak()


def compare(old: Job, new: Job, rounds: int) -> None:
    spent: dict[Job, list[Spent]] = {old: [], new: []}
    for k in range(rounds):
        for job in (old, new) if k % 2 == 0 else (new, old):
            spent[job] += [Spent(*seconds) for seconds in job.run("times", 2)]
    print(f"{new.task}, {new.samples} samples, {rounds} turns\n")
    rows = []
    labels = {"total": "in all", "after": "after calibration", "calibration": "calibration", "runs": "within LiteRT"}
    for what, label in labels.items():
        seconds = {job: [getattr(one, what) for one in spent[job]] for job in spent}
        least, usual = ([f(seconds[job]) for job in (old, new)] for f in (min, statistics.median))
        rows.append(
            (
                f"processor time, {label}",
                *(f"{s:.3f} s" for s in least),
                f"{least[1] / least[0]:.2f}",
                f"{usual[1] / usual[0]:.2f}",
            )
        )
    peaks = [(job.run("memory", 1), job.run("memory", 0)) for job in (old, new)]
    above = [most - floor for most, floor in peaks]
    rows.append(("peak memory", *(f"{most / 1e6:.0f} MB" for most, _ in peaks), f"{peaks[1][0] / peaks[0][0]:.2f}", ""))
    bare = int(subprocess.run([sys.executable, "-c", BARE], capture_output=True, check=True, text=True).stdout)
    for what, least in (("samples and the float model's run", peaks[1][1]), ("NumPy and LiteRT", bare)):
        rows.append((f"of which {what} alone", "", f"{least / 1e6:.0f} MB", f"{least / peaks[0][0]:.2f} of before", ""))
    rows.append(
        ("above the float model's run", *(f"{a / 1e6:.0f} MB" for a in above), f"{above[1] / above[0]:.2f}", "")
    )
    print_table(("", "before", "now", "ratio of the least", "of medians"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="quantize with data, against an earlier state of this source.")
    parser.add_argument("old", nargs="?", help="the folder src of a checkout of that state")
    parser.add_argument("--zoo", type=Path, default=Path("../shared/zoo"), help="where the models are")
    parser.add_argument(
        "--only", nargs="+", default=MEASURED, help=f"tasks of the zoo (default: {', '.join(MEASURED)})"
    )
    parser.add_argument("--samples", type=int, default=200, help="samples to calibrate on (default: 200)")
    parser.add_argument("--rounds", type=int, default=4, help="turns of each (default: 4)")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    tasks = load_zoo(arguments.zoo)
    if arguments.child is not None:
        what, name, rounds = arguments.child
        measured = {"times": times, "memory": memory}[what]
        print(json.dumps(measured(str(tasks[name].model), tasks[name].calibration(arguments.samples), int(rounds))))
        return
    if arguments.old is None:
        parser.error("give the folder src of an earlier checkout")
    source = str(Path(zeropoint.__file__).resolve().parents[1])
    for name in arguments.only:
        jobs = [Job(name, arguments.samples, str(arguments.zoo), src) for src in (arguments.old, source)]
        compare(jobs[0], jobs[1], arguments.rounds)


if __name__ == "__main__":
    main()
