"""Recurrent layers with integer weights on float data: integer accumulators, with states and gates in float32.

Sigmoid and tanh are the runtime's own float functions, computed by LiteRT.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from ..dtypes import Array, DType
from ..fixedpoint import wrapped
from ..graph.model import Graph, Model, Op, Tensor
from ..ops.recurrent import Gate, LstmSlot
from ..ops.spec import fused_activation
from ..runtime import Session
from .call import Computed, KernelCall
from .dynamic_range import F32, RoundedRows, signs_lost
from .weighted import product

LANES = 4
"""SIMD lanes: the number of partial sums that kernels accumulate in parallel."""

DIRECTION = 17
"""The number of inputs for each direction of a bidirectional layer."""


@cache
def _session(kind: str, size: int) -> Session:
    x, y = (Tensor(name, (size,), DType.FLOAT32) for name in "xy")
    return Session(Model([Graph("main", [x, y], [Op(kind, [x], [y])], [x], [y])]), kernels="optimized")


def float_function(kind: str, x: Array) -> Array:
    """Return LOGISTIC or TANH of float32 numbers, as recurrent kernels compute it."""
    return _session(kind, x.size).run([np.ravel(x).astype(F32)])[0].reshape(x.shape)


def activated(op: Op, x: Array) -> Array:
    """Apply the layer's own activation function."""
    function = fused_activation(op)
    if function.name == "TANH":
        return float_function("TANH", x)
    return x if function.bounds is None else np.clip(x, *map(F32, function.bounds))


def has_function(op: Op) -> bool:
    """Whether the layer's activation function is supported here."""
    function = fused_activation(op)
    return function.name == "TANH" or function.bounds is not None


def row_product(rows: RoundedRows, weights: Array, scale: Array) -> Array:
    """Return the product of 8-bit rows with a matrix [outputs, inputs], as reals."""
    totals = product(rows.centered, weights.T) + signs_lost(rows.integers, weights.T)
    return np.asarray(wrapped(totals).astype(F32) * (rows.scales * F32(scale)))


def lane_sum(x: Array) -> Array:
    """Sum along the last axis in float32: four partial sums in parallel, their total, then the remainder."""
    together = x.shape[-1] // LANES * LANES
    total = np.zeros(x.shape[:-1], F32)
    if together:
        lanes = np.add.accumulate(x[..., :together].reshape(*x.shape[:-1], -1, LANES), axis=-2, dtype=F32)[..., -1, :]
        total = np.add.accumulate(lanes, axis=-1, dtype=F32)[..., -1]
    for k in range(together, x.shape[-1]):
        total = total + x[..., k]
    return np.asarray(total)


@dataclass(frozen=True)
class Slots:
    """The inputs of one direction of a layer: `offset` relative to the inputs of a plain LSTM, and its states."""

    offset: int
    hidden: int
    cell: int


class FloatCell:
    """One direction of an LSTM, with its state."""

    def __init__(self, call: KernelCall, slots: Slots) -> None:
        self.call, self.slots = call, slots
        self.hidden, self.cell = call.value(slots.hidden).astype(F32), call.value(slots.cell).astype(F32)
        self.clip, self.projection_clip = (F32(call.option(name, 0.0)) for name in ("cellClip", "projClip"))

    def step(self, x: Array) -> Array:
        call = self.call
        read, hidden = self._rounded(x), self._rounded(self.hidden)
        forget = float_function("LOGISTIC", self._gate(Gate.FORGET, read, hidden))
        if call.has(Gate.INPUT.weights + self.slots.offset):
            entry = float_function("LOGISTIC", self._gate(Gate.INPUT, read, hidden))
        else:
            entry = F32(1) - forget
        update = activated(call.op, self._gate(Gate.CELL, read, hidden))
        self.cell = _clipped(forget * self.cell + update * entry, self.clip)
        output = float_function("LOGISTIC", self._gate(Gate.OUTPUT, read, hidden))
        self.hidden = self._projected(output * activated(call.op, self.cell))
        return self.hidden

    def _rounded(self, x: Array) -> RoundedRows:
        assert self.call.rules.dynamic is not None
        return self.call.rules.dynamic.rows(x.astype(F32), bool(self.call.option("asymmetricQuantizeInputs")))

    def _gate(self, gate: Gate, x: RoundedRows, hidden: RoundedRows) -> Array:
        total = self._real(gate.bias) + self._product(x, gate.weights)
        total = total + self._product(hidden, gate.recurrent_weights)
        if gate.peephole is not None and self.call.has(gate.peephole + self.slots.offset):
            total = total + self._real(gate.peephole) * self.cell
        return np.asarray(total)

    def _real(self, slot: int) -> Array:
        """Return biases or coefficients as reals; they may be stored as integers."""
        slot += self.slots.offset
        value = self.call.value(slot).astype(F32)
        return value if self.call.tensor(slot).params is None else value * F32(self.call.scale(slot))

    def _product(self, rows: RoundedRows, slot: int) -> Array:
        slot += self.slots.offset
        return row_product(rows, self.call.value(slot).astype(np.int64), self.call.scale(slot))

    def _projected(self, x: Array) -> Array:
        if not self.call.has(LstmSlot.PROJECTION + self.slots.offset):
            return x
        has_bias = self.call.has(LstmSlot.PROJECTION_BIAS + self.slots.offset)
        bias = self._real(LstmSlot.PROJECTION_BIAS) if has_bias else F32(0)
        return _clipped(bias + self._product(self._rounded(x), LstmSlot.PROJECTION), self.projection_clip)


