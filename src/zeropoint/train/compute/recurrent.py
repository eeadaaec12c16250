"""Recurrent layers, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras import ops

from .call import Call, Compute

INPUT, FORGET, CELL, OUTPUT = range(4)
"""The gates, in the order of their weights."""

PEEPHOLE = {INPUT: 9, FORGET: 10, OUTPUT: 11}


def _lstm(call: Call) -> Any:
    """UNIDIRECTIONAL_SEQUENCE_LSTM from a state of zeros.

    gate = act(W x + R h + P c + b),  c' = f c + i g,  h' = o tanh(c'); without an input gate, i = 1 - f.
    """
    x, time = call[0], 0 if call.option("timeMajor", False) else 1
    steps = call.input_shape(0)[time]
    hidden_state, cell_state = call[18], call[19]
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
    forget = ops.sigmoid(_gate(call, FORGET, x, hidden, cell))
    let_in = 1.0 - forget if call[1] is None else ops.sigmoid(_gate(call, INPUT, x, hidden, cell))
    new = forget * cell + let_in * ops.tanh(_gate(call, CELL, x, hidden, None))
    clip = float(call.option("cellClip", 0.0))
    return ops.clip(new, -clip, clip) if clip > 0 else new


def _next_hidden(call: Call, x: Any, hidden: Any, cell: Any) -> Any:
    new = ops.sigmoid(_gate(call, OUTPUT, x, hidden, cell)) * ops.tanh(cell)
    if call[16] is None:
        return new
    projected = ops.matmul(new, ops.transpose(call[16]))
    projected = projected if call[17] is None else projected + call[17]
    clip = float(call.option("projClip", 0.0))
    return ops.clip(projected, -clip, clip) if clip > 0 else projected


def _gate(call: Call, gate: int, x: Any, hidden: Any, cell: Any) -> Any:
    total = ops.matmul(x, ops.transpose(call[1 + gate])) + ops.matmul(hidden, ops.transpose(call[5 + gate]))
    peephole = None if cell is None else call[PEEPHOLE[gate]]
    if peephole is not None:
        total = total + cell * peephole
    scale, bias = call[20 + gate], call[12 + gate]
    if scale is not None:  # layer normalization
        centred = total - ops.mean(total, axis=-1, keepdims=True)
        total = centred * ops.rsqrt(ops.mean(ops.square(centred), axis=-1, keepdims=True) + 1e-8) * scale
    return total if bias is None else total + bias


COMPUTE: Mapping[str, Compute] = {"UNIDIRECTIONAL_SEQUENCE_LSTM": _lstm}
