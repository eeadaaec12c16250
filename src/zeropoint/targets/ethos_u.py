"""Arm's Ethos-U: NPUs next to a Cortex-M, which runs the remaining ops in TensorFlow Lite Micro.

The facts come from Vela's own report (`vela --supported-ops-report`) and from compiling one-op models:
tests/targets/test_ethos_u.py compiles them again.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dtypes import DType
from .conditions import Condition, ConstantOperand, Not, OptionIn, OutputTypes, SameParameters
from .device_conditions import (
    BiasBelow,
    EitherOf,
    Factors,
    NoScalars,
    NoType,
    OneBatch,
    OnlyBatchOpen,
    OptionBelow,
)
from .target import Target, TargetRule
from .tflm import PLAIN_LSTM, TFLM, TFLM_REWRITES
from .typed_op import TypedOp

FLOAT, INT8, INT16, UINT8 = DType.FLOAT32, DType.INT8, DType.INT16, DType.UINT8
INT32, INT64 = DType.INT32, DType.INT64
BOTH, BYTES, ANY = (INT8, INT16), (INT8, UINT8), (INT8, INT16, UINT8)
NARROW = (DType.INT4, DType.INT2)
STRIDES = ("strideW", "strideH")
VALID = OptionIn("padding", (1,))
GENERAL = (OnlyBatchOpen(), NoScalars())
SHORT_STRIDES = OptionBelow(STRIDES, 3)
SMALL_WINDOW = OptionBelow(("filterWidth", "filterHeight"), 8)


@dataclass(frozen=True)
class MeanFits(Condition):
    """Vela averages over depth only if the image has a side of 1, and over at most 4095 elements of an axis."""

    remedy = "average in two steps, or transpose"

    def broken(self, op: TypedOp) -> str | None:
        source, values = op.input(0), op.constant(1)
        if source is None or values is None:
            return None
        rank = len(source.shape)
        reduced = {int(a) % rank for a in values.ravel()} if rank else set()
        image = (1, 1, 1, *source.shape)[-3:]
        if rank - 1 in reduced and 1 not in image:
            return "averages over channels"
        return "averages over 4096 elements or more" if any(source.shape[a] >= 4096 for a in reduced) else None


@dataclass(frozen=True)
class ForwardSlices(Condition):
    """Slices run forwards, with strides only over rows and columns."""

    remedy = "slice without steps"

    def broken(self, op: TypedOp) -> str | None:
        source, values = op.input(0), op.constant(3)
        if values is None or source is None:
            return None
        if (values < 0).any():
            return "slices backwards"
        rank = len(source.shape)
        steps = {k - rank for k, stride in enumerate(values) if stride > 1}
        return None if steps <= {-2, -3} else "slices in steps over channels or samples"


@dataclass(frozen=True)
class LastAxisUpTo(Condition):
    """The op works along the last axis, which has at most this many elements."""

    most: int
    remedy = "transpose its input"

    def broken(self, op: TypedOp) -> str | None:
        source, values = op.input(0), op.constant(1)
        if source is None or values is None:
            return None
        rank = len(source.shape)
        if any(int(a) % rank != rank - 1 for a in values.ravel()):
            return "works along another axis than the last"
        return f"has more than {self.most} elements along the last axis" if source.shape[-1] > self.most else None


def npu(kinds: str, types: tuple[DType, ...], *conditions: Condition) -> TargetRule:
    """Return the rule for ops that the NPU takes in these types; their weights have 8 bits."""
    return TargetRule(tuple(kinds.split()), types, (*GENERAL, *conditions), (*ANY, INT32))


def refused(reason: str, remedy: str, kinds: str, types: tuple[DType, ...], *conditions: Condition) -> TargetRule:
    return TargetRule(tuple(kinds.split()), types, conditions, speed="refused", reason=reason, remedy=remedy)


# fmt: off
FAILS = (
    refused("has weights of fewer than 8 bits, on which Vela crashes", "give it 8-bit weights", "", (),
            Not(NoType(NARROW))),
    refused("is not in 8 bits, on which Vela aborts the compilation", "quantize it to int8", "ARG_MAX HARD_SWISH",
            (FLOAT, INT16, INT32, DType.BOOL)),
    refused("computes in float, on which Vela aborts the compilation", "quantize it to int8",
            "UNIDIRECTIONAL_SEQUENCE_LSTM", (FLOAT,)),
    refused("computes in int16, on which Vela fails", "quantize it to int8", "PRELU", (INT16,)),
)
"""Ops on which the compilation ends without a result (Vela 5.2)."""

COMMON = (
    npu("ADD SUB MUL", (*ANY, INT32)),
    npu("MAXIMUM MINIMUM", ANY, SameParameters()),
    npu("ABS RELU RELU6 RELU_N1_TO_1 RELU_0_TO_1 LEAKY_RELU LOGISTIC TANH SOFTMAX", ANY),
    npu("EXP LOG RSQRT", BOTH),
    npu("HARD_SWISH GELU PRELU", BYTES),
    npu("ELU", (INT8,)),
    npu("SQUARED_DIFFERENCE", BOTH),
    npu("MEAN", ANY, ConstantOperand(1), OneBatch(), MeanFits()),
    npu("SUM REDUCE_MAX REDUCE_MIN", ANY),
    npu("MAX_POOL_2D", ANY, OptionBelow(("filterHeight",), 256)),
    npu("AVERAGE_POOL_2D", ANY, EitherOf((SMALL_WINDOW, VALID)), OptionBelow(("filterHeight",), 256)),
    npu("CONCATENATION PACK UNPACK SPLIT SPLIT_V TILE TRANSPOSE", ANY),
    npu("RESHAPE SQUEEZE EXPAND_DIMS", (*ANY, INT32)),
    npu("SLICE PAD PADV2 MIRROR_PAD", ANY, ConstantOperand(1)),
    npu("STRIDED_SLICE", ANY, *map(ConstantOperand, (1, 2, 3)), ForwardSlices()),
    npu("UNIDIRECTIONAL_SEQUENCE_LSTM", (INT8,), *PLAIN_LSTM),
    npu("QUANTIZE", ANY, OutputTypes(ANY)),
)


def family(limit: int) -> tuple[TargetRule, ...]:
    """Return the rules for layers with weights, whose 64-bit biases are at most `limit`."""
    small = limit < 2**40
    strides = (EitherOf((SHORT_STRIDES, VALID)),) if small else ()
    return (
        npu("CONV_2D", ANY, BiasBelow(2, limit), *strides),
        npu("DEPTHWISE_CONV_2D", ANY, BiasBelow(2, limit), *((SHORT_STRIDES,) if small else ())),
        npu("FULLY_CONNECTED", ANY, BiasBelow(2, limit)),
        npu("TRANSPOSE_CONV", ANY, BiasBelow(3, limit), *((OptionBelow(STRIDES, 2),) if small else ())),
    )


U55_RULES = (
    *FAILS,
    refused("has booleans, on which Vela fails", "end the model before it", "", (),
            Not(NoType((DType.BOOL,), but_scalars=True))),
    *family(2**40 - 1),
    *COMMON,
    npu("BATCH_MATMUL", (INT8,)),
    npu("ARG_MAX", BYTES, LastAxisUpTo(127)),
    npu("RESIZE_BILINEAR", ANY, Factors((2, 4, 8), (2,), alike=True)),
    npu("RESIZE_NEAREST_NEIGHBOR", ANY, Factors((2, 4, 8), (2, 4, 8), alike=True)),
)
POWERS = tuple(2**k for k in range(11))
COMPARISONS = "EQUAL NOT_EQUAL GREATER GREATER_EQUAL LESS LESS_EQUAL"
U85_RULES = (
    *FAILS,
    refused("computes in int64, on which Vela crashes", "compute it in int32",
            f"ADD SUB MUL MAXIMUM MINIMUM SUM REDUCE_MAX REDUCE_MIN SELECT SELECT_V2 {COMPARISONS}", (INT64,)),
    refused("computes in int32, on which Vela crashes", "subtract and multiply", "SQUARED_DIFFERENCE", (INT32,)),
    *family(2**48 - 1),
    *COMMON,
    npu(f"BATCH_MATMUL SELECT SELECT_V2 {COMPARISONS}", BOTH),
    npu("ARG_MAX", BYTES),
    npu("SCATTER_ND", (INT8,)),
    npu("RESIZE_BILINEAR", ANY, Factors(POWERS, POWERS, alike=False)),
    npu("RESIZE_NEAREST_NEIGHBOR REVERSE_V2", ANY),
    npu("LOGICAL_AND LOGICAL_OR LOGICAL_NOT", (DType.BOOL,)),
    npu("GATHER", BOTH, OptionIn("axis", (0,), 0), OptionIn("batchDims", (0,), 0)),
    npu("GATHER", BOTH, OptionIn("axis", (1,)), OptionIn("batchDims", (1,))),
)
# fmt: on

MACS = {"u55": (32, 64, 128, 256), "u65": (256, 512), "u85": (128, 256, 512, 1024, 2048)}
"""Multiply-accumulates per cycle, which distinguish the sizes of a family."""

ETHOS_U = tuple(
    Target(
        f"ethos-{series}-{macs}",
        f"Arm Ethos-{series.upper()} with {macs} multiply-accumulates per cycle, next to a Cortex-M that runs TFLM",
        "the NPU",
        U85_RULES if series == "u85" else U55_RULES,
        source="Vela's report of supported ops, and its compilation of every op by tests/targets/test_ethos_u.py",
        version="ethos-u-vela 5.2",
        fallback=TFLM,
        rewrites=TFLM_REWRITES,
        tool="vela",
    )
    for series, sizes in MACS.items()
    for macs in sizes
)
