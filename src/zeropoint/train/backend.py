"""Between NumPy and the backend that Keras computes with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from ..dtypes import Array, DType

AddWeight = Callable[..., Any]
"""`add_weight` of a Keras layer or model."""


def backend_versions() -> tuple[str, str]:
    """What a trained model depends on besides its inputs: Keras's version, and what it computes with."""
    return keras.__version__, keras.backend.backend()


def array_of(value: Any) -> Array:
    """A tensor or variable as a NumPy array, converted such that NumPy 2 does not warn (Keras 3.15 would let it)."""
    held = ops.copy(value.value) if isinstance(value, keras.Variable) else value
    if hasattr(held, "detach"):  # PyTorch
        return np.asarray(held.detach().cpu().numpy())
    return np.asarray(ops.convert_to_numpy(held))


def new_variable(add_weight: AddWeight, name: str, value: Array, *, trainable: bool = False) -> Any:
    """A float variable that starts as `value`."""
    variable = add_weight(shape=value.shape, dtype="float32", initializer="zeros", trainable=trainable, name=name)
    variable.assign(value)
    return variable


def held_type(dtype: DType) -> str:
    """The backend's name for a type. JAX holds no numbers of 64 bits unless told to."""
    wide = dtype.bits == 64 and keras.backend.backend() == "jax"
    return dtype.label.replace("64", "32") if wide else dtype.label
