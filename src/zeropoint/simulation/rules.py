"""What tells one set of kernels from another: LiteRT's reference kernels, its optimized ones, XNNPACK, and TFLM.

Each field is a kind of arithmetic that they do not share; whatever has no field is the same in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ..dtypes import Array, DType
from ..graph.model import Graph, Model, Op
from . import conversion, elementwise, functions, movement, normalization, pooling
from .call import Call, Computed
from .elementwise import BinaryFunction
from .rescaling import FixedPoint, Float64, Rescaling

KernelSet = Literal["reference", "tflm"]
KERNEL_SETS: tuple[KernelSet, ...] = ("reference", "tflm")

Kernel = Callable[[Call], Computed]


@dataclass(frozen=True)
class Rules:
    """How sums of products, sums, ratios of scales, averages and functions become integers."""

    name: str
    convolution: Rescaling
    dense: Rescaling
    matrix: Rescaling
    product: Rescaling
    ratio: Rescaling
    requantize: Rescaling
    add: Callable[[Call, BinaryFunction], Computed]
    subtract: Callable[[Call, BinaryFunction], Computed]
    quantize: Callable[[Call], Array]
    sigmoid: Callable[[Call, bool], Computed]
    softmax: Kernel
    log_softmax: Kernel
    average: Kernel
    mean: Kernel
    bilinear: Kernel
    relu6: Kernel
    reciprocal_root: Kernel
    ordered_by_scale: frozenset[DType]
    block_filler: Callable[[Call], int]


FLOAT32 = np.float32
RATIO = FixedPoint(FLOAT32, FLOAT32)

REFERENCE = Rules(
    name="reference",
    convolution=FixedPoint(),
    dense=Float64(),
    matrix=FixedPoint(FLOAT32),
    product=RATIO,
    ratio=RATIO,
    requantize=FixedPoint(),
    add=elementwise.fixed_point_sum,
    subtract=elementwise.fixed_point_sum,
    quantize=conversion.quantize_half_away,
    sigmoid=functions.sigmoid_by_table,
    softmax=normalization.softmax_in_fixed_point,
    log_softmax=normalization.log_softmax_in_fixed_point,
    average=pooling.average_of_integers,
    mean=pooling.mean_in_fixed_point,
    bilinear=pooling.bilinear_in_integers,
    relu6=elementwise.clamp(0.0, 6.0),
    reciprocal_root=functions.reciprocal_root,
    ordered_by_scale=frozenset({DType.INT8, DType.UINT8}),
    block_filler=movement.real_zero,
)
TFLM = replace(
    REFERENCE,
    name="tflm",
    dense=FixedPoint(FLOAT32),
    sigmoid=functions.sigmoid_in_fixed_point,
    relu6=elementwise.clamp_unscaled(6.0),
    reciprocal_root=functions.reciprocal_root_in_fixed_point,
    ordered_by_scale=frozenset({DType.INT8, DType.INT16}),
    block_filler=lambda _: 0,  # whatever the zero point is
)


def rules_for(model: Model, graph: Graph, kernels: KernelSet) -> Mapping[Op, Rules]:  # noqa: ARG001
    """The rules that each op is computed by."""
    return dict.fromkeys(graph.ops, TFLM if kernels == "tflm" else REFERENCE)
