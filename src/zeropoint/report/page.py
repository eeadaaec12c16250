"""A report as one HTML file that needs nothing else: no network, no other files."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import get_args

from ..files import PathLike, write_whole
from ..ops.execution import Execution
from .page_build import Evidence, page_of
from .page_picture import BOX_HEIGHT, BOX_WIDTH, Point, require_report, short
from .page_values import MEASURES, OpDetail, Page
from .terminal import count_text

SCRIPTS = ("view.js", "table.js", "figures.js", "page.js")
"""In this order: the last one uses the others."""


def save_report(evidence: Evidence, path: PathLike, *, overwrite: bool = False) -> int:
    """Write the report, whole or not at all; return the file's size."""
    # Names in files need not be text; what UTF-8 cannot hold is spelled out.
    content = render(page_of(evidence)).encode("utf-8", "backslashreplace")
    return write_whole(path, [content], overwrite=overwrite)


def render(page: Page) -> str:
    """The page as HTML. Jinja escapes every text: names come from strangers."""
    require_report()
    from jinja2 import Environment, StrictUndefined

    measures = [m for m in MEASURES if any(m.key in op.levels for op in page.ops)]
    looks = {op.id: _look(op, measures[0].key if measures else None) for op in page.ops}
    template = Environment(autoescape=True, undefined=StrictUndefined)
    template.filters["curve"] = curve
    template.filters["look"] = looks.__getitem__
    charts = chart_library()
    values = page.to_json() | {"measures": [{"key": m.key, "title": m.title, "unit": m.unit} for m in measures]}
    return template.from_string(_asset("page.html")).render(
        page=page,
        measures=measures,
        executions=[how for how in get_args(Execution) if any(op.execution == how for op in page.ops)],
        kinds={op.id: f"{op.kind} {short(op.name)}" for op in page.ops},
        columns=columns_of(page),
        has_errors=any(m.unit == "dB" for m in measures),
        box_width=BOX_WIDTH,
        box_height=BOX_HEIGHT,
        style=_asset("page.css"),
        script="\n".join(_asset(name) for name in SCRIPTS),
        data=embedded_json({key: values[key] for key in ("ops", "tensors", "measures", "bars")}),
        charts=charts.packed,
        chart_name=charts.name,
    )


def _look(op: OpDetail, measure: str | None) -> str:
    """The class that colours an op's box before anybody chooses what to colour by."""
    if measure is None:
        return op.execution
    return f"l{op.levels[measure]}" if measure in op.levels else ""


def embedded_json(value: object) -> str:
    """JSON that can stand between script tags: a text in it cannot close them."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def curve(points: tuple[Point, ...]) -> str:
    """An SVG path through the points, which leaves and reaches each one vertically."""
    (x, y), *rest = points
    path = f"M{x:.0f} {y:.0f}"
    for next_x, next_y in rest:
        middle = (y + next_y) / 2
        path += f"C{x:.0f} {middle:.0f} {next_x:.0f} {middle:.0f} {next_x:.0f} {next_y:.0f}"
        x, y = next_x, next_y
    return path


def _asset(name: str) -> str:
    return files(__package__).joinpath("assets").joinpath(name).read_text("utf-8")


@dataclass(frozen=True)
class ChartLibrary:
    """Plotly's script, as the installed package has it: gzip and base64 make it a third as large."""

    name: str
    packed: str


@cache
def chart_library() -> ChartLibrary:
    from plotly.offline import get_plotlyjs

    script = str(get_plotlyjs())
    # No time stamp: the same page has the same bytes.
    packed = base64.b64encode(gzip.compress(script.encode(), 9, mtime=0)).decode()
    return ChartLibrary(_version(script), packed)


def _version(script: str) -> str:
    """`plotly.js v4.1.1`, from the comment that the script begins with."""
    lines = (line.strip(" */!") for line in script[:400].splitlines())
    return next((line.replace("--", "") for line in lines if line.startswith("plotly.js")), "plotly.js")


# The table of ops.

Value = float | str | None


@dataclass(frozen=True)
class Cell:
    text: str
    value: float | None = None  # what numbers are sorted by
    hint: str | None = None


@dataclass(frozen=True)
class Column:
    key: str
    title: str
    is_number: bool
    read: Callable[[OpDetail], Value]
    write: Callable[[float], str] = "{:.3g}".format

    def cell(self, op: OpDetail) -> Cell:
        value = self.read(op)
        if value is None:
            return Cell("")
        if isinstance(value, str):
            first = value.split(";")[0]  # converters join the names of all that they fused
            return Cell(f"{first}; …" if first != value else value, None, value)
        return Cell(self.write(value), value)


def _share(value: float) -> str:
    return f"{100 * value:.3g}%"


def columns_of(page: Page) -> Sequence[Column]:
    types = {name: tensor.type for name, tensor in page.tensors.items()}
    position = {op.id: k for k, op in enumerate(page.ops)}
    columns = (
        Column("position", "#", True, lambda op: float(position[op.id]), "{:.0f}".format),
        Column("kind", "Op", False, lambda op: op.kind),
        Column("name", "Name", False, lambda op: op.name or "(no output)"),
        Column("graph", "Graph", False, lambda op: op.graph if len(page.pictures) > 1 else None),
        Column("execution", "Execution", False, lambda op: op.execution),
        Column("type", "Output", False, lambda op: types[op.outputs[0]] if op.outputs else None),
        Column("own", "Own dB", True, lambda op: op.errors.own, "{:.1f}".format),
        Column("accumulated", "Accum. dB", True, lambda op: op.errors.accumulated, "{:.1f}".format),
        Column("expected", "Expected dB", True, lambda op: op.errors.expected, "{:.1f}".format),
        Column("clipped", "Clipped", True, lambda op: op.errors.clipped, _share),
        Column("used", "Range used", True, lambda op: op.errors.used, _share),
        Column("macs", "MACs", True, lambda op: float(op.macs) if op.macs else None, lambda n: count_text(int(n))),
    )
    return [column for column in columns if any(column.read(op) is not None for op in page.ops)]
