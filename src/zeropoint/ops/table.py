"""The op table: one row for each op that integers can flow through, as LiteRT's kernels have it.

Every claim in `types`, `weights` and `hybrid` is run in LiteRT by tests/conformance. An op without a row, or
without the requested type, stays float. Adding an op is adding a row, and a sample in tests/conformance/samples.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..dtypes import DType
from .spec import (
    Fixed,
    OpSpec,
    Rescale,
    act,
    bias,
    index,
    macs_matmul,
    macs_per_output,
    macs_recurrent,
    macs_transposed,
    shape_of,
    weight,
)

INT8, INT16, INT4, INT2 = DType.INT8, DType.INT16, DType.INT4, DType.INT2
BOTH = (INT8, INT16)

# A probability in [0, 1) and a value in [-1, 1): the kernels hard-code these output parameters.
UNIT = {INT8: Fixed(1 / 256, -128), INT16: Fixed(1 / 32768, 0)}
SIGNED_UNIT = {INT8: Fixed(1 / 128, 0), INT16: Fixed(1 / 32768, 0)}

# int16 sums otherwise want scales that are powers of two.
ANY_SCALE = {INT16: {"potScaleInt16": False}}

INT8_WEIGHTS: Mapping[DType, tuple[DType, ...]] = {INT8: (INT8,), INT16: (INT8,)}
NARROW_WEIGHTS: Mapping[DType, tuple[DType, ...]] = {INT8: (INT8, INT4), INT16: (INT8, INT4)}

ROWS: tuple[OpSpec, ...] = (
    # Weighted ops.
    OpSpec(
        "CONV_2D",
        inputs=(act(), weight(axis=0), bias(0, 1)),
        rescale=Rescale.PRODUCT,
        types=BOTH,
        weights=NARROW_WEIGHTS,
        hybrid=(INT8, INT4),
        versions={"int8": 3, "int16": 4, "hybrid": 5, "int4": 7},
        macs=macs_per_output,
    ),
    OpSpec(
        "DEPTHWISE_CONV_2D",
        inputs=(act(), weight(axis=3), bias(0, 1)),
        rescale=Rescale.PRODUCT,
        types=BOTH,
        weights=INT8_WEIGHTS,
        hybrid=(INT8,),
        versions={"int8": 3, "int16": 5, "hybrid": 6, "int4": 7},
        macs=macs_per_output,
    ),
    OpSpec(
        "TRANSPOSE_CONV",
        inputs=(index(), weight(axis=0), act(), bias(2, 1)),
        rescale=Rescale.PRODUCT,
        types=BOTH,
        weights=INT8_WEIGHTS,
        hybrid=(INT8,),
        versions={"int8": 3, "int16": 4, "hybrid": 5},
        macs=macs_transposed,
    ),
    OpSpec(
        "FULLY_CONNECTED",
        inputs=(act(), weight(axis=0), bias(0, 1)),
        rescale=Rescale.PRODUCT,
        types=BOTH,
        weights=NARROW_WEIGHTS,
        hybrid=(INT8, INT4),
        versions={"int8": 4, "int16": 7, "hybrid": 9, "int4": 10},
        macs=macs_per_output,
    ),
    OpSpec(
        "BATCH_MATMUL",
        inputs=(act(), act()),
        rescale=Rescale.PRODUCT,
        types=BOTH,
        versions={"int8": 2, "int16": 3},
        macs=macs_matmul,
    ),
    # Arithmetic.
    OpSpec("ADD", (act(), act()), rescale=Rescale.SUM, types=BOTH, options=ANY_SCALE, versions={"int8": 2, "int16": 4}),
    OpSpec("SUB", (act(), act()), rescale=Rescale.SUM, types=BOTH, options=ANY_SCALE, versions={"int8": 2, "int16": 5}),
    OpSpec("MUL", (act(), act()), rescale=Rescale.PRODUCT, types=BOTH, versions={"int8": 2, "int16": 4}),
    OpSpec("DIV", (act(), act()), types=(INT8,), versions={"int8": 2}),
    OpSpec("SQUARED_DIFFERENCE", (act(), act()), rescale=Rescale.SUM, types=(INT8,), versions={"int8": 2}),
    OpSpec("MAXIMUM", (act(), act()), tied=True, types=BOTH, versions={"int8": 2, "int16": 3}),
    OpSpec("MINIMUM", (act(), act()), tied=True, types=BOTH, versions={"int8": 2, "int16": 3}),
    # Functions of one value.
    OpSpec("RELU", (act(),), rescale=Rescale.RATIO, types=BOTH, versions={"int8": 2, "int16": 3}),
    OpSpec("RELU6", (act(),), rescale=Rescale.RATIO, types=BOTH, versions={"int8": 2, "int16": 3}),
    OpSpec("RELU_N1_TO_1", (act(),), rescale=Rescale.RATIO, types=BOTH),
    OpSpec("RELU_0_TO_1", (act(),), rescale=Rescale.RATIO, types=BOTH),
    OpSpec("LEAKY_RELU", (act(),), rescale=Rescale.RATIO, types=BOTH, versions={"int8": 2, "int16": 2}),
    OpSpec("PRELU", (act(), act()), types=BOTH),
    OpSpec("ELU", (act(),), types=(INT8,)),
    OpSpec("GELU", (act(),), types=BOTH, versions={"int8": 2, "int16": 2}),
    OpSpec("HARD_SWISH", (act(),), types=BOTH),
    OpSpec("LOGISTIC", (act(),), fixed=UNIT, types=BOTH, versions={"int8": 2, "int16": 3}),
    OpSpec("TANH", (act(),), fixed=SIGNED_UNIT, types=BOTH, versions={"int8": 2, "int16": 3}),
    OpSpec("ABS", (act(),), rescale=Rescale.RATIO, types=BOTH, versions={"int8": 2, "int16": 3}),
    OpSpec("RSQRT", (act(),), types=BOTH, versions={"int8": 2, "int16": 3}),
    OpSpec("SQRT", (act(),), types=BOTH),
    OpSpec("EXP", (act(),), types=BOTH, versions={"int8": 2, "int16": 2}),
    OpSpec("LOG", (act(),), types=BOTH, versions={"int8": 2, "int16": 2}),
    # Normalizations.
    OpSpec("SOFTMAX", (act(),), fixed=UNIT, types=BOTH, versions={"int8": 2, "int16": 3}),
    OpSpec("LOG_SOFTMAX", (act(),), fixed={INT8: Fixed(16 / 256, 127)}, types=(INT8,), versions={"int8": 2}),
    OpSpec("L2_NORMALIZATION", (act(),), fixed={INT8: Fixed(1 / 128, 0)}, types=(INT8,), versions={"int8": 2}),
    # Reductions.
    OpSpec("MEAN", (act(), index()), rescale=Rescale.RATIO, types=BOTH, versions={"int8": 2, "int16": 3}),
    OpSpec("SUM", (act(), index()), rescale=Rescale.RATIO, types=BOTH, versions={"int8": 2, "int16": 2}),
    OpSpec("REDUCE_MAX", (act(), index()), tied=True, types=BOTH, versions={"int8": 2, "int16": 3}),
    OpSpec("REDUCE_MIN", (act(), index()), tied=True, types=BOTH, versions={"int8": 2, "int16": 3}),
    OpSpec("ARG_MAX", (act(), index()), outputs=(index(),), types=(INT8,), versions={"int8": 2}),
    OpSpec("ARG_MIN", (act(), index()), outputs=(index(),), types=(INT8,), versions={"int8": 2}),
    OpSpec(
        "TOPK_V2", (act(), index()), outputs=(act(), index()), tied=True, types=BOTH, versions={"int8": 2, "int16": 3}
    ),
    # Pooling and resizing.
    OpSpec("AVERAGE_POOL_2D", (act(),), tied=True, types=BOTH, versions={"int8": 2, "int16": 3}),
    OpSpec("MAX_POOL_2D", (act(),), tied=True, types=BOTH, versions={"int8": 2, "int16": 3}),
    OpSpec("RESIZE_BILINEAR", (act(), index()), tied=True, types=BOTH, versions={"int8": 2, "int16": 4}),
    OpSpec("RESIZE_NEAREST_NEIGHBOR", (act(), index()), tied=True, types=BOTH, versions={"int8": 2, "int16": 4}),
    # Moving data.
    OpSpec("RESHAPE", (act(), index()), tied=True, types=BOTH),
    OpSpec("TRANSPOSE", (act(), index()), tied=True, types=BOTH, versions={"int8": 2, "int16": 4}),
    OpSpec("EXPAND_DIMS", (act(), index()), tied=True, types=BOTH),
    OpSpec("SQUEEZE", (act(),), tied=True, types=BOTH),
    OpSpec("PACK", (act(),), variadic=True, tied=True, types=BOTH, versions={"int8": 2, "int16": 3}),
    OpSpec("UNPACK", (act(),), variadic=True, tied=True, types=BOTH, versions={"int8": 2, "int16": 4}),
    OpSpec("CONCATENATION", (act(),), variadic=True, tied=True, types=BOTH, versions={"int8": 2, "int16": 3}),
    OpSpec("SPLIT", (index(), act()), variadic=True, tied=True, types=BOTH, versions={"int8": 2, "int16": 4}),
    OpSpec(
        "SPLIT_V", (act(), index(), index()), variadic=True, tied=True, types=BOTH, versions={"int8": 2, "int16": 2}
    ),
    OpSpec("SLICE", (act(), index(), index()), tied=True, types=BOTH, versions={"int8": 2, "int16": 4}),
    OpSpec(
        "STRIDED_SLICE",
        (act(), index(), index(), index()),
        tied=True,
        types=BOTH,
        versions={"int8": 2, "int16": 4},
    ),
    OpSpec("GATHER", (act(), index()), tied=True, types=BOTH, versions={"int8": 2, "int16": 4}),
    OpSpec("GATHER_ND", (act(), index()), tied=True, types=BOTH, versions={"int8": 1, "int16": 3}),
    OpSpec("EMBEDDING_LOOKUP", (index(), act()), tied=True, types=(INT8,), versions={"int8": 1}),
    OpSpec("DYNAMIC_UPDATE_SLICE", (act(), act(), index()), tied=True, types=BOTH, versions={"int16": 4}),
    OpSpec("PAD", (act(), index()), tied=True, types=BOTH, versions={"int8": 2, "int16": 3}),
    OpSpec("PADV2", (act(), index(), act()), tied=True, types=BOTH, versions={"int8": 2, "int16": 3}),
    OpSpec("MIRROR_PAD", (act(), index()), tied=True, types=BOTH, versions={"int8": 2, "int16": 3}),
    OpSpec("TILE", (act(), index()), tied=True, types=BOTH, versions={"int8": 3, "int16": 3}),
    OpSpec("BROADCAST_TO", (act(), index()), tied=True, types=BOTH, versions={"int8": 2, "int16": 3}),
    OpSpec("REVERSE_V2", (act(), index()), tied=True, types=BOTH, versions={"int8": 3, "int16": 3}),
    OpSpec("SELECT", (index(), act(), act()), tied=True, types=BOTH, versions={"int8": 2, "int16": 2}),
    OpSpec("SELECT_V2", (index(), act(), act()), tied=True, types=BOTH),
    OpSpec("SPACE_TO_DEPTH", (act(),), tied=True, types=BOTH, versions={"int8": 2}),
    OpSpec("DEPTH_TO_SPACE", (act(),), tied=True, types=BOTH, versions={"int8": 2}),
    OpSpec("SPACE_TO_BATCH_ND", (act(), index(), index()), tied=True, types=BOTH, versions={"int8": 2, "int16": 3}),
    OpSpec("BATCH_TO_SPACE_ND", (act(), index(), index()), tied=True, types=BOTH, versions={"int8": 2, "int16": 3}),
    # Comparisons: integers in, truth values out.
    OpSpec("EQUAL", (act(), act()), outputs=(index(),), types=(INT8,), versions={"int8": 2}),
    OpSpec("NOT_EQUAL", (act(), act()), outputs=(index(),), types=(INT8,), versions={"int8": 2}),
    OpSpec("GREATER", (act(), act()), outputs=(index(),), types=(INT8,), versions={"int8": 2}),
    OpSpec("GREATER_EQUAL", (act(), act()), outputs=(index(),), types=(INT8,), versions={"int8": 2}),
    OpSpec("LESS", (act(), act()), outputs=(index(),), types=(INT8,), versions={"int8": 2}),
    OpSpec("LESS_EQUAL", (act(), act()), outputs=(index(),), types=(INT8,), versions={"int8": 2}),
    # Only a shape is read: any type will do, and no value is quantized.
    OpSpec("SHAPE", (shape_of(),), outputs=(index(),)),
    OpSpec("RANK", (shape_of(),), outputs=(index(),)),
    # Recurrent layers.
    OpSpec("UNIDIRECTIONAL_SEQUENCE_LSTM", (act(),), macs=macs_recurrent),
    OpSpec("BIDIRECTIONAL_SEQUENCE_LSTM", (act(),), macs=macs_recurrent),
    OpSpec("SVDF", (act(),), macs=macs_recurrent),
)

OPS: Mapping[str, OpSpec] = {row.kind: row for row in ROWS}

CONVERSIONS = frozenset({"QUANTIZE", "DEQUANTIZE"})
"""Ops that only change how numbers are stored."""
