"""The output of `zeropoint tune`: decisions as they are made, the Pareto front as a plot, and a page with each
recipe."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.resources import files

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..display import size_text
from ..errors import printable
from ..files import PathLike, write_whole
from ..recipe_files import toml_text
from ..tuning.result import Tuned
from ..tuning.search import Progress, SearchState
from ..tuning.trial import Trial
from .terminal import Printer, duration_text

COLUMNS, ROWS = 60, 12
"""Size of a plot on a terminal, in characters."""

WIDTH, HEIGHT = 720.0, 340.0
LEFT, RIGHT, TOP, BOTTOM = 90.0, 700.0, 20.0, 300.0
"""Size of a plot on a page, in pixels."""


@contextmanager
def live_table(console: Console) -> Iterator[Progress]:
    """Print each decision as it is made; on a terminal, also show the current trial, the best so far and the time
    left."""
    printer, said = Printer(console), 0
    is_seen = console.is_terminal and not console.quiet

    with Live(console=console, transient=True) if is_seen else nullcontext() as live:

        def report(state: SearchState) -> None:
            nonlocal said
            for line in state.lines[said:]:
                printer.line(line)
            said = len(state.lines)
            if live is not None:
                live.update(_view(state))

        yield report


def _view(state: SearchState) -> Group:
    table = Table(box=None, pad_edge=False)
    for title in ("being tried", "best so far", "trials", "time left"):
        table.add_column(title)
    done = len(state.trials)
    open_trials = state.most - done  # as long as those before, although later ones are often slower
    left = f"about {duration_text(state.seconds / done * open_trials)}" if done and open_trials else ""
    best = "" if state.best is None else f"{state.best.label}, {size_text(state.best.size)}"
    cells = (", ".join(state.running), best, f"{done} of {state.most}", left)
    table.add_row(*(Text(printable(cell)) for cell in cells))
    return Group(table)


def print_tuned(tuned: Tuned, console: Console) -> None:
    """Print the Pareto front as a table and as a plot; decisions were printed as they were made."""
    for line in (*front_lines(tuned), *plot_lines(tuned)):
        Printer(console).line(line)


def front_lines(tuned: Tuned) -> list[str]:
    """Return the Pareto front: models that no other beats in size, score and, if measured, latency."""
    front = tuned.front
    if not front:
        return []
    is_timed = any(t.latency is not None for t in front)
    changes = ["" if t.drop is None else tuned.scale.change(t.drop) for t in front]
    width = max(len(tuned.scale.metric), *map(len, changes))
    head = f"{'bytes':>13}{'time':>11}" if is_timed else f"{'bytes':>13}"
    lines = [f"{head}  {tuned.scale.metric:>{width}}  what nothing else beats"]
    for trial, change in zip(front, changes, strict=True):
        latency = "" if trial.latency is None else duration_text(trial.latency)
        numbers = f"{trial.size:>13,}{latency:>11}" if is_timed else f"{trial.size:>13,}"
        remark = ", chosen" if trial is tuned.chosen else "" if trial.within else ", over budget"
        lines.append(f"{numbers}  {change:>{width}}  {trial.label}{remark}")
    return lines


def plot_lines(tuned: Tuned) -> list[str]:
    """Plot score against size: * within the budget, o over it, @ the chosen one."""
    made = [t for t in tuned.trials if t.drop is not None]
    if len(made) < 2:
        return []
    xs, ys = [float(t.size) for t in made], [_loss(t) for t in made]
    rows = ROWS if min(ys) < max(ys) else 1
    grid = [[" "] * COLUMNS for _ in range(rows)]
    for trial, x, y in sorted(zip(made, xs, ys, strict=True), key=lambda p: p[0] is tuned.chosen):
        column, row = _place(x, xs, COLUMNS), _place(y, ys, rows)
        grid[row][column] = "@" if trial is tuned.chosen else "*" if trial.within else "o"
    best, worst = (_change(tuned, value) for value in (min(ys), max(ys)))
    labels = [best, *[""] * (rows - 2), worst][:rows]
    lines = [f"{label:>9} │{''.join(row).rstrip()}" for label, row in zip(labels, grid, strict=True)]
    low, high = size_text(int(min(xs))), size_text(int(max(xs)))
    ends = f"{'':10} {low}{high:>{COLUMNS - len(low)}}"
    return [
        f"{tuned.scale.metric} against size: * within the budget, o over it, @ chosen",
        *lines,
        f"{'':9} └{'─' * COLUMNS}",
        ends,
    ]


def _loss(trial: Trial) -> float:
    return 0.0 if trial.drop is None else trial.drop.value


def _change(tuned: Tuned, loss: float) -> str:
    return tuned.scale.number(-loss, sign=True)


def _place(value: float, values: Sequence[float], cells: int) -> int:
    low, high = min(values), max(values)
    return 0 if high <= low else min(cells - 1, round((value - low) / (high - low) * (cells - 1)))


# The page.


@dataclass(frozen=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True)
class Dot:
    number: int
    x: float
    y: float
    text: str
    within: bool
    chosen: bool
    front: bool


@dataclass(frozen=True)
class Plot:
    """A scatter plot in pixels. `limit` is where the budget ends."""

    title: str
    dots: tuple[Dot, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    limit: float | None
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = RIGHT
    top: float = TOP
    bottom: float = BOTTOM


def save_tuning_page(tuned: Tuned, title: str, command: str, path: PathLike, *, overwrite: bool = False) -> int:
    """Write the report, completely or not at all: one self-contained file."""
    from jinja2 import Environment, StrictUndefined

    template = files(__package__).joinpath("assets").joinpath("tuning.html").read_text("utf-8")
    wanted = {"front": "front of models"}.get(tuned.objective, f"{tuned.objective} model")
    content = (
        Environment(autoescape=True, undefined=StrictUndefined)
        .from_string(template)
        .render(tuned=tuned, title=title, command=command, wanted=wanted, plots=list(plots(tuned)), toml=toml_text)
    )
    return write_whole(path, [content.encode("utf-8", "backslashreplace")], overwrite=overwrite)


def plots(tuned: Tuned) -> Iterator[Plot]:
    """Yield plots of score against size, and against latency if that was measured."""
    made = [t for t in tuned.trials if t.drop is not None]
    if made:
        yield _plot(tuned, made, [float(t.size) for t in made], "size", lambda x: size_text(int(x)))
    timed = [t for t in made if t.latency is not None]
    if timed:
        yield _plot(tuned, timed, [t.latency or 0.0 for t in timed], "latency", duration_text)


def _plot(tuned: Tuned, trials: Sequence[Trial], xs: Sequence[float], what: str, text: Callable[[float], str]) -> Plot:
    ys, front = [_loss(t) for t in trials], tuned.front
    high = max(ys) if math.isinf(tuned.allowed) else max(*ys, tuned.allowed)
    x_axis, y_axis = _Axis(0.0, max(xs), LEFT, RIGHT), _Axis(min(ys), high, TOP, BOTTOM)
    dots = sorted(
        (
            Dot(
                tuned.trials.index(t),
                x_axis.at(x),
                y_axis.at(_loss(t)),
                f"{t.label}: {text(x)}, {tuned.outcome(t)}",
                t.within,
                t is tuned.chosen,
                t in front,
            )
            for t, x in zip(trials, xs, strict=True)
        ),
        key=lambda dot: dot.x,
    )
    ticks = tuple(Tick(x_axis.at(x), text(x)) for x in x_axis.ticks())
    losses = tuple(Tick(y_axis.at(y), _change(tuned, y)) for y in y_axis.ticks())
    limit = None if math.isinf(tuned.allowed) else y_axis.at(tuned.allowed)
    return Plot(f"{tuned.scale.metric} against {what}", tuple(dots), ticks, losses, limit)


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, count: int = 5) -> list[float]:
        return [self.low + (self.high - self.low) * k / (count - 1) for k in range(count)]
