"""Long work with a progress bar: rate and time left on a terminal, nothing when piped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..calibrate import Settings, Stats, calibrate
from ..calibrate.collect import Progress as Report
from ..graph.model import Model
from ..sources.data import Data


@dataclass(frozen=True)
class SampledModel:
    """A model with the data it is to be run on."""

    model: Model
    data: Data
    signature: str | None = None


@contextmanager
def progress_bar(title: str, total: int | None, unit: str, console: Console) -> Iterator[Report]:
    """A function to call with the number done so far. The bar goes to stderr and away when it is done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=not console.is_terminal)
    with bar:
        task = bar.add_task(title, total=total, rate="")

        def report(done: int) -> None:
            speed = bar.tasks[0].speed
            bar.update(task, completed=done, rate="" if speed is None else f"{speed:.0f} {unit}/s")

        yield report


def calibrate_with_progress(source: SampledModel, settings: Settings, console: Console) -> Stats:
    total = source.data.count
    if settings.limit is not None:
        total = settings.limit if total is None else min(total, settings.limit)
    samples = source.data.samples if source.signature is None else {source.signature: source.data.samples}
    with progress_bar("calibrating", total, "samples", console) as report:
        return calibrate(source.model, samples, settings, progress=report)
