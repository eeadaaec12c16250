"""Long work with a progress bar: rate and time left on a terminal, nothing when piped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..calibration import Settings, Stats, calibrate
from ..calibration.collect import Progress as Report
from ..graph.model import Model
from ..improve.search import quantize_on
from ..plan.pipeline import Request, Result
from ..sources.data import Data
from ..sources.samples import Samples


@dataclass(frozen=True)
class SampledModel:
    """A model with the data it is to be run on."""

    model: Model
    data: Data
    signature: str | None = None

    @property
    def samples(self) -> Samples | Mapping[str, Samples]:
        return self.data.samples if self.signature is None else {self.signature: self.data.samples}

    def total(self, limit: int | None) -> int | None:
        """How many runs to expect, if that is known."""
        return min((n for n in (self.data.count, limit) if n is not None), default=None)


class Describing(Protocol):
    """Reports how much is done, and says anew what it is that is being done."""

    def __call__(self, done: int, description: str | None = None) -> None: ...


@contextmanager
def progress_bar(title: str, total: int | None, unit: str, console: Console) -> Iterator[Describing]:
    """A function to call with the number done so far. The bar goes to stderr and away when it is done.

    There is none beside a `console` that is quiet or no terminal.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    target = Console(stderr=True)
    is_seen = not console.quiet and console.is_terminal and target.is_terminal
    bar = Progress(*columns, console=target, transient=True, disable=not is_seen)
    with bar:
        task = bar.add_task(title, total=total, rate="")

        def report(done: int, description: str | None = None) -> None:
            speed = bar.tasks[0].speed
            rate = "" if speed is None else f"{speed:.0f} {unit}/s"
            bar.update(task, completed=done, rate=rate, description=description or title)

        yield report


def calibrate_with_progress(source: SampledModel, settings: Settings, console: Console) -> Stats:
    with progress_bar("calibrating", source.total(settings.limit), "samples", console) as report:
        return calibrate(source.model, source.samples, settings, progress=report)


def quantize_with_progress(source: SampledModel, request: Request, settings: Settings, console: Console) -> Result:
    with ExitStack() as shown:

        def stage(what: str, total: int) -> Report:
            shown.close()  # one bar at a time
            return shown.enter_context(progress_bar(what, total, "steps", console))

        report = shown.enter_context(progress_bar("calibrating", source.total(settings.limit), "samples", console))
        return quantize_on(source.model, request, source.samples, settings, report, stage)


@contextmanager
def training_bar(steps: int, console: Console) -> Iterator[Callable[[int, float], None]]:
    """The same for training: a function to call with the steps done and the loss."""
    with progress_bar("training", steps, "steps", console) as report:
        shown = 0.0

        def both(done: int, loss: float) -> None:
            nonlocal shown
            shown = loss if done == 1 else 0.9 * shown + 0.1 * loss  # single batches jump about
            report(done, f"training, loss {shown:.4g}")

        yield both
