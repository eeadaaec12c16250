"""Calibration against plain inference, ai-edge-quantizer (both of its modes) and TensorFlow's calibrator, its peak
memory, and quantization from statistics against ai-edge-quantizer's.

`python -m benchmarks.calibration [--zoo ../shared/zoo] [--samples 200] [--rounds 5] [--only kws_dscnn ...]`
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
from typing import Any

import numpy as np

from zeropoint import quantize
from zeropoint.calibration import Settings, calibrate
from zeropoint.dtypes import Array
from zeropoint.graph.model import Model
from zeropoint.parallel import cores
from zeropoint.tflite import load, save, to_bytes

from .measure import Times, peak_memory, print_table, take_turns, timed
from .models import mobilenet_shaped
from .zoo import load_zoo

PLAIN, FULL, QUICK = "plain LiteRT", "zeropoint", "zeropoint, minima and maxima"
QUANTIZER, FAST, CALIBRATOR = "ai-edge-quantizer", "ai-edge-quantizer, fast mode", "TensorFlow's calibrator"
FULL_GOAL, QUICK_GOAL, RIVAL_GOAL = 1.3, 1.0, 5.0
FULL_FAST_GOAL, QUICK_FAST_GOAL = 1.3, 1.0
"""Our time over that of the fast mode, which collects minima and maxima only: with full statistics, and with these."""
QUANTIZE_GOAL = 3.0
"""Our time from statistics to bytes, at standard effort, over ai-edge-quantizer's with its minima and maxima."""
PATIENCE = 10.0
"""Seconds; who takes longer for a round takes part in fewer of them."""
SHORT = 0.5
"""Seconds of plain inference; below that, there are MORE times as many rounds."""
MORE = 5
OF_THE_ZOO = {"kws_dscnn": (200, 400, 2000), "mobilenetv1_025_224": (60,), "minilm_l6_sts": (12,)}
"""Models of the zoo, with numbers of samples: on many of them set-up counts for less."""
LARGE = ("minilm_l6_sts",)
"""Models that take too long on the samples on which memory is measured."""
QUANTIZED = ("kws_dscnn", "mobilenetv1_025_224")
"""Small models that are quantized from statistics, too."""
GROWTH_GOAL = 8e6
"""Bytes. Buffers of a fixed size fill up within the first few hundred runs of a small model."""

Job = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """A model file and samples: the arrays of each, in the order of the inputs."""

    name: str
    path: str
    samples: list[tuple[Array, ...]]


# What takes part.


