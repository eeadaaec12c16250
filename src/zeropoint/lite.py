"""The names of `tensorflow.lite`: a conversion script runs after one changed import, `from zeropoint import lite`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .converter import OpsSet, Optimize, RepresentativeDataset, TargetSpec, TFLiteConverter

if TYPE_CHECKING:
    Interpreter: Any

__all__ = ["Interpreter", "OpsSet", "Optimize", "RepresentativeDataset", "TFLiteConverter", "TargetSpec"]


def __getattr__(name: str) -> Any:
    if name == "Interpreter":
        from .runtime import interpreter_class

        return interpreter_class()
    raise AttributeError(f"module 'zeropoint.lite' has no attribute {name!r}")
