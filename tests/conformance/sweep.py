"""What LiteRT's kernels make of numbers from 1e-30 to 1e29, and of outputs far finer or coarser than what they hold.

    python -m tests.conformance.sweep               every op of the table, on many points; takes half an hour
    python -m tests.conformance.sweep GREATER       one op
    python -m tests.conformance.sweep --unlimited   without the limits of the table, which is how they are found

Kernels that get a scale which they cannot compute with may end the process, so points are tried in another one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from zeropoint.dtypes import DType
from zeropoint.errors import RuntimeFailure, ZeropointError
from zeropoint.ops import OPS, Activation, Rescale, Trait
from zeropoint.runtime import Kernels, Session

from .cases import Case, computing, quantized, rounded_inputs, rounded_model, run_afresh, units_off
from .samples import LOOSE, SAMPLES, tolerance

RUNS = 2
SIZES = tuple(10.0**k for k in (-30, -20, -15, -12, -9, -7, -5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 7, 9, 12, 15, 20, 29))
STRETCHES = tuple(2.0**k for k in (*range(-20, 0), 4, 8, 12, 16, 20))
BY_NAME = {str(sample): sample for sample in SAMPLES}
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Point:
    """A sample on numbers of some size: `first` and `others` are factors of its operands, `stretch` is as in Case."""

    sample: str
    activations: str
    first: float = 1.0
    others: float = 1.0
    stretch: float | None = None

    def case(self, limited: bool) -> Case:
        sample = BY_NAME[self.sample].scaled(self.first, self.others)
        row = OPS[sample.becomes or sample.kind]
        if not limited:
            unbound = dict.fromkeys((DType.INT8, DType.INT16), np.inf)
            row = replace(row, max_rescale=unbound, input_scales={})
        return Case(sample, DType.parse(self.activations), stretch=self.stretch, ops={**OPS, row.kind: row})


@dataclass(frozen=True)
class Outcome:
    """`refused` is why the op stayed float; else `off` has the kernels' distances as shares of what is tolerated."""

    refused: str = ""
    off: tuple[float, ...] = ()
    failure: str = ""

    @property
    def is_right(self) -> bool:
        return not self.failure and all(off <= 1 for off in self.off)

    def __str__(self) -> str:
        return self.failure or self.refused or " ".join(f"{off:.3g}" for off in self.off)


def computing_samples() -> list[str]:
    """One sample of each row whose kernels look at scales; ops that only move integers have no use for them."""
    first = {sample.kind: name for name, sample in reversed(BY_NAME.items())}
    rows = [(name, OPS[BY_NAME[name].becomes or kind]) for kind, name in first.items()]
    return [name for name, row in rows if not row.tied or row.input_scales]


def points(names: Iterable[str], sizes: Sequence[float], stretches: Sequence[float]) -> Iterator[Point]:
    for name in names:
        sample = BY_NAME[name]
        spec = OPS[sample.becomes or sample.kind]
        flowing = [k for k, o in enumerate(sample.operands) if o and isinstance(spec.input_role(k), Activation)]
        has_others = (len(flowing) > 1 or bool(spec.weight_slots)) and Trait.RECURRENT not in spec.traits
        for label in (dtype.label for dtype in spec.types):
            for size in sizes:
                yield Point(name, label, size)
                if has_others:
                    yield from (Point(name, label, *pair) for pair in ((1.0, size), (size, size)))
            if spec.rescale is not Rescale.NONE:
                yield from (Point(name, label, stretch=stretch) for stretch in stretches)


def outcome(point: Point, limited: bool) -> Outcome:
    """What becomes of a point; this may end the process."""
    case = point.case(limited)
    try:
        skipped = quantized(case).skipped
        if skipped:
            return Outcome(refused=f"{skipped[0].code}: {skipped[0].reason}")
        return Outcome(off=tuple(distance(case, kernels) for kernels in case.kernels))
    except RuntimeFailure as error:
        return Outcome(failure=str(error))
    except ZeropointError as error:
        return Outcome(refused=str(error))


def distance(case: Case, kernels: Kernels) -> float:
    """How far the integers are off the float op on the same operands, as a share of what is tolerated.

    Of truth values and indices none may be. Results that are cut off have rounding errors of float32 in them.
    """
    result = quantized(case).model
    integer, exact = Session(result, kernels=kernels), Session(rounded_model(case), kernels="optimized")
    outputs, worst = computing(result).outputs, 0.0
    for inputs in case.sample.draw(RUNS):
        fed = rounded_inputs(result, inputs)
        for output, got, wanted in zip(outputs, run_afresh(integer, fed), run_afresh(exact, fed), strict=True):
            if output.params is None:
                worst = max(worst, 0.0 if np.array_equal(got, wanted) else np.inf)
                continue
            cut = float(np.abs(wanted).max()) * 2**-21 / output.params.scale
            allowed = tolerance(case.spec, case.activations) + cut
            if (
                case.spec.kind,
                case.activations,
            ) in LOOSE:  # the reason is a coarse table: coarser still on other ranges
                allowed += 2**case.activations.bits / 200
            worst = max(worst, units_off(got, wanted, output.params) / (allowed + 0.02))
    return worst


def sweep(points: Iterable[Point], limited: bool = True) -> Iterator[tuple[Point, Outcome]]:
    """Every point's outcome, from a process that is started again whenever one has ended it."""
    left = list(points)
    while left:
        command = [sys.executable, "-m", "tests.conformance.sweep", "--child", str(limited)]
        text = json.dumps([vars(point) for point in left])
        child = subprocess.run(command, input=text, capture_output=True, text=True, cwd=ROOT, check=False)
        if child.returncode > 0:
            raise RuntimeError(child.stderr)
        for line in child.stdout.splitlines():
            yield left.pop(0), Outcome(**json.loads(line))
        if child.returncode:
            yield left.pop(0), Outcome(failure=f"ended the process by signal {-child.returncode}")


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["--child"]:
        for given in json.load(sys.stdin):
            print(json.dumps(vars(outcome(Point(**given), limited=arguments[1] == "True"))), flush=True)
        return
    kinds = {a for a in arguments if a != "--unlimited"}
    names = [name for name in computing_samples() if not kinds or BY_NAME[name].kind in kinds]
    for point, found in sweep(points(names, SIZES, STRETCHES), limited="--unlimited" not in arguments):
        print("right" if found.is_right else "WRONG", *vars(point).values(), found, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
