"""Values as lines of text: 80 columns on a terminal, full names when piped."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.text import Text

from ..bench.latency import Benchmark, Timing
from ..calibration.histogram import Histogram
from ..calibration.stats import Stats
from ..display import counted, size_text
from ..errors import printable, shown_name
from ..graph.names import LONGEST
from .inspection import InspectedOp, Inspection, QuantRow, TensorRow, has_few_levels, signed

BAR_WIDTH = 30
"""Width of the longest bar of a benchmark, in columns."""

SHOWN_KINDS = 5
"""Number of op kinds that are listed for each model of a benchmark."""

BLOCKS = " ▁▂▃▄▅▆▇█"


class Printer:
    """Prints styled lines; on a terminal, long names are shortened in the middle and long lines wrap."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.width = max(60, console.width) if console.is_terminal else None

    def line(self, *parts: tuple[str, str] | str) -> None:
        clean = (printable(p) if isinstance(p, str) else (printable(p[0]), p[1]) for p in parts)
        for line in self._wrapped(Text.assemble(*clean)):
            self.console.print(line, soft_wrap=True, highlight=False)

    def entry(self, label: str, *parts: tuple[str, str] | str) -> None:
        """Print a line with a label in its own column."""
        self.line((f"{label:11} ", "bold"), *parts)

    def _wrapped(self, text: Text) -> Iterator[Text]:
        if self.width is None or text.cell_len <= self.width:
            yield text
            return
        indent = len(text.plain) - len(text.plain.lstrip())
        for k, line in enumerate(text[indent:].wrap(self.console, self.width - indent - 2)):
            line.rstrip()
            yield Text(" " * (indent + 2 * min(k, 1))) + line

    def row(self, numbers: tuple[str, str], *about: tuple[str, str] | str) -> None:
        """Print a table row that ends with what it is about, on a line of its own if there is no room."""
        length = sum(len(part if isinstance(part, str) else part[0]) for part in (numbers, *about))
        if self.width is None or length <= self.width:
            self.line(numbers, *about)
        else:
            self.line(numbers)
            self.line("      ", *about)

    def fit(self, name: str, room: int) -> str:
        """Return `name`, shortened on a terminal so that `room` columns of the line remain."""
        name = printable(shown_name(name))
        limit = len(name) if self.width is None else max(LONGEST, self.width - room)
        if len(name) <= limit:
            return name
        head = (limit - 1) // 3
        return f"{name[:head]}…{name[len(name) - (limit - 1 - head) :]}"


def count_text(count: int) -> str:
    """Format a large count with a unit: `12.6 M`."""
    for least, factor, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if count >= least:
            return f"{count / factor:.1f} {unit}"
    return f"{count:,}"


def duration_text(seconds: float) -> str:
    for limit, unit, factor in ((1e-3, "µs", 1e6), (1.0, "ms", 1e3)):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def type_text(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{','.join('?' if d < 0 else str(d) for d in shape)}]"


@dataclass(frozen=True)
class Detail:
    """How much of an inspection to show."""

    tensors: bool = True
    ops: bool = False
    channels: bool = False
    exact: bool = False


def print_inspection(shown: Inspection, title: str, detail: Detail, console: Console) -> None:
    printer = Printer(console)
    _print_summary(shown, title, printer)
    if detail.tensors and shown.tensors:
        printer.line("")
        printer.line(("Tensors", "bold"))
        for tensor in shown.tensors:
            _print_tensor(tensor, detail, printer)
    if detail.ops and shown.ops:
        printer.line("")
        printer.line(("Ops", "bold"))
        for op in shown.ops:
            _print_op(op, detail, printer)


