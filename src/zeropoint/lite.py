"""The names of `tensorflow.lite`: a conversion script runs after changing one import to `from zeropoint import
lite`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .converter import RepresentativeDataset, TargetSpec, TFLiteConverter
from .converter_settings import OpsSet, Optimize
from .dtypes import DType

if TYPE_CHECKING:
    Interpreter: Any


class constants:  # noqa: N801  # TensorFlow 1's name
    """Element types, as `inference_type` takes them."""

    FLOAT = DType.FLOAT32
    FLOAT16 = DType.FLOAT16
    INT8 = DType.INT8
    INT16 = DType.INT16
    QUANTIZED_UINT8 = DType.UINT8


__all__ = ["Interpreter", "OpsSet", "Optimize", "RepresentativeDataset", "TFLiteConverter", "TargetSpec", "constants"]


def __getattr__(name: str) -> Any:
    if name == "Interpreter":
        from .runtime import interpreter_class

        return interpreter_class()
    raise AttributeError(f"module 'zeropoint.lite' has no attribute {name!r}")
