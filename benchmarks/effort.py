"""What effort brings: scores of complete integer models over the zoo, by mode, bits of the weights and effort.

`python -m benchmarks.effort --zoo PATH [--only kws_dscnn] [--bits 8,4] [--efforts quick,standard,high] [-o FILE]`
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .measure import print_table
from .quantization import Failed, Request, apart, versions


@dataclass(frozen=True)
class Row:
    task: str
    mode: str
    bits: int
    effort: str
    score: float | None = None
    seconds: float | None = None
    error: str | None = None


def score_of(request: Request, bits: int, effort: str, limit: int | None) -> tuple[float, float]:
    """The score, and the seconds that calibration and quantization took."""
    import zeropoint

    samples = request.calibration()
    start = time.perf_counter()
    made = zeropoint.quantize(
        str(request.task.model), request.mode, data=samples, weight_bits=bits, effort=effort, **_all(request.mode)
    )
    seconds = time.perf_counter() - start
    return request.task.evaluate(zeropoint.to_bytes(made.model), limit), seconds


def _all(mode: str) -> dict[str, int]:
    """Where only weights are quantized, those of any size."""
    return {"min_elements": 0} if mode in ("dynamic", "weights") else {}


def measure(request: Request, bits: int, efforts: Sequence[str], limit: int | None) -> list[Row]:
    rows = []
    for effort in efforts:
        asked = (request.name, request.mode, bits, effort)
        try:
            score, seconds = apart(score_of, request, bits, effort, limit)
            rows.append(Row(*asked, score, seconds))
        except Failed as failure:
            rows.append(Row(*asked, error=str(failure)))
        print(*_cells(rows[-1]), file=sys.stderr, flush=True)
    return rows


def _cells(row: Row) -> tuple[str, ...]:
    found = ("", "") if row.score is None or row.seconds is None else (f"{row.score:.4f}", f"{row.seconds:.1f}")
    return (f"{row.task} {row.mode} {row.bits} bits", row.effort, *found, row.error or "")


def main() -> None:
    parser = argparse.ArgumentParser(description="Scores over the zoo by effort.")
    parser.add_argument("--zoo", required=True, help="folder with zoo.py")
    parser.add_argument("--only", help="tasks, separated by commas (default: all)")
    parser.add_argument("--modes", default="int8", help="separated by commas (default: int8)")
    parser.add_argument("--bits", default="8,4", help="of the weights, separated by commas (default: 8,4)")
    parser.add_argument("--efforts", default="quick,standard,high", help="separated by commas (default: all)")
    parser.add_argument("--samples", type=int, default=200, help="for calibration (default: 200)")
    parser.add_argument("--limit", type=int, help="evaluate on this many samples only")
    parser.add_argument("-o", "--output", help="a JSON file for the results")
    arguments = parser.parse_args()
    zoo = str(Path(arguments.zoo).resolve())
    sys.path.insert(0, zoo)
    tasks = arguments.only.split(",") if arguments.only else list(importlib.import_module("zoo").TASKS)
    rows: list[Row] = []
    for name in tasks:
        for mode in arguments.modes.split(","):
            for bits in map(int, arguments.bits.split(",")):
                request = Request(zoo, name, mode, arguments.samples)
                rows += measure(request, bits, arguments.efforts.split(","), arguments.limit)
                if arguments.output:
                    content = {"versions": versions(), "cores": os.cpu_count(), "rows": [asdict(row) for row in rows]}
                    Path(arguments.output).write_text(json.dumps(content, indent=1) + "\n")
    print_table(("", "effort", "score", "seconds", ""), [_cells(row) for row in rows])


if __name__ == "__main__":
    main()