def _print_summary(shown: Inspection, title: str, printer: Printer) -> None:
    size = "" if shown.file_bytes is None else f"  {size_text(shown.file_bytes)}"
    printer.line((title, "bold"), size, f"  {counted(len(shown.ops), 'op')}, {counted(len(shown.tensors), 'tensor')}")
    _print_signatures(shown, printer)
    if shown.made_by is not None:
        printer.line(("Made by  ", "bold"), shown.made_by)
    data = ", ".join(f"{dtype} {size_text(n)}" for dtype, n in shown.data_bytes.items())
    rest = "" if shown.other_bytes is None else f"; structure {size_text(shown.other_bytes)}"
    printer.line(("Data  ", "bold"), (data or "none") + rest)
    if (few := few_levels_text(shown)) is not None:
        printer.line(("Few levels  ", "bold"), few)
    if shown.packed_files:
        packed = (f"{file.name} {size_text(file.size)}" for file in shown.packed_files)
        printer.line(("Packed files  ", "bold"), ", ".join(packed))
    for remark in shown.remarks:
        printer.line(("Remark  ", "bold"), remark)
    printer.line(("Ops", "bold"))
    for kind, counts in sorted(shown.ops_by_kind.items(), key=lambda item: -item[1].total()):
        how = ", ".join(f"{n} {execution}" for execution, n in counts.most_common())
        printer.line(f"  {counts.total():4d}  {kind:28} {how}")
    if shown.integer_share is not None:
        parts = ", ".join(f"{count_text(n)} {execution}" for execution, n in shown.macs.items())
        printer.entry("Arithmetic", f"{shown.integer_share_text} integer  (multiply-accumulates: {parts})")


def few_levels_text(shown: Inspection) -> str | None:
    """Return which weights use few of their type's integers, and the size of the file when zipped."""
    if shown.few_levels is None or shown.zip_bytes is None:
        return None
    return f"{shown.few_levels}; {size_text(shown.zip_bytes)} when zipped"


def _print_signatures(shown: Inspection, printer: Printer) -> None:
    for signature in shown.signatures:
        printer.line(("Signature ", "bold"), signature.key if signature.key is not None else "(none)")
        for side, ports in (("in ", signature.inputs), ("out", signature.outputs)):
            for port in ports:
                formula = "" if port.formula is None else f"  real = {port.formula}"
                described = f"  {type_text(port.dtype, port.shape)}{formula}"
                printer.line(f"  {side} ", (port.short_name, "cyan"), described)


def _print_tensor(tensor: TensorRow, detail: Detail, printer: Printer) -> None:
    printer.line("  ", (tensor.short_name, "cyan"))
    if tensor.short_name != tensor.name:
        printer.line("    in the file: ", tensor.name)
    about = [tensor.kind, type_text(tensor.dtype, tensor.shape_signature or tensor.shape)]
    row = tensor.quantization
    if row is not None:
        about.append(exact_line(row) if detail.exact else range_line(row))
    elif tensor.values is not None:
        digits = EXACT_DIGITS if detail.exact else 5
        about.append(f"values {tensor.values[0]:.{digits}g} .. {tensor.values[1]:.{digits}g}")
    if has_few_levels(tensor):
        about.append(f"({tensor.levels} levels)")
    if tensor.note:
        about.append(f"({tensor.note})")
    printer.line("    ", "  ".join(about))
    if detail.channels and row is not None and row.axis is not None:
        for k, (scale, zero_point) in enumerate(zip(row.scales, row.zero_points, strict=True)):
            printer.line(f"      {k:5d}  scale {scale:.9g}  zero point {zero_point}")


def range_line(row: QuantRow) -> str:
    """Return the line that Netron shows: `-1.6488 ≤ 0.012566 * (q - 3) ≤ 1.5555`."""
    if row.axis is not None:
        return row.formula
    return f"{row.low:.5g} ≤ {row.formula} ≤ {row.high:.5g}  ({row.source})"


EXACT_DIGITS = 9
"""Digits that represent a float32 exactly."""


def exact_line(row: QuantRow) -> str:
    """Return the line that Netron shows, with all digits that the numbers need."""
    if row.axis is not None:
        return row.formula
    offset = f"(q{signed(-row.zero_points[0])})" if row.zero_points[0] else "q"
    low, high = (f"{end:.17g}" for end in (row.low, row.high))
    return f"{low} ≤ {row.scales[0]:.{EXACT_DIGITS}g} * {offset} ≤ {high}  ({row.source})"


def _print_op(op: InspectedOp, detail: Detail, printer: Printer) -> None:
    fused = "" if op.activation == "NONE" else f" + {op.activation}"
    cost = f"  {count_text(op.macs)} MAC" if op.macs else ""
    printer.line("  ", (f"{op.kind}{fused}", "green"), f"  v{op.version}  {op.execution}{cost}")
    for side, operands in (("in ", op.inputs), ("out", op.outputs)):
        for operand in operands:
            if operand is None:
                printer.line(f"    {side} (left out)")
                continue
            printer.line(f"    {side} ", (operand.short_name, "cyan"))
            formula = "" if operand.formula is None else f"  {operand.formula}"
            printer.line(f"        {type_text(operand.dtype, operand.shape)}{formula}")
    shown = op.multipliers if detail.channels or len(op.multipliers) <= 3 else op.multipliers[:1]
    for multiplier in shown:
        printer.line(f"    {multiplier}  (shift {multiplier.shift})")
    if len(shown) < len(op.multipliers):
        printer.line(f"    … and {counted(len(op.multipliers) - len(shown), 'channel')} more (--channels shows them)")


