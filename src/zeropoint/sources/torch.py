"""PyTorch modules and exported programs -> a float `.tflite`, by litert-torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidModel, MissingExtra
from ..graph.model import Model
from ..tflite.read import load
from .conversion import Conversion, converting


def from_torch(module: Any, sample_inputs: Any, conversion: Conversion) -> Model:
    """Trace `module` on `sample_inputs`: a tensor, a tuple of them, or a dict by argument name."""
    if sample_inputs is None and hasattr(module, "example_inputs"):
        sample_inputs = _example_inputs(module)
    if sample_inputs is None:
        raise InvalidModel(
            "a PyTorch module is traced on sample inputs; give them: zeropoint.load(module, sample_inputs=(x,))"
        )
    with converting("litert-torch", conversion):
        litert_torch = _require_litert_torch()
        callee = module.module() if hasattr(module, "graph_module") else module  # an exported program
        named = dict(sample_inputs) if isinstance(sample_inputs, Mapping) else None
        placed = None if named is not None else _tuple(sample_inputs)
        was_training = getattr(module, "training", False)
        if was_training:
            module.eval()
        try:
            converted = litert_torch.convert(callee, placed, named)
        finally:
            if was_training:
                module.train()
        return load(_content(converted))


def _example_inputs(program: Any) -> Any:
    placed, named = program.example_inputs or (None, None)
    if placed and named:
        raise InvalidModel("the exported program takes arguments by position and by name; export it with only one kind")
    return named or placed


def _tuple(inputs: Any) -> tuple[Any, ...]:
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)


def _content(converted: Any) -> bytes:
    content: bytes = converted.model_content() if hasattr(converted, "model_content") else converted.tflite_model()
    return content


def _require_litert_torch() -> Any:
    try:
        import litert_torch
    except ModuleNotFoundError as error:
        if error.name != "litert_torch":
            raise MissingExtra(f"litert-torch lacks '{error.name}': pip install {error.name}") from None
        raise MissingExtra(
            "converting a PyTorch module needs litert-torch: pip install 'zeropoint[torch]'. A .tflite needs none"
        ) from None
    return litert_torch