def _clipped(x: Array, limit: np.float32) -> Array:
    return np.clip(x, -limit, limit) if limit > 0 else x


def _sequence(call: KernelCall, slots: Slots, order: int) -> Array:
    """Return the outputs of one direction for every time step."""
    x, cell = call.value(0), FloatCell(call, slots)
    if x.ndim == 2:  # a single time step
        return cell.step(x)
    time = 0 if call.option("timeMajor", False) else 1
    made = [cell.step(step) for step in np.moveaxis(x, time, 0)[::order]]
    return np.stack(made[::order], time)


def has_lstm(op: Op) -> bool:
    """Whether this LSTM is simulated: only without layer normalization."""
    slots = (gate.normalization for gate in Gate)
    return has_function(op) and all(slot >= len(op.inputs) or op.inputs[slot] is None for slot in slots)


def lstm(call: KernelCall) -> Computed:
    made = _sequence(call, Slots(0, LstmSlot.OUTPUT_STATE, LstmSlot.CELL_STATE), 1)
    return Computed((call.stored(made),))


def has_both_ways(op: Op) -> bool:
    """Whether this bidirectional layer is simulated: only without an auxiliary input."""
    return has_function(op) and all(tensor is None for tensor in op.inputs[2 * DIRECTION + 5 :])


def both_ways(call: KernelCall) -> Computed:
    """Simulate BIDIRECTIONAL_SEQUENCE_LSTM: two layers, one of which runs backwards in time."""
    states = 2 * DIRECTION + 1
    forwards = _sequence(call, Slots(0, states, states + 1), 1)
    backwards = _sequence(call, Slots(DIRECTION, states + 2, states + 3), -1)
    if call.option("mergeOutputs", False):
        return Computed((call.stored(np.concatenate([forwards, backwards], axis=-1)),))
    return Computed((call.stored(forwards), call.stored(backwards, 1)))


def svdf(call: KernelCall) -> Computed:
    """Simulate SVDF: multiply by the feature weights, keep the results for several time steps, multiply those by each
    filter's time weights, and sum over the filters of one rank."""
    assert call.rules.dynamic is not None
    rows = call.rules.dynamic.rows(call.value(0).astype(F32), bool(call.option("asymmetricQuantizeInputs")))
    features = row_product(rows, call.value(1).astype(np.int64), call.scale(1))
    weights = call.value(2).astype(F32) * F32(call.scale(2))
    filters, memory = weights.shape
    state = call.value(4).astype(F32).reshape(-1, filters, memory)
    state = np.concatenate([state[..., 1:], features[..., None]], axis=-1)
    rank = int(call.option("rank", 1))
    total = lane_sum(lane_sum(weights * state).reshape(len(rows.integers), filters // rank, rank))
    if call.has(3):
        total = total + call.value(3).astype(F32)
    return Computed((call.stored(activated(call.op, total)),))
