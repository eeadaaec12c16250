"""What each op computes, against LiteRT's float kernels: one-op models, and whole graphs with any batch."""

from __future__ import annotations

import numpy as np
import pytest

from zeropoint.errors import UnsupportedOp
from zeropoint.ops import OPS
from zeropoint.runtime import Session
from zeropoint.train import trainable
from zeropoint.train.backend import array_of
from zeropoint.train.compute import COMPUTE

from .. import build
from ..conformance.samples import SAMPLES
from ..nets import Net, normal, samples_for

TOLERANCE = 3e-6
"""Relative to the greatest value: what float32 loses when sums are taken in another order."""

WITHOUT_GRADIENT = {"BIDIRECTIONAL_SEQUENCE_LSTM", "SVDF"}
"""Rows of the op table that are not here: their float kernels keep a state in ways that were not written down."""


def outputs(net, sample):
    found = net(list(sample))
    return [array_of(v) for v in (found if isinstance(found, list) else [found])]


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.kind not in WITHOUT_GRADIENT], ids=str)
def test_every_op_computes_what_litert_does(sample):
    model = sample.model()
    net, session = trainable(model, quantize=False), Session(model)
    for row in sample.draw(3):
        session.reset()
        for wanted, found in zip(session.run(row), outputs(net, row), strict=True):
            assert found.shape == wanted.shape
            assert np.abs(found.astype(np.float64) - wanted).max() <= TOLERANCE * max(1e-9, np.abs(wanted).max())


def pooled():
    net = Net()
    x = net.input(1, 7, 6, 3)
    return net.model(
        net("L2_POOL_2D", [x], (1, 3, 2, 3), strideW=3, strideH=2, filterWidth=3, filterHeight=3, padding=1)
    )


def cumulated(exclusive: bool, reverse: bool):
    net = Net()
    x = net.input(2, 5, 3)
    axis = np.array(1, np.int32)
    return net.model(net("CUMSUM", [x, axis], (2, 5, 3), exclusive=exclusive, reverse=reverse))


def skipping(kind: str, padding: int):
    """Strides and dilation at once, which no backend computes by itself."""
    net = Net()
    x = net.input(1, 11, 9, 4)
    kernel = normal(6, 3, 3, 4) if kind == "CONV_2D" else normal(1, 3, 3, 4)
    channels = kernel.shape[0] if kind == "CONV_2D" else 4
    size = (6, 5) if padding == 0 else (4, 3)
    steps = {"strideH": 2, "strideW": 2, "dilationHFactor": 2, "dilationWFactor": 2, "padding": padding}
    if kind == "DEPTHWISE_CONV_2D":
        steps["depthMultiplier"] = 1
    return net.model(net(kind, [x, kernel, normal(channels)], (1, *size, channels), **steps))


RARE = {
    "L2 pooling": pooled,
    **{f"sums {e} {r}": lambda e=e, r=r: cumulated(e, r) for e in (False, True) for r in (False, True)},
    **{
        f"{kind} {padding}": lambda kind=kind, padding=padding: skipping(kind, padding)
        for kind in ("CONV_2D", "DEPTHWISE_CONV_2D")
        for padding in (0, 1)
    },
}
"""What the op table has no integer kernel for, or no sample of."""


@pytest.mark.parametrize("name", RARE)
def test_rare_ops_compute_what_litert_does(name):
    model = RARE[name]()
    net, session = trainable(model, quantize=False), Session(model, kernels="optimized")
    for row in samples_for(model, 3):
        (wanted,), (found,) = session.run(row), outputs(net, row)
        assert found.shape == wanted.shape
        assert np.abs(found.astype(np.float64) - wanted).max() <= TOLERANCE * np.abs(wanted).max()


@pytest.mark.parametrize("padding", [0, 1])
def test_a_transposed_convolution_with_bias_is_one_and_a_bias(padding):
    """MediaPipe's custom op, which LiteRT itself cannot run. Its file calls the paddings 1 (same) and 2 (valid)."""
    kernel, bias = normal(5, 3, 3, 2), normal(5)
    size = (8, 6) if padding == 0 else (9, 7)
    plain = Net()
    shape = np.array([1, *size, 5], np.int32)
    x = plain.input(1, 4, 3, 2)
    y = plain("TRANSPOSE_CONV", [shape, kernel, x, bias], (1, *size, 5), strideH=2, strideW=2, padding=padding)
    model = plain.model(y)
    custom = Net()
    end = custom("CUSTOM", [custom.input(1, 4, 3, 2), kernel, bias], (1, *size, 5))
    custom.ops[0].custom_code = "Convolution2DTransposeBias"
    custom.ops[0].custom_options = np.frombuffer(np.array([padding + 1, 2, 2], "<i4").tobytes(), np.uint8)
    net = trainable(custom.model(end), quantize=False)
    for row in samples_for(model, 2):
        (wanted,), (found,) = Session(model).run(row), outputs(net, row)
        assert np.abs(found - wanted).max() <= TOLERANCE * np.abs(wanted).max()


def test_the_table_covers_the_op_table():
    assert set(OPS) - set(COMPUTE) == WITHOUT_GRADIENT


WITHOUT_BATCH = {
    "their output has the shape that an operand says": {
        "BROADCAST_TO",
        "FILL",
        "ONE_HOT",
        "SCATTER_ND",
        "SPARSE_TO_DENSE",
    },
    "they move elements between the batch and the image": {"BATCH_TO_SPACE_ND", "SPACE_TO_BATCH_ND"},
    "they may write or spread along the first axis": {"DILATE", "DYNAMIC_UPDATE_SLICE", "MATRIX_SET_DIAG"},
    "its condition may choose whole rows": {"SELECT"},
    "they make numbers, not data: shapes and what is computed from them": {"RANGE", "RANK", "SHAPE"},
}
"""Ops that are trained with the batch of the file, and why."""


