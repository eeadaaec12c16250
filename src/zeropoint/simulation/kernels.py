"""The table of functions that simulate each op."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..graph.model import Op
from ..ops import CONVERSIONS, OpSpec
from ..ops.execution import execution_of
from ..ops.recurrent import LSTM
from . import conversion, dynamic_range, dynamic_recurrent, elementwise, functions, normalization, pooling, recurrent
from .dynamic_range import DynamicRange
from .movement import MOVING, moved
from .rules import Kernel, Rules
from .weighted import matrix_product, weighted

KERNELS: Mapping[str, Kernel] = {
    **dict.fromkeys(("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV"), weighted),
    **dict.fromkeys(MOVING, moved),
    "ABS": elementwise.absolute,
    "ADD": elementwise.add,
    "ARG_MAX": pooling.arg_max,
    "ARG_MIN": pooling.arg_min,
    "AVERAGE_POOL_2D": pooling.average_pool,
    "BATCH_MATMUL": matrix_product,
    "CAST": conversion.cast,
    "DEQUANTIZE": conversion.dequantize,
    "ELU": functions.table(functions.elu),
    "EQUAL": elementwise.compare(np.equal, orders=False),
    "EXP": functions.table(functions.exp),
    "GELU": functions.gelu_op,
    "GREATER": elementwise.compare(np.greater),
    "GREATER_EQUAL": elementwise.compare(np.greater_equal),
    "HARD_SWISH": functions.hard_swish,
    "L2_NORMALIZATION": normalization.l2_normalization,
    "LEAKY_RELU": elementwise.leaky_relu,
    "LESS": elementwise.compare(np.less),
    "LESS_EQUAL": elementwise.compare(np.less_equal),
    "LOG": functions.log_op,
    "LOGISTIC": functions.logistic,
    "LOG_SOFTMAX": normalization.log_softmax,
    "MAXIMUM": elementwise.choose(np.maximum),
    "MAX_POOL_2D": pooling.max_pool,
    "MEAN": pooling.mean,
    "MINIMUM": elementwise.choose(np.minimum),
    "MUL": elementwise.multiply_elements,
    "NOT_EQUAL": elementwise.compare(np.not_equal, orders=False),
    "PRELU": elementwise.prelu,
    "QUANTIZE": conversion.quantize,
    "REDUCE_MAX": pooling.reduce_max,
    "REDUCE_MIN": pooling.reduce_min,
    "RELU": elementwise.clamp(0.0, np.inf),
    "RELU6": lambda call: call.rules.relu6(call),
    "RELU_0_TO_1": elementwise.clamp(0.0, 1.0),
    "RELU_N1_TO_1": elementwise.clamp(-1.0, 1.0),
    "RESIZE_BILINEAR": pooling.resize_bilinear,
    "RESIZE_NEAREST_NEIGHBOR": pooling.resize_nearest_neighbor,
    "RSQRT": lambda call: call.rules.reciprocal_root(call),
    "SOFTMAX": normalization.softmax,
    "SQRT": functions.square_root,
    "SQUARED_DIFFERENCE": elementwise.squared_difference,
    "SUB": elementwise.subtract,
    "SVDF": recurrent.svdf,
    "TANH": functions.hyperbolic_tangent,
    "TOPK_V2": pooling.top_k,
    LSTM: recurrent.lstm,
}


HYBRID_KERNELS: Mapping[str, tuple[Kernel, Callable[[Op, DynamicRange, OpSpec | None], bool]]] = {
    **dict.fromkeys(dynamic_range.LITERT, (dynamic_range.hybrid, dynamic_range.has_layer)),
    "BIDIRECTIONAL_SEQUENCE_LSTM": (dynamic_recurrent.both_ways, lambda op, *_: dynamic_recurrent.has_both_ways(op)),
    "EMBEDDING_LOOKUP": (dynamic_range.embedding_lookup, lambda *_: True),
    "SVDF": (dynamic_recurrent.svdf, lambda *_: True),
    LSTM: (dynamic_recurrent.lstm, lambda op, *_: dynamic_recurrent.has_lstm(op)),
}
"""For float data with integer weights: the function that simulates the op, and whether it supports this instance."""


def kernel_of(op: Op, rules: Rules, ops: Mapping[str, OpSpec]) -> Kernel | None:
    """Return the function that simulates this op; None if there is none."""
    if op.kind in CONVERSIONS:
        return KERNELS[op.kind]
    execution = execution_of(op, ops)
    if execution == "hybrid":
        if rules.dynamic is None or op.kind not in HYBRID_KERNELS:
            return None
        kernel, is_known = HYBRID_KERNELS[op.kind]
        return kernel if is_known(op, rules.dynamic, ops.get(op.kind)) else None
    if op.kind in MOVING:
        return moved
    is_plain = op.kind != LSTM or recurrent.is_plain(op)
    return KERNELS.get(op.kind) if execution == "integer" and is_plain else None
