"""The `.tflite` file format: bytes -> Model and Model -> bytes."""

from .read import load
from .write import save, to_bytes

__all__ = ["load", "save", "to_bytes"]
