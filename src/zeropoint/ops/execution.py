"""How an op of a finished model computes, and how much."""

from __future__ import annotations

from typing import Literal

from ..graph.model import Op
from .table import CONVERSIONS, OPS

Execution = Literal["integer", "float", "hybrid", "conversion", "other"]


def execution_of(op: Op) -> Execution:
    """Integer: all data that flow are quantized. Hybrid: float data, quantized weights. Other: indices and shapes."""
    if op.kind in CONVERSIONS:
        return "conversion"
    spec = OPS.get(op.kind)
    tensors = [t for t in (*op.inputs, *op.outputs) if t is not None]
    flowing = [t for t in tensors if not t.is_constant] or tensors
    if any(t.dtype.is_float for t in flowing):
        weights = [] if spec is None else [op.inputs[k] for k in spec.weight_slots if k < len(op.inputs)]
        quantized = [t for t in (weights or op.inputs) if t is not None and t.is_constant and t.is_quantized]
        return "hybrid" if quantized else "float"
    return "integer" if any(t.is_quantized for t in tensors) else "other"


def macs_of(op: Op) -> int:
    """Multiply-accumulates of one run; 0 for ops that only move, add or map numbers."""
    spec = OPS.get(op.kind)
    if spec is None or spec.macs is None:
        return 0
    try:
        return spec.macs(op)
    except IndexError:  # a file may give an op fewer operands, or dimensions, than its kind has
        return 0
