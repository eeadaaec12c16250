"""The op table: what LiteRT's kernels take and give, one row per op."""

from .spec import Activation, Bias, Fixed, OpSpec, Rescale, Role, ShapeOnly, Untouched, Weight, fused_activation
from .table import CONVERSIONS, OPS

__all__ = [
    "CONVERSIONS",
    "OPS",
    "Activation",
    "Bias",
    "Fixed",
    "OpSpec",
    "Rescale",
    "Role",
    "ShapeOnly",
    "Untouched",
    "Weight",
    "fused_activation",
]
