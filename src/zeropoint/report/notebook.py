"""Values as a notebook shows them: the text of the commands, and pictures of the report if they are small."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from html import escape
from typing import Any

from rich.console import Console

from ..bench.latency import Benchmark
from ..calibration.histogram import Histogram
from ..calibration.stats import Stats
from ..comparison.values import Comparison, Diagnosis
from ..display import counted
from ..errors import MissingExtra, printable, shortening_names, shown_name
from ..graph.model import Graph, Model, Op
from ..graph.names import short_names
from ..graph.query import unique_names
from ..improve.drawback import SourceModel
from ..improve.pipeline import Result
from ..ops.execution import execution_of
from ..plan.plan import Plan
from ..recipe import Recipe
from ..tflite.write import to_bytes
from .comparison import print_comparison, print_diagnosis
from .inspection import Inspection, inspect
from .page import curve
from .page_picture import BOX_HEIGHT, BOX_WIDTH, picture_of, require_report
from .quantization import SavedAs, print_result, print_verdict
from .terminal import Detail, bar_heights, print_benchmark, print_inspection

WIDTH = 100
"""Width of text in columns."""

MOST_OPS = 40
"""Maximum number of ops of a graph that is drawn; larger ones are for `zeropoint report`."""

MOST_TENSORS = 60

BARS = 32
"""Number of bars of a histogram."""

COLOURS = {"integer": "#cfe0fa", "hybrid": "#d9ecd3", "float": "#f8d9b8", "conversion": "#e7d7f2"}
"""Colours by how an op is executed, as in the report."""


def html(value: object) -> str:
    """Return `value` as self-contained HTML. Every text is escaped: names come from untrusted files."""
    write = next(write for kind, write in WRITERS.items() if isinstance(value, kind))
    model = value if isinstance(value, Model) else value.model if isinstance(value, Result) else None
    with shortening_names({} if model is None else short_names(model)):
        content = "".join(write(value))
    return f'<div style="max-height: 40em; overflow: auto">{content}</div>'


def _text(write: Callable[[Console], None]) -> str:
    """Return what a command prints, with its colours."""
    console = Console(file=io.StringIO(), record=True, width=WIDTH, force_terminal=True, color_system="truecolor")
    write(console)
    return console.export_html(inline_styles=True, code_format='<pre style="line-height: 1.3">{code}</pre>')


def _inspection(shown: Inspection) -> Iterator[str]:
    yield _text(lambda console: print_inspection(shown, "", Detail(tensors=False), console))


def _model(model: Model) -> Iterator[str]:
    yield from _inspection(inspect(model))
    yield _picture(model.main)


def _plan(plan: Plan) -> Iterator[str]:
    yield f'<pre style="line-height: 1.3">{escape(str(plan))}</pre>'
    yield _picture(plan.graph)


def _result(result: Result) -> Iterator[str]:
    before = SourceModel(result.prepared or result.model) if result.origin is None else result.origin
    sizes = SavedAs(None, len(to_bytes(result.model)), before.bytes)
    yield _text(lambda console: print_result(result, sizes, console))
    yield _text(lambda console: print_verdict(result.verdict, console))
    yield _picture(result.model.main)


def _comparison(comparison: Comparison) -> Iterator[str]:
    yield _text(lambda console: print_comparison(comparison, console))


def _diagnosis(diagnosis: Diagnosis) -> Iterator[str]:
    yield _text(lambda console: print_diagnosis(diagnosis, console))


def _benchmark(timed: Benchmark) -> Iterator[str]:
    yield _text(lambda console: print_benchmark(timed, console))


def _stats(stats: Stats) -> Iterator[str]:
    yield f"<p>{counted(len(stats.tensors), 'tensor')} on {counted(stats.samples, 'sample')}</p>"
    yield "<table><tr><th>tensor</th><th>least</th><th>greatest</th><th>histogram</th></tr>"
    for name, seen in list(stats.tensors.items())[:MOST_TENSORS]:
        ends = f"<td>{seen.low.value:.5g}</td><td>{seen.high.value:.5g}</td>"
        yield f"<tr><td>{escape(printable(name))}</td>{ends}<td>{_histogram(seen.histogram)}</td></tr>"
    yield "</table>"
    if len(stats.tensors) > MOST_TENSORS:
        yield f"<p>and {len(stats.tensors) - MOST_TENSORS} more</p>"
    yield from (f"<p>{escape(printable(note))}</p>" for note in stats.notes)


def _recipe(recipe: Recipe) -> Iterator[str]:
    made_for = "" if recipe.target is None else f" for {escape(recipe.target)}"
    yield f"<p>{counted(len(recipe.rules), 'rule')}{made_for}; the last that matches an op decides</p>"
    yield f"<ol>{''.join(f'<li><code>{escape(str(rule))}</code></li>' for rule in recipe.rules)}</ol>"


WRITERS: Mapping[type, Callable[[Any], Iterator[str]]] = {
    Model: _model,
    Plan: _plan,
    Result: _result,
    Comparison: _comparison,
    Diagnosis: _diagnosis,
    Stats: _stats,
    Recipe: _recipe,
    Inspection: _inspection,
    Benchmark: _benchmark,
}


def _histogram(histogram: Histogram) -> str:
    """Draw bars of logarithmic height, so that rare outliers are visible."""
    heights = bar_heights(histogram, BARS)
    bars = "".join(f"M{4 * k} 24V{24 - 24 * height:.1f}h3V24z" for k, height in enumerate(heights) if height)
    return f'<svg width="{4 * BARS}" height="24"><path fill="#1f5fbf" d="{bars}"/></svg>' if bars else ""


def _picture(graph: Graph) -> str:
    """Draw ops coloured by how they are executed; nothing for large graphs, or if the report's dependencies are
    missing."""
    if not 0 < len(graph.ops) <= MOST_OPS:
        return ""
    try:
        require_report()
    except MissingExtra:
        return ""
    ids: dict[Op, str] = {op: str(k) for k, op in enumerate(graph.ops)}
    picture = picture_of(graph, ids, {t: shown_name(name) for t, name in unique_names(graph).items()})
    looks: dict[str | None, str] = {ids[op]: COLOURS.get(execution_of(op), "#e4e7ec") for op in graph.ops}
    lines = "".join(f'<path fill="none" stroke="#5b6472" d="{curve(line)}"/>' for line in picture.lines)
    boxes = "".join(
        f'<g transform="translate({box.x - BOX_WIDTH / 2:.1f} {box.y - BOX_HEIGHT / 2:.1f})">'
        f'<rect width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" fill="{looks.get(box.op, "#fff")}" stroke="#5b6472"/>'
        f'<text x="{BOX_WIDTH / 2}" y="18">{escape(printable(box.title))}</text>'
        f'<text x="{BOX_WIDTH / 2}" y="33" font-size="10">{escape(printable(box.subtitle))}</text></g>'
        for box in picture.boxes
    )
    style = 'font-family="sans-serif" font-size="12" text-anchor="middle"'
    size = f'width="{0.7 * picture.width:.0f}" viewBox="0 0 {picture.width:.0f} {picture.height:.0f}"'
    return f'<svg {size} {style} style="background: #fff">{lines}{boxes}</svg>'
