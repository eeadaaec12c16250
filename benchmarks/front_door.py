"""Converting a Keras model or SavedModel, against TensorFlow's converter: the same script with one import changed.

`python -m benchmarks.front_door --zoo ../shared/zoo [--only kws_dscnn] [--samples 200] [-o results.json]`

Both get the same samples. Calibration is what lies between a float model and its ranges. Each tool has its own process.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .measure import print_table
from .quantization import ACCURACY, Failed, Request, apart, score, versions

OURS, THEIRS = "zeropoint.lite", "tensorflow.lite"
MODES = {
    "int8": ("TFLITE_BUILTINS",),
    "int16x8": ("EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8", "TFLITE_BUILTINS"),
}


def watch_their_calibration() -> list[float]:
    """Seconds that TensorFlow's calibration takes from now on: from the float model to one that holds ranges."""
    from tensorflow.lite.python.optimize import calibrator

    found: list[float] = []

    class Watched(calibrator.Calibrator):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            self.start = time.perf_counter()
            super().__init__(*arguments, **options)

        def calibrate(self, *arguments: Any, **options: Any) -> Any:
            calibrated = super().calibrate(*arguments, **options)
            found.append(time.perf_counter() - self.start)
            return calibrated

    calibrator.Calibrator = Watched
    return found


def open_door(name: str, source: Path) -> tuple[Any, Any]:
    """A converter for the source, and the module it comes from: ours, or TensorFlow's."""
    import keras

    lite = importlib.import_module("zeropoint.lite") if name == OURS else importlib.import_module("tensorflow").lite
    if source.is_dir() and name == THEIRS:
        import tensorflow

        # The newer entry point restores Keras objects, and TensorFlow 2.21 no longer reads those of Keras 2.
        return tensorflow.compat.v1.lite.TFLiteConverter.from_saved_model(str(source)), lite
    if source.is_dir():
        return lite.TFLiteConverter.from_saved_model(str(source)), lite
    return lite.TFLiteConverter.from_keras_model(keras.models.load_model(source, compile=False)), lite


def convert(name: str, request: Request, target: str) -> tuple[float, float]:
    """Write the quantized model; the seconds of calibration, and of everything from the converter to the bytes."""
    import keras  # noqa: F401 (neither pays for imports, which take longer than the work)
    import tensorflow  # noqa: F401

    import zeropoint.quantize  # noqa: F401

    samples = request.calibration()
    theirs = [] if name == OURS else watch_their_calibration()
    start = time.perf_counter()
    converter, lite = open_door(name, request.task.source)
    converter.optimizations = [lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: map(list, samples)
    converter.target_spec.supported_ops = [getattr(lite.OpsSet, ops) for ops in MODES[request.mode]]
    content = converter.convert()
    whole = time.perf_counter() - start
    Path(target).write_bytes(content)
    return (_our_calibration(request) if name == OURS else sum(theirs)), whole


def _our_calibration(request: Request) -> float:
    """Seconds of the same calibration by itself: from the float model to statistics."""
    import zeropoint

    model, samples = zeropoint.load(request.task.source), request.calibration()
    start = time.perf_counter()
    zeropoint.calibrate(model, samples)
    return time.perf_counter() - start


@dataclass(frozen=True)
class Row:
    task: str
    mode: str
    tool: str
    float_score: float
    score: float
    calibration: float
    whole: float
    size: int


def measure(request: Request, rounds: int, limit: int | None, folder: Path) -> list[Row]:
    """Both doors, in turns; the medians of their times."""
    seconds: dict[str, list[tuple[float, float]]] = {OURS: [], THEIRS: []}
    files = {name: str(folder / f"{request.name}.{request.mode}.{name}.tflite") for name in seconds}
    for k in range(rounds):
        for name in (OURS, THEIRS) if k % 2 == 0 else (THEIRS, OURS):
            seconds[name].append(apart(convert, name, request, files[name]))
    reference = apart(score, request, str(request.task.model), limit)
    return [
        Row(
            request.name,
            request.mode,
            name,
            reference,
            apart(score, request, files[name], limit),
            statistics.median(c for c, _ in taken),
            statistics.median(w for _, w in taken),
            Path(files[name]).stat().st_size,
        )
        for name, taken in seconds.items()
    ]


def verdicts(ours: Row, theirs: Row) -> Iterator[tuple[str, str, str]]:
    """Goals, and whether they are met. A score above the float model's is luck, and no goal."""
    noise = ACCURACY[ours.task, ours.mode].noise
    label = f"{ours.task} {ours.mode}"
    goals = (
        (
            f"{label}: score ≥ {theirs.score:.4f} (± {noise}), or the float model's {theirs.float_score:.4f}",
            f"{ours.score:.4f}",
            ours.score >= min(theirs.score, theirs.float_score) - noise,
        ),
        (
            f"{label}: calibration faster than {theirs.calibration:.2f} s",
            f"{ours.calibration:.2f} s, {theirs.calibration / ours.calibration:.1f} x",
            ours.calibration < theirs.calibration,
        ),
    )
    for goal, found, met in goals:
        yield goal, found, "met" if met else "missed"


def main() -> None:
    parser = argparse.ArgumentParser(description="Converting Keras models and SavedModels, against TensorFlow.")
    parser.add_argument("--zoo", required=True, help="folder with zoo.py")
    parser.add_argument("--only", help="tasks, separated by commas (default: all that have a source)")
    parser.add_argument("--modes", default="int8,int16x8", help="separated by commas (default: int8,int16x8)")
    parser.add_argument("--samples", type=int, default=200, help="for calibration (default: 200)")
    parser.add_argument("--limit", type=int, help="evaluate on this many samples only")
    parser.add_argument("--rounds", type=int, default=3, help="of conversion (default: 3)")
    parser.add_argument("-o", "--output", help="a JSON file for the results")
    arguments = parser.parse_args()
    zoo = str(Path(arguments.zoo).resolve())
    sys.path.insert(0, zoo)
    tasks = {name: task for name, task in importlib.import_module("zoo").TASKS.items() if task.source is not None}
    chosen = arguments.only.split(",") if arguments.only else list(tasks)
    if unknown := set(chosen) - set(tasks):
        parser.error(f"no such task with a source: {', '.join(sorted(unknown))}; there are {', '.join(tasks)}")
    pairs: list[list[Row]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            for mode in arguments.modes.split(","):
                request = Request(zoo, name, mode, arguments.samples)
                try:
                    pairs.append(measure(request, arguments.rounds, arguments.limit, Path(folder)))
                except Failed as failure:
                    print(f"{name} {mode}: {failure}", file=sys.stderr)
    print(", ".join(f"{package} {number}" for package, number in versions().items()), "\n")
    header = ("", "score", "calibration", "whole", "kB", "")
    print_table(
        header,
        [
            (
                f"{r.task} {r.mode}",
                f"{r.score:.4f}",
                f"{r.calibration:.2f} s",
                f"{r.whole:.1f} s",
                f"{r.size / 1e3:.0f}",
                r.tool,
            )
            for rows in pairs
            for r in rows
        ],
    )
    print_table(("goal", "found", ""), [verdict for ours, theirs in pairs for verdict in verdicts(ours, theirs)])
    if arguments.output:
        content = {"versions": versions(), "rows": [asdict(r) for rows in pairs for r in rows]}
        Path(arguments.output).write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