def print_stats(stats: Stats, title: str, console: Console, *, brief: bool = False) -> None:
    """Print statistics as a table: the range of each tensor with a small histogram."""
    printer = Printer(console)
    printer.line((title, "bold"), f"  {counted(len(stats.tensors), 'tensor')} on {counted(stats.samples, 'sample')}")
    for note in stats.notes:
        printer.line("note: ", note)
    if brief:
        return
    printer.line(("      least    greatest       mean   sample of each   histogram", "bold"))
    for name, t in stats.tensors.items():
        printer.line("  ", (printer.fit(name, 4), "cyan"))
        mean = f"{t.mean:.4g}" if t.histogram.counts.size else "-"  # quick statistics have none
        where = f"{t.low.sample}, {t.high.sample}"
        numbers = f"{t.low.value:11.5g} {t.high.value:11.5g} {mean:>10}   {where:>14}   "
        printer.line(numbers, (sketch(t.histogram), "green"))
        if t.nonfinite:
            printer.line(f"    {t.nonfinite} values were NaN or infinite")


def bar_heights(histogram: Histogram, width: int) -> list[float]:
    """Return heights from 0 to 1 for at most `width` bars, on a logarithmic scale so that rare outliers are visible."""
    counts = histogram.counts
    if not counts.size:
        return []
    heights = np.log1p([float(g.sum()) for g in np.array_split(counts, min(width, counts.size))])
    return [float(height) for height in heights / max(heights.max(), 1e-9)]


def sketch(histogram: Histogram, width: int = 24) -> str:
    """Return the histogram as a line of block characters."""
    return "".join(BLOCKS[math.ceil(height * (len(BLOCKS) - 1))] for height in bar_heights(histogram, width))


def print_benchmark(timed: Benchmark, console: Console) -> None:
    """Print latencies as bars, then what is known about each model."""
    printer = Printer(console)
    longest = max(x.high for m in timed.models for x in m.latencies)
    width = max(len(m.name) for m in timed.models)
    for latencies in zip(*(m.latencies for m in timed.models), strict=True):  # with the same number of threads
        first = latencies[0]
        printer.line((counted(first.threads, "thread"), "bold"), f"  (of {timed.cores} cores)")
        for model, latency in zip(timed.models, latencies, strict=True):
            bar = "█" * max(1, round(BAR_WIDTH * latency.median / longest))
            spread = "─" * max(0, round(BAR_WIDTH * latency.high / longest) - len(bar))
            speedup = "" if latency is first else f"  {first.median / latency.median:.2f}x"
            median, low, high = map(duration_text, (latency.median, latency.low, latency.high))
            bars = (f"{bar}{spread}".ljust(BAR_WIDTH), "cyan")
            printer.line(f"  {model.name:{width}}  ", bars, f"  {median}  ({low} .. {high}){speedup}")
    for model in timed.models:
        _print_inside(model, printer)
    for note in timed.notes:
        printer.line(("Note  ", "bold"), note)


def _print_inside(model: Timing, printer: Printer) -> None:
    memory = "" if model.peak_memory is None else f", peak memory {size_text(model.peak_memory)} beyond the file"
    printer.line((model.name, "bold"), f"  {size_text(model.bytes)}{memory}")
    if model.undelegated:
        listed = ", ".join(f"{count} {kind}" for kind, count in list(model.undelegated.items())[:SHOWN_KINDS])
        printer.line(f"  {counted(sum(model.undelegated.values()), 'op')} on plain kernels: {listed}")
    if model.kinds:
        listed = ", ".join(f"{k.kind} {k.share:.0%}" for k in model.kinds[:SHOWN_KINDS])
        printer.line(f"  time by kind, estimated: {listed}")
        if model.conversions:
            printer.line(f"  conversions: {model.conversions:.1%} of the time, estimated")
