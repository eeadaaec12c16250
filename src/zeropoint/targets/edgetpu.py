"""Google's Edge TPU (Coral). Its compiler is not a Python package, so no test runs it: these are the published
limits."""

from __future__ import annotations

from dataclasses import dataclass

from ..dtypes import DType
from .conditions import Condition, ConstantOperand, Fused, OptionIn, Rank, StaticShape, WeightBits
from .device_conditions import AlongAxes
from .litert import LITERT
from .target import Rewrite, Target, TargetRule
from .typed_op import TypedOp

BYTES = (DType.INT8, DType.UINT8)
SINGLE = Fused(("NONE",))


@dataclass(frozen=True)
class ThreeDimensions(Condition):
    """Only the three innermost dimensions are larger than 1."""

    remedy = "fix the batch to 1"

    def broken(self, op: TypedOp) -> str | None:
        wide = next((o.shape for o in op.operands if o.constant is None and any(d > 1 for d in o.shape[:-3])), None)
        return None if wide is None else f"has the shape {list(wide)}; only its last three dimensions may exceed 1"


@dataclass(frozen=True)
class UnitStrides(Condition):
    """A slice has unit strides."""

    remedy = "slice without steps"

    def broken(self, op: TypedOp) -> str | None:
        values = op.constant(3)
        return None if values is not None and (values == 1).all() else "slices in steps"


@dataclass(frozen=True)
class EqualDilation(Condition):
    """The dilation is the same in both directions."""

    remedy = "dilate rows and columns alike"

    def broken(self, op: TypedOp) -> str | None:
        width, height = (int(op.option(f"dilation{side}Factor", 1)) for side in "WH")
        return None if width == height else f"is dilated by {width} and {height}"


def tpu(kinds: str, *conditions: Condition) -> TargetRule:
    """Return the rule for ops that the Edge TPU takes in 8 bits: static shapes, constant weights."""
    return TargetRule(tuple(kinds.split()), BYTES, (StaticShape(), ThreeDimensions(), *conditions))


LAYER = (ConstantOperand(1), WeightBits((8,)))
RULES = (
    tpu("CONV_2D DEPTHWISE_CONV_2D", *LAYER, EqualDilation()),
    tpu("FULLY_CONNECTED", *LAYER, OptionIn("weightsFormat", (0,), 0)),
    tpu("TRANSPOSE_CONV", *LAYER),
    tpu("ADD SUB MUL MAXIMUM MINIMUM SQUARED_DIFFERENCE RSQRT"),
    tpu("RELU RELU6 RELU_N1_TO_1 LOGISTIC TANH L2_NORMALIZATION PRELU QUANTIZE"),
    tpu("AVERAGE_POOL_2D MAX_POOL_2D CONCATENATION", SINGLE),
    tpu("MEAN", AlongAxes(1, (-2, -3), "averages over another axis than rows and columns")),
    tpu("SUM REDUCE_MAX REDUCE_MIN", AlongAxes(1, (-1, -2, -3))),
    tpu("PAD", ConstantOperand(1)),
    tpu("RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR", Rank(4, 4)),
    tpu("RESHAPE SQUEEZE EXPAND_DIMS TRANSPOSE PACK SPLIT SLICE SPACE_TO_DEPTH"),
    tpu("STRIDED_SLICE", UnitStrides()),
    tpu("SOFTMAX"),
    tpu("UNIDIRECTIONAL_SEQUENCE_LSTM"),
)

EDGETPU = Target(
    "edgetpu",
    "Google Coral's Edge TPU, next to a CPU that runs LiteRT: int8 throughout; not checked by its compiler",
    "the Edge TPU",
    RULES,
    source='coral.ai, "TensorFlow models on the Edge TPU"; no compiler has confirmed it',
    version="edgetpu_compiler 16",
    fallback=LITERT,
    rewrites=(Rewrite.FIXED_SHAPES,),
)
