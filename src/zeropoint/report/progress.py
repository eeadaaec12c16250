"""Progress bars: rate and remaining time on a terminal, nothing when piped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..errors import printable


class ReportProgress(Protocol):
    """Called with how much is done and, when it changes, a description of the current step."""

    def __call__(self, done: int, description: str | None = None) -> None: ...


@contextmanager
def progress_bar(title: str, total: int | None, unit: str, console: Console) -> Iterator[ReportProgress]:
    """Yield a function to call with the number done so far. The bar is drawn on stderr and disappears at the end.

    Nothing is drawn if `console` is quiet or not a terminal.
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
    with Progress(*columns, console=target, transient=True, disable=not is_seen) as bar:
        task = bar.add_task(title, total=total, rate="")

        def report(done: int, description: str | None = None) -> None:
            speed = bar.tasks[0].speed
            rate = "" if speed is None else f"{speed:.0f} {unit}/s"
            bar.update(task, completed=done, rate=rate, description=escape(printable(description or title)))

        yield report


@contextmanager
def training_bar(steps: int, console: Console) -> Iterator[tuple[Callable[[int, float], None], Callable[..., None]]]:
    """Yield functions that report progress of training: one to call with the steps done and the loss, one for the
    result of a check."""
    with progress_bar("training", steps, "steps", console) as report:
        smoothed, checked = 0.0, ""

        def report_loss(done: int, loss: float) -> None:
            nonlocal smoothed
            smoothed = loss if done == 1 else 0.9 * smoothed + 0.1 * loss  # single batches vary too much
            report(done, f"training, loss {smoothed:.4g}{checked}")

        def report_check(logs: Mapping[str, float]) -> None:
            nonlocal checked
            held = {name.removeprefix("val_"): value for name, value in logs.items() if name.startswith("val_")}
            checked = "; held back: " + ", ".join(f"{name} {value:.4g}" for name, value in held.items())

        yield report_loss, report_check