def test_every_op_has_a_rule_for_batches_or_a_reason_why_not():
    with_rule = {kind for kind, spec in OPS.items() if spec.batch is not None}
    assert set(COMPUTE) - with_rule == set().union(*WITHOUT_BATCH.values())


def test_an_op_that_is_missing_is_named_with_all_others():
    net = Net()
    x = net.input(1, 4)
    y = net("CUSTOM", [x], name="strange")
    z = net("CUSTOM", [y], name="stranger")
    for op in net.ops:
        op.custom_code = "Odd"
    model = net.model(net("RELU", [z]))
    with pytest.raises(UnsupportedOp, match=r"(?s)Odd 'strange'.*Odd 'stranger'.*outputs="):
        trainable(model, quantize=False)


def test_missing_ops_do_not_matter_behind_the_tensors_that_are_trained_for():
    net = Net()
    hidden = net.dense(net.input(1, 4), normal(3, 4), name="hidden")
    end = net("CUSTOM", [hidden], name="strange")
    net.ops[-1].custom_code = "Odd"
    found = trainable(net.model(end), quantize=False, outputs=["hidden"])(np.ones((2, 4), np.float32))
    assert found.shape == (2, 3)


def image_net():
    net = Net()
    x = net.input(1, 6, 6, 2)
    y = net.conv(x, normal(4, 3, 3, 2), activation=1)
    y = net("ADD", [y, normal(1, 6, 6, 4)])
    y = net("MAX_POOL_2D", [y], (1, 3, 3, 4), strideW=2, strideH=2, filterWidth=2, filterHeight=2, padding=1)
    y = net("RESHAPE", [y, np.array([1, 36], np.int32)], (1, 36), newShape=(1, 36))
    return net.model(net("SOFTMAX", [net.dense(y, normal(5, 36))], beta=1.0))


def test_a_graph_for_one_sample_takes_a_batch():
    model = image_net()
    net, session = trainable(model, quantize=False), Session(model)
    assert net.takes_any_batch
    rows = samples_for(model, 7)
    together = array_of(net(np.concatenate([r[0] for r in rows])))
    np.testing.assert_allclose(together, np.concatenate([session.run(r)[0] for r in rows]), atol=1e-6)


def folded():
    """Rows of a sample next to those of the others, and apart again: what converters make of dense layers."""
    net = Net()
    x = net.input(1, 3, 4)
    y = net("RESHAPE", [x, np.array([3, 4], np.int32)], (3, 4), newShape=(3, 4))
    y = net.dense(y, normal(5, 4))
    return net.model(net("RESHAPE", [y, np.array([1, 15], np.int32)], (1, 15), newShape=(1, 15)))


def mixing(kind):
    net = Net()
    x = net.input(2, 4)
    if kind == "mean":
        return net.model(net("MEAN", [x, np.array([0], np.int32)], (1, 4), keepDims=True))
    if kind == "transpose":
        return net.model(net("TRANSPOSE", [x, np.array([1, 0], np.int32)], (4, 2)))
    if kind == "constant":
        return net.model(net("ADD", [x, normal(2, 4)]))
    return net.model(net("SLICE", [x, np.array([1, 0], np.int32), np.array([1, 4], np.int32)], (1, 4)))


def test_rows_may_be_folded_together_and_apart():
    model = folded()
    net, session = trainable(model, quantize=False), Session(model)
    rows = samples_for(model, 4)
    together = array_of(net(np.concatenate([r[0] for r in rows])))
    np.testing.assert_allclose(together, np.concatenate([session.run(r)[0] for r in rows]), atol=1e-5)


@pytest.mark.parametrize("kind", ["mean", "transpose", "constant", "slice"])
def test_a_graph_that_tells_rows_apart_keeps_its_batch(kind):
    model = mixing(kind)
    net = trainable(model, quantize=False)
    assert not net.takes_any_batch
    (row,) = samples_for(model, 1)
    np.testing.assert_allclose(outputs(net, row)[0], Session(model).run(row)[0], atol=1e-6)


def test_shapes_that_are_computed_follow_the_batch():
    """SHAPE, STRIDED_SLICE and PACK in front of a RESHAPE, as TensorFlow writes it for a batch of any size."""
    x, shape, first = (
        build.act("x", 1, 2, 3),
        build.act("shape", 3, dtype=build.INT32),
        build.act("b", dtype=build.INT32),
    )
    packed, y = build.act("packed", 2, dtype=build.INT32), build.act("y", 1, 6)
    numbers = [build.const(f"n{k}", np.array([v], np.int32)) for k, v in enumerate((0, 1, 1))]
    main = build.graph(
        "main",
        [x],
        [y],
        build.op("SHAPE", [x], shape, options="ShapeOptions", outType=2),
        build.op("STRIDED_SLICE", [shape, *numbers], first, options="StridedSliceOptions", shrinkAxisMask=1),
        build.op(
            "PACK", [first, build.const("six", np.array(6, np.int32))], packed, options="PackOptions", valuesCount=2
        ),
        build.op("RESHAPE", [x, packed], y, options="ReshapeOptions"),
    )
    net = trainable(build.Model([main]), quantize=False)
    batch = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    np.testing.assert_array_equal(array_of(net(batch)), batch.reshape(4, 6))
