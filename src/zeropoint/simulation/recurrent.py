"""UNIDIRECTIONAL_SEQUENCE_LSTM in integers: 8-bit inputs and weights, gates and cell in 16 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..affine import QuantParams
from ..dtypes import Array
from ..fixedpoint import divided, multiply, shift_right, wrapped
from ..graph.model import Op
from ..ops.recurrent import Gate, LstmSlot
from . import transcendental
from .call import Computed, KernelCall
from .functions import sigmoid_of_thirds, tanh_of_thirds
from .rescaling import fixed_points
from .weighted import product

GATE_BITS = 3
"""Integer bits of the input of a gate's function."""

LOW, HIGH = -32768, 32767


class CellArithmetic(Protocol):
    """What differs between kernels of recurrent layers: functions of 16-bit numbers, and products of two such
    numbers."""

    def sigmoid(self, x: Array) -> Array: ...

    def tanh(self, x: Array, integer_bits: int) -> Array: ...

    def scaled(self, x: Array, power: int) -> Array:
        """Return x * 2**power, for a negative power."""


@dataclass(frozen=True)
class FixedPointCell:
    """LiteRT's arithmetic: functions in 16-bit fixed point, products shifted with one rounding."""

    def sigmoid(self, x: Array) -> Array:
        return transcendental.logistic(x, GATE_BITS, 15)

    def tanh(self, x: Array, integer_bits: int) -> Array:
        return transcendental.tanh(x, integer_bits, 15)

    def scaled(self, x: Array, power: int) -> Array:
        return np.asarray(shift_right(x, -power).astype(np.int16).astype(np.int64))


@dataclass(frozen=True)
class TableCell:
    """TensorFlow Lite Micro's arithmetic: functions by lookup table, products requantized by a multiplier."""

    def sigmoid(self, x: Array) -> Array:
        return sigmoid_of_thirds(3 * x)[0]

    def tanh(self, x: Array, integer_bits: int) -> Array:
        left = integer_bits - GATE_BITS
        thirds = 3 * x << left if left >= 0 else (3 * x + (1 << (-left - 1))) >> -left
        return tanh_of_thirds(thirds)[0]

    def scaled(self, x: Array, power: int) -> Array:
        return np.clip(multiply(x, *fixed_points(np.asarray(2.0**power))), LOW, HIGH)


def svdf(call: KernelCall) -> Computed:
    """Simulate SVDF: multiply by the feature weights, keep the results for several time steps, multiply those by each
    filter's time weights, and sum over the filters of one rank."""
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
    """Whether the LSTM is simulated: a projection is supported only without a bias."""
    return op.inputs[LstmSlot.PROJECTION_BIAS] is None


def lstm(call: KernelCall) -> Computed:
    """Compute gates i, f, o = sigmoid(W x + R h + b), update g = tanh(...), cell c = f c + i g, output h = o
    tanh(c)."""
    layer = _Layer(call)
    x = call.value(0).astype(np.int64)
    time = 0 if call.option("timeMajor", False) else 1
    made = [layer.step(step) for step in np.moveaxis(x, time, 0)]
    return Computed((call.stored(np.stack(made, time)),))


def _hidden(call: KernelCall) -> QuantParams:
    """Return the parameters of the output before its projection; without a projection, those of the output."""
    params = call.op.intermediates[-1].params if call.op.intermediates else None
    return call.output if params is None or not call.has(LstmSlot.PROJECTION) else params


