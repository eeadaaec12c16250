"""Models made for a target beside those of other tools: speed on one thread, score, ops left to plain kernels.

`python -m benchmarks.targets --zoo PATH [--only NAME ...] [--against tf,aeq] [--limit N] [-o targets.json]`

All versions of a model take turns, and the fastest round of each counts: in CPU time, so that other work on the machine
does not. How fast integers are depends on the processor, so the instruction sets that matter are noted.
"""

from __future__ import annotations

import argparse
import math
import platform
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zeropoint.bench.latency import sample_for
from zeropoint.errors import ZeropointError
from zeropoint.graph import Model
from zeropoint.quantization import quantize
from zeropoint.runtime import Runner, Session
from zeropoint.targets import CPU, TARGETS, check_model
from zeropoint.tflite import load

from .apart import Failed, apart
from .measure import print_table
from .rows import instruction_sets, write_json
from .tools import DEFAULT_RIVALS, TOOLS, Order, make, obstacle
from .zoo import Place, Task, load_zoo, zoo_file

MEASURED = "cpu, measured"
OURS = ("cpu", "integer", MEASURED)
"""Targets; the last is `cpu` with `--measure`."""

SHORTEST = 0.01
"""Seconds for which a model is run before the clock is read again."""


@dataclass(frozen=True)
class Version:
    """One version of a model. `speed` is relative to float; `plain` are ops that the delegate left to plain kernels."""

    task: str
    tool: str
    milliseconds: float | None = None
    speed: float | None = None
    score: float | None = None
    plain: int | None = None
    note: str = ""


def fastest(models: Mapping[str, Model], rounds: int) -> dict[str, float]:
    """Seconds of CPU time that one run of each model takes on one thread, in its fastest round."""
    sessions = {name: Runner(model).session for name, model in models.items()}
    for name, session in sessions.items():
        session.invoke(sample_for(models[name]))
    runs = {name: max(1, round(SHORTEST / _seconds(session, 3))) for name, session in sessions.items()}
    found = dict.fromkeys(sessions, math.inf)
    for _ in range(rounds):
        for name, session in sessions.items():
            found[name] = min(found[name], _seconds(session, runs[name]))
    return found


def _seconds(session: Session, runs: int) -> float:
    start = time.process_time()
    session.seconds(runs)
    return max(1e-7, (time.process_time() - start) / runs)


def made_by_us(task: Task, target: str, samples: int) -> bytes:
    from zeropoint import to_bytes

    options = {"target": CPU, "measure": True} if target == MEASURED else {"target": TARGETS[target]}
    return to_bytes(quantize(str(task.model), "int8", data=task.calibration(samples), **options).model)


def versions(place: Place, rivals: Sequence[str], samples: int) -> tuple[dict[str, bytes], dict[str, str]]:
    """Every version of one task's model, and why others are missing."""
    task = place.task
    contents, missing = {"float": Path(task.model).read_bytes()}, {}
    for target in OURS:
        try:
            contents[target] = made_by_us(task, target, samples)
        except ZeropointError as error:  # noqa: PERF203  # each by itself
            missing[target] = str(error).splitlines()[0]
    for tool in rivals:
        order = Order(place, "int8", tool, None, samples)
        try:
            if (why := obstacle(order)) is not None:
                raise Failed(why)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "made.tflite"
                apart(make, order, str(path), timeout=900)
                contents[tool] = path.read_bytes()
        except Failed as failure:
            missing[tool] = str(failure)
    return contents, missing


def measured(name: str, place: Place, options: argparse.Namespace) -> list[Version]:
    contents, missing = versions(place, options.against, options.samples)
    models = {tool: load(content) for tool, content in contents.items()}
    seconds, found = fastest(models, options.rounds), []
    for tool, content in contents.items():
        slow = len(check_model(models[tool], CPU).having("slow"))
        score = place.task.evaluate(content, limit=options.limit)
        speed = seconds["float"] / seconds[tool]
        found.append(Version(name, tool, 1e3 * seconds[tool], speed, float(score), slow))
    return found + [Version(name, tool, note=why) for tool, why in missing.items()]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.targets", description=__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("--zoo", required=True, help="a folder with a Python file that lists TASKS, or that file")
    made.add_argument("--only", nargs="+", metavar="NAME", help="these tasks (default: all)")
    made.add_argument(
        "--against",
        type=lambda text: [part for part in text.split(",") if part],
        default=list(DEFAULT_RIVALS),
        help="other tools (default: tf,aeq)",
    )
    made.add_argument("--samples", type=int, default=200, help="for calibration (default: 200)")
    made.add_argument("--limit", type=int, help="score on this many samples only")
    made.add_argument("--rounds", type=int, default=21, help="of latency (default: 21)")
    made.add_argument("-o", "--output", type=Path, help="write the numbers to this JSON file")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    file = zoo_file(options.zoo)
    names = options.only or list(load_zoo(file))
    unknown = [name for name in names if name not in load_zoo(file)] + [t for t in options.against if t not in TOOLS]
    if unknown:
        print(f"error: there is no {unknown[0]!r} in the zoo or among the tools", file=sys.stderr)
        return 2
    machine: dict[str, Any] = {"machine": platform.machine(), "instructions": instruction_sets()}
    print(f"{machine['machine']} with {', '.join(machine['instructions']) or 'unknown instruction sets'}")
    rows: list[Version] = []
    for name in names:
        found = measured(name, Place(str(file), name), options)
        rows += found
        print_table(("task", "made by", "ms", "speed", "score", "plain", ""), [_cells(row) for row in found])
        if options.output is not None:
            write_json(options.output, {**machine, "rows": [asdict(row) for row in rows]})
    return 0


def _cells(row: Version) -> list[str]:
    numbers = [(row.milliseconds, "{:.3f}"), (row.speed, "{:.2f}x"), (row.score, "{:.4f}"), (row.plain, "{}")]
    return [row.task, row.tool, *("-" if value is None else text.format(value) for value, text in numbers), row.note]


if __name__ == "__main__":
    sys.exit(main())
