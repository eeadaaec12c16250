"""Cell states of LSTMs. The kernel keeps them from step to step and exposes none of them, so the recurrence is computed
again here, from the op's recorded input."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..dtypes import Array, DType
from ..graph.model import Graph, Model, Op, Tensor
from ..graph.query import tensor_keys
from ..ops.recurrent import LSTM, Gate, LstmSlot


@dataclass
class LstmState:
    """Output and cell state of every sequence in the batch."""

    h: Array
    c: Array


@dataclass
class Replay:
    """Computes the cell states of one op, to be recorded under `key`, from the values of `source`."""

    op: Op
    source: Tensor
    key: str
    last: LstmState | None = None

    def states(self, x: Array) -> Array:
        """The cell state after every step, going on from where the last call stopped."""
        states, self.last = lstm_cell_states(self.op, x, self.last)
        return states

    def restart(self) -> None:
        self.last = None


def replays(model: Model, graph: Graph) -> list[Replay]:
    keys = tensor_keys(model)
    found = []
    for op in graph.ops:
        if op.kind == LSTM and len(op.inputs) > LstmSlot.CELL_STATE:
            source, cell = op.inputs[LstmSlot.INPUT], op.inputs[LstmSlot.CELL_STATE]
            if source is not None and cell is not None and _has_float_constants(op):
                found.append(Replay(op, source, keys[cell]))
    return found


def _has_float_constants(op: Op) -> bool:
    flowing = (LstmSlot.INPUT, LstmSlot.OUTPUT_STATE, LstmSlot.CELL_STATE)
    operands = [t for k, t in enumerate(op.inputs) if t is not None and k not in flowing]
    return all(t.dtype is DType.FLOAT32 and t.data is not None for t in operands)


def lstm_cell_states(op: Op, x: Array, start: LstmState | None = None) -> tuple[Array, LstmState]:
    """c_t = f * c_{t-1} + i * tanh(g), for every step t; and the state after the last.

    i, f, o = sigmoid(W x_t + R h_{t-1} + P c + b) and g = tanh(...); with coupled gates i = 1 - f;
    h_t = o * tanh(c_t), projected if the op has a projection. Layer normalization normalizes the sums first.
    """
    steps = x if op.option("timeMajor") else np.swapaxes(x, 0, 1)
    batch = steps.shape[1]
    forget_recurrent = _data(op, Gate.FORGET.recurrent_weights)
    assert forget_recurrent is not None
    cells, outputs = forget_recurrent.shape
    now = start or LstmState(np.zeros((batch, outputs), np.float32), np.zeros((batch, cells), np.float32))
    h, c = now.h, now.c
    coupled = op.inputs[Gate.INPUT.weights] is None
    clip, projection_clip = float(op.option("cellClip", 0.0)), float(op.option("projClip", 0.0))
    projection, projection_bias = _data(op, LstmSlot.PROJECTION), _data(op, LstmSlot.PROJECTION_BIAS)
    states = []
    for step in steps:
        forget = _sigmoid(_gate(op, Gate.FORGET, step, h, c))
        enter = 1 - forget if coupled else _sigmoid(_gate(op, Gate.INPUT, step, h, c))
        c = forget * c + enter * np.tanh(_gate(op, Gate.CELL, step, h, c))
        if clip > 0:
            c = np.clip(c, -clip, clip)
        h = _sigmoid(_gate(op, Gate.OUTPUT, step, h, c)) * np.tanh(c)
        if projection is not None:
            h = h @ projection.T + (0 if projection_bias is None else projection_bias)
            h = np.clip(h, -projection_clip, projection_clip) if projection_clip > 0 else h
        states.append(c)
    return np.stack(states), LstmState(h, c)


def _gate(op: Op, gate: Gate, step: Array, h: Array, c: Array) -> Array:
    """The sum that enters a gate, before its activation."""
    weights, recurrent, bias = _data(op, gate.weights), _data(op, gate.recurrent_weights), _data(op, gate.bias)
    peephole = None if gate.peephole is None else _data(op, gate.peephole)
    norm = _data(op, gate.normalization)
    assert weights is not None
    assert recurrent is not None
    total: Array = step @ weights.T + h @ recurrent.T
    if peephole is not None:
        total = total + peephole * c
    if norm is not None:
        centered = total - total.mean(axis=1, keepdims=True)
        total = norm * centered / np.sqrt((centered**2).mean(axis=1, keepdims=True) + 1e-8)
    return total if bias is None else total + bias


def _data(op: Op, slot: int) -> Array | None:
    tensor: Tensor | None = op.inputs[slot] if slot < len(op.inputs) else None
    return None if tensor is None else tensor.data


def _sigmoid(x: Array) -> Array:
    result: Array = 0.5 * (np.tanh(0.5 * x) + 1)
    return result
