"""Whether the code of two commits makes the same models: `python -m tools.same_bytes BASE [FOLDER ...]`.

The working tree and the commit BASE quantize the same models, from the same statistics and samples. Models have to be
equal byte for byte, refusals, notes, warnings and verdicts word for word. Ends with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import zeropoint

from ..children import ROOT
from .cases import GROUPS, chosen_cases
from .comparison import Comparison, compared, table
from .trees import UnknownCommit, both, resolved

PROGRESS_EVERY = 15.0


def main() -> int:
    options = arguments()
    cases = chosen_cases(options.folders, options.only, options.limit)
    comparisons = []
    progress = Progress(len(cases))
    with tempfile.TemporaryDirectory(prefix="same_bytes_") as name, both(options.base, Path(name)) as trees:
        for comparison in compared(cases, trees):
            comparisons.append(comparison)
            if comparison.differences:
                print(comparison, flush=True)
            progress.say(comparisons)
    print(table(comparisons))
    return int(any(comparison.differences for comparison in comparisons))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.same_bytes", description=__doc__)
    parser.add_argument("base", metavar="BASE", help="the commit to compare with, such as HEAD or main")
    parser.add_argument("folders", metavar="FOLDER", nargs="*", type=Path, help="folders with more models, *.tflite")
    parser.add_argument("--only", choices=GROUPS, help="run this group of cases")
    parser.add_argument("--limit", type=int, metavar="N", help="run at most N cases of each group, drawn at random")
    options = parser.parse_args()
    if ROOT / "src" not in Path(zeropoint.__file__).parents:
        parser.error(f"Python imports {zeropoint.__file__}, not the working tree; set PYTHONPATH=src")
    try:
        options.base = resolved(options.base)
    except UnknownCommit as error:
        parser.error(str(error))
    for folder in options.folders:
        if not folder.is_dir():
            parser.error(f"{folder} is not a folder")
    if options.limit is not None and options.limit < 1:
        parser.error(f"--limit {options.limit}: at least 1 case has to be run")
    if options.only == "folders" and not options.folders:
        parser.error("--only folders: give a folder with models")
    return options


class Progress:
    """A line now and then, for who waits."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.said = time.monotonic()

    def say(self, comparisons: Sequence[Comparison]) -> None:
        if time.monotonic() < self.said + PROGRESS_EVERY:
            return
        self.said = time.monotonic()
        different = sum(bool(comparison.differences) for comparison in comparisons)
        latest = comparisons[-1].case.group
        print(f"{len(comparisons):,} of {self.total:,} cases ({latest}), {different:,} different", file=sys.stderr)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the worktree goes as well
    sys.exit(main())
