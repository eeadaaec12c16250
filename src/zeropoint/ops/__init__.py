"""The op table: what LiteRT's kernels take and give, one row per op."""

from .spec import (
    FUSED_ACTIVATIONS,
    Activation,
    Bias,
    CellState,
    Coefficients,
    Fixed,
    Need,
    OpSpec,
    OutputState,
    Probabilities,
    Rescale,
    Role,
    ShapeOnly,
    Untouched,
    Weight,
    fused_activation,
)
from .table import CONVERSIONS, OPS, UNPACKED_SINCE, UNPACKING

__all__ = [
    "CONVERSIONS",
    "FUSED_ACTIVATIONS",
    "OPS",
    "UNPACKED_SINCE",
    "UNPACKING",
    "Activation",
    "Bias",
    "CellState",
    "Coefficients",
    "Fixed",
    "Need",
    "OpSpec",
    "OutputState",
    "Probabilities",
    "Rescale",
    "Role",
    "ShapeOnly",
    "Untouched",
    "Weight",
    "fused_activation",
]
