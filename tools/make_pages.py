"""Write the reference pages of the documentation from the code they describe.

    python tools/make_pages.py [--out DIR]

Three pages go to DIR (by default ``docs/reference``): ``ops.md`` from the op table, ``cli.md`` from the commands,
``api.md`` from the public names. ``docs/conf.py`` runs it at the start of every build, so the pages are not committed
and cannot be out of date.
"""

from __future__ import annotations

import argparse
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

import zeropoint
from zeropoint import lite, train
from zeropoint.cli import app
from zeropoint.dtypes import DType
from zeropoint.ops import (
    OPS,
    Activation,
    Bias,
    CellState,
    Coefficients,
    OpSpec,
    OutputState,
    Rescale,
    Role,
    ShapeOnly,
    Trait,
    Untouched,
    Weight,
)
from zeropoint.ops.spec import FloatConstant

DEFAULT_OUT = Path(__file__).resolve().parent.parent / "docs" / "reference"


# The op table.

OPS_INTRODUCTION = """\
# Op table

This table lists the ops that the quantizer knows, one row each, with what LiteRT's kernels support. The test suite runs
every type that is claimed here in LiteRT. An op that is not listed, or not with the requested type, stays in float, and
the summary says so.

- **int8, int16, uint8**: the op has an integer kernel for activations of this type.
- **weights**: types that its weights can have with integer activations.
- **dynamic**: types that its weights can have with float activations.
- **one scale**: all activations of the op must have the same scale and zero point.
- **fixed**: the kernel prescribes the output's parameters, whatever the data.
"""


def ops_page(table: Mapping[str, OpSpec] = OPS) -> str:
    rows = sorted(table.values(), key=lambda row: row.kind)
    header = ("op", "int8", "int16", "uint8", "weights", "dynamic", "one scale", "fixed")
    summary = [
        (
            f"[{row.kind}](#{_slug(row.kind)})",
            _yes(DType.INT8 in row.types),
            _yes(DType.INT16 in row.types),
            _yes(DType.UINT8 in row.types),
            _labels(sorted({w for kinds in row.weights.values() for w in kinds}, key=lambda w: -w.bits)),
            _labels(row.hybrid),
            _yes(row.tied),
            _yes(bool(row.fixed)),
        )
        for row in rows
    ]
    return "\n".join([OPS_INTRODUCTION, *_table(header, summary), "", *(line for row in rows for line in _op(row))])


def _op(row: OpSpec) -> Iterator[str]:
    yield from (f"## {row.kind}", "")
    yield from _table(("slot", "role"), [*_slots("input", row.inputs, row), *_slots("output", row.outputs, row)])
    yield ""
    yield from (f"- {fact}" for fact in _facts(row))
    yield ""


def _slots(what: str, roles: Sequence[Role], row: OpSpec) -> Iterator[tuple[str, str]]:
    """Runs of equal roles in one line: a recurrent layer has eight matrices in a row."""
    start = 0
    while start < len(roles):
        end = start
        while end + 1 < len(roles) and roles[end + 1] == roles[start]:
            end += 1
        last = end == len(roles) - 1 and Trait.VARIADIC in row.traits
        places = f"{start}" if start == end else f"{start} to {end}"
        yield f"{what} {places}{' and further' if last else ''}", _role(roles[start])
        start = end + 1


def _role(role: Role) -> str:
    if isinstance(role, Weight):
        return f"weights, {_scale_for(role)}"
    if isinstance(role, Activation):
        parts = ["activation"]
        if role.symmetric_constant:
            parts.append("zero point 0 if it is a constant")
        if role.constant is not None:
            parts.append(f"in modes that quantize only weights, a constant has {_scale_for(role.constant)}")
        return "; ".join(parts)
    if isinstance(role, Bias):
        return f"bias: its scale is that of input {role.of[0]} times that of input {role.of[1]}"
    if isinstance(role, CellState):
        return f"memory: int16, its scale a power of two from 2^{role.least} to 2^{role.greatest}"
    return PLAIN_ROLES[type(role)]


