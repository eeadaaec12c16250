"""A report as one self-contained HTML file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from typing import get_args

from ..errors import printable, shortening_names
from ..files import PathLike, write_whole
from ..json_values import json_values
from ..ops.execution import Execution
from ..recipe_files import PlainRules, recipe_content
from .page_build import DIGITS, Evidence, OpDetail, Page, page_of
from .page_measures import MEASURES
from .page_picture import BOX_HEIGHT, BOX_WIDTH, Point
from .terminal import count_text

SCRIPTS = ("view.js", "table.js", "figures.js", "charts.js", "numbers.js", "page.js")
"""In this order, because the last one uses the others."""


def save_report(evidence: Evidence, path: PathLike, *, overwrite: bool = False) -> int:
    """Write the report, completely or not at all; return the file's size."""
    # Names in files need not be valid text; what UTF-8 cannot represent is escaped.
    with shortening_names(evidence.short_names):
        content = render(page_of(evidence)).encode("utf-8", "backslashreplace")
    return write_whole(path, [content], overwrite=overwrite)


def render(page: Page) -> str:
    """Return the page as HTML. Jinja escapes every text: names come from untrusted files."""
    from jinja2 import Environment, StrictUndefined

    measures = [m for m in MEASURES if any(m.key in op.levels for op in page.ops)]
    shown = [{"key": m.key, "title": m.title, "unit": m.unit} for m in measures]
    data: dict[str, object] = {"ops": page.ops, "tensors": page.tensors, "measures": shown, "bars": page.bars}
    data["trace"] = page.trace_command
    template = Environment(autoescape=True, undefined=StrictUndefined)
    template.filters |= {"curve": curve, "recipe": recipe_text, "shown": printable}
    return template.from_string(_asset("page.html")).render(
        page=page,
        measures=measures,
        executions=[how for how in get_args(Execution) if any(op.execution == how for op in page.ops)],
        ops={op.id: op for op in page.ops},
        named={op.name: op for op in reversed(page.ops)},
        columns=columns_of(page),
        box_width=BOX_WIDTH,
        box_height=BOX_HEIGHT,
        style=_asset("page.css"),
        script="\n".join(_asset(name) for name in SCRIPTS),
        data=embedded_json(json_values(data, DIGITS)),
    )


def recipe_text(rules: PlainRules) -> str:
    return json.dumps(recipe_content(rules), indent=1, ensure_ascii=False)


def embedded_json(value: object) -> str:
    """Return JSON that is safe between script tags: no text in it can close them."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def curve(points: tuple[Point, ...]) -> str:
    """Return an SVG path through the points that is vertical at each of them."""
    (x, y), *_ = points
    curves = (
        f"C{a:.0f} {(b + d) / 2:.0f} {c:.0f} {(b + d) / 2:.0f} {c:.0f} {d:.0f}" for (a, b), (c, d) in pairwise(points)
    )
    return f"M{x:.0f} {y:.0f}{''.join(curves)}"


def _asset(name: str) -> str:
    return files(__package__).joinpath("assets").joinpath(name).read_text("utf-8")


# The table of ops.


@dataclass(frozen=True)
class Column:
    key: str
    title: str
    read: Callable[[OpDetail], float | str | None]
    write: Callable[[float], str] | None = None  # None: a text column

    def text(self, op: OpDetail) -> str:
        value = self.read(op)
        if isinstance(value, str):
            return value
        return "" if value is None or self.write is None else self.write(value)


def columns_of(page: Page) -> Sequence[Column]:
    position = {op.id: k for k, op in enumerate(page.ops)}
    several = len({op.graph for op in page.ops}) > 1
    whole, decibels, share = "{:.0f}".format, "{:.1f}".format, lambda value: f"{100 * value:.3g}%"
    columns = (
        Column("position", "#", lambda op: float(position[op.id]), whole),
        Column("kind", "Op", lambda op: op.kind),
        Column("name", "Name", lambda op: op.short_name or "(no output)"),
        Column("graph", "Graph", lambda op: op.graph if several else None),
        Column("execution", "Execution", lambda op: op.execution),
        Column("type", "Output", lambda op: page.tensors[op.outputs[0]].type if op.outputs else None),
        Column("own", "Own dB", lambda op: op.errors.own, decibels),
        Column("accumulated", "Accum. dB", lambda op: op.errors.accumulated, decibels),
        Column("expected", "Expected dB", lambda op: op.errors.expected, decibels),
        Column("clipped", "Clipped", lambda op: op.errors.clipped, share),
        Column("used", "Range used", lambda op: op.errors.used, share),
        Column("macs", "MACs", lambda op: float(op.macs) or None, lambda macs: count_text(int(macs))),
    )
    return [column for column in columns if any(column.read(op) is not None for op in page.ops)]
