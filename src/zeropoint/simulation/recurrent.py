"""UNIDIRECTIONAL_SEQUENCE_LSTM in integers: 8-bit inputs and weights, gates and cell in 16 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..dtypes import Array
from ..fixedpoint import multiply, shift_right, wrapped
from ..graph.model import Op
from ..ops.recurrent import Gate, LstmSlot
from . import transcendental
from .call import Computed, KernelCall
from .functions import sigmoid_of_thirds, tanh_of_thirds
from .rescaling import fixed_points
from .weighted import product

GATE_BITS = 3
"""Integer bits of what goes into a gate's function."""

LOW, HIGH = -32768, 32767


class CellArithmetic(Protocol):
    """What kernels of recurrent layers do differently: functions of 16-bit numbers, and products of two of them."""

    def sigmoid(self, x: Array) -> Array: ...

    def tanh(self, x: Array, integer_bits: int) -> Array: ...

    def scaled(self, x: Array, power: int) -> Array:
        """x * 2**power, the power being below zero."""


@dataclass(frozen=True)
class FixedPointCell:
    """Functions in 16-bit fixed point, products shifted with one rounding: LiteRT."""

    def sigmoid(self, x: Array) -> Array:
        return transcendental.logistic(x, GATE_BITS, 15)

    def tanh(self, x: Array, integer_bits: int) -> Array:
        return transcendental.tanh(x, integer_bits, 15)

    def scaled(self, x: Array, power: int) -> Array:
        return np.asarray(shift_right(x, -power).astype(np.int16).astype(np.int64))


@dataclass(frozen=True)
class TableCell:
    """Functions from a table, products by a multiplier: TensorFlow Lite Micro."""

    def sigmoid(self, x: Array) -> Array:
        return sigmoid_of_thirds(3 * x)[0]

    def tanh(self, x: Array, integer_bits: int) -> Array:
        left = integer_bits - GATE_BITS
        thirds = 3 * x << left if left >= 0 else (3 * x + (1 << (-left - 1))) >> -left
        return tanh_of_thirds(thirds)[0]

    def scaled(self, x: Array, power: int) -> Array:
        return np.clip(multiply(x, *fixed_points(np.asarray(2.0**power))), LOW, HIGH)


def svdf(call: KernelCall) -> Computed:
    """A product with the feature weights, kept for some steps, and one with the weights over time, of each filter;
    filters of one rank are added up."""
    into, along = (np.float32(call.scale(k)) * np.float32(call.scale(w)) for k, w in ((0, 1), (4, 2)))
    factors = into / np.float32(call.scale(4)), along / np.float32(call.output_scale)
    first, second = (fixed_points(np.asarray(np.float64(factor))) for factor in factors)
    weights = call.value(2).astype(np.int64)
    filters, memory = weights.shape
    features = np.clip(multiply(wrapped(product(call.centered(0), call.centered(1).T)), *first), LOW, HIGH)
    state = call.value(4).astype(np.int64).reshape(-1, filters, memory)
    state = np.concatenate([state[..., 1:], features[..., None]], axis=-1)
    rank = int(call.option("rank", 1))
    sums = (state * weights).sum(axis=-1).reshape(-1, filters // rank, rank).sum(axis=-1)
    total = wrapped(sums + (call.value(3).astype(np.int64) if call.has(3) else 0))
    made = call.output
    return call.finished(multiply(total, *second), bounds=(made.dtype.min, made.dtype.max))


def is_plain(op: Op) -> bool:
    """Whether the layer has neither a projection nor normalization in it."""
    slots = (LstmSlot.PROJECTION, LstmSlot.PROJECTION_BIAS, *(gate.normalization for gate in Gate))
    return all(slot >= len(op.inputs) or op.inputs[slot] is None for slot in slots)


def lstm(call: KernelCall) -> Computed:
    """Gates i, f, o = sigmoid(W x + R h + b), update g = tanh(...), cell c = f c + i g, output h = o tanh(c)."""
    layer = _Layer(call)
    x = call.value(0).astype(np.int64)
    time = 0 if call.option("timeMajor", False) else 1
    made = [layer.step(step) for step in np.moveaxis(x, time, 0)]
    return Computed((call.stored(np.stack(made, time)),))


class _Layer:
    """The state between the steps of a sequence."""

    def __init__(self, call: KernelCall) -> None:
        self.call, self.arithmetic = call, call.rules.cell
        self.hidden = call.value(LstmSlot.OUTPUT_STATE).astype(np.int64)
        self.cell = call.value(LstmSlot.CELL_STATE).astype(np.int64)
        self.power = round(float(np.log2(float(call.scale(LstmSlot.CELL_STATE)))))
        clip = np.float32(call.option("cellClip", 0.0)) / np.float32(call.scale(LstmSlot.CELL_STATE))
        self.clip = int(np.clip(clip, LOW, HIGH))
        self.is_coupled = not call.has(Gate.INPUT.weights)
        made = call.output
        self.output_factor = fixed_points(np.asarray(np.float64(np.float32(2.0**-30 / made.scale))))

    def step(self, x: Array) -> Array:
        sigmoid, scaled = self.arithmetic.sigmoid, self.arithmetic.scaled
        forget = sigmoid(self.gate(Gate.FORGET, x))
        entry = HIGH - forget if self.is_coupled else sigmoid(self.gate(Gate.INPUT, x))
        update = self.arithmetic.tanh(self.gate(Gate.CELL, x), GATE_BITS)
        kept, added = scaled(forget * self.cell, -15), scaled(entry * update, -30 - self.power)
        self.cell = np.clip(kept + added, LOW, HIGH)
        if self.clip > 0:
            self.cell = np.clip(self.cell, -self.clip, self.clip)
        output = sigmoid(self.gate(Gate.OUTPUT, x))
        squashed = self.arithmetic.tanh(self.cell, 15 + self.power)
        made = self.call.output
        units = multiply(output * squashed, *self.output_factor) + made.zero_point
        self.hidden = np.clip(units, made.dtype.min, made.dtype.max)
        return self.hidden

    def gate(self, gate: Gate, x: Array) -> Array:
        """What goes into a gate's function, with three integer bits: two products, each rescaled by itself."""
        call = self.call
        bias = call.value(gate.bias).astype(np.int64)
        centered = x - call.params(0).zero_point
        hidden = self.hidden - call.params(LstmSlot.OUTPUT_STATE).zero_point
        total = self._product(centered, 0, gate.weights, bias)
        total = np.clip(total + self._product(hidden, LstmSlot.OUTPUT_STATE, gate.recurrent_weights, 0), LOW, HIGH)
        if gate.peephole is not None and call.has(gate.peephole):
            factor = np.float32(2.0**self.power * float(call.scale(gate.peephole)) * 2.0**12)
            seen = wrapped(self.cell * call.value(gate.peephole).astype(np.int64))
            total = np.clip(total + multiply(seen, *fixed_points(np.asarray(np.float64(factor)))), LOW, HIGH)
        return np.asarray(total)

    def _product(self, x: Array, slot: int, weights: int, bias: Array | int) -> Array:
        call = self.call
        factor = np.float32(call.scale(weights)) * np.float32(call.scale(slot)) * np.float32(2.0**12)
        sums = wrapped(product(x, call.centered(weights).T) + bias)
        return np.clip(multiply(sums, *fixed_points(np.asarray(np.float64(factor)))), LOW, HIGH)
