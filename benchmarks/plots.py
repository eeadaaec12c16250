"""Plots of the results: for each task, the score against the size and against the latency of every model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .modes import MODES
from .rows import FLOAT, Row
from .tools import OURS, TOOLS

COLORS = {
    OURS: "#0b6e4f",
    "tf": "#d95f02",
    "aeq": "#4c5fd7",
    "aeq-fast": "#8fa3ff",
    "lite": "#7d8597",
    "mct": "#b5179e",
    "nncf": "#c9a227",
    FLOAT: "#222222",
}
LIGHT = "#5cc3a0"
"""For further rows of zeropoint."""

MARKERS = dict(zip(MODES, "os^Dv<>P", strict=True))
SHOWN = 0.08
"""Scores further below the float model's than this part of it are drawn at the lower edge, with their value."""

STYLE = {
    "svg.hashsalt": "zeropoint",  # the same rows give the same bytes
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
}


@dataclass(frozen=True)
class Plot:
    """A file, and what scores are drawn against in it."""

    file: str
    label: str
    value: Callable[[Row], float | None]

    @property
    def text(self) -> str:
        return f"score against {self.label}, a panel for each task"


PLOTS = (
    Plot("score-size.svg", "size, of the float model's", lambda row: row.relative_size),
    Plot("score-latency.svg", "latency on one thread, of the float model's", lambda row: row.latency.get("1 of float")),
)


UNDRAWN = ("aeq-fast",)
"""It differs from the tool above it in how it calibrates; its models are the same or nearly so."""


def save_plots(folder: Path, rows: Sequence[Row]) -> None:
    drawn = [row for row in rows if row.tool not in UNDRAWN]
    for plot in PLOTS:
        _save(folder / plot.file, drawn, plot.label, plot.value)


def pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(path: Path, rows: Sequence[Row], label: str, value: Callable[[Row], float | None]) -> None:
    plt = pyplot()
    tasks = list(dict.fromkeys(row.task for row in rows))
    columns = min(3, len(tasks))
    lines = math.ceil(len(tasks) / columns)
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(lines, columns, figsize=(max(9.0, 4.2 * columns), 3.1 * lines + 1), squeeze=False)
        for panel in panels.flat[len(tasks) :]:
            panel.set_visible(False)
        for panel, task in zip(panels.flat, tasks, strict=False):
            _panel(panel, [row for row in rows if row.task == task and row.error is None], value)
            panel.set_title(task, loc="left", fontweight="bold")
        figure.supxlabel(f"{label} (logarithmic; further left is better)", fontsize=10)
        figure.supylabel("score (higher is better)", fontsize=10)
        figure.legend(handles=_legend(plt, rows), loc="outside upper center", ncols=6, frameon=False)
        figure.set_layout_engine("constrained")
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def _panel(panel: Any, rows: Sequence[Row], value: Callable[[Row], float | None]) -> None:
    scores = [row.score for row in rows if row.score is not None]
    base = next((row.score for row in rows if row.tool == FLOAT), None)
    panel.set_xscale("log")
    if not scores:
        return
    best, reference = max(scores), base if base is not None else max(scores)
    floor = max(min(scores), reference - SHOWN * abs(reference))
    margin = 0.08 * (best - floor) or 0.01
    panel.set_ylim(floor - margin, best + margin)
    if base is not None:
        panel.axhline(base, color=COLORS[FLOAT], linewidth=0.8, linestyle="--")
    # Ours by default last, so that it is on top. A score on part of the samples moves as the float model's does.
    low = 0
    for row in sorted(rows, key=lambda row: (row.tool == OURS, row.variant is None)):
        x = 1.0 if row.tool == FLOAT else value(row)
        if row.score is None or x is None:
            continue
        score = row.score if row.limit is None or row.float_score is None else row.score - row.float_score + reference
        y = max(score, floor)
        color = LIGHT if row.variant else COLORS[row.tool]
        marker = "*" if row.tool == FLOAT else MARKERS[row.mode]
        panel.plot(
            x,
            y,
            marker,
            color=color,
            markersize=11 if marker == "*" else 6.5,
            markeredgecolor="white",
            markeredgewidth=0.6,
        )
        if score < floor:
            above = (0, 6 + 8 * low)  # one label over the other
            panel.annotate(
                f"↓{score:.2f}", (x, y), above, textcoords="offset points", fontsize=7, color=color, ha="center"
            )
            low += 1
    _plain_ticks(panel)


def _plain_ticks(panel: Any) -> None:
    """Ratios as people write them, at 1, 2 and 5 of each power of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    panel.xaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}×"))
    panel.xaxis.set_minor_formatter(NullFormatter())


def _legend(plt: Any, rows: Sequence[Row]) -> list[Any]:
    line = plt.Line2D
    tools = [tool for tool in TOOLS if any(row.tool == tool for row in rows)]
    made = [line([], [], color=COLORS[tool], marker="s", linestyle="", label=TOOLS[tool].title) for tool in tools]
    if any(row.variant for row in rows):
        made.append(line([], [], color=LIGHT, marker="s", linestyle="", label="zeropoint, other options"))
    made.append(line([], [], color=COLORS[FLOAT], marker="*", linestyle="--", label="float"))
    modes = [mode for mode in MODES if any(row.mode == mode for row in rows)]
    made += [line([], [], color="#888888", marker=MARKERS[mode], linestyle="", label=mode) for mode in modes]
    return made
