"""Intermediate tensors in which the integer kernel of an LSTM keeps values that no tensor of the float model holds.

Their ranges are not measured, but known: hidden values are a sigmoid times the tanh of a cell, and the input of a layer
normalization is a sum of products, which is bounded by the case that all have the same sign. It has 16 bits, of which
that costs a few.
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
    """Return the parameters before each gate's layer normalization, if there is one; then of the output before its
    projection."""
    return [*(_sums(gate, op, plan) for gate in Gate), _hidden(op, plan)]


def _hidden(op: Op, plan: Plan) -> QuantParams:
    if op.inputs[LstmSlot.PROJECTION] is None:
        return plan.stored[op.outputs[0]]
    cell = plan.stored[Use(op, LstmSlot.CELL_STATE).tensor]
    end = math.tanh(max(map(abs, cell.range())))
    return QuantParams.from_range(-end, end, DType.INT8, symmetric=True, name=op.name)


def _sums(gate: Gate, op: Op, plan: Plan) -> QuantParams | None:
    is_normalized = [op.input(g.normalization) is not None for g in Gate]
    if not any(is_normalized):
        return None
    if not is_normalized[list(Gate).index(gate)]:  # coupled gates have none, but the kernel asks for its scale
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
            values = np.abs(dequantize(weights.data, plan.wanted[weights]))  # already integers
            end += float(values.reshape(len(values), -1).sum(axis=1).max()) * max(map(abs, params.range()))
    return QuantParams.from_range(-end, end, DType.INT16, symmetric=True, name=op.name)
