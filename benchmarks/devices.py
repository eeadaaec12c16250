"""Models made for small devices, given to the devices' own tools: accepted, refused by us before, or a surprise.

`python -m benchmarks.devices --zoo PATH [--only NAME ...] [--targets tflm,ethos-u55-128] [-o devices.json]`

For TensorFlow Lite Micro the outputs are compared with LiteRT's, in units of the last place.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zeropoint.calibration import Stats, calibrate
from zeropoint.errors import RuntimeFailure, ZeropointError
from zeropoint.graph import Model
from zeropoint.improve.pipeline import run
from zeropoint.plan.request import Request
from zeropoint.recipe import preset
from zeropoint.runtime import Runner, Runtime
from zeropoint.runtime.device_tools import ask_tool
from zeropoint.targets import Target, TypedOp, target_named
from zeropoint.tflite import load, to_bytes

from .measure import print_table
from .rows import write_json
from .zoo import load_zoo

MODES = {"int8": ("int8", 8), "int16x8": ("int16x8", 8), "int8, 4 bits": ("int8", 4)}
TARGETS = "tflm,ethos-u55-128,ethos-u65-256,ethos-u85-256"


@dataclass(frozen=True)
class Outcome:
    """What became of one model. `ulp` is how far its outputs are from LiteRT's, at most, in units of the last place;
    `own_ulp` how far LiteRT's plain kernels are from its delegate there, for comparison."""

    task: str
    mode: str
    target: str
    outcome: str
    ram: int | None = None
    flash: int | None = None
    milliseconds: float | None = None
    on_cpu: int | None = None
    ulp: float | None = None
    own_ulp: float | None = None
    note: str = ""

    def cells(self) -> tuple[str, ...]:
        numbers = (self.ram, self.flash, self.milliseconds, self.on_cpu, self.ulp, self.own_ulp)
        shown = ("" if n is None else f"{n:,}" if isinstance(n, int) else f"{n:.3g}" for n in numbers)
        return (self.task, self.mode, self.target, self.outcome, *shown, self.note)


def refusal(model: Model, target: Target) -> str | None:
    """The first op of a file that the target's table refuses."""
    for op in (op for graph in model.graphs for op in graph.ops):
        verdict = target.verdict(TypedOp.of_file(op))
        if verdict.speed == "refused":
            return f"{op.label} {verdict.reason}"
    return None


def ulps(model: Model, samples: Sequence[Any], kernels: Runtime) -> float:
    """The largest distance of another runtime from LiteRT's delegate on the outputs, in their last place."""
    makers = {t: op.inputs[0] for op in model.main.ops if op.kind == "DEQUANTIZE" for t in op.outputs}
    others, litert = Runner(model, kernels=kernels), Runner(model)
    far = 0.0
    for sample in samples:
        for tensor, own, wanted in zip(model.main.outputs, others.run(sample), litert.run(sample), strict=True):
            held = makers.get(tensor)
            unit = 1.0 if held is None or held.params is None else held.params.scale
            far = max(far, float(np.abs(own.astype(np.float64) - wanted).max() / unit))
    return far


def outcome(key: tuple[str, str, str], model: Model, stats: Stats, samples: Sequence[Any]) -> Outcome:
    """Make a model for a target, and ask the target's tool."""
    _, mode, name = key
    target = target_named(name)
    try:
        made = run(model, Request(preset(*MODES[mode]), stats, target=target, effort="quick")).model
        refused = refusal(made, target)
    except ZeropointError as error:
        made, refused = model, " ".join(line.strip() for line in str(error).splitlines()[:2])
    if refused is not None:
        return Outcome(*key, "refused by us", note=refused)
    try:
        report = ask_tool(target, to_bytes(made))
    except RuntimeFailure as error:
        return Outcome(*key, "SURPRISE", note=str(error))
    assert report is not None
    milliseconds = None if report.seconds is None else 1e3 * report.seconds
    on_cpu = len(report.left_to_cpu) if target.tool == "vela" else None
    facts = (report.ram, report.flash, milliseconds, on_cpu)
    distances = [ulps(made, samples, kernels) for kernels in ("tflm", "optimized")] if target.tool == "tflm" else []
    return Outcome(*key, "accepted", *facts, *distances)


def outcomes(options: argparse.Namespace) -> Iterator[Outcome]:
    for name, task in load_zoo(options.zoo).items():
        if options.only and name not in options.only:
            continue
        model = load(Path(task.model).read_bytes())
        samples = task.calibration(options.samples)
        stats = calibrate(model, samples)
        for mode in MODES:
            for target in options.targets.split(","):
                yield outcome((name, mode, target), model, stats, samples[: options.compared])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.devices", description=__doc__)
    parser.add_argument("--zoo", required=True)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--targets", default=TARGETS, help=f"default: {TARGETS}")
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--compared", type=int, default=4, help="samples whose outputs are compared (default: 4)")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args(arguments)
    found = []
    for one in outcomes(options):
        found.append(one)
        print(*(cell for cell in one.cells() if cell), sep="  ", flush=True)
    heads = ("task", "mode", "target", "outcome", "RAM", "flash", "ms", "on CPU", "ulp", "LiteRT's", "note")
    print_table(heads, [one.cells() for one in found])
    surprises = sum(one.outcome == "SURPRISE" for one in found)
    print(f"{len(found)} models, {surprises} surprises")
    if options.output is not None:
        write_json(options.output, [asdict(one) for one in found])
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main())