class _Layer:
    """The state of an LSTM between the steps of a sequence."""

    def __init__(self, call: KernelCall) -> None:
        self.call, self.arithmetic = call, call.rules.cell
        self.hidden = call.value(LstmSlot.OUTPUT_STATE).astype(np.int64)
        self.cell = call.value(LstmSlot.CELL_STATE).astype(np.int64)
        self.power = round(float(np.log2(float(call.scale(LstmSlot.CELL_STATE)))))
        clip = np.float32(call.option("cellClip", 0.0)) / np.float32(call.scale(LstmSlot.CELL_STATE))
        self.clip = int(np.clip(clip, LOW, HIGH))
        self.is_coupled = not call.has(Gate.INPUT.weights)
        clip = np.float32(call.option("projClip", 0.0)) / np.float32(call.output_scale)
        self.projection_clip = int(np.clip(clip, -128, 127))
        self.made = _hidden(call)
        self.output_factor = fixed_points(np.asarray(np.float64(np.float32(2.0**-30 / self.made.scale))))

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
        units = multiply(output * squashed, *self.output_factor) + self.made.zero_point
        units = np.clip(units, self.made.dtype.min, self.made.dtype.max)
        self.hidden = self._projected(units) if self.call.has(LstmSlot.PROJECTION) else units
        return self.hidden

    def _projected(self, units: Array) -> Array:
        """Multiply by the projection weights, and requantize to the output's scale."""
        call, made = self.call, self.call.output
        factor = np.float32(call.scale(LstmSlot.PROJECTION)) * np.float32(self.made.scale) / np.float32(made.scale)
        sums = wrapped(product(units - self.made.zero_point, call.centered(LstmSlot.PROJECTION).T))
        found = multiply(sums, *fixed_points(np.asarray(np.float64(factor)))) + made.zero_point
        found = np.clip(found, made.dtype.min, made.dtype.max)
        if self.projection_clip > 0:
            found = np.clip(found, -self.projection_clip, self.projection_clip)
        return np.asarray(found)

    def gate(self, gate: Gate, x: Array) -> Array:
        """Return the input of a gate's function, with three integer bits: two products, each requantized separately."""
        call = self.call
        bias = call.value(gate.bias).astype(np.int64)
        is_normalized = call.has(gate.normalization)
        unit = self._unit(gate) if is_normalized else 2.0**-12
        centered = x - call.params(0).zero_point
        hidden = self.hidden - call.params(LstmSlot.OUTPUT_STATE).zero_point
        total = self._product(centered, (0, gate.weights), unit, 0 if is_normalized else bias)
        seen = self._product(hidden, (LstmSlot.OUTPUT_STATE, gate.recurrent_weights), unit, 0)
        total = np.clip(total + seen, LOW, HIGH)
        if gate.peephole is not None and call.has(gate.peephole):
            factor = np.float32(2.0**self.power * float(call.scale(gate.peephole)) / unit)
            seen = wrapped(self.cell * call.value(gate.peephole).astype(np.int64))
            total = np.clip(total + multiply(seen, *fixed_points(np.asarray(np.float64(factor)))), LOW, HIGH)
        return self._normalized(np.asarray(total), gate, bias) if is_normalized else np.asarray(total)

    def _unit(self, gate: Gate) -> float:
        """Return the scale of the input of a gate's layer normalization."""
        params = self.call.op.intermediates[list(Gate).index(gate)].params
        assert params is not None
        return params.scale

    def _normalized(self, x: Array, gate: Gate, bias: Array) -> Array:
        """Return (x - mean) / deviation * gain + bias, with ten fractional bits until the bias is added."""
        count, scale = x.shape[-1], float(self.call.scale(gate.normalization))
        mean = divided(x.sum(axis=-1, keepdims=True) * 1024, count)
        squares = (x * x).sum(axis=-1, keepdims=True) * ((1 << 20) // count)
        variance = divided(squares - mean * mean, 1 << 20)
        variance = np.where(variance < 1, max(1, int(np.float32(10000) * np.float32(scale))), variance)
        inverse, shift = transcendental.inverse_root(variance)
        centered = multiply(1024 * x - mean, inverse, shift)
        scaled = wrapped(centered * self.call.value(gate.normalization).astype(np.int64)) + bias
        rounded = divided(scaled + np.where(scaled > 0, 512, -512), 1024)
        multiplier, left = fixed_points(np.asarray(np.float64(np.float32(scale))))
        return np.clip(multiply(rounded, multiplier, left + 12), LOW, HIGH)

    def _product(self, x: Array, slots: tuple[int, int], unit: float, bias: Array | int) -> Array:
        call, (slot, weights) = self.call, slots
        factor = np.float32(call.scale(weights)) * np.float32(call.scale(slot)) / np.float32(unit)
        sums = wrapped(product(x, call.centered(weights).T) + bias)
        return np.clip(multiply(sums, *fixed_points(np.asarray(np.float64(factor)))), LOW, HIGH)
