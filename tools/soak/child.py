"""The process that runs cases, and may die of them: `python -m tools.soak.child CAMPAIGN SETTINGS GIGABYTES`.

A line of standard input names the first case and how many; the answer is one line with their outcomes.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
from dataclasses import astuple

from .campaigns import CAMPAIGNS


def main() -> None:
    name, settings, gigabytes = sys.argv[1:]
    with contextlib.suppress(ImportError):
        import resource  # not on Windows

        resource.setrlimit(resource.RLIMIT_AS, (int(gigabytes) << 30, int(gigabytes) << 30))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever native code prints is no answer
    campaign = CAMPAIGNS[name](**json.loads(settings))
    gc.freeze()  # what is loaded now stays; looking for garbage as often as usual takes a sixth of the time
    gc.set_threshold(50_000, 20, 100)
    for line in sys.stdin:
        first, count = json.loads(line)
        found = [astuple(campaign.run(case)) for case in range(first, first + count)]
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
