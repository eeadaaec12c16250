"""Calibration against plain inference, ai-edge-quantizer and TensorFlow's calibrator, and its peak memory.

`python -m benchmarks.calibration [--zoo ../shared/zoo] [--samples 200] [--rounds 5]`
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from zeropoint.calibration import Settings, calibrate
from zeropoint.dtypes import Array
from zeropoint.graph.model import Model
from zeropoint.parallel import cores
from zeropoint.tflite import load, save

from .measure import Times, peak_memory, print_table, take_turns, timed
from .models import mobilenet_shaped
from .zoo import load_zoo

PLAIN, FULL, QUICK = "plain LiteRT", "zeropoint", "zeropoint, minima and maxima"
QUANTIZER, CALIBRATOR = "ai-edge-quantizer", "TensorFlow's calibrator"
FULL_GOAL, QUICK_GOAL, RIVAL_GOAL = 1.3, 1.0, 5.0
PATIENCE = 10.0
"""Seconds; who takes longer for a round takes part in fewer of them."""
SHORT = 0.5
"""Seconds of plain inference; below that, there are MORE times as many rounds."""
MORE = 5
MANY = 10
"""A small model runs on so many times more samples, too: there, set-up counts for less."""
GROWTH_GOAL = 8e6
"""Bytes. Buffers of a fixed size fill up within the first few hundred runs of a small model."""

Job = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """A model file and samples of its only input."""

    name: str
    path: str
    samples: list[Array]


# What takes part.


def plain(case: Case) -> None:
    """Inference alone, with as many threads as there are cores."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=case.path, num_threads=cores())
    interpreter.allocate_tensors()
    source, result = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]
    for sample in case.samples:
        interpreter.set_tensor(source, sample)
        interpreter.invoke()
        interpreter.get_tensor(result)


def zeropoint(case: Case, settings: Settings) -> None:
    calibrate(case.path, case.samples, settings)


def quantizer(case: Case) -> None:
    from ai_edge_quantizer import quantizer, recipe

    (signature,) = load(case.path).signatures
    (name,) = signature.inputs
    data = {signature.key: [{name: sample} for sample in case.samples]}
    with contextlib.redirect_stderr(io.StringIO()):  # a progress bar
        quantizer.Quantizer(case.path, recipe.static_wi8_ai8()).calibrate(data)


def calibrator(case: Case) -> None:
    """What `TFLiteConverter` does with a representative dataset, without quantizing in the end."""
    from tensorflow.lite.python.optimize import calibrator

    calibrator.Calibrator(Path(case.path).read_bytes()).calibrate(lambda: ([sample] for sample in case.samples))


def participants(case: Case) -> Mapping[str, Job]:
    jobs: dict[str, Job] = {
        PLAIN: partial(plain, case),
        FULL: partial(zeropoint, case, Settings()),
        QUICK: partial(zeropoint, case, Settings(histograms=False)),
    }
    if importlib.util.find_spec("ai_edge_quantizer") is not None and load(case.path).signatures:
        jobs[QUANTIZER] = partial(quantizer, case)
    if importlib.util.find_spec("tensorflow") is not None:
        jobs[CALIBRATOR] = partial(calibrator, case)
    return jobs


# The models.


def mobilenet() -> Model | bytes:
    """MobileNetV2 at 224 x 224 with random weights: from Keras if that is there, else of the same shape."""
    if importlib.util.find_spec("tensorflow") is None:
        return mobilenet_shaped()
    import tensorflow as tf

    converter = tf.lite.TFLiteConverter.from_keras_model(tf.keras.applications.MobileNetV2(weights=None))
    with contextlib.redirect_stdout(io.StringIO()):  # it says where it keeps temporary files
        content: bytes = converter.convert()
    return content


def images(count: int) -> list[Array]:
    """Noise; a few images are repeated, so that they take little memory."""
    random = np.random.default_rng(0)
    some = [random.uniform(-1, 1, (1, 224, 224, 3)).astype(np.float32) for _ in range(min(count, 32))]
    return [some[k % len(some)] for k in range(count)]


