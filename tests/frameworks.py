"""TensorFlow and Keras for tests. They have many warnings for themselves, which are not ours to repair."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from zeropoint.dtypes import Array


@contextmanager
def unwarned() -> Iterator[None]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def tensorflow() -> Any:
    with unwarned():
        import tensorflow

        return tensorflow


def keras() -> Any:
    with unwarned():
        import keras

        return keras


IMAGE = (6, 6, 2)


def small_network() -> Any:
    """A convolution and a dense layer on images, with weights that are no accident."""
    with unwarned():
        library = keras()
        library.utils.set_random_seed(0)
        layers = library.layers
        image = library.Input(IMAGE, name="image")
        x = layers.Conv2D(4, 3, activation="relu")(image)
        return library.Model(image, layers.Dense(5, activation="softmax")(layers.GlobalAveragePooling2D()(x)))


def images(count: int = 12) -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((1, *IMAGE)).astype(np.float32) for _ in range(count)]
