"""zeropoint benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import InvalidRecipe
from .command import Screen
from .options import OverwriteOption, ReportOption, ReportOptions, load_model


def benchmark(
    screen: Screen,
    models: Annotated[
        list[Path], typer.Argument(metavar="MODEL...", help="One or several models.", show_default=False)
    ],
    threads: Annotated[str | None, typer.Option(metavar="N[,N]", help="By default 1 and one for each core.")] = None,
    rounds: Annotated[int, typer.Option(min=2, metavar="N", help="How often each model is timed.")] = 30,
    quick: Annotated[bool, typer.Option("--quick", help="Only latencies: no memory, no times by kind of op.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    report: ReportOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Time models side by side: interleaved runs, median and quartiles, on one thread and on several.

    Inputs are made up. Times by kind of op are estimates: LiteRT's Python interpreter does not report them.

    Examples:
      zeropoint benchmark model.tflite model_int8.tflite
      zeropoint benchmark a.tflite b.tflite c.tflite --threads 1,4 --json
      zeropoint benchmark model.tflite model_int8.tflite --report latency.html
    """
    from ..bench.latency import Trial
    from ..bench.latency import benchmark as measure
    from ..parallel import cores
    from ..report.progress import progress_bar
    from ..report.terminal import print_benchmark

    reports = ReportOptions(report, overwrite=overwrite)
    reports.require(inputs=models)
    counts = (1, cores()) if threads is None else _counts(threads)
    named = {name: load_model(path, screen) for name, path in zip(distinct(models), models, strict=True)}
    with progress_bar("timing", rounds, "rounds", screen.remarks) as progress:
        timed = measure(named, Trial(tuple(dict.fromkeys(counts)), rounds, not quick), progress)
    if as_json:
        screen.json(timed.to_json())
    else:
        print_benchmark(screen.without_notes(timed), screen.results)
    if reports.wanted:
        from ..report.page_build import latency_bars

        first, last = timed.models[0], timed.models[-1]
        reports.write(
            screen.beside(as_json),
            title=last.name,
            model=named[last.name],
            size=last.bytes,
            size_before=first.bytes if len(timed.models) > 1 else None,
            bars=latency_bars(timed),
        )


def _counts(threads: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in threads.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1:
        raise InvalidRecipe(f"--threads {threads}: give a number, or several with commas between them")
    return counts


def distinct(paths: list[Path]) -> list[str]:
    """File names, with their folders where names alone are ambiguous, and numbered where one is given twice."""
    names = [path.name if sum(p.name == path.name for p in paths) == 1 else str(path) for path in paths]
    return [n if names.count(n) == 1 else f"{n} #{names[: k + 1].count(n)}" for k, n in enumerate(names)]
