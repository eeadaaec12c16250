"""How much faster `zeropoint tune --on` is on two Ray workers than on one, and whether the results are the same.

`python -m benchmarks.tune_cluster [--trials 8] [--seconds 0]`

Each cluster is started on this machine, with nodes of one processor each. A trial quantizes the model of the
demonstration with high effort and scores it, so that both processors have to be idle. With --seconds it waits besides,
as one does whose metric runs elsewhere: that shows what the scheduling costs, also where others compute.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from zeropoint.calibration import Settings
from zeropoint.demo import digits as digits_data
from zeropoint.demo import digits_model
from zeropoint.recipe import preset
from zeropoint.tuning.executor import executor
from zeropoint.tuning.trial import Configuration, Outcome, Workpiece

STARTING = 8.0
"""Seconds that the first trial of each worker waits, so that another one takes the next: starting takes a while."""

FIRST = "first"


@dataclass(frozen=True)
class Waiting(Workpiece):
    """Each trial takes some seconds more."""

    seconds: float = 0.0

    def carry_out(self, candidate: Configuration) -> Outcome:
        time.sleep(STARTING if candidate.label.startswith(FIRST) else self.seconds)
        return super().carry_out(candidate)


def workpiece(seconds: float) -> Waiting:
    data = digits_data()
    rows = tuple((image[None],) for image in data["test_images"])
    calibration = [image[None] for image in data["calibration"]]
    settings = Settings(workers=1)  # a node has one processor
    return Waiting(digits_model(), calibration, rows, "cpu", settings, seconds=seconds)


def measured(workers: int, candidates: Sequence[Configuration], piece: Waiting) -> tuple[float, list[bytes]]:
    """Seconds, and the models, on a cluster of so many workers that are running already."""
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(workers - 1):
        nodes.add_node(num_cpus=1)
    try:
        with executor(piece, on=nodes.address) as on_ray:
            list(on_ray.outcomes([replace(candidates[0], label=f"{FIRST} {k}") for k in range(workers)]))
            start = time.perf_counter()
            found = dict(on_ray.outcomes(candidates))
            return time.perf_counter() - start, [found[k].content for k in range(len(candidates))]
    finally:
        nodes.shutdown()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tune_cluster", description=__doc__)
    parser.add_argument("--trials", type=int, default=8, help="how many (default: 8)")
    parser.add_argument("--seconds", type=float, default=0.0, help="that each waits besides (default: 0)")
    options = parser.parse_args(arguments)
    candidates = [Configuration(f"int8 {k}", preset("int8"), effort="high") for k in range(options.trials)]
    piece = workpiece(options.seconds)
    (one, models), (two, others) = (measured(workers, candidates, piece) for workers in (1, 2))
    print(f"{options.trials} trials: 1 worker {one:.1f} s, 2 workers {two:.1f} s: {one / two:.2f} times as fast")
    print(f"the same models: {models == others}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
