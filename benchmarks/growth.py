"""How time and memory grow with the number of samples, of ops and of parameters.

`python -m benchmarks.growth -o docs/results [--only ops] [--largest 0.1]`

Each point is measured in a process of its own. Between the last points the slope in logarithms is the exponent: 1 is
linear. The exit code is 1 where it is above LIMIT.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .apart import Failed, apart
from .measure import peak, print_table
from .plots import STYLE, pyplot
from .rows import machine, versions, write_json

LIMIT = 1.2
LAST = 3
"""So many points at the upper end tell the exponent: at the lower end, fixed costs hide it."""

SAMPLES = 8
"""For models whose size is what grows."""


@dataclass(frozen=True)
class Point:
    """Seconds by stage, and by process the bytes that were added to its peak memory."""

    x: float
    seconds: Mapping[str, float]
    memory: Mapping[str, int]


@dataclass(frozen=True)
class Series:
    name: str
    label: str
    steps: tuple[float, ...]
    build: Callable[[str, float], None]
    """Writes a model for a step."""
    jobs: tuple[Callable[[str, float], Point], ...]
    """Each runs in a process of its own."""


# What is measured.


class Watch:
    """Times stages one after the other; memory counts from its start."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.before = peak()

    def time(self, stage: str, job: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        found = job()
        self.seconds[stage] = time.perf_counter() - start
        return found

    def point(self, x: float, process: str) -> Point:
        return Point(x, dict(self.seconds), {process: peak() - self.before})


def many_samples(path: str, count: float) -> Point:
    """Samples are made one at a time: they are not what takes memory."""
    import zeropoint
    from zeropoint.demo import digits

    images = digits()["calibration"]
    zeropoint.calibrate(path, [images[:1]])  # imports, and what the first run allocates
    watch = Watch()
    watch.time("calibrate", lambda: zeropoint.calibrate(path, _cycled(images, int(count))))
    return watch.point(count, "calibrate")


def _cycled(images: np.ndarray, count: int) -> Iterator[np.ndarray]:
    return (images[k % len(images)][None] for k in range(count))


def stage_by_stage(path: str, x: float) -> Point:
    """Everything that quantization consists of; the ranges come from statistics."""
    import zeropoint

    _warm_up()
    watch = Watch()
    model = watch.time("read", lambda: zeropoint.load(path))
    stats = watch.time("calibrate", lambda: zeropoint.calibrate(model, _noise(model)))
    made = watch.time("quantize", lambda: zeropoint.quantize(model, "int8", stats=stats))
    watch.time("write", lambda: zeropoint.save(made.model, Path(path).with_suffix(".out")))
    watch.time("weights alone", lambda: zeropoint.quantize(model, "dynamic"))
    return watch.point(x, "stages")


def with_data(path: str, x: float) -> Point:
    """The default: several ways are tried on the data, and the best is kept."""
    import zeropoint

    _warm_up()
    model = zeropoint.load(path)
    watch = Watch()
    watch.time("quantize with data", lambda: zeropoint.quantize(model, "int8", data=_noise(model)))
    return watch.point(x, "with data")


def _warm_up() -> None:
    """Imports, and what first runs allocate."""
    import zeropoint
    from zeropoint.demo import digits, digits_model

    zeropoint.quantize(digits_model(), "int8", data=[digits()["calibration"][:1]])


def _noise(model: Any) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(model.main.inputs[0].shape, np.float32) for _ in range(SAMPLES)]


# Models.


def build_digits(path: str, _: float) -> None:
    from zeropoint.demo import digits_model

    Path(path).write_bytes(digits_model())


WIDTH, LAYERS = 16, 64


def build_deep(path: str, ops: float) -> None:
    _save_layered(path, int(4 * WIDTH * WIDTH * ops), int(ops))


def build_wide(path: str, parameters: float) -> None:
    _save_layered(path, int(4 * parameters), LAYERS)


def _save_layered(path: str, size: int, layers: int) -> None:
    from zeropoint.tflite import save

    from .models import layered_model

    save(layered_model(size, layers), path)


SERIES = (
    Series("samples", "samples", (250, 500, 1000, 2000, 4000, 8000), build_digits, (many_samples,)),
    Series("ops", "ops", (50, 150, 500, 1250, 2500, 5000), build_deep, (stage_by_stage, with_data)),
    Series(
        "parameters",
        "parameters",
        (2.5e6, 7.5e6, 2.5e7, 6.25e7, 1.25e8, 2.5e8),
        build_wide,
        (stage_by_stage, with_data),
    ),
)


@dataclass(frozen=True)
class Growth:
    """What was found of a series; `stopped` says which jobs took too long, and at which step."""

    series: Series
    points: tuple[Point, ...]
    stopped: Mapping[str, str]


