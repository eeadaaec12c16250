"""How much an op computes: multiply-accumulates, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from zeropoint.graph import Op, Tensor
from zeropoint.ops.execution import macs_of

from .. import build


def constant(*shape: int) -> Tensor:
    return build.const("weights", np.zeros(shape, np.float32))


def layer(kind: str, inputs: list[Tensor | None], *result: int, options: str = "", **values: object) -> Op:
    return build.op(kind, inputs, build.act("y", *result), options=options, **values)


x = build.act("x", 1, 6, 8, 3)
matrix, other = build.act("a", 2, 4, 5), build.act("b", 2, 5, 7)
turned = build.act("at", 2, 5, 4)
sequence = build.act("s", 1, 10, 4)
gates = [constant(6, 4)] * 4 + [constant(6, 6)] * 4

COUNTED = {
    "each output of a convolution sums over its window": (
        layer("CONV_2D", [x, constant(5, 3, 3, 3)], 1, 6, 8, 5),
        6 * 8 * 5 * 27,
    ),
    "a depthwise one sums over one channel": (
        layer("DEPTHWISE_CONV_2D", [x, constant(1, 3, 3, 3)], 1, 3, 4, 3),
        3 * 4 * 3 * 9,
    ),
    "a dense layer multiplies with each weight": (
        layer("FULLY_CONNECTED", [build.act("v", 2, 9), constant(4, 9)], 2, 4),
        2 * 4 * 9,
    ),
    "a transposed convolution spreads each input": (
        layer("TRANSPOSE_CONV", [build.const("shape", [1, 12, 16, 5]), constant(5, 2, 2, 3), x], 1, 12, 16, 5),
        6 * 8 * 3 * 5 * 4,
    ),
    "a matrix product sums over the inner side": (
        layer("BATCH_MATMUL", [matrix, other], 2, 4, 7, options="BatchMatMulOptions"),
        2 * 4 * 7 * 5,
    ),
    "and over that of the turned matrix": (
        layer("BATCH_MATMUL", [turned, other], 2, 4, 7, options="BatchMatMulOptions", adjX=True),
        2 * 4 * 7 * 5,
    ),
    "a recurrent layer multiplies with all weights at each step": (
        layer("UNIDIRECTIONAL_SEQUENCE_LSTM", [sequence, *gates], 1, 10, 6),
        10 * (4 * 6 * 4 + 4 * 6 * 6),
    ),
    "an addition multiplies nothing": (layer("ADD", [x, x], 1, 6, 8, 3), 0),
}


@pytest.mark.parametrize("name", COUNTED)
def test_multiplications_are_counted(name):
    op, wanted = COUNTED[name]
    assert macs_of(op) == wanted


@pytest.mark.parametrize(
    "kind", ["CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV", "BATCH_MATMUL", "UNIDIRECTIONAL_SEQUENCE_LSTM"]
)
@pytest.mark.parametrize(
    "inputs", [[], [None], [None, None, None], [build.act("s")] * 3], ids=["none", "one", "absent", "scalars"]
)
def test_odd_operands_count_for_nothing(kind, inputs):
    """A file may give an op fewer operands than its kind has, or others."""
    assert macs_of(layer(kind, inputs, 1, 2)) == 0
