"""The bundled example: two networks for handwritten digits, and images to test them with."""

from __future__ import annotations

import io
from importlib.resources import files

import numpy as np

from .bench.errors import real
from .dtypes import Array
from .graph.model import Model
from .ops import OPS
from .plan.prepare import prepare
from .recipe import Recipe
from .runtime import Session
from .tflite import load


def digits_model() -> bytes:
    """Return the small network as a float `.tflite`: 8x8 images of handwritten digits in, ten scores out."""
    return files("zeropoint").joinpath("data/digits.tflite").read_bytes()


def lenet_model() -> Model:
    """Return the larger network in float32; the package stores its weights in float16 to save space."""
    model = load(files("zeropoint").joinpath("data/lenet.tflite").read_bytes())
    prepare(model, Recipe(()), OPS)
    return model


def digits() -> dict[str, Array]:
    """Return the data: `calibration` and `test_images` in the model's input format, and `test_labels`."""
    with np.load(io.BytesIO(files("zeropoint").joinpath("data/digits.npz").read_bytes())) as file:
        images = {name: file[name].astype(np.float32) / 16 for name in ("calibration", "test_images")}
        return {**images, "test_labels": file["test_labels"]}


def accuracy(model: Model, data: dict[str, Array]) -> float:
    """Return the share of test images whose digit gets the highest score."""
    session, (output,) = Session(model), model.main.outputs
    answers = [int(np.argmax(real(session.run([image[None]])[0], output))) for image in data["test_images"]]
    return float(np.mean(answers == data["test_labels"]))
