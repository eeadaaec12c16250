"""The inputs of recurrent layers, by name, and how much such a layer computes."""

from __future__ import annotations

import math
from enum import IntEnum

from ..graph.model import Op

LSTM = "UNIDIRECTIONAL_SEQUENCE_LSTM"


class LstmSlot(IntEnum):
    """Inputs of an LSTM that belong to no gate."""

    INPUT = 0
    PROJECTION = 16
    PROJECTION_BIAS = 17
    OUTPUT_STATE = 18
    CELL_STATE = 19


class Gate(IntEnum):
    """A gate of an LSTM; the properties are the slots of what it reads."""

    INPUT = 0
    FORGET = 1
    CELL = 2
    OUTPUT = 3

    @property
    def weights(self) -> int:
        """On the layer's input."""
        return 1 + self

    @property
    def recurrent_weights(self) -> int:
        """On the output of the step before."""
        return 5 + self

    @property
    def peephole(self) -> int | None:
        """On the cell state, which the new cell value itself does not look at."""
        return {Gate.INPUT: 9, Gate.FORGET: 10, Gate.OUTPUT: 11}.get(self)

    @property
    def bias(self) -> int:
        return 12 + self

    @property
    def normalization(self) -> int:
        """The gain of its layer normalization."""
        return 20 + self


def macs_recurrent(op: Op) -> int:
    """Multiply-accumulates: every step multiplies with every weight matrix."""
    source = op.inputs[0]
    if source is None or not source.shape:
        return 0
    steps = math.prod(source.shape[:-1])
    matrices = (t.size for t in op.inputs[1:] if t is not None and t.is_constant and len(t.shape) == 2)
    return steps * sum(matrices)
