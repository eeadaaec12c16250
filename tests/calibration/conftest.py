"""The models and samples that calibration is tested on."""

from __future__ import annotations

import io
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
import pytest

from zeropoint.dtypes import Array
from zeropoint.graph import Model
from zeropoint.tflite import load

from .. import build


@dataclass(frozen=True)
class Case:
    """A model with samples of its only input."""

    model: Model
    samples: list[Array]


@pytest.fixture(scope="session")
def digit_images() -> Array:
    content = files("zeropoint").joinpath("data/digits.npz").read_bytes()
    with np.load(io.BytesIO(content)) as archive:
        return (archive["calibration"][:40] / 16).astype(np.float32)


@pytest.fixture(scope="session", params=["cnn", "digits"])
def case(request, digits, digit_images) -> Case:
    if request.param == "digits":
        return Case(load(digits), [image[None] for image in digit_images])
    rng = np.random.default_rng(0)
    return Case(build.float_cnn(), [rng.normal(0, 1 + k % 5, (1, 4, 4, 1)).astype(np.float32) for k in range(40)])
