"""TensorFlow Lite Micro, which runs models on microcontrollers: the kernels of its portable build.

The facts were found by running one-op models in its interpreter; tests/targets/test_tflm.py does so again.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..dtypes import DType
from ..ops.recurrent import Gate, LstmSlot
from .conditions import (
    AbsentOperand,
    Condition,
    ConstantOperand,
    InputCount,
    OperandTypes,
    OptionIn,
    OutputTypes,
    PresentOperand,
    Rank,
    ZeroOperand,
)
from .device_conditions import KnownToHaveOneScale
from .target import Rewrite, Target, TargetRule

FLOAT, INT8, INT16, INT32, INT64 = DType.FLOAT32, DType.INT8, DType.INT16, DType.INT32, DType.INT64
BOOL, UINT8, INT4 = DType.BOOL, DType.UINT8, DType.INT4
BOTH = (INT8, INT16)
NUMBERS = (FLOAT, INT8, INT16, INT32, BOOL)
"""Types that CAST converts between, and that STRIDED_SLICE takes."""

NO_OFFSET = OptionIn("offset", (False,), False)
"""The kernel of STRIDED_SLICE takes its ends for positions, even if they are given relative to its begins."""

SOFTWARE = "computes in float, which microcontrollers without an FPU emulate in software"
PLAIN_LSTM = (
    InputCount(24, 24),
    PresentOperand(Gate.INPUT.weights, "input gate"),
    AbsentOperand(tuple(gate.peephole for gate in Gate if gate.peephole is not None), "peepholes"),
    AbsentOperand((LstmSlot.PROJECTION, LstmSlot.PROJECTION_BIAS), "a projection"),
    AbsentOperand(tuple(gate.normalization for gate in Gate), "layer normalization"),
)


def rows(
    kinds: str, types: Iterable[DType], *conditions: Condition, weights: tuple[DType, ...] = ()
) -> list[TargetRule]:
    """Return rules for ops of these kinds in these types; float is slow, and integer activations never have float
    weights."""
    known, every = tuple(kinds.split()), tuple(types)
    integers = tuple(t for t in every if t is not FLOAT)
    made = [TargetRule(known, integers, conditions, weights)] if integers else []
    if FLOAT in every:
        made.append(TargetRule(known, (FLOAT,), conditions, (FLOAT,), "slow", SOFTWARE, "quantize it"))
    return made


# fmt: off
RULES = (
    # Ops with weights. There are no hybrid kernels: weights are float if activations are.
    *rows("CONV_2D", (FLOAT, INT8), weights=(INT8, INT4)),
    *rows("CONV_2D", (INT16,), weights=(INT8,)),
    *rows("DEPTHWISE_CONV_2D TRANSPOSE_CONV FULLY_CONNECTED PRELU", (FLOAT, INT8, INT16), weights=(INT8,)),
    *rows("FULLY_CONNECTED", (INT8,), KnownToHaveOneScale(), weights=(INT4,)),
    *rows("BATCH_MATMUL", (FLOAT, INT8, INT16), Rank(2, 5), weights=BOTH),
    *rows("SVDF", (FLOAT, INT8), PresentOperand(3, "bias"), weights=(INT8,)),
    *rows("UNIDIRECTIONAL_SEQUENCE_LSTM", (FLOAT, INT8), *PLAIN_LSTM, weights=(INT8,)),
    # Arithmetic and functions.
    *rows("ADD SUB MUL", (FLOAT, INT8, INT16, INT32)),
    *rows("MAXIMUM MINIMUM", (FLOAT, INT8, INT16, INT32, INT64)),
    *rows("SQUARED_DIFFERENCE", (FLOAT, INT8, INT32)),
    *rows("DIV FLOOR_DIV FLOOR_MOD NEG SQUARE SIN COS FLOOR CEIL ROUND CUMSUM L2_POOL_2D SQRT EXP LOG", (FLOAT,)),
    *rows("RELU RELU6 ABS LEAKY_RELU LOGISTIC TANH SOFTMAX", (FLOAT, INT8, INT16)),
    *rows("ELU HARD_SWISH RSQRT LOG_SOFTMAX L2_NORMALIZATION", (FLOAT, INT8)),
    *rows("MEAN SUM AVERAGE_POOL_2D MAX_POOL_2D", (FLOAT, INT8, INT16)),
    *rows("REDUCE_MAX REDUCE_MIN", (FLOAT, INT8)),
    *rows("ARG_MAX ARG_MIN", (FLOAT, INT8), OutputTypes((INT32,))),
    *rows("RESIZE_BILINEAR", (FLOAT, INT8), ConstantOperand(1)),
    *rows("RESIZE_NEAREST_NEIGHBOR", (FLOAT, INT8, INT16), ConstantOperand(1)),
    # Moving data.
    *rows("RESHAPE SQUEEZE", (FLOAT, INT8, INT16, INT32, INT64, BOOL, UINT8)),
    *rows("BROADCAST_TO", (FLOAT, INT8, INT16, INT32, INT64, BOOL, UINT8), Rank(0, 5), ConstantOperand(1)),
    *rows("REVERSE_V2", (FLOAT, INT8, INT16, INT32, INT64, BOOL, UINT8)),
    *rows("TRANSPOSE", (FLOAT, INT8, INT16), Rank(0, 5), ConstantOperand(1)),
    *rows("EXPAND_DIMS", (FLOAT, INT8, INT16), ConstantOperand(1)),
    *rows("PACK", (FLOAT, INT8, INT16, INT32, INT64)),
    *rows("UNPACK", (FLOAT, INT8, INT16, INT32)),
    *rows("CONCATENATION", (FLOAT, INT8, INT16, INT32, INT64, BOOL), InputCount(1, 10)),
    *rows("SPLIT", (FLOAT, INT8, INT16, INT32), ConstantOperand(0)),
    *rows("SPLIT_V", (FLOAT, INT8, INT16, INT32), ConstantOperand(2)),
    *rows("SLICE", (FLOAT, INT8, INT16, INT32, BOOL), Rank(0, 5)),
    *rows("STRIDED_SLICE", NUMBERS, Rank(0, 4), *map(ConstantOperand, (1, 2, 3)), NO_OFFSET),
    *rows("PAD PADV2", (FLOAT, INT8, INT16, INT32), Rank(0, 5), ConstantOperand(1)),
    *rows("MIRROR_PAD GATHER GATHER_ND EMBEDDING_LOOKUP", (FLOAT, INT8)),
    *rows("SPACE_TO_DEPTH DEPTH_TO_SPACE BATCH_TO_SPACE_ND", (FLOAT, INT8)),
    *rows("SPACE_TO_BATCH_ND", (FLOAT,)),
    *rows("SPACE_TO_BATCH_ND", (INT8,), ZeroOperand(2, "padding")),  # it pads with integer 0, ignoring the zero point
    *rows("DYNAMIC_UPDATE_SLICE", (FLOAT, INT8, INT16, INT32)),
    *rows("FILL", (FLOAT, INT8, INT32), ConstantOperand(0)),
    *rows("SELECT_V2 ZEROS_LIKE", (FLOAT, INT8, INT16)),
    # Booleans, shapes, conversions, control flow.
    *rows("EQUAL NOT_EQUAL", (FLOAT, INT8, INT32, INT64, BOOL)),
    *rows("GREATER GREATER_EQUAL LESS LESS_EQUAL", (FLOAT, INT8, INT32, INT64)),  # int16: it ignores the scales
    *rows("LOGICAL_AND LOGICAL_OR LOGICAL_NOT REDUCE_ALL", (BOOL,)),
    TargetRule(("SHAPE",)),
    TargetRule(("CAST",), NUMBERS, (OutputTypes(NUMBERS),)),
    TargetRule(("QUANTIZE",), (FLOAT, INT16), (OutputTypes(BOTH),)),
    TargetRule(("QUANTIZE",), (INT8,), (OutputTypes((INT8, INT16, UINT8)),)),
    TargetRule(("QUANTIZE",), (UINT8,), (OutputTypes((INT8,)),)),
    TargetRule(("DEQUANTIZE",), (), (OperandTypes(0, (INT8, INT16, UINT8)), OutputTypes((FLOAT,)))),  # constants too
    TargetRule(("IF", "WHILE", "CALL_ONCE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE")),
)
# fmt: on

TFLM_REWRITES = (Rewrite.FIXED_SHAPES, Rewrite.PLAIN_CLAMPS, Rewrite.SELECT_V2, Rewrite.LONG_LSTM)

TFLM = Target(
    "tflm",
    "TensorFlow Lite Micro on a microcontroller: integers, shapes that never change, no hybrid arithmetic",
    "TFLM's kernels",
    RULES,
    source="its interpreter, asked op by op by tests/targets/test_tflm.py",
    version="tflite-micro of October 2026",
    rewrites=TFLM_REWRITES,
    tool="tflm",
)

IRREGULAR = {
    "BATCH_MATMUL": "BatchMatMul",
    "CUMSUM": "CumSum",
    "PADV2": "PadV2",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "UnidirectionalSequenceLSTM",
    "ethos-u": "EthosU",
}
"""Ops whose resolver method does not follow from their name."""


def resolver_method(label: str) -> str:
    """Return the method of MicroMutableOpResolver that adds an op: AddConv2D for CONV_2D."""
    regular = "".join(part if part[0].isdigit() else part.capitalize() for part in label.split("_"))
    return f"Add{IRREGULAR.get(label, regular)}"
