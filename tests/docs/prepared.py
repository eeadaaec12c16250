"""What a reader of the docs is expected to have: the files that commands name, and the objects that code names."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import zeropoint
from zeropoint.demo import digits, digits_model

from .. import frameworks


@cache
def samples() -> list[Any]:
    return [image[None] for image in digits()["calibration"][:40]]


@cache
def pairs() -> tuple[Any, Any]:
    data = digits()
    return data["test_images"][:64], data["test_labels"][:64].astype(np.int32)


def model(path: Path) -> None:
    path.write_bytes(digits_model())


def archive(path: Path) -> None:
    np.savez(path, image=np.concatenate(samples()))


def labels(path: Path) -> None:
    """What the float model takes the samples for."""
    from zeropoint.bench.bench import Bench

    found = Bench(zeropoint.load(digits_model()), samples()).float_outputs
    np.save(path, np.array([outputs[0].argmax() for outputs in found]))


def statistics(path: Path) -> None:
    zeropoint.calibrate(digits_model(), samples()).save(path)


@cache
def _integers() -> bytes:
    return zeropoint.to_bytes(zeropoint.quantize(digits_model(), "int8", data=samples()).model)


def integers(path: Path) -> None:
    path.write_bytes(_integers())


def photos(path: Path) -> None:
    from PIL import Image

    path.mkdir()
    for k, image in enumerate(samples()[:8]):
        Image.fromarray((image[0, :, :, 0] * 255).astype(np.uint8)).save(path / f"{k}.png")


EVAL = """
import numpy as np

FILE = np.load("labelled.npz")

def samples():
    for image in FILE["images"]:
        yield image[None]

def accuracy(outputs):
    return float(np.mean([o[0].argmax() == label for o, label in zip(outputs, FILE["labels"])]))

def pairs():
    for image, label in zip(FILE["images"], FILE["labels"]):
        yield image[None], label
"""


def script(path: Path) -> None:
    images, labels = pairs()
    np.savez(path.parent / "labelled.npz", images=images, labels=labels)
    path.write_text(EVAL)


def keras_file(path: Path) -> None:
    with frameworks.unwarned():
        keras_model().save(path)


def saved_model(path: Path) -> None:
    with frameworks.unwarned():
        keras_model().export(path, verbose=False)


@cache
def keras_model() -> Any:
    """As the digits network takes them in, so that the same samples serve."""
    with frameworks.unwarned():
        library = frameworks.keras()
        library.utils.set_random_seed(0)
        layers = library.layers
        image = library.Input((8, 8, 1), name="image")
        x = layers.GlobalAveragePooling2D()(layers.Conv2D(4, 3, activation="relu")(image))
        return library.Model(image, layers.Dense(10, activation="softmax")(x))


FILES: Mapping[str, Callable[[Path], None]] = {
    "model.tflite": model,
    "samples.npz": archive,
    "eval.npz": archive,
    "y.npy": labels,
    "calibration.npz": archive,
    "model.stats": statistics,
    "m.stats": statistics,
    "model_int8.tflite": integers,
    "other.tflite": integers,
    "a.tflite": model,
    "b.tflite": integers,
    "c.tflite": integers,
    "photos": photos,
    "eval.py": script,
    "data.py": script,
    "model.keras": keras_file,
    "model.h5": keras_file,
    "saved_model": saved_model,
}
"""Names that the docs use for what readers bring along."""

OBJECTS: Mapping[str, Callable[[], Any]] = {
    "samples": samples,
    "calibration_samples": samples,
    "images": lambda: pairs()[0],
    "labels": lambda: pairs()[1],
    "keras_model": keras_model,
    "representative_dataset": lambda: lambda: ([image] for image in samples()),
}
"""Names that Python code in the docs uses for what readers bring along."""


def put(name: str, folder: Path) -> None:
    target = folder / name
    if target.is_dir():
        shutil.rmtree(target)
    if not target.exists():
        FILES[name](target)
