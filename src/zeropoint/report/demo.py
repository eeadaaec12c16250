"""`zeropoint demo`: the embedded digits model, quantized in every mode, from the package's own data."""

from __future__ import annotations

import io
from importlib.resources import files

import numpy as np
from rich.console import Console

from ..bench.judge import real
from ..bench.latency import Trial, benchmark
from ..dtypes import Array
from ..graph.model import Model
from ..quantization import quantize
from ..recipe import MODES
from ..runtime import Session
from ..tflite import load, to_bytes
from .inspection import inspect
from .progress import SampledModel, calibrate_with_progress
from .terminal import Printer, bytes_text

ROUNDS = 15
"""How often each model is timed."""


def digits_model() -> bytes:
    """The example network: float, 8x8 handwritten digits in, ten scores out."""
    return files("zeropoint").joinpath("data/digits.tflite").read_bytes()


def digits() -> dict[str, Array]:
    """Its data: `calibration` and `test_images` as the model takes them, and `test_labels`."""
    with np.load(io.BytesIO(files("zeropoint").joinpath("data/digits.npz").read_bytes())) as file:
        images = {name: file[name].astype(np.float32) / 16 for name in ("calibration", "test_images")}
        return {**images, "test_labels": file["test_labels"]}


def run_demo(console: Console) -> None:
    from ..calibration import Settings
    from ..sources.data import Data

    printer = Printer(console)
    model, data = load(digits_model()), digits()
    samples = [image[None] for image in data["calibration"]]
    printer.line(f"A small network for handwritten digits, calibrated on {len(samples)} of them:")
    stats = calibrate_with_progress(SampledModel(model, Data(samples, len(samples))), Settings(), console)
    models = {"float32": model, **{mode: quantize(model, mode, stats=stats, min_elements=0).model for mode in MODES}}
    timed = benchmark(models, Trial(rounds=ROUNDS, inside=False))
    seconds = {timing.name: timing.latencies[0].fastest for timing in timed.models}
    printer.line(("  mode       size       correct   speed   integer arithmetic", "bold"))
    for mode, made in models.items():
        size = len(to_bytes(made))
        share = inspect(made).integer_share or 0.0
        right = accuracy(made, data)
        speed = seconds["float32"] / seconds[mode]
        printer.line(f"  {mode:9}  {bytes_text(size):>8}  {right:8.2%}  {speed:5.2f}x  {share:8.0%}")
    printer.line("Yours: zeropoint quantize MODEL -o OUT --mode int8 --data SAMPLES")


def accuracy(model: Model, data: dict[str, Array]) -> float:
    """The share of test digits that get the highest score."""
    session, (output,) = Session(model), model.main.outputs
    found = [int(np.argmax(real(session.run([image[None]])[0], output))) for image in data["test_images"]]
    return float(np.mean(found == data["test_labels"]))
