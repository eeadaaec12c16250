"""Statistics as a table: the range of each tensor with a small histogram."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console

from ..calibration.histogram import Histogram
from ..calibration.stats import Stats
from ..sources.keras_files import SUFFIXES as KERAS_SUFFIXES
from .terminal import Printer

BARS = " ▁▂▃▄▅▆▇█"


def is_stats(path: Path) -> bool:
    """Whether a file looks like statistics (a zip archive) rather than a model. Those of Keras are archives as well."""
    if path.suffix.lower() in KERAS_SUFFIXES:
        return False
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False


def print_stats(stats: Stats, title: str, console: Console, *, brief: bool = False) -> None:
    printer = Printer(console)
    printer.line((title, "bold"), f"  {len(stats.tensors)} tensors on {stats.samples} samples")
    for note in stats.notes:
        printer.line("note: ", note)
    if brief:
        return
    printer.line(("      least    greatest       mean   sample of each   histogram", "bold"))
    for name, t in stats.tensors.items():
        printer.line("  ", (printer.fit(name, 4), "cyan"))
        mean = f"{t.mean:.4g}" if t.histogram.counts.size else "-"  # quick statistics have none
        where = f"{t.low.sample}, {t.high.sample}"
        printer.line(
            f"{t.low.value:11.5g} {t.high.value:11.5g} {mean:>10}   {where:>14}   ", (sketch(t.histogram), "green")
        )
        if t.nonfinite:
            printer.line(f"    {t.nonfinite} values were NaN or infinite")


def sketch(histogram: Histogram, width: int = 24) -> str:
    """The histogram as a line of blocks; heights are logarithmic, so that rare outliers show."""
    counts = histogram.counts
    if not counts.size:
        return ""
    groups = np.array_split(counts, min(width, counts.size))
    heights = np.log1p([float(g.sum()) for g in groups])
    levels = np.ceil(heights / max(heights.max(), 1e-9) * (len(BARS) - 1)).astype(int)
    return "".join(BARS[k] for k in levels)
