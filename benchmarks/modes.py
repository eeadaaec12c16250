"""What is asked of every tool alike, and what each calls it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Mode:
    """One way to quantize. `options` are those of `zeropoint.quantize`."""

    title: str
    options: Mapping[str, Any]
    has_data: bool = False
    """Whether calibration is part of it."""
    tensorflow: bool = False
    """Whether TensorFlow's converter has it."""
    ai_edge: Mapping[str, Any] | None = None
    """Which of ai-edge-quantizer's kinds of recipe, with how many bits; None where it has none."""
    variants: tuple[str, ...] = ()
    """Further ways to ask zeropoint that are worth a row."""


MODES: Mapping[str, Mode] = {
    "int8": Mode(
        "int8 weights and activations",
        {"mode": "int8"},
        True,
        True,
        {"kind": "static", "weight_num_bits": 8, "activation_num_bits": 8},
        ("quick", "high"),
    ),
    "int16x8": Mode(
        "int8 weights, int16 activations",
        {"mode": "int16x8"},
        True,
        True,
        {"kind": "static", "weight_num_bits": 8, "activation_num_bits": 16},
    ),
    "int8w4": Mode(
        "int4 weights, int8 activations",
        {"mode": "int8", "weight_bits": 4},
        True,
        False,
        {"kind": "static", "weight_num_bits": 4, "activation_num_bits": 8},
        ("high",),
    ),
    "dynamic": Mode(
        "int8 weights, activations rounded as kernels run",
        {"mode": "dynamic"},
        False,
        True,
        {"kind": "dynamic", "num_bits": 8},
        ("all",),
    ),
    "dynamic4": Mode(
        "int4 weights, activations rounded as kernels run",
        {"mode": "dynamic", "weight_bits": 4},
        False,
        False,
        {"kind": "dynamic", "num_bits": 4},
        ("all", "high"),
    ),
    "weights": Mode(
        "int8 weights, made float before use",
        {"mode": "weights"},
        False,
        False,
        {"kind": "weight_only", "num_bits": 8},
        ("all",),
    ),
    "weights4": Mode(
        "int4 weights, made float before use",
        {"mode": "weights", "weight_bits": 4},
        False,
        False,
        {"kind": "weight_only", "num_bits": 4},
        ("all",),
    ),
    "float16": Mode(
        "float16 weights",
        {"mode": "float16"},
        False,
        True,
        {"kind": "weight_only", "num_bits": 16, "algorithm_key": "FLOAT_CASTING"},
    ),
}
DEFAULT_MODES = ("int8", "int16x8", "int8w4", "dynamic", "dynamic4", "weights", "float16")


@dataclass(frozen=True)
class Variant:
    """A way to ask zeropoint other than by default."""

    title: str
    options: Mapping[str, Any] = field(default_factory=dict)
    has_data: bool = False
    """Whether it needs the samples in modes that could do without."""


VARIANTS: Mapping[str, Variant] = {
    "quick": Variant("effort quick: minima and maxima, nearest rounding", {"effort": "quick", "range": "minmax"}),
    "high": Variant("effort high", {"effort": "high"}, has_data=True),
    "all": Variant(
        "weights of any size, as ai-edge-quantizer does; by default those below 1,024 elements stay float",
        {"min_elements": 0},
    ),
}
DEFAULT_VARIANTS = ("all",)
"""High effort takes minutes for a large model."""
