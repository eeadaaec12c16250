"""Every tensor of every model of a zoo, simulated and run: how many elements differ, and what the simulation costs.

`python -m benchmarks.integers --zoo PATH [--only a,b] [--modes int8,int16x8,int8-4bit,dynamic] [--samples 16]
[--kernels reference,xnnpack,tflm]`

Models are made at quick effort, all in integers where the mode allows it. Ends with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import zeropoint
from zeropoint.errors import ZeropointError
from zeropoint.graph import Model
from zeropoint.runtime import Runner
from zeropoint.simulation.rules import KERNEL_SETS, KernelSet
from zeropoint.simulation.trace import RUNTIMES, SimulationOptions, simulate_all
from zeropoint.sources.ports import entry

from .zoo import load_zoo

MODES: Mapping[str, Mapping[str, Any]] = {
    "int8": {"mode": "int8", "target": "integer"},
    "int16x8": {"mode": "int16x8", "target": "integer"},
    "int8-4bit": {"mode": "int8", "weight_bits": 4, "target": "integer"},
    "dynamic": {"mode": "dynamic"},
}


@dataclass(frozen=True)
class Agreement:
    """Over all samples: elements of integers and of float tensors, how many of them differ, processor time a sample."""

    samples: int
    integers: int
    floats: int
    differing: int
    seconds: float

    def __str__(self) -> str:
        sizes = f"{self.integers:,} integers and {self.floats:,} floats"
        return f"{self.differing} of {sizes} differ on {self.samples} samples; {self.seconds:.2f} s of CPU each"


def agreement(model: Model, samples: Sequence[Any], kernels: KernelSet) -> Agreement:
    """Simulate and run each sample; every tensor that an op makes is compared."""
    graph = entry(model).graph
    made = [t for op in graph.ops for t in op.outputs if t.size and t.dtype.storage is not None]
    runner = Runner.exposing(model, graph, made, kernels=RUNTIMES[kernels])
    integers = floats = differing = count = 0
    started, seconds = time.process_time(), 0.0
    for trace in simulate_all(model, samples, SimulationOptions(kernels)):
        seconds += time.process_time() - started
        count += 1
        for tensor, wanted in runner.values(trace.row).items():
            differing += int(np.count_nonzero(trace.value(tensor) != wanted))
            integers += wanted.size if wanted.dtype.kind in "iu" else 0
            floats += wanted.size if wanted.dtype.kind == "f" else 0
        started = time.process_time()
    return Agreement(count, integers, floats, differing, seconds / max(1, count))


def measured(
    zoo: str, tasks: Sequence[str], modes: Sequence[str], samples: int
) -> Iterator[tuple[str, str, Model, list[Any]]]:
    for name, task in load_zoo(zoo).items():
        if tasks and name not in tasks:
            continue
        data = task.calibration(samples)[:samples]
        stats = zeropoint.calibrate(task.model, data)
        for mode in modes:
            yield name, mode, zeropoint.quantize(task.model, stats=stats, effort="quick", **MODES[mode]).model, data


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zoo", required=True)
    parser.add_argument("--only", type=lambda text: text.split(","), default=[])
    parser.add_argument("--modes", type=lambda text: text.split(","), default=[*MODES])
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--kernels", type=lambda text: text.split(","), default=[*KERNEL_SETS])
    given = parser.parse_args(arguments)
    is_same = True
    for name, mode, model, data in measured(given.zoo, given.only, given.modes, given.samples):
        for kernels in given.kernels:
            try:
                found = agreement(model, data, kernels)
            except ZeropointError as error:
                print(f"{name} {mode} {kernels}: not compared: {str(error).splitlines()[0]}", flush=True)
                continue
            is_same = is_same and not found.differing
            print(f"{name} {mode} {kernels}: {found}", flush=True)
    print(f"at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB")
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