def cases(folder: str, zoo: Path, count: int) -> Iterator[Case]:
    path = f"{folder}/mobilenetv2.tflite"
    model = mobilenet()
    if isinstance(model, Model):
        save(model, path)
    else:
        Path(path).write_bytes(model)
    yield Case("MobileNetV2, 224 x 224", path, images(count))
    if (zoo / "zoo.py").exists():
        task = load_zoo(zoo)["kws_dscnn"]
        samples = [sample[0] for sample in task.calibration(count)]
        yield Case("kws_dscnn", str(task.model), samples)
        yield Case("kws_dscnn", str(task.model), samples * MANY)
    else:
        print(f"no kws_dscnn: {zoo} has no zoo.py\n")


# Measuring.


def compare(case: Case, rounds: int) -> None:
    rounds *= MORE if timed(partial(plain, case)) < SHORT else 1
    times = take_turns(participants(case), rounds, PATIENCE)
    print(f"{case.name}: {len(case.samples)} samples, {cores()} cores; medians\n")
    rows = []
    for name, seconds in times.rounds.items():
        milliseconds = times.median(name) / len(case.samples) * 1e3
        ratio = f"{times.ratio(name, PLAIN):.2f}"
        rows.append((name, f"{len(seconds)}", f"{milliseconds:.3f} ms", ratio, *_against(times, name)))
    missing = [name for name in (QUANTIZER, CALIBRATOR) if name not in times.rounds]
    rows += [(name, "-", "-", "-", "-", "cannot take part here") for name in missing]
    print_table(("", "rounds", "per sample", "of plain", "its time/ours", "goal"), rows)


def _against(times: Times, name: str) -> tuple[str, str]:
    if name == PLAIN:
        return "", ""
    if name in (FULL, QUICK):
        goal, ratio = FULL_GOAL if name == FULL else QUICK_GOAL, times.ratio(name, PLAIN)
        return "", f"≤ {goal} of plain: {'met' if ratio <= goal else 'missed'}"
    ratio = times.ratio(name, FULL)
    if name == CALIBRATOR:
        return f"{ratio:.1f}", ""
    return f"{ratio:.1f}", f"≥ {RIVAL_GOAL:.0f}: {'met' if ratio >= RIVAL_GOAL else 'missed'}"


def memory_job() -> Callable[[str, str], object]:
    """Imports, then the job: calibrate a model on so many samples, made one at a time."""
    from zeropoint.calibration import calibrate
    from zeropoint.tflite import load

    def job(path: str, count: str) -> object:
        shape = load(path).main.inputs[0].shape
        random = np.random.default_rng(0)
        return calibrate(path, (random.standard_normal(shape, np.float32) for _ in range(int(count))))

    return job


def compare_memory(name: str, path: str) -> None:
    few, many = (peak_memory("benchmarks.calibration:memory_job", path, str(n)) for n in (100, 2000))
    verdict = "met" if many - few <= GROWTH_GOAL else "missed"
    print(
        f"{name}: peak memory {few / 1e6:.0f} MB on 100 samples, {many / 1e6:.0f} MB on 2000; "
        f"goal: at most {GROWTH_GOAL / 1e6:.0f} MB more: {verdict}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Calibration against plain inference and other tools.")
    parser.add_argument("--zoo", type=Path, default=Path("../shared/zoo"), help="where kws_dscnn is")
    parser.add_argument("--samples", type=int, default=200, help="samples to calibrate on (default: 200)")
    parser.add_argument("--rounds", type=int, default=5, help="repetitions of each measurement (default: 5)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = list(cases(folder, arguments.zoo, arguments.samples))
        for case in found:
            compare(case, arguments.rounds)
        for path, case in {case.path: case for case in found}.items():
            compare_memory(case.name, path)


if __name__ == "__main__":
    main()
