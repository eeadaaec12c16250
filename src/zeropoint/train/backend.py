"""Conversion between NumPy and the backend of Keras."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

import keras
import numpy as np
from keras import ops

from ..dtypes import Array, DType
from ..graph.model import Op

AddWeight = Callable[..., Any]
"""`add_weight` of a Keras layer or model."""

LayerOf = Callable[[Op | None], AddWeight]
"""Returns the layer of an op's variables; None stands for variables that all ops share."""


def variable_name(name: str) -> str:
    """Return a tensor's name in a form that Keras accepts, without slashes; of several joined by semicolons, the
    first."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name.split(";")[0]).strip("_") or "unnamed"


def backend_versions() -> tuple[str, str, str]:
    """Return what a trained model depends on besides its inputs: the version of Keras, and its backend with its
    version."""
    name = keras.backend.backend()
    return keras.__version__, name, import_module(name).__version__


def array_of(value: Any) -> Array:
    """Convert a tensor or variable to a NumPy array without a NumPy 2 warning (which Keras 3.15 would cause)."""
    held = ops.copy(value.value) if isinstance(value, keras.Variable) else value
    if hasattr(held, "detach"):  # PyTorch
        return np.asarray(held.detach().cpu().numpy())
    return np.asarray(ops.convert_to_numpy(held))


def new_variable(add_weight: AddWeight, name: str, value: Array, *, trainable: bool = False) -> Any:
    """Return a float variable with the initial `value`; it stays float32 in mixed precision."""
    options = {"dtype": "float32", "autocast": False, "trainable": trainable, "name": name}
    variable = add_weight(shape=value.shape, initializer="zeros", **options)
    variable.assign(value)
    return variable


def held_type(dtype: DType) -> str:
    """Return the backend's name for a type. JAX has no 64-bit types unless enabled."""
    wide = dtype.bits == 64 and keras.backend.backend() == "jax"
    return dtype.label.replace("64", "32") if wide else dtype.label


def wide_type() -> str:
    """Return the type for whole numbers of more than 24 bits, if the backend has one."""
    return held_type(DType.FLOAT64)


def has_fused_clip_gradient() -> bool:
    return bool(keras.backend.backend() == "tensorflow")


def fused_clip_gradient(above: Any, k: Any, low: Any, high: Any, bits: int) -> tuple[Any, Any, Any]:
    """Return the gradient of clip(round(k), low, high) with respect to `k`, `low` and `high`, in one op.

    It is that of TensorFlow's fake quantization to `bits` bits, which first moves the ends onto its grid: those of a
    grid with steps of one stay unchanged, and so do ends that start at zero. Composed of comparisons and selections,
    which TensorFlow does not vectorize, it would take three times as long.
    """
    from tensorflow import raw_ops

    options = {"min": low, "max": high, "num_bits": max(bits, 2)}  # one bit starts at zero
    made = raw_ops.FakeQuantWithMinMaxVarsGradient(gradients=above, inputs=k, **options)
    return made.backprops_wrt_input, made.backprop_wrt_min, made.backprop_wrt_max
