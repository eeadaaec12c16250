"""Quantizing a zoo of models side by side with other tools: scores, sizes, latency, time and memory, in one run.

`python -m benchmarks --zoo PATH [--only NAME ...] [--modes int8,dynamic] [--against tf,aeq] -o results`

A rerun does what is missing. Ctrl-C keeps what is done.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from zeropoint.errors import ZeropointError

from . import side_by_side
from .environments import python_of
from .inference import Measure
from .modes import DEFAULT_MODES, DEFAULT_VARIANTS, MODES, VARIANTS
from .page import write_page
from .rows import FLOAT, Row, Store, origin, source_digest
from .side_by_side import Settings, plan
from .tools import DEFAULT_RIVALS, OURS, TOOLS
from .zoo import Place, load_zoo, zoo_file


def listed(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def counts(text: str) -> tuple[int, ...]:
    return tuple(sorted({int(part) for part in listed(text)}))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    rivals = [name for name in TOOLS if name != OURS]
    made.add_argument("--zoo", required=True, help="a folder with a Python file that lists TASKS, or that file")
    made.add_argument("--only", nargs="+", metavar="NAME", help="these tasks (default: all)")
    made.add_argument("--modes", type=listed, default=list(DEFAULT_MODES), help=_choice(MODES, DEFAULT_MODES))
    made.add_argument("--against", type=listed, default=list(DEFAULT_RIVALS), help=_choice(rivals, DEFAULT_RIVALS))
    made.add_argument(
        "--environments", type=Path, help="a folder that `python -m benchmarks.environments` filled, for mct and nncf"
    )
    made.add_argument(
        "--also",
        type=listed,
        default=list(DEFAULT_VARIANTS),
        help="more of zeropoint: " + _choice(VARIANTS, DEFAULT_VARIANTS),
    )
    made.add_argument("-o", "--output", type=Path, required=True, help="a folder for the results, a JSON file a row")
    made.add_argument("--page", type=Path, help="a folder for the page and its plots (default: that of the results)")
    made.add_argument("--samples", type=int, default=200, help="for calibration (default: 200)")
    made.add_argument("--limit", type=int, help="score on this many samples only")
    made.add_argument("--part", type=int, default=200, help="samples to score slow models on (default: 200)")
    made.add_argument("--score-seconds", type=float, default=90, help="which models are slow (default: 90)")
    made.add_argument("--rounds", type=int, default=21, help="of latency (default: 21)")
    made.add_argument("--runs", type=int, default=3, help="processes that these rounds are spread over (default: 3)")
    made.add_argument(
        "--threads", type=counts, default=(1,), help="numbers of threads to time models with, as 1,2 (default: 1)"
    )
    made.add_argument("--timeout", type=float, default=900, help="seconds for one step of one tool (default: 900)")
    older = made.add_mutually_exclusive_group()
    older.add_argument("--again", action="store_true", help="drop results of other versions, machines or settings")
    older.add_argument(
        "--update",
        action="store_true",
        help="keep results of earlier states of zeropoint, with their commit; of what is asked for, its own are "
        "made again",
    )
    return made


def _choice(names: Iterable[str], default: Sequence[str]) -> str:
    return f"separated by commas, of {', '.join(names)} (default: {','.join(default)})"


def _require_known(what: str, asked: Iterable[str], known: Iterable[str]) -> None:
    names = list(known)
    if unknown := [name for name in asked if name not in names]:
        raise ZeropointError(f"there is no {what} {', '.join(map(repr, unknown))}; choose from {', '.join(names)}")


@contextmanager
def shown() -> Iterator[Callable[[side_by_side.Progress], None]]:
    """A line for each row on stderr; on a terminal, a bar with the time left below them."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rows"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None, left="")

        def tell(state: side_by_side.Progress) -> None:
            left = "" if state.left is None else f"about {state.left / 60:.0f} min left"
            for row in state.rows:
                console.print(f"{row.name}: {_told(row)}", markup=False)
            if not console.is_terminal:
                console.print(f"  {state.done} of {state.total} rows done{', ' + left if left else ''}")
            bar.update(task, completed=state.done, total=state.total, left=left)

        yield tell


def _told(row: Row) -> str:
    if row.error is not None:
        return row.error
    made = "" if row.whole is None else f", made in {row.whole:.2f} s"
    return f"score {row.score:.4f}, {(row.size or 0) / 1e3:.0f} kB{made}"


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        return compare(options)
    except ZeropointError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _python(environments: Path | None, tool: str) -> str | None:
    """Of the tool's own environment, if it needs one and has it."""
    return python_of(environments, tool) if environments is not None and TOOLS[tool].has_environment else None


def compare(options: argparse.Namespace) -> int:
    zoo, tasks = str(zoo_file(options.zoo)), load_zoo(options.zoo)
    chosen = options.only or list(tasks)
    _require_known("task", chosen, tasks)
    _require_known("mode", options.modes, MODES)
    _require_known("tool", options.against, [name for name in TOOLS if name != OURS])
    _require_known("variant", options.also, VARIANTS)
    for tool in (TOOLS[name] for name in options.against if not TOOLS[name].is_installed):
        print(f"{tool.title} is not installed; its rows say so (pip install {tool.distribution})", file=sys.stderr)
    measure = Measure(options.part, options.score_seconds, options.limit)
    settings = Settings(options.samples, measure, options.rounds, options.runs, options.timeout, options.threads)
    store = Store(options.output / "rows", origin(asdict(settings)), options.update)
    if options.again and (dropped := store.drop_others()):
        print(f"dropped {dropped} rows of another origin", file=sys.stderr)
    rivals = {name: _python(options.environments, name) for name in options.against}
    groups = plan([Place(zoo, name) for name in chosen], options.modes, rivals, options.also, options.samples)
    before, code = source_digest(), 0
    try:
        with shown() as tell:
            side_by_side.run(groups, store, settings, tell)
    except KeyboardInterrupt:
        print("stopped; run the same command again for the rest", file=sys.stderr)
        code = 130
    if source_digest() != before:
        print("zeropoint's source changed during the run: rows may come from different states", file=sys.stderr)
    rows = list(store.rows().values())
    if any(row.tool != FLOAT for row in rows):
        print(write_page(options.page or options.output, store.origin, rows))
    return code


if __name__ == "__main__":
    sys.exit(main())
