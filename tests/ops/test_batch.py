"""Which ops leave the samples of a batch apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from zeropoint.graph import Op
from zeropoint.ops import OPS
from zeropoint.ops.batching import free_tensors

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


def test_a_graph_takes_any_batch_if_all_its_ops_do():
    y, z = act("y", 3, 4), act("z", 3)
    relu, mean = op("RELU", [x], y), op("MEAN", [y, const("axis", [1])], z)
    assert free_tensors([x], [relu, mean]) == {x, y, z}
    mixing = op("MEAN", [y, const("axis", [0])], z)
    assert free_tensors([x], [relu, mixing]) == frozenset()


def test_a_reshape_may_fold_the_rows_of_a_sample_but_not_cut_them():
    assert free_tensors([x], [op("RESHAPE", [x, const("shape", [6, 2])], y := act("y", 6, 2))]) == {x, y}
    assert free_tensors([x], [op("RESHAPE", [x, const("shape", [2, 6])], act("y", 2, 6))]) == frozenset()


def test_a_shape_that_was_read_is_true_for_one_batch_only():
    shape, y = act("shape", 2), act("y", 3, 4)
    reads = op("SHAPE", [x], shape)
    assert free_tensors([x], [reads, op("RESHAPE", [x, shape], y)]) == {x, y}
    assert free_tensors([x], [reads, op("BROADCAST_TO", [x, shape], y)]) == frozenset()


def test_custom_ops_are_looked_up_by_their_own_name():
    y = act("y", 3, 8, 8, 2)
    image = act("image", 3, 4, 4, 2)
    custom = op("CUSTOM", [image, act("w", 2, 2, 2, 2), act("b", 2)], y)
    assert free_tensors([image], [custom]) == frozenset()
    custom.custom_code = "Convolution2DTransposeBias"
    assert free_tensors([image], [custom]) == {image, y}


def test_a_row_that_is_added_by_argument_counts():
    y = act("y", 3, 4)
    odd = op("CUSTOM", [x], y)
    odd.custom_code = "Odd"
    assert free_tensors([x], [odd], {**OPS, "Odd": replace(OPS["RELU"], kind="Odd")}) == {x, y}


def test_an_output_without_dimensions_has_no_rows():
    total = op("ADD", [const("one", np.float32(1)), act("x", 1, 3)], act("y"), options="AddOptions")
    assert free_tensors([total.inputs[1]], [total]) == frozenset()