def measured(series: Series, largest: float, patience: float) -> Growth:
    points: list[Point] = []
    stopped: dict[str, str] = {}
    for step in series.steps:
        if step > largest * series.steps[-1]:
            break
        seconds: dict[str, float] = {}
        memory: dict[str, int] = {}
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/model.tflite"
            apart(series.build, path, step)
            for job in series.jobs:
                point = None if job.__name__ in stopped else _tried(job, path, step, patience)
                if isinstance(point, Point):
                    seconds |= point.seconds
                    memory |= point.memory
                elif point is not None:
                    stopped[job.__name__] = f"{point} on {step:g} {series.label}"
        points.append(Point(step, seconds, memory))
        told = [f"{stage} {value:.2f} s" for stage, value in seconds.items()]
        told += [f"{value / 1e6:.0f} MB ({process})" for process, value in memory.items()]
        print(f"{step:g} {series.label}: {', '.join(told)}", file=sys.stderr, flush=True)
    return Growth(series, tuple(points), stopped)


def _tried(job: Callable[[str, float], Point], path: str, step: float, patience: float) -> Point | str:
    """What came of a job, or why nothing did."""
    try:
        found: Point = apart(job, path, step, timeout=patience)
        return found
    except Failed as failure:
        return str(failure)


# What it means.

Part = Literal["seconds", "memory"]


def columns(points: Sequence[Point], part: Part) -> dict[str, tuple[list[float], list[float]]]:
    """Steps and values by name."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for point in points:
        values = point.seconds if part == "seconds" else point.memory
        for name, value in values.items():
            xs, ys = found.setdefault(name, ([], []))
            xs.append(point.x)
            ys.append(max(1e-9, float(value)))
    return found


def exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The k of y = c·x^k that fits the last points best: the slope of a line through their logarithms."""
    if len(xs) < 2:
        return math.nan
    return float(np.polyfit(np.log(xs[-LAST:]), np.log(ys[-LAST:]), 1)[0])


def exponents(points: Sequence[Point]) -> dict[str, float]:
    parts: tuple[Part, ...] = ("seconds", "memory")
    return {f"{part}, {name}": exponent(*line) for part in parts for name, line in columns(points, part).items()}


def save_plot(path: Path, found: Sequence[Growth]) -> None:
    plt = pyplot()
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(2, len(found), figsize=(4.4 * len(found), 7), squeeze=False)
        for k, growth in enumerate(found):
            _draw(panels[0][k], growth, "seconds", 1.0)
            _draw(panels[1][k], growth, "memory", 1e-6)
            panels[0][k].set_ylabel("seconds")
            panels[1][k].set_ylabel("MB added to peak memory")
        figure.set_layout_engine("constrained")
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def _draw(panel: Any, growth: Growth, part: Part, scale: float) -> None:
    """Logarithmic axes, and what linear growth to the highest last point looks like."""
    lines = columns(growth.points, part)
    for name, (xs, ys) in lines.items():
        label = f"{name}: exponent {exponent(xs, ys):.2f}"
        panel.plot(xs, [y * scale for y in ys], "o-", markersize=4, label=label)
    panel.set_xlabel(growth.series.label)
    if not lines:
        return  # every job took too long
    xs, ys = max(lines.values(), key=lambda line: line[1][-1])
    panel.plot(xs, [ys[-1] * scale * x / xs[-1] for x in xs], color="#999999", linestyle=":", label="linear")
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_ylim(top=ys[-1] * scale * 10 ** (0.35 * (len(lines) + 2)))  # room for the legend
    panel.legend(fontsize=8, frameon=False, loc="upper left")


def main(arguments: list[str] | None = None) -> int:
    names = [series.name for series in SERIES]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description="How time and memory grow.")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="these series")
    parser.add_argument(
        "--largest", type=float, default=1.0, help="go up to this part of the largest step (default: 1)"
    )
    parser.add_argument("--patience", type=float, default=600, help="seconds for one job on one step (default: 600)")
    parser.add_argument("-o", "--output", type=Path, required=True, help="a folder for growth.json and growth.svg")
    options = parser.parse_args(arguments)
    asked = [series for series in SERIES if series.name in options.only]
    found = [measured(series, options.largest, options.patience) for series in asked]
    slopes = {growth.series.name: exponents(growth.points) for growth in found}
    stopped = {growth.series.name: growth.stopped for growth in found if growth.stopped}
    options.output.mkdir(parents=True, exist_ok=True)
    content = {
        "versions": versions(),
        "machine": machine(),
        "exponents": slopes,
        "stopped": stopped,
        "points": {growth.series.name: [asdict(point) for point in growth.points] for growth in found},
    }
    write_json(options.output / "growth.json", content)
    save_plot(options.output / "growth.svg", found)
    flat = {f"{name}: {what}": slope for name, one in slopes.items() for what, slope in one.items()}
    rows = [(name, f"{slope:.2f}", "above linear" if slope > LIMIT else "") for name, slope in flat.items()]
    rows += [(f"{name}: {job}", "-", why) for name, jobs in stopped.items() for job, why in jobs.items()]
    print_table(("", "exponent", ""), rows)
    return 1 if stopped or any(slope > LIMIT for slope in flat.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
