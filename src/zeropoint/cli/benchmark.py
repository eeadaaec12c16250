"""zeropoint benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ..errors import InvalidRecipe
from . import shared
from .command import Screen, argument, flag, option


@dataclass(frozen=True)
class BenchmarkOptions:
    """What to time, and how it is shown."""

    threads: str | None = option(None, "N[,N]", "By default 1 and one for each core.")
    rounds: int = option(30, "N", "How often each model is timed.", min=2)
    quick: bool = flag("Only latencies: no memory, no times by kind of op.")
    as_json: bool = flag("Print JSON.", "--json")


def benchmark(
    screen: Screen,
    models: Annotated[list[Path], argument("MODEL...", "One or several models.")],
    options: BenchmarkOptions,
    reports: shared.PageOptions,
) -> None:
    """Time models side by side: interleaved runs, median and quartiles, on one thread and on several.

    Inputs are made up. Times by kind of op are estimates: LiteRT's Python interpreter does not report them.

    Examples:
      zeropoint benchmark model.tflite model_int8.tflite
      zeropoint benchmark a.tflite b.tflite c.tflite --threads 1,4 --json
      zeropoint benchmark model.tflite model_int8.tflite --report latency.html
    """
    from ..bench.latency import TimingOptions
    from ..bench.latency import benchmark as measure
    from ..parallel import cores
    from ..report.progress import progress_bar
    from ..report.terminal import print_benchmark

    reports.require(inputs=models)
    counts = (1, cores()) if options.threads is None else _counts(options.threads)
    named = {name: shared.load_model(path, screen) for name, path in zip(distinct(models), models, strict=True)}
    with progress_bar("timing", options.rounds, "rounds", screen.remarks) as progress:
        timed = measure(named, TimingOptions(tuple(dict.fromkeys(counts)), options.rounds, not options.quick), progress)
    screen.show(timed, options.as_json, print_benchmark)
    if reports.wanted:
        from ..report.page_build import latency_bars

        first, last = timed.models[0], timed.models[-1]
        known = {"size_before": first.bytes if len(timed.models) > 1 else None, "bars": latency_bars(timed)}
        reports.write(screen.beside(options.as_json), last.name, named[last.name], last.bytes, **known)


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
