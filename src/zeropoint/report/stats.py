"""Statistics as a table: the range of each tensor with a small histogram."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console

from ..calibrate.histogram import Histogram
from ..calibrate.stats import Stats
from .terminal import Printer

BARS = " ▁▂▃▄▅▆▇█"


def is_stats(path: Path) -> bool:
    """Whether a file looks like statistics (a zip archive) rather than a model."""
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
    printer.line(("      least     greatest       mean   sample (min, max)   histogram", "bold"))
    for name, t in stats.tensors.items():
        printer.line("  ", (printer.fit(name, 4), "cyan"))
        extremes = f"{t.low.value:11.5g}  {t.high.value:11.5g} {t.mean:10.4g}   {t.low.sample:6d}, {t.high.sample:6d}"
        printer.line(extremes, "     ", (sketch(t.histogram), "green"))


def sketch(histogram: Histogram, width: int = 24) -> str:
    """The histogram as a line of blocks; heights are logarithmic, so that rare outliers show."""
    counts = histogram.counts
    if not counts.size:
        return ""
    groups = np.array_split(counts, min(width, counts.size))
    heights = np.log1p([float(g.sum()) for g in groups])
    levels = np.ceil(heights / max(heights.max(), 1e-9) * (len(BARS) - 1)).astype(int)
    return "".join(BARS[k] for k in levels)
