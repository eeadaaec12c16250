"""UNIDIRECTIONAL_SEQUENCE_LSTM in integers: 8-bit inputs and weights, gates and cell in 16 bits."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from keras import ops

from ...dtypes import Array
from ...ops.recurrent import Gate, LstmSlot
from ...simulation.recurrent import GATE_BITS, HIGH, LOW, FixedPointCell
from .call import IntegerCall
from .functions import look_up
from .rescaling import QuantizedMultiplier, half_away

EVERY_INT16 = np.arange(LOW, HIGH + 1)


@cache
def _sigmoid() -> Array:
    return FixedPointCell().sigmoid(EVERY_INT16).astype(np.float32)


@cache
def _tanh(integer_bits: int) -> Array:
    return FixedPointCell().tanh(EVERY_INT16, integer_bits).astype(np.float32)


def lstm(call: IntegerCall) -> Any:
    """Compute an LSTM as `zeropoint.simulation.recurrent` does; None for layers with a projection or layer
    normalization.

    These are computed in float between the grids, as all of them are in training.
    """
    others = (LstmSlot.PROJECTION, Gate.OUTPUT.normalization)
    is_plain = all(slot >= len(call.inputs) or call.inputs[slot] is None for slot in others)
    return _TrainedLayer(call).run() if is_plain else None


class _TrainedLayer:
    """The state of an LSTM between the steps of a sequence, in whole steps from zero."""

    def __init__(self, call: IntegerCall) -> None:
        self.call = call
        self.power = round(float(np.log2(call.inputs[LstmSlot.CELL_STATE].start.scale)))
        clip = np.float32(call.option("cellClip", 0.0)) / np.float32(2.0**self.power)
        self.clip = float(min(int(clip), HIGH))
        self.is_coupled = call.inputs[Gate.INPUT.weights] is None
        self.factor = QuantizedMultiplier.of(call.real(ops.cast(2.0**-30, "float32") / call.output.scale))
        ends = call.output.dtype.min, call.output.dtype.max
        self.low, self.high = (float(end) - call.zero_point() for end in ends)

    def run(self) -> Any:
        call, x = self.call, self.call.whole(0)
        time = 0 if call.option("timeMajor", False) else 1
        first = x[0] if time == 0 else x[:, 0]
        hidden, cell = (
            ops.zeros_like(first[:, :1]) * ops.zeros((1, call.op.inputs[slot].shape[-1]), call.wide)  # type: ignore[union-attr]
            for slot in (LstmSlot.OUTPUT_STATE, LstmSlot.CELL_STATE)
        )
        made = []
        for k in range(call.call.input_shape(0)[time]):
            hidden, cell = self.step(x[k] if time == 0 else x[:, k], hidden, cell)
            made.append(hidden)
        return ops.stack(made, axis=time)

    def step(self, x: Any, hidden: Any, cell: Any) -> tuple[Any, Any]:
        forget = self._function(_sigmoid(), self.gate(Gate.FORGET, x, hidden, cell))
        opened = HIGH - forget
        if not self.is_coupled:
            opened = self._function(_sigmoid(), self.gate(Gate.INPUT, x, hidden, cell))
        update = self._function(_tanh(GATE_BITS), self.gate(Gate.CELL, x, hidden, cell))
        added = half_away(opened * update * 2.0 ** (-30 - self.power))
        cell = ops.clip(half_away(forget * cell * 2.0**-15) + added, LOW, HIGH)
        cell = ops.clip(cell, -self.clip, self.clip) if self.clip > 0 else cell
        output = self._function(_sigmoid(), self.gate(Gate.OUTPUT, x, hidden, cell))
        squashed = self._function(_tanh(15 + self.power), cell)
        units = self.factor.times(output * squashed)
        return ops.maximum(ops.minimum(units, self.high), self.low), cell

    def _function(self, table: Array, x: Any) -> Any:
        return self.call.real(look_up(ops.convert_to_tensor(table), x - LOW))

    def gate(self, gate: Gate, x: Any, hidden: Any, cell: Any) -> Any:
        """Return the input of a gate's function, with three integer bits: two products, each requantized separately."""
        call = self.call
        total = self._product(x, 0, gate.weights, gate.bias)
        total = self._added(total, self._product(hidden, LstmSlot.OUTPUT_STATE, gate.recurrent_weights, None))
        if gate.peephole is not None and call.inputs[gate.peephole] is not None:
            factor = 2.0**self.power * ops.cast(call.scale(gate.peephole), "float32") * 2.0**12
            seen = QuantizedMultiplier.of(call.real(ops.reshape(factor, ()))).times(cell * call.whole(gate.peephole))
            total = self._added(total, seen)
        return total

    def _product(self, x: Any, slot: int, weights: int, bias: int | None) -> Any:
        call = self.call
        factor = ops.reshape(call.scale(weights), ()) * call.scale(slot) * 2.0**12
        sums = ops.matmul(x, ops.transpose(call.whole(weights)))
        sums = sums if bias is None else sums + call.whole(bias)
        return ops.clip(QuantizedMultiplier.of(call.real(factor)).times(sums), LOW, HIGH)

    @staticmethod
    def _added(total: Any, more: Any) -> Any:
        return ops.clip(total + more, LOW, HIGH)
