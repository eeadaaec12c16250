"""`zeropoint demo`: the embedded digits model, quantized in every mode, from the package's own data."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from importlib.resources import files
from itertools import cycle, islice

import numpy as np
from rich.console import Console

from ..affine import dequantize
from ..dtypes import Array
from ..graph.model import Model
from ..quantize import quantize
from ..runtime import Session
from ..tflite import load, to_bytes
from .inspection import inspect
from .progress import SampledModel, calibrate_with_progress
from .terminal import Printer, bytes_text

MODES = ("int8", "int16x8", "dynamic", "weights", "float16")


def digits_model() -> bytes:
    """The example network: float, 8x8 handwritten digits in, ten scores out."""
    return files("zeropoint").joinpath("data/digits.tflite").read_bytes()


def digits() -> dict[str, Array]:
    """Its data: `calibration` and `test_images` as the model takes them, and `test_labels`."""
    with np.load(io.BytesIO(files("zeropoint").joinpath("data/digits.npz").read_bytes())) as file:
        images = {name: file[name].astype(np.float32) / 16 for name in ("calibration", "test_images")}
        return {**images, "test_labels": file["test_labels"]}


def run_demo(console: Console) -> None:
    from ..calibrate import Settings
    from ..sources.data import Data

    printer = Printer(console)
    model, data = load(digits_model()), digits()
    samples = [image[None] for image in data["calibration"]]
    printer.line(f"A small network for handwritten digits, calibrated on {len(samples)} of them:")
    stats = calibrate_with_progress(SampledModel(model, Data(samples, len(samples))), Settings(), console)
    models = {"float32": model, **{mode: quantize(model, mode, stats=stats, min_elements=0).model for mode in MODES}}
    speeds = latencies(list(models.values()), data["test_images"])
    printer.line(("  mode       size       correct   speed   integer arithmetic", "bold"))
    for (mode, made), seconds in zip(models.items(), speeds, strict=True):
        size = len(to_bytes(made))
        share = inspect(made).integer_share or 0.0
        right = accuracy(made, data)
        printer.line(f"  {mode:9}  {bytes_text(size):>8}  {right:8.2%}  {speeds[0] / seconds:5.2f}x  {share:8.0%}")
    printer.line("Yours: zeropoint quantize MODEL -o OUT --mode int8 --data SAMPLES")


def accuracy(model: Model, data: dict[str, Array]) -> float:
    """The share of test digits that get the highest score."""
    session = Session(model)
    params = model.main.outputs[0].params
    found = []
    for image in data["test_images"]:
        (scores,) = session.run([image[None]])
        found.append(int(np.argmax(scores if params is None else dequantize(scores, params))))
    return float(np.mean(found == data["test_labels"]))


def latencies(models: Sequence[Model], images: Array, rounds: int = 15, runs: int = 40) -> list[float]:
    """Seconds a run of each model: the best of several rounds, taken in turns so that noise hits all alike."""
    sessions = [Session(model) for model in models]
    best = [float("inf")] * len(sessions)
    inputs = [image[None] for image in islice(cycle(images), runs)]
    for _ in range(rounds):
        for k, session in enumerate(sessions):
            start = time.perf_counter()
            for image in inputs:
                session.invoke([image])
            best[k] = min(best[k], (time.perf_counter() - start) / runs)
    return best
