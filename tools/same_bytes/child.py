"""The process that quantizes with the code of one tree: `python -m tools.same_bytes.child OUTPUT`.

Each line of standard input is a question in JSON, each line of output the answer. Both trees run this file, so it knows
of zeropoint only what users do; where a public function changes, it has to understand both.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import sys
import time
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import zeropoint
from zeropoint import Stats, ZeropointError
from zeropoint.targets import Target, target_named

from .outcomes import Outcome

UNRECORDED = {"record": False}
"""The record in the metadata holds the version, which is no property of the model."""


def main() -> None:
    output = Path(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever native code prints is no answer
    for line in sys.stdin:
        question = json.loads(line)
        answer = (
            source() if not question else calibrated(question) if "into" in question else quantized(question, output)
        )
        print(json.dumps(answer), file=answers, flush=True)


def source() -> str:
    """Where the package comes from, so that nobody compares a tree with itself by accident."""
    return str(Path(zeropoint.__file__).parent)


def calibrated(question: dict[str, str]) -> str:
    """Collect statistics into a file; the answer is why there are none."""
    try:
        zeropoint.calibrate(question["model"], samples_in(question["samples"])).save(question["into"])
    except Exception as error:
        return error_text(error)
    return ""


def quantized(question: dict[str, Any], output: Path) -> dict[str, Any]:
    """Quantize a model, and write it to `output` for whoever wants to see how it differs."""
    options: dict[str, Any] = {**question["options"], **UNRECORDED}
    if question["stats"]:
        options["stats"] = stats_in(question["stats"])
    elif question["samples"]:
        options["data"] = samples_in(question["samples"])
    before = time.process_time()
    try:
        if "target" in options:
            options["target"] = without_tool(options["target"])
        result = zeropoint.quantize(question["model"], **options)
        content = zeropoint.to_bytes(result.model)
    except Exception as error:
        return asdict(Outcome(error_text(error), seconds=time.process_time() - before))
    seconds = time.process_time() - before
    output.write_bytes(content)
    return asdict(
        Outcome(
            model=hashlib.sha256(content).hexdigest(),
            size=len(content),
            notes=result.notes,
            warnings=result.warnings,
            verdict=(result.verdict.level, result.verdict.summary),
            skipped=tuple(f"{skipped} [{skipped.code}]" for skipped in result.skipped),
            repairs=tuple(f"{repair} [{repair.code}]" for repair in result.repairs),
            seconds=seconds,
        )
    )


def error_text(error: Exception) -> str:
    """An error as users see it. What is not ours is marked: it is a bug, even if both trees have it."""
    kind = type(error).__name__
    return f"{kind}: {error}" if isinstance(error, ZeropointError) else f"foreign {kind}: {error}"


def without_tool(name: str) -> Target:
    """The target without the device's own tool, whose answer follows from the bytes and takes seconds."""
    return replace(target_named(name), tool=None)


@lru_cache(maxsize=1)
def samples_in(path: str) -> Any:
    return pickle.loads(Path(path).read_bytes())


@lru_cache(maxsize=1)
def stats_in(path: str) -> Stats:
    return Stats.load(path)


if __name__ == "__main__":
    main()
