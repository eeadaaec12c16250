"""How much of what models compute is in integers after `quantize`, now and with an earlier state of this source.

`git worktree add --detach OLD COMMIT; python -m benchmarks.integer_share FOLDER --before OLD/src [-o JSON] [--page MD]`

Every `.tflite` in the folder is made int8 with quick effort, for `--target integer` where there are targets, on the
same random samples, in a process of its own. Both results are read by this version: both are counted in the same way.
"""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import zeropoint
from zeropoint.errors import ZeropointError
from zeropoint.files import write_whole
from zeropoint.sources.ports import entries
from zeropoint.tflite import load

from .apart import FOLDERS
from .coverage import files_in, samples_of
from .measure import print_table
from .page import table
from .rows import machine, versions, write_json

NOW = Path(zeropoint.__file__).parents[1]

CHILD = """
import inspect, pickle, sys
import zeropoint
from zeropoint.errors import ZeropointError
model, samples, output = sys.argv[1:]
with open(samples, "rb") as file:
    data = pickle.load(file)
options = {"target": "integer"} if "target" in inspect.signature(zeropoint.quantize).parameters else {}
try:
    zeropoint.quantize(model, "int8", data, effort="quick", **options).save(output)
except ZeropointError as error:
    sys.exit(" ".join(str(error).split()))
"""
"""Only what every state of this source understands."""


@dataclass(frozen=True)
class Made:
    """A quantized model: the share of its multiply-accumulates in integers, of its ops, or why there is none."""

    arithmetic: float | None = None
    ops: float | None = None
    refused: str = ""

    def __str__(self) -> str:
        if self.refused:
            return "refused"
        return "no multiplications" if self.arithmetic is None else f"{100 * self.arithmetic:.1f}%"


@dataclass(frozen=True)
class ShareRow:
    """One model, with the source of before and of now."""

    model: str
    before: Made | None
    now: Made


def samples_for(path: Path, count: int) -> Any:
    """As `quantize` takes them: for each signature, if there are several."""
    by_key = {e.key or "": samples_of(e, path, None, count) for e in {e.graph: e for e in entries(load(path))}.values()}
    return by_key if len(by_key) > 1 else next(iter(by_key.values()))


def made_by(source: Path, path: Path, samples: Any, timeout: float) -> Made:
    """The model as the source in a folder quantizes it."""
    with tempfile.TemporaryDirectory() as folder:
        given, output = Path(folder) / "samples", Path(folder) / "out.tflite"
        given.write_bytes(pickle.dumps(samples))
        command = [sys.executable, "-c", CHILD, str(path), str(given), str(output)]
        options: dict[str, Any] = {"capture_output": True, "text": True, "check": False, "timeout": timeout}
        try:
            done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(source)}, **options)
        except subprocess.TimeoutExpired:
            return Made(refused=f"took longer than {timeout:.0f} s")
        if done.returncode:
            last = (done.stderr.strip() or f"ended with {done.returncode}").splitlines()[-1]
            return Made(refused=first_part(last))
        return counted_in(output)


def first_part(message: str) -> str:
    """What is wrong, without what can be done about it, and without folders of this machine."""
    return FOLDERS.sub("", message).split(";")[0]


def counted_in(path: Path) -> Made:
    shown = zeropoint.inspect(path)
    computing = [op for op in shown.ops if op.execution in ("integer", "float", "hybrid")]
    integers = sum(op.execution == "integer" for op in computing)
    return Made(shown.integer_share, integers / max(1, len(computing)))


def row_of(path: Path, options: argparse.Namespace) -> ShareRow:
    try:
        samples = samples_for(path, options.samples)
    except ZeropointError as error:
        refused = Made(refused=first_part(" ".join(str(error).split())))
        return ShareRow(path.stem, None if options.before is None else refused, refused)
    sources = (options.before, NOW)
    before, now = (None if s is None else made_by(s, path, samples, options.timeout) for s in sources)
    assert now is not None
    return ShareRow(path.stem, before, now)


HEAD = ("model", "arithmetic before", "arithmetic now", "ops before", "ops now")


def cells(rows: Sequence[ShareRow]) -> list[tuple[str, ...]]:
    def ops(made: Made | None) -> str:
        return "" if made is None or made.ops is None else f"{100 * made.ops:.0f}%"

    return [(row.model, str(row.before or ""), str(row.now), ops(row.before), ops(row.now)) for row in rows]


def page(rows: Sequence[ShareRow]) -> Iterator[str]:
    yield "# The share of arithmetic in integers\n"
    yield (
        f"{len(rows)} models in int8 with `--target integer`, by `python -m benchmarks.integer_share`: how much of the "
        "multiply-accumulates, and how many of the ops that compute, run in integers.\n"
    )
    yield from table(HEAD, cells(rows))
    told = [(row, when, made) for row in rows for when, made in (("before", row.before), ("now", row.now))]
    reasons = [f"- {row.model}, {when}: {made.refused}" for row, when, made in told if made and made.refused]
    if reasons:
        yield "\n## Refused\n"
        yield from reasons


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.integer_share", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path, help="where the models are; folders below it count")
    parser.add_argument("--before", type=Path, metavar="SRC", help="the src folder of an earlier state")
    parser.add_argument("--samples", type=int, default=4, help="random ones (default: 4)")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one model (default: 600)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="models whose names have this in them")
    parser.add_argument("-o", "--output", type=Path, help="all rows as JSON")
    parser.add_argument("--page", type=Path, help="a page of Markdown")
    options = parser.parse_args(arguments)
    rows = []
    for path in files_in(options.folder):
        if options.only is None or any(name in path.stem for name in options.only):
            rows.append(row_of(path, options))
            print(f"{rows[-1].model}: {rows[-1].before or '-'} -> {rows[-1].now} {rows[-1].now.refused}", flush=True)
            if options.output is not None:
                known = {"machine": machine(), "versions": versions(), "rows": [asdict(row) for row in rows]}
                write_json(options.output, known)
    print_table(HEAD, cells(rows))
    if options.page is not None:
        write_whole(options.page, ["\n".join(page(rows)).encode() + b"\n"], overwrite=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
