"""The op table: one row for each op that integers can flow through, as LiteRT's kernels have it.

Every claim in `types`, `weights` and `hybrid` is run in LiteRT by tests/conformance. An op without a row, or
without the requested type, stays float. Adding an op is adding a row, and a sample in tests/conformance/samples.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..dtypes import DType
from .layout import CONVOLUTION, DENSE, DEPTHWISE, MATRIX_PRODUCT, TRANSPOSED
from .spec import (
    CellState,
    Coefficients,
    Fixed,
    Need,
    OpSpec,
    OutputState,
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
PRODUCT, RATIO, SUM = Rescale.PRODUCT, Rescale.RATIO, Rescale.SUM

# A probability in [0, 1) and a value in [-1, 1): the kernels hard-code these output parameters.
UNIT = {INT8: Fixed(1 / 256, -128), INT16: Fixed(1 / 32768, 0)}
SIGNED_UNIT = {INT8: Fixed(1 / 128, 0), INT16: Fixed(1 / 32768, 0)}

# Inputs beyond these give the same integers as the ends do.
SIGMOID_ENDS = {INT8: (-6.5, 6.5), INT16: (-11.0, 11.0)}
TANH_ENDS = {INT8: (-3.5, 3.5), INT16: (-6.5, 6.5)}


def ends(low: float, high: float) -> Mapping[DType, tuple[float, float]]:
    return dict.fromkeys(BOTH, (low, high))


# The weights of one direction of a recurrent layer: of the gates on input and state; peepholes; biases; projection.
DIRECTION = (*(weight(axis=None),) * 8, *(Coefficients(),) * 3, *(index(),) * 4, weight(axis=None), index())

# Hybrid kernels then round their inputs to all of [-128, 127], which halves the error.
ASYMMETRIC_INPUTS = {DType.FLOAT32: {"asymmetricQuantizeInputs": True}}
# int16 sums otherwise want scales that are powers of two.
ANY_SCALE = {INT16: {"potScaleInt16": False}}

# Past this ratio of scales XNNPACK refuses the whole graph, or ends the process.
PRODUCT_LIMIT, SUM_LIMIT = 256.0, 2.0**14
# From here on the kernels of MUL shift products left, out of their 32 bits.
WRAPS = {INT8: 2.0**15, INT16: 1.0}

WEIGHTED = (Need.CONSTANT_WEIGHTS,)
INT8_WEIGHTS: Mapping[DType, tuple[DType, ...]] = {INT8: (INT8,), INT16: (INT8,)}
NARROW_WEIGHTS: Mapping[DType, tuple[DType, ...]] = {INT8: (INT8, INT4), INT16: (INT8, INT4)}


def since(int8: int, int16: int = 1, **others: int) -> Mapping[str, int]:
    """The lowest op versions that have these types."""
    return {"int8": int8, "int16": int16, **others}


# fmt: off
ROWS: tuple[OpSpec, ...] = (
    # Weighted ops.
    OpSpec("CONV_2D", layout=CONVOLUTION, inputs=(act(), weight(axis=0, inputs=3), bias(0, 1)), rescale=PRODUCT, max_rescale=PRODUCT_LIMIT, types=BOTH,
           weights=NARROW_WEIGHTS, hybrid=(INT8, INT4), versions=since(3, 4, hybrid=5, int4=7), needs=WEIGHTED,
           fuses=True, macs=macs_per_output),
    OpSpec("DEPTHWISE_CONV_2D", layout=DEPTHWISE, inputs=(act(), weight(axis=3, inputs=3), bias(0, 1)), rescale=PRODUCT, max_rescale=PRODUCT_LIMIT,
           types=BOTH, weights=INT8_WEIGHTS, hybrid=(INT8,), versions=since(3, 5, hybrid=6), needs=WEIGHTED,
           fuses=True, macs=macs_per_output),
    OpSpec("TRANSPOSE_CONV", layout=TRANSPOSED, inputs=(index(), weight(axis=0), act(), bias(2, 1)), rescale=PRODUCT, max_rescale=PRODUCT_LIMIT,
           types=BOTH, weights=INT8_WEIGHTS, hybrid=(INT8,), versions=since(3, 3, hybrid=3), needs=WEIGHTED,
           macs=macs_transposed),
    OpSpec("FULLY_CONNECTED", layout=DENSE, inputs=(act(), weight(axis=0, inputs=1), bias(0, 1)), rescale=PRODUCT, max_rescale=PRODUCT_LIMIT,
           types=BOTH, weights=NARROW_WEIGHTS, hybrid=(INT8, INT4, INT2), blockwise=(INT4,), options=ASYMMETRIC_INPUTS,
           versions=since(4, 7, hybrid=12, int4=10, int2=14), needs=WEIGHTED, fuses=True, macs=macs_per_output),
    OpSpec("BATCH_MATMUL", layout=MATRIX_PRODUCT, inputs=(act(), act(symmetric_constant=True, constant=weight(axis=-1, swapped="adjY"))), rescale=PRODUCT,
           max_rescale=PRODUCT_LIMIT, types=BOTH, hybrid=(INT8,), options=ASYMMETRIC_INPUTS, versions=since(2, 3, hybrid=4), macs=macs_matmul),
    # Recurrent: the input; weights of the gates i, f, c, o on it and on the state; peepholes; biases; projection; states.
    OpSpec("UNIDIRECTIONAL_SEQUENCE_LSTM",
           (act(), *(weight(axis=None),) * 8, *(Coefficients(),) * 3, bias(0, 1), bias(0, 2), bias(0, 3), bias(0, 4),
            weight(axis=None), index(), OutputState(), CellState(least=-15, greatest=-9)),
           types=(INT8,), weights={INT8: (INT8,)}, hybrid=(INT8,), options=ASYMMETRIC_INPUTS, versions=since(1, hybrid=3),
           needs=(Need.NO_NORMALIZATION, Need.CONSTANT_WEIGHTS), macs=macs_recurrent,
           intermediates=("float", "float", "float", "float", "output"), own_activation="TANH"),
    # The same forwards and backwards; then four states, a second input and its weights.
    OpSpec("BIDIRECTIONAL_SEQUENCE_LSTM", (act(), *DIRECTION, *DIRECTION, *(index(),) * 4, act(), *(weight(axis=None),) * 8),
           outputs=(act(), act()), hybrid=(INT8,), options=ASYMMETRIC_INPUTS, versions=since(1, hybrid=3), macs=macs_recurrent),
    OpSpec("SVDF", (act(), weight(axis=None), weight(axis=None), index(), index()), hybrid=(INT8,), options=ASYMMETRIC_INPUTS,
           versions=since(3, hybrid=4), macs=macs_recurrent, note="quantizing the state of SVDF is not implemented"),
    # Arithmetic.
    OpSpec("ADD", (act(), act()), rescale=SUM, max_rescale=SUM_LIMIT, types=BOTH, options=ANY_SCALE, fuses=True, versions=since(2, 3)),
    OpSpec("SUB", (act(), act()), rescale=SUM, max_rescale=SUM_LIMIT, types=BOTH, options=ANY_SCALE, fuses=True, versions=since(2, 5)),
    OpSpec("MUL", (act(), act()), rescale=PRODUCT, max_rescale=WRAPS, types=BOTH, fuses=True, versions=since(2, 4)),
    OpSpec("DIV", (act(), act()), types=BOTH, needs=(Need.CONSTANT_DIVISOR,), has_poles=True),
    OpSpec("SQUARED_DIFFERENCE", (act(), act()), types=(INT8,), versions=since(2)),
    OpSpec("MAXIMUM", (act(), act()), tied=True, types=BOTH, versions=since(2, 4)),
    OpSpec("MINIMUM", (act(), act()), tied=True, types=BOTH, versions=since(2, 4)),
    # Functions of one value.
    OpSpec("RELU", (act(),), rescale=RATIO, types=BOTH, saturates=ends(0, math.inf), versions=since(2, 3), homogeneous=True),
    OpSpec("RELU6", (act(),), rescale=RATIO, types=BOTH, saturates=ends(0, 6), versions=since(2, 3)),
    OpSpec("RELU_N1_TO_1", (act(),), rescale=RATIO, types=(INT8,), saturates=ends(-1, 1)),
    OpSpec("RELU_0_TO_1", (act(),), rescale=RATIO, types=(INT8,), saturates=ends(0, 1)),
    OpSpec("LEAKY_RELU", (act(),), rescale=RATIO, types=BOTH, versions=since(2, 2), homogeneous=True),
    OpSpec("PRELU", (act(), weight(axis=None)), types=BOTH, weights=INT8_WEIGHTS, needs=WEIGHTED, homogeneous=True),
    OpSpec("ELU", (act(),), types=(INT8,), saturates=ends(-8, math.inf)),
    OpSpec("GELU", (act(),), types=BOTH, saturates=ends(-6, math.inf), versions=since(2, 2)),
    OpSpec("HARD_SWISH", (act(),), rescale=RATIO, max_rescale=128.0, types=(INT8,), saturates=ends(-3, math.inf)),
    OpSpec("LOGISTIC", (act(),), fixed=UNIT, types=BOTH, saturates=SIGMOID_ENDS, versions=since(2, 3), probabilities="each"),
    OpSpec("TANH", (act(),), fixed=SIGNED_UNIT, types=BOTH, saturates=TANH_ENDS, versions=since(2, 3)),
    OpSpec("ABS", (act(),), rescale=RATIO, types=BOTH, versions=since(2, 3), homogeneous=True),
    OpSpec("RSQRT", (act(),), types=BOTH, needs=(Need.NONNEGATIVE,), versions=since(2, 3), has_poles=True),
    OpSpec("SQRT", (act(),), types=BOTH, needs=(Need.NONNEGATIVE,), versions=since(2, 2), has_poles=True),
    OpSpec("EXP", (act(),), types=BOTH, versions=since(2, 2)),
    OpSpec("LOG", (act(),), types=BOTH, versions=since(2, 2), has_poles=True),
    # Normalizations.
    OpSpec("SOFTMAX", (act(),), fixed=UNIT, types=BOTH, negligible=20.0, versions=since(2, 3), probabilities="row"),
    OpSpec("LOG_SOFTMAX", (act(),), fixed={INT8: Fixed(16 / 256, 127)}, types=(INT8,), versions=since(2), probabilities="row"),
    OpSpec("L2_NORMALIZATION", (act(),), fixed={INT8: Fixed(1 / 128, 0)}, types=(INT8,), versions=since(2)),
    # Reductions.
    OpSpec("MEAN", (act(), index()), rescale=RATIO, types=BOTH, needs=(Need.SUM_FITS,), versions=since(2, 3)),
    OpSpec("SUM", (act(), index()), rescale=RATIO, types=BOTH, needs=(Need.SUM_FITS,), versions=since(2, 2)),
    OpSpec("REDUCE_PROD", (act(), index()), note="its integer kernel is wrong for products of many numbers"),
    OpSpec("REDUCE_MAX", (act(), index()), tied=True, types=BOTH, versions=since(2, 3)),
    OpSpec("REDUCE_MIN", (act(), index()), tied=True, types=BOTH, versions=since(2, 3)),
    OpSpec("ARG_MAX", (act(), index()), outputs=(index(),), types=(INT8,), versions=since(2)),
    OpSpec("ARG_MIN", (act(), index()), outputs=(index(),), types=(INT8,), versions=since(2)),
    OpSpec("TOPK_V2", (act(), index()), outputs=(act(), index()), tied=True, types=BOTH, versions=since(2, 3)),
    # Pooling and resizing.
    OpSpec("AVERAGE_POOL_2D", (act(),), tied=True, types=BOTH, versions=since(2, 3), homogeneous=True, averages=True),
    OpSpec("MAX_POOL_2D", (act(),), tied=True, types=BOTH, versions=since(2, 3), homogeneous=True),
    OpSpec(
        "RESIZE_BILINEAR",
        (act(), index()),
        tied=True,
        types=BOTH,
        versions=since(2, 4),
        homogeneous=True,
        averages=True,
    ),
    OpSpec("RESIZE_NEAREST_NEIGHBOR", (act(), index()), tied=True, types=BOTH, versions=since(2, 4), homogeneous=True),
    # Moving data.
    OpSpec("RESHAPE", (act(), index()), tied=True, types=BOTH),
    OpSpec("TRANSPOSE", (act(), index()), tied=True, types=BOTH, versions=since(2, 5)),
    OpSpec("EXPAND_DIMS", (act(), index()), tied=True, types=BOTH),
    OpSpec("SQUEEZE", (act(),), tied=True, types=BOTH),
    OpSpec("PACK", (act(),), variadic=True, tied=True, types=BOTH, versions=since(2, 3)),
    OpSpec("UNPACK", (act(),), variadic=True, tied=True, types=BOTH, versions=since(2, 4)),
    OpSpec("CONCATENATION", (act(),), variadic=True, tied=True, types=BOTH, versions=since(2, 3)),
    OpSpec("SPLIT", (index(), act()), variadic=True, tied=True, types=BOTH, versions=since(2, 4)),
    OpSpec("SPLIT_V", (act(), index(), index()), variadic=True, tied=True, types=BOTH, versions=since(2, 2)),
    OpSpec("SLICE", (act(), index(), index()), tied=True, types=BOTH, versions=since(2, 4)),
    OpSpec("STRIDED_SLICE", (act(), index(), index(), index()), tied=True, types=BOTH, versions=since(2, 4)),
    OpSpec("GATHER", (act(constant=weight(axis=None)), index()), tied=True, types=BOTH, versions=since(2, 4)),
    OpSpec("GATHER_ND", (act(), index()), tied=True, types=BOTH, versions=since(1, 3)),
    OpSpec("EMBEDDING_LOOKUP", (index(), act(constant=weight(axis=0))), tied=True, types=BOTH, hybrid=(INT8, INT4, INT2), blockwise=(INT4,),
           versions=since(1, hybrid=4, int2=5)),
    OpSpec("DYNAMIC_UPDATE_SLICE", (act(), act(), index()), tied=True, types=BOTH, versions=since(1, 4)),
    OpSpec("PAD", (act(), index()), tied=True, types=BOTH, versions=since(2, 3), homogeneous=True),
    OpSpec("PADV2", (act(), index(), act()), tied=True, types=BOTH, versions=since(2, 3)),
    OpSpec("MIRROR_PAD", (act(), index()), tied=True, types=BOTH, versions=since(2, 3)),
    OpSpec("FILL", (index(), act()), tied=True, types=BOTH, versions=since(3, 3)),
    OpSpec("MATRIX_SET_DIAG", (act(), act()), tied=True, types=BOTH),
    OpSpec("DILATE", (act(), index(), act()), tied=True, types=BOTH),
    OpSpec("ONE_HOT", (index(), index(), act(), act()), tied=True, types=(INT8,)),
    OpSpec("SPARSE_TO_DENSE", (index(), index(), act(), act()), tied=True, types=(INT8,), versions=since(3)),
    OpSpec("TILE", (act(), index()), tied=True, types=BOTH, versions=since(2, 2)),
    OpSpec("BROADCAST_TO", (act(), index()), tied=True, types=BOTH, versions=since(3, 3)),
    OpSpec("REVERSE_V2", (act(), index()), tied=True, types=BOTH, versions=since(3, 3)),
    OpSpec("SELECT", (index(), act(), act()), tied=True, types=BOTH),
    OpSpec("SELECT_V2", (index(), act(), act()), tied=True, types=BOTH),
    OpSpec("SPACE_TO_DEPTH", (act(),), tied=True, types=(INT8,), versions=since(2)),
    OpSpec("DEPTH_TO_SPACE", (act(),), tied=True, types=(INT8,)),
    OpSpec("SPACE_TO_BATCH_ND", (act(), index(), index()), tied=True, types=BOTH, versions=since(2, 4)),
    OpSpec("BATCH_TO_SPACE_ND", (act(), index(), index()), tied=True, types=BOTH, versions=since(2, 4)),
    # Comparisons: integers in, truth values out. With one scale for both sides what is equal stays so, and int16 kernels
    # compare the integers as they are.
    OpSpec("EQUAL", (act(), act()), outputs=(index(),), tied=True, types=BOTH, versions=since(2, 5)),
    OpSpec("NOT_EQUAL", (act(), act()), outputs=(index(),), tied=True, types=BOTH, versions=since(2, 4)),
    OpSpec("GREATER", (act(), act()), outputs=(index(),), tied=True, types=BOTH, versions=since(2, 2)),
    OpSpec("GREATER_EQUAL", (act(), act()), outputs=(index(),), tied=True, types=BOTH, versions=since(2, 3)),
    OpSpec("LESS", (act(), act()), outputs=(index(),), tied=True, types=BOTH, versions=since(2, 3)),
    OpSpec("LESS_EQUAL", (act(), act()), outputs=(index(),), tied=True, types=BOTH, versions=since(2, 2)),
    # Only a shape is read: any type will do, and no value is quantized.
    OpSpec("SHAPE", (shape_of(),), outputs=(index(),)),
    OpSpec("RANK", (shape_of(),), outputs=(index(),)),
)
# fmt: on

OPS: Mapping[str, OpSpec] = {row.kind: row for row in ROWS}

UNPACKING = frozenset({"DEQUANTIZE", "DENSIFY"})
"""Ops that give constants the form in which they are computed with."""

CONVERSIONS = frozenset({"QUANTIZE", "DEQUANTIZE"})
"""Ops that only change how numbers are stored."""

UNPACKED_SINCE: Mapping[str, int] = {
    "uint8": 1,
    "int8": 2,
    "int16": 3,
    "float16": 3,
    "per_axis": 5,
    "int4": 6,
    "int2": 7,
}
"""The lowest version of DEQUANTIZE that takes a type, or a scale for each channel."""
