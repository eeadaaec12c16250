"""Which ops leave the samples of a batch apart."""

from __future__ import annotations

import numpy as np
import pytest

from zeropoint.graph import Op
from zeropoint.ops import OPS

from ..build import act, const, op


def keeps(only: Op, *free: int) -> bool:
    """Whether the op allows any batch if the inputs at these slots go with it."""
    rule = OPS[only.kind].batch
    assert rule is not None
    return rule(only, {only.inputs[k] for k in free})


x = act("x", 3, 4)


@pytest.mark.parametrize(
    ("other", "free", "allowed"),
    [
        (act("row", 4), (0,), True),
        (act("one", 1, 4), (0,), True),
        (act("rows", 3, 4), (0,), False),
        (act("rows", 3, 4), (0, 1), True),
        (act("deeper", 2, 3, 4), (0,), False),
    ],
)
def test_operands_that_broadcast_are_the_same_for_every_row(other, free, allowed):
    size = (2, 3, 4) if len(other.shape) == 3 else (3, 4)
    assert keeps(op("ADD", [x, other], act("y", *size)), *free) is allowed


@pytest.mark.parametrize(("axis", "allowed"), [(0, False), (1, True), (-1, True), (-2, False)])
@pytest.mark.parametrize("kind", ["MEAN", "REDUCE_MAX", "CUMSUM", "REVERSE_V2", "ARG_MAX"])
def test_reductions_must_not_run_along_the_batch(kind, axis, allowed):
    assert keeps(op(kind, [x, const("axis", [axis])], act("y", 3, 4)), 0) is allowed


def test_an_axis_that_is_computed_may_be_the_first():
    assert not keeps(op("MEAN", [x, act("axis", 1)], act("y", 3, 4)), 0)


@pytest.mark.parametrize(("free", "allowed"), [((0, 1), True), ((0,), False)])
def test_what_is_joined_has_as_many_rows(free, allowed):
    joined = op("CONCATENATION", [x, act("z", 3, 4)], act("y", 3, 8), options="ConcatenationOptions", axis=1)
    assert keeps(joined, *free) is allowed


def test_weights_must_not_come_from_the_batch():
    layer = op("FULLY_CONNECTED", [x, act("w", 3, 4)], act("y", 3, 3))
    assert keeps(layer, 0)
    assert not keeps(layer, 0, 1)


@pytest.mark.parametrize(("begin", "size", "allowed"), [((0, 1), (-1, 2), True), ((1, 0), (2, 4), False)])
def test_slices_take_all_rows(begin, size, allowed):
    sliced = op("SLICE", [x, const("begin", np.int32(begin)), const("size", np.int32(size))], act("y", 3, 2))
    assert keeps(sliced, 0) is allowed


@pytest.mark.parametrize(
    ("axis", "dims", "free", "allowed"),
    [(0, 0, (1,), True), (1, 0, (0,), True), (0, 0, (0,), False), (1, 1, (0, 1), True), (1, 0, (0, 1), False)],
)
def test_gathering(axis, dims, free, allowed):
    indices = act("indices", 3, 2)
    gather = op("GATHER", [x, indices], act("y", 3, 2), options="GatherOptions", axis=axis, batchDims=dims)
    assert keeps(gather, *free) is allowed


@pytest.mark.parametrize(("time_major", "allowed"), [(False, True), (True, False)])
def test_a_recurrent_layer_may_have_the_steps_first(time_major, allowed):
    kind, options = "UNIDIRECTIONAL_SEQUENCE_LSTM", "UnidirectionalSequenceLSTMOptions"
    layer = op(kind, [act("s", 3, 5, 4)], act("y", 3, 5, 6), options=options, timeMajor=time_major)
    assert keeps(layer, 0) is allowed
