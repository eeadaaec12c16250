"""Phones, desktops and servers: LiteRT with XNNPACK, the delegate that applications get by default.

tests/targets/test_cpu.py checks every row and condition against the delegate with a one-op model, so that a new LiteRT
shows what has changed.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..dtypes import DType
from .conditions import (
    ConstantOperand,
    DimensionMultiple,
    InputCount,
    Not,
    OperandTypes,
    OptionIn,
    OutputCount,
    OutputTypes,
    PoolCoversStride,
    PresentOperand,
    Rank,
    SameParameters,
    ScaleRatio,
    SlopeRatio,
    SymmetricOperand,
    Values,
)
from .litert import LITERT
from .target import Costs, Rewrite, Target, TargetRule

FLOAT, INT8, UINT8 = (DType.FLOAT32,), (DType.INT8,), (DType.UINT8,)
EITHER = FLOAT + INT8
NARROW = (DType.INT4, DType.INT2)
INDICES = (DType.INT32,)

CONSTANT_LAYER = (ConstantOperand(1), PresentOperand(2), ConstantOperand(2))
SMALL = Rank(0, 6)
UNIT_STEPS = Values(3, 1, 1, "step")
KEEPS_AXES = (OptionIn("ellipsisMask", (0,), 0), OptionIn("newAxisMask", (0,), 0), OptionIn("shrinkAxisMask", (0,), 0))

# fmt: off
XNNPACK: tuple[TargetRule, ...] = (
    # One scale throughout; otherwise the delegate takes the op and then fails to load the model.
    TargetRule(("CONCATENATION", "MAX_POOL_2D"), INT8, (Not(SameParameters()),),
         speed="refused", reason="has other scales for its inputs than for its output", remedy=SameParameters.remedy),
    # Layers.
    TargetRule(("CONV_2D",), FLOAT, CONSTANT_LAYER, weights=FLOAT + INT8),
    TargetRule(("CONV_2D", "DEPTHWISE_CONV_2D"), INT8, CONSTANT_LAYER, weights=INT8),
    TargetRule(("DEPTHWISE_CONV_2D",), FLOAT, CONSTANT_LAYER, weights=FLOAT),
    TargetRule(("TRANSPOSE_CONV",), EITHER, (ConstantOperand(1),), weights=FLOAT + INT8),
    TargetRule(("FULLY_CONNECTED",), EITHER, (ConstantOperand(1),), weights=FLOAT + INT8),
    TargetRule(("FULLY_CONNECTED",), EITHER, (ConstantOperand(1), DimensionMultiple(1, -1, 2)), weights=NARROW),
    TargetRule(("BATCH_MATMUL",), FLOAT, (Rank(2, 6),), weights=FLOAT + INT8),
    TargetRule(("BATCH_MATMUL",), INT8, (Rank(2, 6), SymmetricOperand(1))),
    # Arithmetic.
    TargetRule(("ADD", "SUB"), INT8, (SMALL, ScaleRatio(2**-10, 2**8, (0,)), ScaleRatio(2**-10, 2**8, (1,)))),
    TargetRule(("MUL",), INT8, (SMALL, ScaleRatio(2**-16, 2**8, (0, 1)))),
    TargetRule(("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE"), FLOAT, (SMALL,)),
    TargetRule(("PRELU",), FLOAT, (SMALL, ConstantOperand(1)), weights=FLOAT),
    # Functions of one value.
    TargetRule(("LOGISTIC", "TANH", "ELU"), EITHER, (SMALL,)),
    TargetRule(("LEAKY_RELU",), INT8, (SMALL, ScaleRatio(2**-8, 2**7, closed=True), SlopeRatio(2**-8, 2**7))),
    TargetRule(("LEAKY_RELU", "RELU", "RELU6", "RELU_N1_TO_1", "HARD_SWISH", "GELU", "ABS", "NEG", "SQUARE", "SQRT",
               "RSQRT", "EXP", "LOG", "SIN", "COS", "FLOOR", "CEIL", "ROUND"), FLOAT, (SMALL,)),
    TargetRule(("SOFTMAX",), FLOAT, (OptionIn("beta", (1.0,)),)),
    # Reductions, pooling and resizing.
    TargetRule(("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN"), EITHER, (ConstantOperand(1),)),
    TargetRule(("AVERAGE_POOL_2D",), FLOAT, (PoolCoversStride(),)),
    TargetRule(("MAX_POOL_2D",), EITHER, (PoolCoversStride(),)),
    TargetRule(("RESIZE_BILINEAR",), EITHER, (ConstantOperand(1),)),
    # Moving data.
    TargetRule(("RESHAPE", "TRANSPOSE"), EITHER, (SMALL,)),
    TargetRule(("PAD",), EITHER, (ConstantOperand(1), OperandTypes(1, INDICES), SMALL)),
    TargetRule(("CONCATENATION",), EITHER, (InputCount(2, 5),)),
    TargetRule(("SPLIT",), EITHER, (ConstantOperand(0), OutputCount(2, 4))),
    TargetRule(("SLICE",), EITHER, (ConstantOperand(1), ConstantOperand(2), Values(2, 0, math.inf, "size"))),
    TargetRule(("STRIDED_SLICE",), EITHER, (*(ConstantOperand(k) for k in (1, 2, 3)), UNIT_STEPS, *KEEPS_AXES)),
    TargetRule(("SPACE_TO_DEPTH", "DEPTH_TO_SPACE"), EITHER),
    # Conversions.
    TargetRule(("QUANTIZE",), FLOAT, (OutputTypes(INT8 + UINT8),)),
    TargetRule(("QUANTIZE",), INT8, (OutputTypes(INT8), ScaleRatio(2**-8, 2**7, closed=True))),
    TargetRule(("QUANTIZE",), UINT8, (OutputTypes(UINT8), ScaleRatio(2**-8, 2**7, closed=True))),
    TargetRule(("DEQUANTIZE",), INT8 + UINT8),
    TargetRule(("DEQUANTIZE",), FLOAT, (ConstantOperand(0), OperandTypes(0, (DType.FLOAT16, DType.INT8)))),
    # MediaPipe's custom ops.
    TargetRule(("Convolution2DTransposeBias",), FLOAT),
)
# fmt: on

SIGNED_ONLY = frozenset({"ELU", "BATCH_MATMUL", "SLICE", "SUM", "QUANTIZE", "DEQUANTIZE"})
"""Kinds that the delegate takes in int8 but not in uint8, or that have separate uint8 rows."""


def unsigned(rule: TargetRule) -> TargetRule | None:
    """Return the row for uint8, the older type of models, if the delegate takes it like int8."""
    kinds = tuple(kind for kind in rule.kinds if kind not in SIGNED_ONLY)
    if DType.INT8 not in rule.activations or not kinds or (rule.weights and DType.INT8 not in rule.weights):
        return None
    return replace(rule, kinds=kinds, activations=UINT8, weights=UINT8 if rule.weights else ())


XNNPACK += tuple(row for rule in XNNPACK if (row := unsigned(rule)) is not None)

CPU = Target(
    "cpu",
    "phones, desktops and servers: LiteRT with XNNPACK; ops that it lacks in integers stay float if that is faster",
    "XNNPACK",
    XNNPACK,
    source="the delegate itself, asked op by op by tests/targets/test_cpu.py",
    version="ai-edge-litert 2.3",
    fallback=LITERT,
    rewrites=(
        Rewrite.SHORT_CONCATENATIONS,
        Rewrite.UNIT_STEPS,
        Rewrite.PLAIN_CLAMPS,
        Rewrite.LINEAR_LAYERS,
        Rewrite.PIXEL_SHUFFLE,
        Rewrite.SPACE_TO_DEPTH,
        Rewrite.GATED_WEIGHTS,
    ),
    costs=Costs(),
)
