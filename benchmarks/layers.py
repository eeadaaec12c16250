"""Layer by layer, in float, in int8 and dynamic: how much faster than float a model can be on this processor at best.

`python -m benchmarks.layers --zoo PATH [--only NAME ...] [--samples N] [-o layers.json]`

Every layer of a model is run by itself, as a model of one op: as it is, as it is in the model that `--target integer`
gives, and with int8 weights beside float activations (mode dynamic). Activation functions, sums and conversions between
layers are left out, so the sums are what no placement of ops, and no other tool, can get below. The versions of a layer
take turns on one thread, and the fastest round counts, in CPU time.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zeropoint.bench.isolate import isolate
from zeropoint.dtypes import DType
from zeropoint.graph import Model, Op
from zeropoint.ops import OPS
from zeropoint.ops.execution import macs_of
from zeropoint.quantization import quantize
from zeropoint.sources.ports import entry
from zeropoint.targets import INTEGER
from zeropoint.tflite import load

from .measure import print_table
from .rows import instruction_sets, write_json
from .targets import fastest
from .zoo import Task, load_zoo, zoo_file

VERSIONS = ("float", "int8", "dynamic")


@dataclass(frozen=True)
class LayerTime:
    """Milliseconds of one layer by itself, by version."""

    kind: str
    name: str
    macs: int
    ms: dict[str, float]


@dataclass(frozen=True)
class Bound:
    """A model's layers: `float_ms` is the whole float model, `sums` are over its layers, by version."""

    task: str
    float_ms: float
    sums: dict[str, float]
    fastest_ms: float
    layers: tuple[LayerTime, ...]

    @property
    def all_int8(self) -> float:
        """The speed relative to float of a model whose layers are all int8 and whose other ops take no time."""
        return self.float_ms / self.sums["int8"]

    @property
    def mixed(self) -> float:
        """The same where each layer has its fastest version, and converting takes no time either."""
        return self.float_ms / self.fastest_ms


def layers_of(model: Model) -> Iterator[Op]:
    """Ops that multiply with weights."""
    for op in entry(model).graph.ops:
        spec = OPS.get(op.kind)
        if spec is not None and spec.layout is not None and op.outputs and macs_of(op, OPS):
            yield op


def alone(model: Model, op: Op) -> Model:
    return isolate(entry(model).graph, [op], lambda _: True).model


def measured(name: str, task: Task, samples: int, rounds: int) -> Bound:
    exact = load(str(task.model))
    result = quantize(exact, "int8", data=task.calibration(samples), target=INTEGER, effort="quick")
    assert result.prepared is not None
    made = {"int8": result.model, "dynamic": quantize(result.prepared, "dynamic", effort="quick").model}
    twins = {version: {op.outputs[0].name: op for op in layers_of(model)} for version, model in made.items()}
    found = []
    for op in layers_of(result.prepared):  # with activation functions fused, as they are in the others
        key = op.outputs[0].name
        if key in twins["int8"] and twins["int8"][key].outputs[0].dtype is DType.INT8:
            versions = {version: alone(made[version], own[key]) for version, own in twins.items() if key in own}
            seconds = fastest({"float": alone(result.prepared, op), **versions}, rounds)
            times = {version: 1e3 * seconds.get(version, seconds["float"]) for version in VERSIONS}
            found.append(LayerTime(op.kind, op.name, macs_of(op, OPS), times))
    whole = 1e3 * fastest({"float": exact}, rounds)["float"]
    sums = {version: sum(one.ms[version] for one in found) for version in VERSIONS}
    return Bound(name, whole, sums, sum(min(one.ms.values()) for one in found), tuple(found))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.layers", description=__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("--zoo", required=True, help="a folder with a Python file that lists TASKS, or that file")
    made.add_argument("--only", nargs="+", metavar="NAME", help="these tasks (default: all)")
    made.add_argument("--samples", type=int, default=16, help="for calibration (default: 16)")
    made.add_argument("--rounds", type=int, default=9, help="of latency (default: 9)")
    made.add_argument("-o", "--output", type=Path, help="write the numbers to this JSON file")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    tasks = load_zoo(zoo_file(options.zoo))
    names = options.only or list(tasks)
    if unknown := [name for name in names if name not in tasks]:
        print(f"error: there is no {unknown[0]!r} in the zoo", file=sys.stderr)
        return 2
    machine: dict[str, Any] = {"machine": platform.machine(), "instructions": instruction_sets()}
    print(f"{machine['machine']} with {', '.join(machine['instructions']) or 'unknown instruction sets'}")
    bounds = [measured(name, tasks[name], options.samples, options.rounds) for name in names]
    header = ("task", "layers", "model, float", *(f"layers, {v}" for v in VERSIONS), "all int8", "mixed", "")
    print_table(header, [_cells(bound) for bound in bounds])
    if options.output is not None:
        write_json(options.output, {**machine, "rows": [asdict(bound) for bound in bounds]})
    return 0


def _cells(bound: Bound) -> list[str]:
    times = (f"{ms:.3f} ms" for ms in (bound.float_ms, *bound.sums.values()))
    return [bound.task, str(len(bound.layers)), *times, f"{bound.all_int8:.2f}x", f"{bound.mixed:.2f}x", ""]


if __name__ == "__main__":
    sys.exit(main())
