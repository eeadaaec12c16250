"""Quantization-aware training of any `.tflite` on Keras 3: what is trained is what is deployed.

Keras is imported when a name below is first used; its backend is selected by KERAS_BACKEND, as always.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import MissingExtra

if TYPE_CHECKING:
    from .deployment import Parity as Parity
    from .deployment import export as export
    from .deployment import parity as parity
    from .distillation import Distilled as Distilled
    from .distillation import Goal as Goal
    from .distillation import distill as distill
    from .fake_quant import QuantSettings as QuantSettings
    from .keras_weights import copy_to_keras as copy_to_keras
    from .loop import OnCheck as OnCheck
    from .network import FreezeRanges as FreezeRanges
    from .network import Trainable as Trainable
    from .network import quantize_model as quantize_model
    from .network import trainable as trainable
    from .open_shapes import fix_shapes as fix_shapes
    from .parity_by_op import OpParity as OpParity
    from .parity_by_op import op_parity as op_parity
    from .schedule import Schedule as Schedule

# The module of each public name.
_HOMES = {
    "deployment": ("Parity", "export", "parity"),
    "distillation": ("Distilled", "Goal", "distill"),
    "fake_quant": ("QuantSettings",),
    "keras_weights": ("copy_to_keras",),
    "loop": ("OnCheck",),
    "network": ("FreezeRanges", "Trainable", "quantize_model", "trainable"),
    "parity_by_op": ("OpParity", "op_parity"),
    "open_shapes": ("fix_shapes",),
    "schedule": ("Schedule",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

BACKENDS = ("tensorflow", "jax", "torch")
"""Backends by preference, fastest on a CPU first: the first installed one is used unless KERAS_BACKEND is set."""

__all__ = [*_HOME_OF]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOME_OF:
        raise AttributeError(f"module 'zeropoint.train' has no attribute {name!r}")
    require_keras()
    value = getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def require_keras(what: str = "training") -> None:
    """Raise unless Keras can be imported with some backend; select one if the user has not."""
    if "keras" in sys.modules:
        return
    chosen = os.environ.get("KERAS_BACKEND")
    installed = [b for b in BACKENDS if find_spec(b) is not None]
    if find_spec("keras") is None or not installed or (chosen in BACKENDS and chosen not in installed):
        missing = "Keras 3" if find_spec("keras") is None else chosen or "a backend for Keras"
        extra = chosen if chosen in BACKENDS else BACKENDS[0]
        raise MissingExtra(f"{what} needs {missing}: pip install 'zeropoint[{extra}]'")
    if chosen is None and not _has_settings():
        os.environ["KERAS_BACKEND"] = installed[0]


def start_keras() -> None:
    """Import Keras and let its backend look for devices, suppressing its output."""
    from ..streams import quiet_stderr

    require_keras()
    with quiet_stderr():
        from keras import ops

        ops.zeros(())


def _has_settings() -> bool:
    """Whether the user's Keras configuration file selects a backend."""
    home = os.environ.get("KERAS_HOME")
    return (Path.home() / ".keras" if home is None else Path(home)).joinpath("keras.json").is_file()
