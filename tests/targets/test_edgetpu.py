"""The published limits of the Edge TPU: what runs on it, what on the CPU beside it; nobody has checked that."""

from __future__ import annotations

import numpy as np
import pytest

from zeropoint.dtypes import DType
from zeropoint.graph import Model
from zeropoint.targets import EDGETPU, TypedOp

from .. import build
from .probes import dense, scaled, tensor

INT8, INT16, FLOAT = DType.INT8, DType.INT16, DType.FLOAT32


def convolution(**options: int) -> Model:
    x, y = scaled("x", INT8, 1, 4, 4, 1), scaled("y", INT8, 1, 4, 4, 1)
    weights = build.const("w", np.ones((1, 1, 1, 1), np.int8), INT8, build.quantized_cnn().main.inputs[0].params)
    return build.one_op("CONV_2D", [x, weights], y, options="Conv2DOptions", strideW=1, strideH=1, **options)


def pooled(fused: int) -> Model:
    window = {"strideW": 1, "strideH": 1, "filterWidth": 1, "filterHeight": 1, "fusedActivationFunction": fused}
    x, y = scaled("x", INT8, 1, 4, 4, 1), scaled("y", INT8, 1, 4, 4, 1)
    return build.one_op("MAX_POOL_2D", [x], y, options="Pool2DOptions", **window)


def added(dtype: DType, batch: int = 1) -> Model:
    x, y = scaled("x", dtype, batch, 2, 2, 3), scaled("y", dtype, batch, 2, 2, 3)
    return build.one_op("ADD", [x, x], y, options="AddOptions")


def open_batch() -> Model:
    model = added(INT8)
    model.main.inputs[0].shape_signature = (-1, 2, 2, 3)
    return model


def sliced(step: int) -> Model:
    begin, end, strides = (build.const(n, np.array([v], np.int32)) for n, v in (("b", 0), ("e", 4), ("s", step)))
    operands = [scaled("x", INT8, 4), begin, end, strides]
    return build.one_op("STRIDED_SLICE", operands, scaled("y", INT8, 4 // step), options="StridedSliceOptions")


def sine() -> Model:
    return build.one_op("SIN", [tensor("x", FLOAT, 4)], tensor("y", FLOAT, 4))


@pytest.mark.parametrize(
    ("model", "place", "reason"),
    [
        (convolution(dilationWFactor=2, dilationHFactor=2), "the Edge TPU", ""),
        (convolution(dilationWFactor=2, dilationHFactor=1), "LiteRT's plain kernels", "is dilated by 2 and 1"),
        (dense(INT8, per_channel=True), "the Edge TPU", ""),
        (dense(DType.INT4, per_channel=True), "LiteRT's plain kernels", "has int4 weights"),
        (pooled(0), "the Edge TPU", ""),
        (pooled(1), "LiteRT's plain kernels", "applies RELU to its output"),
        (added(INT8), "the Edge TPU", ""),
        (added(INT16), "LiteRT's plain kernels", "computes in int16"),
        (added(INT8, batch=2), "LiteRT's plain kernels", "its last three dimensions"),
        (open_batch(), "LiteRT's plain kernels", "known only at run time"),
        (sliced(1), "the Edge TPU", ""),
        (sliced(2), "LiteRT's plain kernels", "slices in steps"),
        (sine(), "LiteRT's plain kernels", "not among the ops"),
    ],
)  # fmt: skip
def test_where_ops_run(model, place, reason):
    (op,) = model.main.ops
    verdict = EDGETPU.verdict(TypedOp.of_file(op))
    assert verdict.place == place
    assert verdict.speed == ("slow" if reason else "fast")
    assert reason in verdict.reason


def test_it_is_marked_as_unchecked():
    assert "not checked by its compiler" in EDGETPU.about
    assert EDGETPU.tool is None