PLAIN_ROLES: Mapping[type, str] = {
    Untouched: "unchanged: indices, shapes, conditions",
    FloatConstant: "a parameter of the computation: stays in float",
    ShapeOnly: "only its shape is read",
    Coefficients: "weights that act on a state: int16",
    OutputState: "the previous output: has the output's parameters",
}


def _scale_for(role: Weight) -> str:
    if role.axis is None:
        return "one scale"
    axis = f"a scale for each slice along axis {role.axis}"
    return axis if role.swapped is None else f"{axis} ({-3 - role.axis} where `{role.swapped}` is set)"


def _facts(row: OpSpec) -> Iterator[str]:
    yield f"Activations: {_labels(row.types) or 'float only'}."
    for activations, weights in row.weights.items():
        yield f"Weights with {activations.label} activations: {_labels(weights)}."
    if row.hybrid:
        yield f"Weights with float activations: {_labels(row.hybrid)}."
    if row.kernels.blockwise:
        yield f"A scale for each block of weights: {_labels(row.kernels.blockwise)}."
    if row.tied:
        yield "One scale and zero point for all activations."
    elif row.rescale is not Rescale.NONE:
        yield f"Factor that the kernel applies: {row.rescale.value}."
    for dtype, fixed in row.fixed.items():
        yield f"{dtype.label} output: scale {_fraction(fixed.scale)}, zero point {fixed.zero_point}."
    limits = {t: row.rescale_limit(t) for t in row.types}
    for limit in sorted(set(limits.values()) - {math.inf}):
        yield f"The factor must stay below {limit:g} ({_labels([t for t in limits if limits[t] == limit])})."
    for (low, high), types in _grouped(row.saturates, row.types):
        yield f"Inputs outside {low:g} to {_end(high)} make no difference ({_labels(types)})."
    if row.negligible is not None:
        yield f"Inputs more than {row.negligible:g} below the largest make no difference."
    yield from (f"May stay in float: {need.value}." for need in row.kernels.needs)
    if row.kernels.note:
        yield f"Why not in integers: {row.kernels.note}."


def _grouped(
    saturates: Mapping[DType, tuple[float, float]], types: Sequence[DType]
) -> list[tuple[tuple[float, float], list[DType]]]:
    found: dict[tuple[float, float], list[DType]] = {}
    for dtype in types:
        if dtype in saturates:
            found.setdefault(saturates[dtype], []).append(dtype)
    return list(found.items())


def _end(high: float) -> str:
    return "infinity" if high == math.inf else f"{high:g}"


def _fraction(scale: float) -> str:
    """Scales that kernels demand are powers of two."""
    return f"1/{round(1 / scale)}"


def _labels(types: Sequence[DType]) -> str:
    return ", ".join(t.label for t in types)


def _yes(holds: bool) -> str:
    return "yes" if holds else ""


def _slug(kind: str) -> str:
    return kind.lower()


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    yield from (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)


# The commands.

CLI_INTRODUCTION = """\
# Command line

This page is generated from the commands; `zeropoint COMMAND --help` prints the same.
"""


@dataclass(frozen=True)
class Help:
    """A command's text, taken apart."""

    text: str
    examples: tuple[str, ...]


def commands() -> Mapping[str, Any]:
    """The commands as the parser knows them, by name."""
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def help_of(command: Any) -> Help:
    """Paragraphs, and the lines that start with our name: those are examples."""
    whole = inspect.cleandoc(f"{command.help or ''}\n\n{command.epilog or ''}").replace("\b", "")
    lines = CONTINUED.sub(" ", whole).splitlines()
    examples = tuple(line.strip() for line in lines if EXAMPLE.match(line))
    text = "\n".join(line for line in lines if not EXAMPLE.match(line) and line.strip() != "Examples:")
    return Help(re.sub(r"\n{3,}", "\n\n", text).strip(), examples)


EXAMPLE = re.compile(r"\s*zeropoint ")
CONTINUED = re.compile(r" *\\\n *")


