"""What integer kernels compute from whole numbers, in `keras.ops`: one function for each kind that rounds in its own
way.

`zeropoint.simulation` is the reference, and its rules say which arithmetic computes an op; tests compare the two op by
op. Nothing here has a gradient: a trained graph takes its values from here, and gradients from the float op.
"""

from __future__ import annotations

from collections.abc import Mapping

from keras import ops

from ...ops.recurrent import LSTM
from . import elementwise, functions, recurrent, reductions
from .call import IntegerCall, IntegerKernel, Integers

__all__ = ["KERNELS", "NEARLY_ROUNDED", "IntegerCall", "IntegerKernel", "Integers"]

KERNELS: Mapping[str, IntegerKernel] = {
    "ABS": elementwise.absolute,
    "ADD": elementwise.add,
    "AVERAGE_POOL_2D": reductions.average_pool,
    "BATCH_MATMUL": elementwise.matrix_product,
    "ELU": functions.table(functions.elu),
    "EQUAL": elementwise.compare(ops.equal, orders=False),
    "EXP": functions.table(functions.plain(ops.exp)),
    "GELU": functions.gelu_op,
    "GREATER": elementwise.compare(ops.greater),
    "GREATER_EQUAL": elementwise.compare(ops.greater_equal),
    "HARD_SWISH": functions.hard_swish,
    "LEAKY_RELU": elementwise.leaky_relu,
    "LESS": elementwise.compare(ops.less),
    "LESS_EQUAL": elementwise.compare(ops.less_equal),
    "LOG": functions.log,
    "LOGISTIC": functions.logistic,
    "LOG_SOFTMAX": reductions.log_softmax,
    "MEAN": reductions.mean,
    "MUL": elementwise.multiply,
    "NOT_EQUAL": elementwise.compare(ops.not_equal, orders=False),
    "PRELU": elementwise.prelu,
    "RELU": elementwise.clamp(0.0, float("inf")),
    "RELU6": elementwise.clamp(0.0, 6.0),
    "RELU_0_TO_1": elementwise.clamp(0.0, 1.0),
    "RELU_N1_TO_1": elementwise.clamp(-1.0, 1.0),
    "RESIZE_BILINEAR": reductions.resize_bilinear,
    "RSQRT": functions.reciprocal_root,
    "SOFTMAX": reductions.softmax,
    "SQRT": functions.square_root,
    "SQUARED_DIFFERENCE": elementwise.squared_difference,
    "SUB": elementwise.subtract,
    "TANH": functions.hyperbolic_tangent,
    LSTM: recurrent.lstm,
}
"""Layers with weights are computed by the graph itself, and ops that only move values need no kernel."""

NEARLY_ROUNDED = frozenset(
    {
        "ABS",
        "ADD",
        "AVERAGE_POOL_2D",
        "BATCH_MATMUL",
        "MEAN",
        "MUL",
        "RELU",
        "RELU6",
        "RELU_0_TO_1",
        "RELU_N1_TO_1",
        "SUB",
    }
    | {"EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL", LSTM}
)
"""Kinds whose kernels differ from the rounded float result by one unit if that is nearly halfway between two integers:
in training, that matters less than the time it takes."""
