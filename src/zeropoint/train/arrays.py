"""Out of a backend's hands."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from ..dtypes import Array


def array_of(value: Any) -> Array:
    """A tensor or variable as a NumPy array, converted such that NumPy 2 does not warn (Keras 3.15 would let it)."""
    held = ops.copy(value.value) if isinstance(value, keras.Variable) else value
    if hasattr(held, "detach"):  # PyTorch
        return np.asarray(held.detach().cpu().numpy())
    return np.asarray(ops.convert_to_numpy(held))
