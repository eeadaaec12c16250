"""Between NumPy and the backend that Keras computes with."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from ..dtypes import Array, DType
from ..graph.model import Op

AddWeight = Callable[..., Any]
"""`add_weight` of a Keras layer or model."""

LayerOf = Callable[[Op | None], AddWeight]
"""Where the variables of an op belong; those of None belong to all."""


def variable_name(name: str) -> str:
    """A tensor's name as Keras takes it, without slashes; of several joined by semicolons, the first."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name.split(";")[0]).strip("_") or "unnamed"


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
    """A float variable that starts as `value`; it stays float32 in mixed precision."""
    options = {"dtype": "float32", "autocast": False, "trainable": trainable, "name": name}
    variable = add_weight(shape=value.shape, initializer="zeros", **options)
    variable.assign(value)
    return variable


def held_type(dtype: DType) -> str:
    """The backend's name for a type. JAX holds no numbers of 64 bits unless told to."""
    wide = dtype.bits == 64 and keras.backend.backend() == "jax"
    return dtype.label.replace("64", "32") if wide else dtype.label


def wide_type() -> str:
    """What holds whole numbers of more than 24 bits, where the backend has it."""
    return held_type(DType.FLOAT64)


def has_fused_clip_gradient() -> bool:
    return bool(keras.backend.backend() == "tensorflow")


def fused_clip_gradient(above: Any, k: Any, low: Any, high: Any, bits: int) -> tuple[Any, Any, Any]:
    """What reaches `k`, `low` and `high` of the gradient of clip(round(k), low, high), in one op.

    It is that of TensorFlow's fake quantization to `bits` bits, which moves the ends onto its grid first: those of a
    grid with steps of one stay where they are, and so do ends that start at zero. Composed of comparisons and
    selections, which TensorFlow does not vectorize, it takes three times as long.
    """
    from tensorflow import raw_ops

    options = {"min": low, "max": high, "num_bits": max(bits, 2)}  # one bit starts at zero
    made = raw_ops.FakeQuantWithMinMaxVarsGradient(gradients=above, inputs=k, **options)
    return made.backprops_wrt_input, made.backprop_wrt_min, made.backprop_wrt_max