def cli_page() -> str:
    group: Any = typer.main.get_command(app)
    parts = [CLI_INTRODUCTION, *_options("## zeropoint", group.params, help_of(group).text)]
    for name, command in commands().items():
        parts += _command(name, command)
    return "\n".join(parts)


def _command(name: str, command: Any) -> Iterator[str]:
    text = help_of(command)
    yield from _options(f"## zeropoint {name}", command.params, text.text)
    if text.examples:
        yield from ("```sh", *text.examples, "```", "")


def _options(heading: str, parameters: Sequence[Any], text: str = "") -> Iterator[str]:
    yield from (heading, "")
    if text:
        yield from (_plain(text), "")
    shown = [p for p in parameters if not getattr(p, "hidden", False)]
    rows = [(f"`{_spelt(p)}`", _plain(p.help or ""), _default(p)) for p in shown]
    if rows:
        yield from _table(("", "meaning", "default"), rows)
        yield ""


def _spelt(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    names = ", ".join((*parameter.opts, *parameter.secondary_opts))
    # Typer's own word for a missing one, TEXT or FLOAT, is found at another place in each of its versions.
    value = parameter.metavar or parameter.name.rpartition("_")[2].upper()
    return names if parameter.is_flag else f"{names} {value}"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    if parameter.default in (None, False, (), []) or getattr(parameter, "is_flag", False):
        return ""
    return f"`{parameter.default}`"


def _plain(text: str) -> str:
    """Help is plain text: a glob's star must not start emphasis. Backquotes mean the same in both."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_<>\[\]])", r"\\\1", part) for part in parts)


# The public names.

API_INTRODUCTION = """\
# Python API

This page is generated from the docstrings. Everything that is not on it may change between versions.
"""


def api_page() -> str:
    """Each public name under the module that users import it from, described by the docstring where it lives."""
    parts = [API_INTRODUCTION]
    for package, homes, text in public_names():
        parts += [f"## {package}", "", text, ""]
        for name, home in sorted(homes.items(), key=lambda item: item[0].lower()):
            parts += [f"### {package}.{name}", "", *_described(name, home)]
    return "\n".join(parts)


def public_names() -> Iterator[tuple[str, Mapping[str, str], str]]:
    """Packages with their public names, and the module that each name lives in."""
    top = {name: f"zeropoint.{home}" for name, home in zeropoint._HOME_OF.items() if name not in ("lite", "train")}
    yield "zeropoint", top, "Names are imported when they are first used."
    names = {name: getattr(lite, name).__module__ for name in lite.__all__ if name != "Interpreter"}
    yield "zeropoint.lite", names, "The names of `tensorflow.lite`; `Interpreter` is LiteRT's own."
    trained = {name: f"zeropoint.train.{home}" for name, home in train._HOME_OF.items()}
    yield "zeropoint.train", trained, "Needs Keras 3, and one of its backends."
    others = {
        "Plan": "zeropoint.plan.plan",
        "Rule": "zeropoint.recipe",
        "Scheme": "zeropoint.recipe",
        "Comparison": "zeropoint.comparison.values",
        "Diagnosis": "zeropoint.comparison.values",
    }
    yield "Related types", others, "Values that the functions above return or accept."


def _described(name: str, home: str) -> Iterator[str]:
    directive = "autoclass" if name[0].isupper() or name == "constants" else "autofunction"
    members = ("   :members:", "   :member-order: bysource") if directive == "autoclass" else ()
    yield from ("```{eval-rst}", f".. {directive}:: {home}.{name}", *members, "```", "")


PAGES: Mapping[str, Callable[[], str]] = {"ops.md": ops_page, "cli.md": cli_page, "api.md": api_page}


def write_pages(out: Path) -> None:
    """Pages that are the same already are left alone, so that a second build has less to do."""
    out.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        content = page().rstrip() + "\n"
        file = out / name
        if not file.is_file() or file.read_text("utf-8") != content:
            file.write_text(content, "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the reference pages of the documentation.")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, metavar="DIR", help="where the pages go")
    write_pages(parser.parse_args().out)


if __name__ == "__main__":
    main()
