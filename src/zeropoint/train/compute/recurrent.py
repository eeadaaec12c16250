"""Recurrent layers, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras import ops

from ...ops.recurrent import LSTM, Gate, LstmSlot
from .call import Call, Compute


def _lstm(call: Call) -> Any:
    """UNIDIRECTIONAL_SEQUENCE_LSTM from a state of zeros.

    gate = act(W x + R h + P c + b),  c' = f c + i g,  h' = o tanh(c'); without an input gate, i = 1 - f.
    """
    x, time = call[0], 0 if call.option("timeMajor", False) else 1
    steps = call.input_shape(0)[time]
    hidden_state, cell_state = call[LstmSlot.OUTPUT_STATE], call[LstmSlot.CELL_STATE]
    first = x[0] if time == 0 else x[:, 0]
    hidden = ops.zeros_like(first[:, :1]) * ops.zeros((1, hidden_state.value.shape[-1]))
    cell = ops.zeros_like(first[:, :1]) * ops.zeros((1, cell_state.value.shape[-1]))
    outputs = []
    for k in range(steps):
        now = x[k] if time == 0 else x[:, k]
        cell = cell_state.keep(_next_cell(call, now, hidden, cell))
        hidden = hidden_state.keep(_next_hidden(call, now, hidden, cell))
        outputs.append(hidden)
    return ops.stack(outputs, axis=time)


def _next_cell(call: Call, x: Any, hidden: Any, cell: Any) -> Any:
    forget = ops.sigmoid(_gate(call, Gate.FORGET, x, hidden, cell))
    let_in = 1.0 - forget if call[Gate.INPUT.weights] is None else ops.sigmoid(_gate(call, Gate.INPUT, x, hidden, cell))
    new = forget * cell + let_in * ops.tanh(_gate(call, Gate.CELL, x, hidden, cell))
    clip = float(call.option("cellClip", 0.0))
    return ops.clip(new, -clip, clip) if clip > 0 else new


def _next_hidden(call: Call, x: Any, hidden: Any, cell: Any) -> Any:
    new = ops.sigmoid(_gate(call, Gate.OUTPUT, x, hidden, cell)) * ops.tanh(cell)
    projection, bias = call[LstmSlot.PROJECTION], call[LstmSlot.PROJECTION_BIAS]
    if projection is None:
        return new
    projected = ops.matmul(new, ops.transpose(projection))
    projected = projected if bias is None else projected + bias
    clip = float(call.option("projClip", 0.0))
    return ops.clip(projected, -clip, clip) if clip > 0 else projected


def _gate(call: Call, gate: Gate, x: Any, hidden: Any, cell: Any) -> Any:
    weights, recurrent = call[gate.weights], call[gate.recurrent_weights]
    total = ops.matmul(x, ops.transpose(weights)) + ops.matmul(hidden, ops.transpose(recurrent))
    peephole = None if gate.peephole is None else call[gate.peephole]
    if peephole is not None:
        total = total + cell * peephole
    scale, bias = call[gate.normalization], call[gate.bias]
    if scale is not None:  # layer normalization
        centred = total - ops.mean(total, axis=-1, keepdims=True)
        total = centred * ops.rsqrt(ops.mean(ops.square(centred), axis=-1, keepdims=True) + 1e-8) * scale
    return total if bias is None else total + bias


COMPUTE: Mapping[str, Compute] = {LSTM: _lstm}
