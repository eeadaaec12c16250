"""The soak: `python -m tools.soak graphs --count 5000 --jobs 2 --keep failures`. Ends with 1 if anything failed."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..children import ROOT
from .campaigns import CAMPAIGNS, Campaign
from .workers import Outcome, Worker, outcomes

PROGRESS_EVERY = 30.0
MOST_SHOWN = 40


def main() -> int:
    asked = arguments()
    settings: dict[str, Any] = {"seed": asked.seed}
    if asked.campaign == "graphs":
        settings |= {"effort": asked.effort}
    elif asked.folder is not None:
        settings |= {"folder": str(Path(asked.folder).resolve())}
    campaign: Campaign = CAMPAIGNS[asked.campaign](**settings)
    workers = [Worker(asked.campaign, settings, campaign.limits) for _ in range(asked.jobs)]
    print(f"{asked.campaign}, seed {asked.seed}, commit {commit()}", flush=True)
    deadline = None if asked.minutes is None else time.monotonic() + 60 * asked.minutes
    count = asked.count * campaign.repeats
    numbers = range(asked.first, count) if asked.case is None else range(asked.case, asked.case + 1)
    cases = batches(numbers, campaign.batch, deadline)
    totals = Counter[str]()
    said = time.monotonic()
    for outcome in outcomes(workers, cases):
        totals[outcome.kind] += 1
        if not outcome.is_fine:
            report(outcome, campaign, asked.keep)
        if time.monotonic() > said + PROGRESS_EVERY:
            said = time.monotonic()
            print(summary(totals), flush=True)
    print(f"done: {summary(totals)}")
    return int(any(not Outcome(0, kind).is_fine for kind in totals))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description=__doc__)
    parser.add_argument("campaign", choices=sorted(CAMPAIGNS), help="what to try")
    parser.add_argument("--count", type=int, default=1000, help="files, or graphs (1000)")
    parser.add_argument("--case", type=int, help="run this one again, by the number that was printed")
    parser.add_argument("--first", type=int, default=0, help="go on from this one, at which another run ended (0)")
    parser.add_argument("--seed", type=int, default=1, help="of all cases (1)")
    parser.add_argument("--minutes", type=float, help="stop after that long, whatever the count")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time (1)")
    parser.add_argument("--keep", type=Path, help="folder for the files of cases that failed")
    parser.add_argument("--folder", help="damage the .tflite files in there rather than those that the tests build")
    parser.add_argument("--effort", choices=("quick", "standard"), default="quick", help="of graphs (quick)")
    return parser.parse_args()


def batches(numbers: range, size: int, deadline: float | None) -> Iterator[tuple[int, int]]:
    for start in numbers[::size]:
        if deadline is not None and time.monotonic() > deadline:
            return
        yield start, min(size, numbers.stop - start)


def report(outcome: Outcome, campaign: Campaign, keep: Path | None) -> None:
    print(f"case {outcome.case}: {outcome.kind}: {outcome.detail}", flush=True)
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        for ending, content in campaign.files(outcome.case).items():
            (keep / f"{type(campaign).__name__.lower()}_{outcome.case}.{ending}").write_bytes(content)


def summary(totals: Counter[str]) -> str:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in totals.most_common())
    return f"{sum(totals.values()):,} cases: {kinds or 'none'}"


def commit() -> str:
    """What is being tried, as Git calls it."""
    shown = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return shown.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
