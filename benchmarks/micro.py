"""Microbenchmarks that watch for regressions: each a ratio to a reference that runs in turns with it.

`python -m benchmarks.micro [--only read] [--rounds 9] [--update]`

The exit code is 1 where a ratio is more than FACTOR times what was stored: machines differ, but not by that much.
`--update` stores the ratios found.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zeropoint.calibration import Stats, calibrate
from zeropoint.demo import digits, digits_model
from zeropoint.improve.pipeline import plan as plan_model
from zeropoint.parallel import cores
from zeropoint.plan.request import Request
from zeropoint.quantization import quantize
from zeropoint.recipe import preset
from zeropoint.runtime import Session
from zeropoint.tflite import load, save, to_bytes

from .measure import print_table, take_turns
from .models import layered_model
from .rows import write_json

STORED = Path(__file__).with_name("micro.json")
FACTOR = 2.5
LAYERS, SIZE = 200, 20_000_000

Job = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """A job of ours, and a job that has to do with it and is not ours."""

    job: Job
    reference: Job
    against: str


def cases(folder: Path) -> Mapping[str, Case]:
    file = folder / "model.tflite"
    save(layered_model(SIZE, LAYERS), file)
    content, model = file.read_bytes(), load(file)
    weights = [t.data for t in model.main.tensors if t.data is not None and t.data.ndim == 2]
    rows = np.random.default_rng(0).standard_normal((8, *model.main.inputs[0].shape), np.float32)
    stats = calibrate(model, list(rows))
    small = load(digits_model())
    images = [image[None] for image in digits()["calibration"]] * 5
    session = Session(small, threads=cores())
    return {
        "read": Case(lambda: load(file), file.read_bytes, "reading the bytes"),
        "write": Case(lambda: to_bytes(model), lambda: bytearray(content), "copying the bytes"),
        "calibrate": Case(lambda: calibrate(small, images), lambda: run_all(session, images), "plain inference"),
        "solve": Case(lambda: _solve(file, stats), lambda: python_work(20 * LAYERS), "JSON of so many ops"),
        "quantize": Case(
            lambda: to_bytes(quantize(model, "int8", stats=stats, effort="quick").model),
            lambda: [rounded(w) for w in weights],
            "rounding the weights in NumPy",
        ),
        "weights": Case(
            lambda: to_bytes(quantize(model, "dynamic", effort="quick").model),
            lambda: [rounded(w) for w in weights],
            "rounding the weights in NumPy",
        ),
    }


def _solve(file: Path, stats: Stats) -> object:
    return plan_model(load(file), Request(preset("int8"), stats, effort="quick"))


def run_all(session: Session, samples: list[np.ndarray]) -> None:
    for sample in samples:
        session.invoke([sample])


def python_work(count: int) -> object:
    """What pure Python takes on this machine: `count` small objects there and back."""
    ops = [{"kind": "FULLY_CONNECTED", "inputs": [k, k + 1, k + 2], "output": f"layer_{k}"} for k in range(count)]
    return json.loads(json.dumps(ops))


def rounded(weight: np.ndarray) -> np.ndarray:
    scale = np.maximum(np.abs(weight).max(axis=1, keepdims=True), 1e-9) / 127
    return np.asarray(np.clip(np.rint(weight / scale), -127, 127), np.int8)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.micro", description="Watch for regressions.")
    parser.add_argument("--only", nargs="+", help="these cases")
    parser.add_argument("--rounds", type=int, default=9, help="repetitions (default: 9)")
    parser.add_argument("--update", action="store_true", help=f"store the ratios in {STORED.name}")
    options = parser.parse_args(arguments)
    expected: dict[str, float] = json.loads(STORED.read_text()) if STORED.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        found, known = {}, cases(Path(folder))
        if unknown := set(options.only or ()) - set(known):
            parser.error(f"there is no case {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
        for name, case in known.items():
            if options.only is None or name in options.only:
                jobs = {"ours": case.job, "reference": case.reference}
                times = take_turns(jobs, options.rounds)
                found[name] = (times, case.against)
    ratios = {name: times.ratio("ours", "reference") for name, (times, _) in found.items()}
    slow = [name for name, ratio in ratios.items() if ratio > FACTOR * expected.get(name, float("inf"))]
    rows = [
        (
            name,
            f"{times.median('ours') * 1e3:.1f} ms",
            f"{ratios[name]:.2f}",
            f"{expected[name]:.2f}" if name in expected else "-",
            f"of {against}" + (f"; SLOWER than {FACTOR:g} x the stored ratio" if name in slow else ""),
        )
        for name, (times, against) in found.items()
    ]
    print_table(("", "time", "ratio", "stored", ""), rows)
    if options.update:
        write_json(STORED, expected | {name: round(ratio, 3) for name, ratio in ratios.items()})
        return 0
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
