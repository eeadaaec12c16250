"""Recomputes states that recurrent kernels keep from step to step without exposing them, from the layers' inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from ..affine import dequantize
from ..dtypes import Array, DType
from ..graph.model import Op, Tensor
from ..ops.recurrent import BOTH_WAYS, LSTM, Gate, LstmSlot, one_way
from .task import CalibrationTask

LstmState = tuple[Array, Array]
"""Output and cell state of every sequence in the batch."""


@dataclass
class Replay:
    """Recomputes the cell states of one op from the values of `source`, to be recorded under `key`."""

    op: Op
    source: Tensor
    key: str
    last: LstmState | None = None
    backward: bool = False

    def states_of_runs(self, runs: Sequence[Array], in_sequence: bool) -> list[Array]:
        """Return the states of each run after every step. Runs that are `in_sequence` begin where the last one stopped;
        others of the same shape are computed together."""
        if in_sequence:
            return [self.states(x) for x in runs]
        found: list[Array] = []
        axis = 1 if self.op.option("timeMajor") else 0
        for _, alike in groupby(runs, key=lambda x: x.shape):
            self.last, own = None, list(alike)
            found += np.split(self.states(np.concatenate(own, axis)), len(own), axis=1)
        return found

    def states(self, x: Array) -> Array:
        """Return the cell state after every step, continuing from where the last call stopped."""
        given = np.flip(x, 0 if self.op.option("timeMajor") else 1) if self.backward else x
        states, self.last = lstm_cell_states(self.op, given, self.last)
        return states


@dataclass
class FeatureReplay(Replay):
    """Recomputes the state of SVDF: the products of each step's input with the feature weights."""

    def states_of_runs(self, runs: Sequence[Array], in_sequence: bool) -> list[Array]:  # noqa: ARG002 - no recurrence
        weights = _data(self.op, 1)
        assert weights is not None
        return [x.reshape(-1, x.shape[-1]) @ weights.T for x in runs]


def replays(task: CalibrationTask) -> list[Replay]:
    found: list[Replay] = []
    for op in task.graph.ops:
        if op.kind == "SVDF":
            source, state, replayed = op.inputs[0], op.inputs[4], _with_float_constants(op, (0, 4))
            if source is not None and state is not None and replayed is not None:
                found.append(FeatureReplay(replayed, source, task.keys[state]))
        for layer, backward in _lstms(op):
            source, cell = layer.inputs[LstmSlot.INPUT], layer.inputs[LstmSlot.CELL_STATE]
            replayed = _with_float_constants(layer, (LstmSlot.INPUT, LstmSlot.OUTPUT_STATE, LstmSlot.CELL_STATE))
            if source is not None and cell is not None and replayed is not None:
                found.append(Replay(replayed, source, task.keys[cell], backward=backward))
    return found


def _lstms(op: Op) -> Iterator[tuple[Op, bool]]:
    """Yield the LSTMs that an op consists of, and whether each runs backwards."""
    if op.kind == LSTM and len(op.inputs) > LstmSlot.CELL_STATE:
        yield op, False
    elif op.kind == BOTH_WAYS:
        ways = ((one_way(op, backward=backward), backward) for backward in (False, True))
        yield from ((way, backward) for way, backward in ways if way is not None)


def _with_float_constants(op: Op, flowing: Sequence[int]) -> Op | None:
    """Return the op with its weights, which may be integers, as floats; None if they are not constants."""
    inputs = list(op.inputs)
    for slot, tensor in enumerate(op.inputs):
        if tensor is None or slot in flowing:
            continue
        params = tensor.params
        if tensor.data is not None and params is not None and params.axis is None:
            inputs[slot] = Tensor.constant(tensor.name, dequantize(tensor.data, params), DType.FLOAT32)
        elif tensor.data is None or tensor.dtype is not DType.FLOAT32:
            return None
    return dataclasses.replace(op, inputs=inputs)


def lstm_cell_states(op: Op, x: Array, start: LstmState | None = None) -> tuple[Array, LstmState]:
    """Return c_t = f * c_{t-1} + i * tanh(g) for every step t, and the state after the last.

        i, f, o = sigmoid(W x_t + R h_{t-1} + P c + b) and g = tanh(...); with coupled gates i = 1 - f;
        h_t = o * tanh(c_t), projected if the op has a projection.

    Layer normalization, if any, is applied to the sums first. W x of all steps is one product, and so is R h of all
    gates.
    """
    steps = x if op.option("timeMajor") else np.swapaxes(x, 0, 1)
    gates = {gate: _GateSum.of(op, gate) for gate in Gate if op.inputs[gate.weights] is not None}
    recurrent = np.concatenate([_constant(op, gate.recurrent_weights) for gate in gates]).T
    outputs, cells = recurrent.shape[0], recurrent.shape[1] // len(gates)
    batch = steps.shape[1]
    h, c = start or (np.zeros((batch, outputs), np.float32), np.zeros((batch, cells), np.float32))
    clip, projection_clip = float(op.option("cellClip", 0.0)), float(op.option("projClip", 0.0))
    projection, projection_bias = _data(op, LstmSlot.PROJECTION), _data(op, LstmSlot.PROJECTION_BIAS)
    states = []
    for entered in steps @ np.concatenate([_constant(op, gate.weights) for gate in gates]).T:
        sums = dict(zip(gates, np.split(entered + h @ recurrent, len(gates), axis=1), strict=True))
        forget = _sigmoid(gates[Gate.FORGET].completed(sums[Gate.FORGET], c))
        enter = _sigmoid(gates[Gate.INPUT].completed(sums[Gate.INPUT], c)) if Gate.INPUT in gates else 1 - forget
        c = forget * c + enter * np.tanh(gates[Gate.CELL].completed(sums[Gate.CELL], c))
        if clip > 0:
            c = np.clip(c, -clip, clip)
        h = _sigmoid(gates[Gate.OUTPUT].completed(sums[Gate.OUTPUT], c)) * np.tanh(c)
        if projection is not None:
            h = h @ projection.T + (0 if projection_bias is None else projection_bias)
            h = np.clip(h, -projection_clip, projection_clip) if projection_clip > 0 else h
        states.append(c)
    return np.stack(states), (h, c)


@dataclass(frozen=True)
class _GateSum:
    """What is added to the products of a gate's weights before its activation."""

    peephole: Array | None
    norm: Array | None
    bias: Array | None

    @classmethod
    def of(cls, op: Op, gate: Gate) -> _GateSum:
        peephole = None if gate.peephole is None else _data(op, gate.peephole)
        return cls(peephole, _data(op, gate.normalization), _data(op, gate.bias))

    def completed(self, products: Array, cell: Array) -> Array:
        """Return the input of the gate's activation."""
        total = products if self.peephole is None else products + self.peephole * cell
        if self.norm is not None:
            centered = total - total.mean(axis=1, keepdims=True)
            total = self.norm * centered / np.sqrt((centered**2).mean(axis=1, keepdims=True) + 1e-8)
        return total if self.bias is None else total + self.bias


def _data(op: Op, slot: int) -> Array | None:
    tensor = op.input(slot)
    return None if tensor is None else tensor.data


def _constant(op: Op, slot: int) -> Array:
    data = _data(op, slot)
    assert data is not None
    return data


def _sigmoid(x: Array) -> Array:
    return np.asarray(0.5 * (np.tanh(0.5 * x) + 1))
