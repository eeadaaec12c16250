"""zeropoint benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import InvalidRecipe
from .options import OverwriteOption, load_model
from .reports import ReportOption, Reports, command_line
from .screen import Screen


def benchmark(
    screen: Screen,
    models: Annotated[
        list[Path], typer.Argument(metavar="MODEL...", help="One or several models.", show_default=False)
    ],
    threads: Annotated[
        str | None, typer.Option("--threads", metavar="N[,N]", help="By default 1 and one for each core.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=2, metavar="N", help="How often each model is timed.")] = 30,
    quick: Annotated[bool, typer.Option("--quick", help="Only latencies: no memory, no times by kind of op.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    report: ReportOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Time models side by side: interleaved runs, median and quartiles, on one thread and on several.

    Inputs are made up. Times by kind of op are estimates: LiteRT's Python interpreter does not tell them.

    Examples:
      zeropoint benchmark model.tflite model_int8.tflite
      zeropoint benchmark a.tflite b.tflite c.tflite --threads 1,4 --json
      zeropoint benchmark model.tflite model_int8.tflite --report latency.html
    """
    from ..bench.latency import Trial
    from ..bench.latency import benchmark as measure
    from ..parallel import cores
    from ..report.progress import progress_bar
    from ..report.timing import print_benchmark

    reports = Reports(report, overwrite=overwrite)
    reports.require(inputs=models)
    counts = (1, cores()) if threads is None else _counts(threads)
    named = {name: load_model(path, screen) for name, path in zip(distinct(models), models, strict=True)}
    with progress_bar("timing", rounds, "rounds", screen.remarks) as tell:
        found = measure(named, Trial(tuple(dict.fromkeys(counts)), rounds, not quick), tell)
    if as_json:
        screen.json(found.to_json())
    else:
        print_benchmark(screen.without_notes(found), screen.results)
    if reports.wanted:
        from ..report.page_build import Evidence
        from ..report.page_cards import latency_bars

        first, last = found.models[0], found.models[-1]
        before = first.bytes if len(found.models) > 1 else None
        bars = latency_bars(found)
        evidence = Evidence(last.name, named[last.name], last.bytes, before, command=command_line(), bars=bars)
        reports.write(evidence, screen.asides if as_json else screen.remarks)


def _counts(threads: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in threads.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1:
        raise InvalidRecipe(f"--threads {threads}: give a number, or several with commas between them")
    return counts


def distinct(paths: list[Path]) -> list[str]:
    """Names of files, with their folders where these alone tell them apart, numbered where one comes twice."""
    names = [path.name if sum(p.name == path.name for p in paths) == 1 else str(path) for path in paths]
    return [n if names.count(n) == 1 else f"{n} #{names[: k + 1].count(n)}" for k, n in enumerate(names)]
