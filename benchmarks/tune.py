"""Does `zeropoint tune` keep its promises on a zoo: the budget on unseen samples, few trials, less than any one mode?

`python -m benchmarks.tune --zoo PATH [--only NAME ...] [--drops 0.5,2] [--limit 2000] [--fastest] [-o tune.json]`

With --store, what was tried is kept there, and a run that was ended goes on.

A drop of one point is 0.01 of a score between 0 and 1, one percent of any other. A row says what was found, how it does
on the half of the samples that did not steer, and the smallest model that one mode for the whole model gives within the
same budget: with 8-bit weights, and with 4-bit ones as well. With --fastest, latencies of the best model, of all modes
that keep the budget and of the float model are measured once more, in turns, by the processor's time: the shortest of
101 rounds each, as what else runs on the machine only ever adds to a time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zeropoint import Budget, SearchSettings, Settings, tune
from zeropoint.bench.latency import TimingOptions, benchmark
from zeropoint.tflite import load
from zeropoint.tuning.result import Tuned
from zeropoint.tuning.trial import Trial

from .measure import print_table
from .rows import machine, versions, write_json
from .zoo import load_zoo, metric_of

EIGHT_BITS = ("float16", "dynamic", "weights", "int8", "int16x8")
FOUR_BITS = ("dynamic, 4-bit weights", "weights, 4-bit weights", "int8, 4-bit weights")


@dataclass(frozen=True)
class Row:
    """One task with one budget. `drop` and `error` are those on the samples that did not steer."""

    task: str
    points: float
    objective: str
    samples: int
    allowed: float
    met: bool
    chosen: str
    drop: float
    error: float
    holds: bool
    holds_within_error: bool
    trials: int
    bytes: int
    float_bytes: int
    best_of_8_bits: int | None
    best_of_modes: int | None
    seconds: float
    latency: float | None = None
    fastest_mode: float | None = None
    float_latency: float | None = None


def tuned_on(task: Any, points: float, objective: str, options: argparse.Namespace, store: Path) -> Tuned:
    """The task's model within a drop of so many points."""
    samples, truth = task.samples("eval")
    per_truth = len(samples) // len(truth)
    if options.limit is not None:
        samples, truth = samples[: options.limit * per_truth], truth[: options.limit]
    is_top1 = str(metric_of(task) or "").startswith("top-1") and np.asarray(truth).dtype.kind in "iu"
    share = 0 <= task.float_score <= 1
    drop: float | str = points if is_top1 else points / 100 if share else f"{points}%"
    return tune(
        str(task.model),
        task.calibration(options.samples),
        budget=Budget(max_drop=drop),
        evaluation=samples,
        labels=truth if not isinstance(truth, np.ndarray) else np.asarray(truth),
        metric="top1" if is_top1 else task.score,
        objective=objective,  # type: ignore[arg-type]
        settings=Settings(keep_state=False if getattr(task, "stateful", False) else None),
        search=SearchSettings(store=store),
        progress=Narrator() if options.verbose else None,
    )


class Narrator:
    """Prints what a search says, as it says it."""

    def __init__(self) -> None:
        self._said = 0

    def __call__(self, state: Any) -> None:
        for line in state.lines[self._said :]:
            print(f"    {line}", flush=True)
        self._said = len(state.lines)


def smallest(trials: Sequence[Trial], labels: Sequence[str]) -> int | None:
    return min((t.size for t in trials if t.within and t.label in labels), default=None)


def row_of(name: str, task: Any, points: float, tuned: Tuned, seconds: float) -> Row:
    chosen, final = tuned.chosen, tuned.final
    assert chosen is not None
    assert final is not None
    return Row(
        name,
        points,
        tuned.objective,
        final.drop.samples,
        tuned.allowed,
        tuned.met,
        f"{chosen.label} ({chosen.candidate.note})" if chosen.candidate.note else chosen.label,
        final.drop.value,
        final.drop.error,
        final.holds,
        final.holds_within_error,
        len(tuned.trials),
        chosen.size,
        tuned.baseline.size,
        smallest(tuned.trials, EIGHT_BITS),
        smallest(tuned.trials, (*EIGHT_BITS, *FOUR_BITS)),
        seconds,
        *latencies(tuned, task),
    )