def plain(case: Case) -> None:
    """Inference alone, with as many threads as there are cores."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=case.path, num_threads=cores())
    interpreter.allocate_tensors()
    sources = [detail["index"] for detail in interpreter.get_input_details()]
    result = interpreter.get_output_details()[0]["index"]
    for sample in case.samples:
        for source, values in zip(sources, sample, strict=True):
            interpreter.set_tensor(source, values)
        interpreter.invoke()
        interpreter.get_tensor(result)


def zeropoint(case: Case, settings: Settings) -> None:
    calibrate(case.path, case.samples, settings)


def quantizer(case: Case, *, is_fast: bool = False) -> Any:
    """ai-edge-quantizer's minima and maxima. Its fast mode has them tracked by LiteRT's own calibration hook."""
    from ai_edge_quantizer import calibrator, quantizer, recipe

    (signature,) = load(case.path).signatures
    data = {signature.key: [dict(zip(signature.inputs, sample, strict=True)) for sample in case.samples]}
    modes = calibrator.CalibrationMode
    mode = modes.CALIBRATION_PROFILER_BASED if is_fast else modes.CALIBRATION_PRESERVE_ALL_TENSORS
    with _quiet():
        return quantizer.Quantizer(case.path, recipe.static_wi8_ai8()).calibrate(data, mode=mode)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without progress bars and summaries."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        yield


def calibrator(case: Case) -> None:
    """What `TFLiteConverter` does with a representative dataset, without quantizing in the end."""
    from tensorflow.lite.python.optimize import calibrator

    calibrator.Calibrator(Path(case.path).read_bytes()).calibrate(lambda: map(list, case.samples))


def participants(case: Case) -> Mapping[str, Job]:
    jobs: dict[str, Job] = {
        PLAIN: partial(plain, case),
        FULL: partial(zeropoint, case, Settings()),
        QUICK: partial(zeropoint, case, Settings(histograms=False)),
    }
    if importlib.util.find_spec("ai_edge_quantizer") is not None and load(case.path).signatures:
        jobs[QUANTIZER] = partial(quantizer, case)
        jobs[FAST] = partial(quantizer, case, is_fast=True)
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


def images(count: int) -> list[tuple[Array, ...]]:
    """Noise; a few images are repeated, so that they take little memory."""
    random = np.random.default_rng(0)
    some = [(random.uniform(-1, 1, (1, 224, 224, 3)).astype(np.float32),) for _ in range(min(count, 32))]
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
        tasks = load_zoo(zoo)
        for name, repeated in OF_THE_ZOO.items():
            task = tasks[name]
            known = task.calibration(count)
            for samples in repeated:
                yield Case(name, str(task.model), (known * -(-samples // len(known)))[:samples])
    else:
        print(f"no models of the zoo: {zoo} has no zoo.py\n")


# Measuring.


def compare(case: Case, rounds: int) -> None:
    is_short = timed(partial(plain, case)) < SHORT
    times = take_turns(participants(case), rounds * (MORE if is_short else 1), PATIENCE / (MORE**2 if is_short else 1))
    print(f"{case.name}: {len(case.samples)} samples, {cores()} cores; medians\n")
    rows = []
    for name, seconds in times.rounds.items():
        milliseconds = times.median(name) / len(case.samples) * 1e3
        ratio = f"{times.ratio(name, PLAIN):.2f}"
        rows.append((name, f"{len(seconds)}", f"{milliseconds:.3f} ms", ratio, *_against(times, name)))
    missing = [name for name in (QUANTIZER, FAST, CALIBRATOR) if name not in times.rounds]
    rows += [(name, "-", "-", "-", "-", "cannot take part here") for name in missing]
    print_table(("", "rounds", "per sample", "of plain", "its time/ours", "goal"), rows)


def _against(times: Times, name: str) -> tuple[str, str]:
    """The time of others over ours, and what the goals say."""
    if name == PLAIN:
        return "", ""
    if name in (FULL, QUICK):
        goals = [_verdict(times, name, PLAIN, FULL_GOAL if name == FULL else QUICK_GOAL, "plain")]
        if FAST in times.rounds:
            goals.append(_verdict(times, name, FAST, FULL_FAST_GOAL if name == FULL else QUICK_FAST_GOAL, "fast mode"))
        return "", "; ".join(goals)
    ratio = times.ratio(name, FULL)
    if name != QUANTIZER:
        return f"{ratio:.1f}", ""
    return f"{ratio:.1f}", f"≥ {RIVAL_GOAL:.0f}: {'met' if ratio >= RIVAL_GOAL else 'missed'}"


def _verdict(times: Times, name: str, other: str, goal: float, what: str) -> str:
    ratio = times.ratio(name, other)
    return f"{ratio:.2f} of {what}, goal ≤ {goal}: {'met' if ratio <= goal else 'missed'}"


def compare_quantizing(case: Case, rounds: int) -> None:
    """From the file and statistics to the bytes of the quantized model, at standard effort."""
    from ai_edge_quantizer import quantizer as aeq
    from ai_edge_quantizer import recipe

    minima, stats = quantizer(case, is_fast=True), calibrate(case.path, case.samples)

    def rival() -> object:
        with _quiet():
            made = aeq.Quantizer(case.path, recipe.static_wi8_ai8()).quantize(minima, enable_progress_report=False)
        return made.quantized_model

    jobs: dict[str, Job] = {FULL: lambda: to_bytes(quantize(case.path, stats=stats).model), QUANTIZER: rival}
    times = take_turns(jobs, MORE * rounds, PATIENCE)
    ours, others = (f"{times.median(name) * 1e3:.0f} ms" for name in (FULL, QUANTIZER))
    goal = _verdict(times, FULL, QUANTIZER, QUANTIZE_GOAL, "its time")
    print(f"{case.name}, quantized from statistics: zeropoint {ours}, ai-edge-quantizer {others}; {goal}\n")


def memory_job() -> Callable[[str, str], object]:
    """Imports, then the job: calibrate a model on so many samples, made one at a time."""
    from zeropoint.calibration import calibrate
    from zeropoint.tflite import load

    def job(path: str, count: str) -> object:
        inputs = load(path).main.inputs
        random = np.random.default_rng(0)

        def sample() -> tuple[Array, ...]:
            return tuple(random.standard_normal(t.shape, np.float32).astype(t.dtype.storage) for t in inputs)

        return calibrate(path, (sample() for _ in range(int(count))))

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
    parser.add_argument("--zoo", type=Path, default=Path("../shared/zoo"), help="where models of the zoo are")
    parser.add_argument("--samples", type=int, default=200, help="samples to calibrate on (default: 200)")
    parser.add_argument("--rounds", type=int, default=5, help="repetitions of each measurement (default: 5)")
    parser.add_argument("--only", nargs="+", help="models to measure (default: all)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = list(cases(folder, arguments.zoo, arguments.samples))
        found = [case for case in found if arguments.only is None or case.name in arguments.only]
        for case in found:
            compare(case, arguments.rounds)
        models = {case.path: case for case in found}
        if importlib.util.find_spec("ai_edge_quantizer") is not None:
            for case in (case for case in models.values() if case.name in QUANTIZED):
                compare_quantizing(case, arguments.rounds)
        for path, case in models.items():
            if case.name not in LARGE:
                compare_memory(case.name, path)


if __name__ == "__main__":
    main()
