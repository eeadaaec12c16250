"""What distinguishes sets of kernels: LiteRT's reference kernels, its optimized kernels, XNNPACK and TFLM.

Each field is a kind of arithmetic in which they differ; whatever has no field is the same in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ..dtypes import Array, DType
from ..graph.model import Graph, Model, Op
from ..runtime import Session
from . import conversion, dynamic_range, elementwise, functions, movement, normalization, pooling
from .call import Computed, KernelCall
from .dynamic_range import DENSE, MATRICES, DynamicRange
from .elementwise import RATIO, BinaryFunction
from .recurrent import CellArithmetic, FixedPointCell, TableCell
from .rescaling import EightBits, FixedPoint, FixedPointUpwards, Float32, Float64, Rescaling, WideFixedPoint

KernelSet = Literal["reference", "xnnpack", "tflm"]
KERNEL_SETS: tuple[KernelSet, ...] = ("reference", "xnnpack", "tflm")

Kernel = Callable[[KernelCall], Computed]


@dataclass(frozen=True)
class Rules:
    """How one set of kernels requantizes accumulators, sums, scale ratios and averages, and computes functions."""

    name: str
    layers: Mapping[str, Rescaling]
    wide_layers: Mapping[str, Rescaling]
    narrow_without_bias: frozenset[str]
    grouped: Rescaling
    product: Rescaling
    ratio: Rescaling
    leak: Rescaling
    slopes: Rescaling
    requantize: Rescaling
    add: Callable[[KernelCall, BinaryFunction], Computed]
    subtract: Callable[[KernelCall, BinaryFunction], Computed]
    quantize: Callable[[KernelCall], Array]
    sigmoid: Callable[[KernelCall, bool], Computed]
    softmax: Kernel
    log_softmax: Kernel
    average: Kernel
    mean: Kernel
    bilinear: Kernel
    relu6: Kernel
    reciprocal_root: Kernel
    ordered_by_scale: frozenset[DType]
    block_filler: Callable[[KernelCall], int]
    cell: CellArithmetic
    dynamic: DynamicRange | None


CONVOLUTIONS = ("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV")
FLOAT32 = np.float32

REFERENCE = Rules(
    name="reference",
    layers={**dict.fromkeys(CONVOLUTIONS, FixedPoint()), DENSE: Float64(), MATRICES: FixedPoint(FLOAT32)},
    wide_layers={
        **dict.fromkeys(CONVOLUTIONS, WideFixedPoint()),
        DENSE: Float64(),
        MATRICES: WideFixedPoint(FLOAT32),
    },
    narrow_without_bias=frozenset(),
    grouped=FixedPoint(),
    product=RATIO,
    ratio=RATIO,
    leak=RATIO,
    slopes=RATIO,
    requantize=FixedPoint(),
    add=elementwise.fixed_point_sum,
    subtract=elementwise.fixed_point_sum,
    quantize=conversion.quantize_half_away,
    sigmoid=functions.sigmoid_by_table,
    softmax=normalization.softmax_in_fixed_point,
    log_softmax=normalization.log_softmax_in_fixed_point,
    average=pooling.average_of_integers,
    mean=pooling.mean_in_fixed_point,
    bilinear=pooling.bilinear(pooling.pixel_by_pixel),
    relu6=elementwise.clamp(0.0, 6.0),
    reciprocal_root=functions.reciprocal_root,
    ordered_by_scale=frozenset({DType.INT8, DType.UINT8}),
    block_filler=movement.real_zero,
    cell=FixedPointCell(),
    dynamic=dynamic_range.REFERENCE,
)
TFLM = replace(
    REFERENCE,
    name="tflm",
    layers={**REFERENCE.layers, DENSE: FixedPoint(FLOAT32)},
    wide_layers={**REFERENCE.wide_layers, DENSE: WideFixedPoint(FLOAT32)},
    product=FixedPoint(),
    slopes=FixedPoint(),
    sigmoid=functions.sigmoid_in_fixed_point,
    relu6=elementwise.clamp_unscaled(6.0),
    reciprocal_root=functions.reciprocal_root_in_fixed_point,
    block_filler=lambda _: 0,  # whatever the zero point is
    cell=TableCell(),
    dynamic=None,  # TFLM rejects float data with integer weights
)


OPTIMIZED = replace(
    REFERENCE,
    name="optimized",
    layers={**REFERENCE.layers, "CONV_2D": FixedPointUpwards(), DENSE: FixedPointUpwards(FLOAT32)},
    narrow_without_bias=frozenset({DENSE}),
    add=elementwise.vectorized_sum,
    quantize=conversion.quantize_by_reciprocal,
    softmax=normalization.softmax_in_float,
    log_softmax=normalization.log_softmax_in_float,
    bilinear=pooling.bilinear(pooling.weight_by_weight),
    dynamic=dynamic_range.OPTIMIZED,
)
XNNPACK = replace(
    OPTIMIZED,
    name="xnnpack",
    layers=dict.fromkeys((*CONVOLUTIONS, DENSE, MATRICES), Float32()),
    grouped=Float32(),
    product=Float32(),
    ratio=EightBits(),
    leak=EightBits(),
    requantize=EightBits(),
    add=elementwise.sum_of_21_bits,
    subtract=elementwise.sum_of_21_bits,
    quantize=conversion.quantize_half_even,
    mean=pooling.mean_in_float32,
    bilinear=pooling.bilinear_in_11_bits,
    dynamic=dynamic_range.XNNPACK,
)


def rules_for(model: Model, graph: Graph, kernels: KernelSet) -> Mapping[Op, Rules]:
    """Return the rules for each op. LiteRT itself is asked which ops its delegate, XNNPACK, takes."""
    if kernels != "xnnpack":
        return dict.fromkeys(graph.ops, TFLM if kernels == "tflm" else REFERENCE)
    alone = Model([graph, *(other for other in model.graphs if other is not graph)])
    session = Session(alone, kernels="delegate")
    if not session.is_allocated:  # the delegate is applied when tensors are allocated
        session.resize([tensor.shape for tensor in graph.inputs], strict=False)
    taken = session.delegated()
    return {op: XNNPACK if place in taken else OPTIMIZED for place, op in enumerate(graph.ops)}
