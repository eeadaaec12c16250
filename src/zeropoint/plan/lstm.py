"""What the integer kernel of an LSTM keeps numbers in that no tensor of the float model holds.

Their ranges are not measured, but known: hidden values are a sigmoid's part of the tanh of a cell, and what goes into a
layer normalization is a sum of products, which is no larger than if all of them had the same sign. It has 16 bits, of
which that takes a few.
"""

from __future__ import annotations

import math

import numpy as np

from ..affine import QuantParams, dequantize
from ..dtypes import DType
from ..graph.model import Op
from ..graph.query import Use
from ..ops.recurrent import Gate, LstmSlot
from .plan import Plan


def lstm_intermediates(op: Op, plan: Plan) -> list[QuantParams | None]:
    """Of each gate, before its layer normalization if there is one; then of the output before its projection."""
    return [*(_sums(gate, op, plan) for gate in Gate), _hidden(op, plan)]


def _hidden(op: Op, plan: Plan) -> QuantParams:
    if op.inputs[LstmSlot.PROJECTION] is None:
        return plan.stored[op.outputs[0]]
    cell = plan.stored[Use(op, LstmSlot.CELL_STATE).tensor]
    end = math.tanh(max(map(abs, cell.range())))
    return QuantParams.from_range(-end, end, DType.INT8, symmetric=True, name=op.name)


def _sums(gate: Gate, op: Op, plan: Plan) -> QuantParams | None:
    is_normalized = [k < len(op.inputs) and op.inputs[k] is not None for k in (g.normalization for g in Gate)]
    if not any(is_normalized):
        return None
    if not is_normalized[list(Gate).index(gate)]:  # coupled gates lack one, and the kernel asks for its scale
        return QuantParams((2.0**-12,), (0,), DType.INT16)
    cell = plan.stored[Use(op, LstmSlot.CELL_STATE).tensor]
    sources = [
        (gate.weights, plan.wanted[Use(op, LstmSlot.INPUT)]),
        (gate.recurrent_weights, plan.stored[op.outputs[0]]),
        (gate.peephole, cell),
    ]
    end = 0.0
    for slot, params in sources:
        if slot is not None and op.inputs[slot] is not None:
            weights = Use(op, slot)
            values = np.abs(dequantize(weights.data, plan.wanted[weights]))  # integers by now
            end += float(values.reshape(len(values), -1).sum(axis=1).max()) * max(map(abs, params.range()))
    return QuantParams.from_range(-end, end, DType.INT16, symmetric=True, name=op.name)
