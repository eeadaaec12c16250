"""One-op models beyond those of tests/conformance: float ops that have no integer kernel, and integers as such."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from zeropoint.affine import PerAxis, PerTensor, QuantParams
from zeropoint.dtypes import DType
from zeropoint.graph import Model, Tensor
from zeropoint.tflite.schema import dtype_code

from .. import build

FLOAT, INT32, INT64, BOOL = DType.FLOAT32, DType.INT32, DType.INT64, DType.BOOL
SCALE = {
    DType.INT8: QuantParams((0.05,), (-3,), DType.INT8),
    DType.UINT8: QuantParams((0.05,), (125,), DType.UINT8),
    DType.INT16: QuantParams((0.0002,), (0,), DType.INT16),
    DType.INT32: QuantParams((0.0001,), (0,), DType.INT32),
}


def tensor(name: str, dtype: DType, *shape: int) -> Tensor:
    """A tensor that holds indices, truth values or real numbers, but no scaled integers."""
    return build.act(name, *shape, dtype=dtype)


def scaled(name: str, dtype: DType, *shape: int) -> Tensor:
    return build.act(name, *shape, dtype=dtype, params=SCALE.get(dtype))


def ints(*values: int) -> Tensor:
    return build.const(f"c{values}", np.array(values, np.int32))


def probes() -> Iterator[Model]:
    yield from floats()
    yield from movers()
    yield from integers()
    yield from conversions()


def floats() -> Iterator[Model]:
    """Functions of one or two real numbers."""
    for kind, options in (
        ("NEG", "NegOptions"),
        ("SIGN", "SignOptions"),
        ("SQUARE", "SquareOptions"),
        ("SIN", ""),
        ("COS", "CosOptions"),
        ("FLOOR", ""),
        ("CEIL", ""),
        ("ROUND", ""),
        ("ZEROS_LIKE", "ZerosLikeOptions"),
    ):
        yield build.one_op(kind, [tensor("x", FLOAT, 2, 3)], tensor("y", FLOAT, 2, 3), options=options)
    for kind, options in (("FLOOR_DIV", "FloorDivOptions"), ("FLOOR_MOD", "FloorModOptions"), ("POW", "PowOptions")):
        pair = [tensor("x", FLOAT, 2, 3), tensor("z", FLOAT, 2, 3)]
        yield build.one_op(kind, pair, tensor("y", FLOAT, 2, 3), options=options)
    yield build.one_op("ATAN2", [tensor("x", FLOAT, 2, 3), tensor("z", FLOAT, 2, 3)], tensor("y", FLOAT, 2, 3))
    yield build.one_op("CUMSUM", [tensor("x", FLOAT, 2, 3), ints(1)], tensor("y", FLOAT, 2, 3), options="CumsumOptions")
    yield build.one_op(
        "REDUCE_PROD", [tensor("x", FLOAT, 2, 3), ints(1)], tensor("y", FLOAT, 2), options="ReducerOptions"
    )
    window = {"strideW": 1, "strideH": 1, "filterWidth": 2, "filterHeight": 2, "padding": 1}
    yield build.one_op(
        "L2_POOL_2D",
        [tensor("x", FLOAT, 1, 3, 3, 2)],
        tensor("y", FLOAT, 1, 2, 2, 2),
        options="Pool2DOptions",
        **window,
    )


def movers() -> Iterator[Model]:
    """Ops that move indices and truth values."""
    for dtype in (INT32, INT64, BOOL):
        yield build.one_op(
            "SLICE",
            [tensor("x", dtype, 4, 3), ints(1, 0), ints(2, 3)],
            tensor("y", dtype, 2, 3),
            options="SliceOptions",
        )
        yield build.one_op(
            "STRIDED_SLICE",
            [tensor("x", dtype, 4, 3), ints(0, 0), ints(4, 3), ints(2, 1)],
            tensor("y", dtype, 2, 3),
            options="StridedSliceOptions",
        )
        yield build.one_op(
            "PACK", [tensor("a", dtype, 3), tensor("b", dtype, 3)], tensor("y", dtype, 2, 3), options="PackOptions",
            valuesCount=2,
        )  # fmt: skip
    for dtype in (FLOAT, INT32, BOOL, DType.INT8):
        yield build.one_op(
            "SHAPE",
            [tensor("x", dtype, 4, 3)],
            tensor("y", INT32, 2),
            options="ShapeOptions",
            outType=dtype_code(INT32),
        )
    yield build.one_op("RANK", [tensor("x", FLOAT, 4, 3)], tensor("y", INT32), options="RankOptions")


def integers() -> Iterator[Model]:
    """Truth values, and arithmetic on indices."""
    for kind, options in (("LOGICAL_AND", "LogicalAndOptions"), ("LOGICAL_OR", "LogicalOrOptions")):
        pair = [tensor("x", BOOL, 2, 3), tensor("z", BOOL, 2, 3)]
        yield build.one_op(kind, pair, tensor("y", BOOL, 2, 3), options=options)
    yield build.one_op("LOGICAL_NOT", [tensor("x", BOOL, 4)], tensor("y", BOOL, 4), options="LogicalNotOptions")
    for kind in ("REDUCE_ANY", "REDUCE_ALL"):
        yield build.one_op(kind, [tensor("x", BOOL, 2, 3), ints(1)], tensor("y", BOOL, 2), options="ReducerOptions")
    for kind, options in (("FLOOR_DIV", "FloorDivOptions"), ("FLOOR_MOD", "FloorModOptions")):
        divisor = build.const("two", np.full((2, 3), 2, np.int32))
        yield build.one_op(kind, [tensor("x", INT32, 2, 3), divisor], tensor("y", INT32, 2, 3), options=options)
    types = (FLOAT, INT32, INT64, BOOL, DType.INT8, DType.INT16)
    for source in types:
        for made in types:
            if source is not made:
                yield build.one_op("CAST", [tensor("x", source, 3)], tensor("y", made, 3), options="CastOptions")


def conversions() -> Iterator[Model]:
    """From reals to scaled integers, back, and between those."""
    for dtype in (DType.INT8, DType.UINT8, DType.INT16):
        yield build.one_op("QUANTIZE", [tensor("x", FLOAT, 4)], scaled("y", dtype, 4), options="QuantizeOptions")
        yield build.one_op("DEQUANTIZE", [scaled("x", dtype, 4)], tensor("y", FLOAT, 4), options="DequantizeOptions")
        for made in (DType.INT8, DType.UINT8, DType.INT16):
            yield build.one_op("QUANTIZE", [scaled("x", dtype, 4)], scaled("y", made, 4), options="QuantizeOptions")


def dense(weights: DType, per_channel: bool) -> Model:
    """A dense layer in int8 with weights of this width."""
    scales = (0.02, 0.03, 0.04) if per_channel else (0.02,)
    granularity = PerAxis(0) if per_channel else PerTensor()
    params = QuantParams(scales, (0,) * len(scales), weights, granularity)
    held = build.const("w", np.arange(-6, 6, dtype=np.int8).reshape(3, 4), weights, params)
    return build.one_op(
        "FULLY_CONNECTED", [scaled("x", DType.INT8, 1, 4), held], scaled("y", DType.INT8, 1, 3),
        options="FullyConnectedOptions",
    )  # fmt: skip