def latencies(tuned: Tuned, task: Any) -> tuple[float, float, float] | tuple[()]:
    """Of the best model, the fastest mode within the budget and the float model, measured anew and in turns."""
    if tuned.objective != "fastest" or tuned.best is None:
        return ()
    modes = [t for t in tuned.trials if t.within and t.label in (*EIGHT_BITS, "float")]
    models = {t.label: load(t.content) for t in (*modes, tuned.best)}
    options = TimingOptions(rounds=101, inside=False, clock="cpu", sample=tuple(task.calibration(1)[0]))
    timed = benchmark(models, options)
    found = {t.name: t.latencies[0].fastest for t in timed.models}
    return found[tuned.best.label], min(found[t.label] for t in modes), found["float"]


def ratio(size: int, other: int | None) -> str:
    return "" if other is None else f"{size / other:.2f}"


def table(rows: Sequence[Row]) -> None:
    head = ("task", "points", "found", "kB", "to 8 bits", "to all modes", "unseen drop", "trials", "budget")
    cells = [
        (
            row.task,
            f"{row.points:g}",
            row.chosen[:60],
            f"{row.bytes / 1000:.1f}",
            ratio(row.bytes, row.best_of_8_bits),
            ratio(row.bytes, row.best_of_modes),
            f"{100 * row.drop / max(row.allowed, 1e-12):.0f}% ± {100 * row.error / max(row.allowed, 1e-12):.0f}%",
            str(row.trials),
            "holds" if row.holds else "within error" if row.holds_within_error else "missed",
        )
        for row in rows
    ]
    print_table(head, cells)
    timed = [row for row in rows if row.latency and row.fastest_mode and row.float_latency]
    if timed:
        times = [
            (
                row.task,
                row.chosen[:40],
                *(f"{1e3 * (t or 0):.3f}" for t in (row.latency, row.fastest_mode, row.float_latency)),
            )
            for row in timed
        ]
        print_table(("task", "found", "ms", "fastest mode, ms", "float, ms"), times)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tune", description=__doc__)
    parser.add_argument("--zoo", required=True, help="a folder with a Python file that lists TASKS, or that file")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these tasks (default: all)")
    parser.add_argument("--drops", default="0.5,2", help="points that may be lost (default: 0.5,2)")
    parser.add_argument("--samples", type=int, default=200, help="for calibration (default: 200)")
    parser.add_argument("--limit", type=int, help="score on this many samples only, half of which steer")
    parser.add_argument("--fastest", action="store_true", help="the fastest models instead of the smallest")
    parser.add_argument("--store", type=Path, metavar="DIR", help="keep trials there, and go on with those that are")
    parser.add_argument("--verbose", action="store_true", help="print every decision")
    parser.add_argument("-o", "--output", type=Path, help="write the rows to this JSON file")
    options = parser.parse_args(arguments)
    rows = []
    for name, task in load_zoo(options.zoo).items():
        if options.only is not None and name not in options.only:
            continue
        with folder_of(options.store, name) as folder:
            for points in map(float, options.drops.split(",")):
                print(f"{name}, {points:g} points", flush=True)
                start = time.process_time()
                tuned = tuned_on(task, points, "fastest" if options.fastest else "smallest", options, folder)
                rows.append(row_of(name, task, points, tuned, time.process_time() - start))
                print(f"    {tuned.lines[-1]}", flush=True)
                if options.output is not None:
                    write_rows(options.output, rows)
    table(rows)
    return 0


@contextmanager
def folder_of(store: Path | None, name: str) -> Iterator[Path]:
    """Where the trials of a task are kept: for good, or until all its budgets are done."""
    if store is not None:
        store.mkdir(parents=True, exist_ok=True)
        yield store / name
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder) / name


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    content = {"machine": machine(), "versions": versions(), "rows": [asdict(row) for row in rows]}
    write_json(path, content)


if __name__ == "__main__":
    sys.exit(main())
