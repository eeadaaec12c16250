"""Children that die of their cases: each case gets its own outcome, and the rest goes on."""

from __future__ import annotations

import sys

from tools.soak.workers import Limits, Worker, outcomes

CHILD = """
import json, os, sys, time
for line in sys.stdin:
    first, count = json.loads(line)
    for case in range(first, first + count):
        if case == 3:
            os.abort()
        if case == 5:
            time.sleep(600)
    print(json.dumps([[case, "right", ""] for case in range(first, first + count)]), flush=True)
"""


def worker() -> Worker:
    made = Worker("load", {}, Limits(seconds=8))
    made.child.command = [sys.executable, "-c", CHILD]
    return made


def test_an_abort_and_a_hang_are_found_in_their_batch():
    found = {o.case: o for o in outcomes([worker(), worker()], iter([(0, 2), (2, 4), (6, 2)]))}
    assert found.keys() == set(range(8))
    assert found[3].kind == "crash"
    assert found[3].detail == "SIGABRT"
    assert found[5].kind == "hang"
    assert [case for case, outcome in sorted(found.items()) if not outcome.is_fine] == [3, 5]


def test_a_campaign_runs_in_a_child():
    (found,) = outcomes([Worker("load", {"seed": 1}, Limits(seconds=60))], iter([(7, 1)]))
    assert (found.case, found.is_fine) == (7, True)
