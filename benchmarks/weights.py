"""Modes that quantize weights alone, over the zoo, against ai-edge-quantizer: size, score, latency, time.

`python -m benchmarks.weights --zoo PATH [--only kws_dscnn] [--modes dynamic] [-o results.json]`

A mode is one way to ask both tools for the same: see MODES. ai-edge-quantizer takes weights of any size, so the
comparison has zeropoint take them all as well ("all"); a second row has its default, which leaves weights below 1,024
elements in float. Rows "with data" correct biases with 200 samples.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .measure import print_table
from .quantization import Failed, Request, apart, latencies, score, versions

ALL = {"min_elements": 0}


@dataclass(frozen=True)
class Mode:
    """What each tool is asked for: options of zeropoint.quantize, and the name of ai-edge-quantizer's recipe."""

    options: Mapping[str, Any]
    recipe: str | None


MODES = {
    "dynamic": Mode({"mode": "dynamic"}, "dynamic_wi8_afp32"),
    "dynamic int4": Mode({"mode": "dynamic", "weight_bits": 4}, "dynamic_wi4_afp32"),
    "weights": Mode({"mode": "weights"}, "weight_only_wi8_afp32"),
    "weights int4": Mode({"mode": "weights", "weight_bits": 4}, "weight_only_wi4_afp32"),
    "float16": Mode({"mode": "float16"}, None),
}

WAYS: Mapping[str, tuple[Mapping[str, Any], bool]] = {
    "zeropoint all": (ALL, False),
    "zeropoint": ({}, False),
    "zeropoint with data": (ALL, True),
    "zeropoint high effort": ({**ALL, "effort": "high"}, True),
}
"""Further options, and whether the samples are given."""

RIVAL = "ai-edge-quantizer"


@dataclass
class Row:
    task: str
    mode: str
    tool: str
    error: str | None = None
    size: int | None = None
    score: float | None = None
    seconds: float | None = None
    latency: float | None = None
    """The median time of a run over that of the float model, two threads."""


def zeropoint_made(request: Request, way: str, target: str) -> float:
    import ai_edge_litert.interpreter  # noqa: F401 (otherwise imported on first use)

    import zeropoint
    import zeropoint.quantize
    import zeropoint.tflite.write

    options, with_data = WAYS[way]
    wishes = {**MODES[request.mode].options, **options}
    if MODES[request.mode].options["mode"] == "float16":
        wishes.pop("min_elements", None)
    data = request.calibration() if with_data else None
    start = time.perf_counter()
    result = zeropoint.quantize(str(request.task.model), data=data, **wishes)
    content = zeropoint.to_bytes(result.model)
    seconds = time.perf_counter() - start
    Path(target).write_bytes(content)
    return seconds


def ai_edge_made(request: Request, way: str, target: str) -> float:  # noqa: ARG001 (one signature)
    from ai_edge_quantizer import quantizer, recipe

    name = MODES[request.mode].recipe
    if name is None or not hasattr(recipe, name):
        raise Failed("it has no such recipe")
    model = str(request.task.model)
    start = time.perf_counter()
    tool = quantizer.Quantizer(model, getattr(recipe, name)())
    content = bytes(tool.quantize().quantized_model)
    seconds = time.perf_counter() - start
    Path(target).write_bytes(content)
    return seconds


def measure(request: Request, ways: Sequence[str], limit: int | None, folder: Path) -> list[Row]:
    """All ways to quantize one task in one mode."""
    makers: dict[str, Callable[..., float]] = dict.fromkeys(ways, zeropoint_made) | {RIVAL: ai_edge_made}
    rows, files = [], {"float": str(request.task.model)}
    for tool, maker in makers.items():
        row = Row(request.name, request.mode, tool)
        rows.append(row)
        target = str(folder / f"{request.name}.{request.mode}.{tool}.tflite".replace(" ", "_"))
        try:
            row.seconds = apart(maker, request, tool, target)
            row.size = Path(target).stat().st_size
            row.score = apart(score, request, target, limit)
        except Failed as failure:
            row.error = str(failure)
        else:
            files[tool] = target
        print(f"{row.task:20} {row.mode:13} {row.tool:22} {_cells(row)}", file=sys.stderr, flush=True)
    times = apart(latencies, request, files, 2, 15)
    for row in rows:
        if row.tool in times:
            pairs = zip(times[row.tool], times["float"], strict=True)
            row.latency = sorted(own / other for own, other in pairs)[len(times["float"]) // 2]
    return rows


def _cells(row: Row) -> tuple[str, ...]:
    if row.error is not None:
        return ("", "", "", "", row.error)
    cells = (row.size and row.size / 1000, row.score, row.seconds, row.latency)
    forms = ("{:.1f}", "{:.4f}", "{:.2f}", "{:.2f}")
    return (*("" if c is None else form.format(c) for form, c in zip(forms, cells, strict=True)), "")


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table for docs/benchmarks.md: a line for each task and mode, a column for each tool."""
    tools = list(dict.fromkeys(row.tool for row in rows))
    lines = [f"| task | mode | {' | '.join(tools)} |", "|---|---|" + "---|" * len(tools)]
    spots = {(row.task, row.mode, row.tool): row for row in rows}
    for task, mode in dict.fromkeys((row.task, row.mode) for row in rows):
        cells = [_cell(spots.get((task, mode, tool))) for tool in tools]
        lines.append(f"| {task} | {mode} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(row: Row | None) -> str:
    if row is None or row.size is None or row.score is None:
        return ""
    latency = "" if row.latency is None else f", {row.latency:.1f}×"
    return f"{row.size / 1000:.0f} kB, {row.score:.4f}{latency}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Quantizing weights alone over the zoo, against other tools.")
    parser.add_argument("--zoo", required=True, help="folder with zoo.py")
    parser.add_argument("--only", help="tasks, separated by commas (default: all)")
    parser.add_argument("--modes", help=f"separated by commas: {', '.join(MODES)} (default: all)")
    parser.add_argument("--ways", help=f"separated by commas: {', '.join(WAYS)} (default: all but high effort)")
    parser.add_argument("--samples", type=int, default=200, help="for rows with data (default: 200)")
    parser.add_argument("--limit", type=int, help="evaluate on this many samples only")
    parser.add_argument("-o", "--output", help="a JSON file for the results")
    parser.add_argument("--markdown", help="a file for the table in docs/benchmarks.md")
    arguments = parser.parse_args()
    zoo = str(Path(arguments.zoo).resolve())
    sys.path.insert(0, zoo)
    tasks = arguments.only.split(",") if arguments.only else list(importlib.import_module("zoo").TASKS)
    modes = arguments.modes.split(",") if arguments.modes else list(MODES)
    ways = arguments.ways.split(",") if arguments.ways else [way for way in WAYS if "high" not in way]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in tasks:
            for mode in modes:
                rows += measure(Request(zoo, name, mode, arguments.samples), ways, arguments.limit, Path(folder))
                if arguments.output:
                    content = {"versions": versions(), "cores": os.cpu_count(), "rows": [asdict(row) for row in rows]}
                    Path(arguments.output).write_text(json.dumps(content, indent=1) + "\n")
    print(", ".join(f"{package} {number}" for package, number in versions().items()), f"on {os.cpu_count()} cores\n")
    header = ("task, mode, tool", "kB", "score", "seconds", "latency", "")
    if arguments.markdown:
        Path(arguments.markdown).write_text(markdown(rows))
    print_table(header, [(f"{row.task} {row.mode}: {row.tool}", *_cells(row)) for row in rows])


if __name__ == "__main__":
    main()
