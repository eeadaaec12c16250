"""The inputs of recurrent layers by name, and their number of multiply-accumulates."""

from __future__ import annotations

import math
from enum import Enum, IntEnum

import numpy as np

from ..graph.model import Op

LSTM = "UNIDIRECTIONAL_SEQUENCE_LSTM"


class LstmSlot(IntEnum):
    """Inputs of an LSTM that belong to no gate."""

    INPUT = 0
    PROJECTION = 16
    PROJECTION_BIAS = 17
    OUTPUT_STATE = 18
    CELL_STATE = 19


class Gate(Enum):
    """A gate of an LSTM, and the slots that it reads.

    `weights` apply to the layer's input, `recurrent_weights` to the output of the previous step, `peephole` to the cell
    state, which the cell update itself does not read; `normalization` is the gain of its layer normalization.
    """

    INPUT = (1, 5, 9, 12, 20)
    FORGET = (2, 6, 10, 13, 21)
    CELL = (3, 7, None, 14, 22)
    OUTPUT = (4, 8, 11, 15, 23)

    def __init__(
        self, weights: int, recurrent_weights: int, peephole: int | None, bias: int, normalization: int
    ) -> None:
        self.weights, self.recurrent_weights = weights, recurrent_weights
        self.peephole, self.bias, self.normalization = peephole, bias, normalization


BOTH_WAYS = "BIDIRECTIONAL_SEQUENCE_LSTM"
FORWARD_WEIGHTS, BACKWARD_WEIGHTS, STATES, SECOND_INPUT = 1, 18, 35, 39
"""Slots of a bidirectional layer: the weights of each direction, the states of both, and the auxiliary input."""


def one_way(op: Op, *, backward: bool) -> Op | None:
    """Return an LSTM that computes one direction of a bidirectional layer, given a sequence in its order.

    None for layers with an auxiliary input.
    """
    inputs = [*op.inputs, *[None] * (SECOND_INPUT + 1 - len(op.inputs))]
    first, states = (BACKWARD_WEIGHTS, STATES + 2) if backward else (FORWARD_WEIGHTS, STATES)
    if any(t is not None for t in inputs[SECOND_INPUT:]):
        return None
    return Op(LSTM, [inputs[0], *inputs[first : first + 17], *inputs[states : states + 2]], [], op.options)


def largest_output(op: Op) -> float | None:
    """Return the largest magnitude of what an LSTM with tanh can make; None if it is not known.

    A gate and the tanh of the cell state are at most 1, and a projection adds up such products.
    """
    if op.kind not in (LSTM, BOTH_WAYS):
        return None
    first = LstmSlot.PROJECTION
    slots = (first,) if op.kind == LSTM else (first, first + BACKWARD_WEIGHTS - FORWARD_WEIGHTS)
    projections = [t for k in slots if (t := op.input(k)) is not None]
    if any(t.data is None for t in projections) or any(op.inputs[k + 1 : k + 2] not in ([], [None]) for k in slots):
        return None
    return max([1.0, *(float(np.abs(t.data).sum(axis=1).max(initial=0.0)) for t in projections if t.data is not None)])


def macs_recurrent(op: Op) -> int:
    """Return the multiply-accumulates: every step multiplies by every weight matrix."""
    source = op.inputs[0]
    if source is None or not source.shape:
        return 0
    steps = math.prod(source.shape[:-1])
    matrices = (t.size for t in op.inputs[1:] if t is not None and t.is_constant and len(t.shape) == 2)
    return steps * sum(matrices)
