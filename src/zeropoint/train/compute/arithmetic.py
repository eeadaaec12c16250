"""Elementwise arithmetic, comparisons and activations; normalizations and reductions along an axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from keras import ops

from ..backend import held_type
from .call import Call, Compute


def elementwise(function: Callable[..., Any]) -> Compute:
    """Return a function of all inputs, with broadcasting."""
    return lambda call: function(*call.inputs)


def _leaky_relu(x: Any, slope: Any) -> Any:
    return ops.where(x >= 0, x, x * slope)


def _hard_swish(x: Any) -> Any:
    return x * ops.clip(x + 3.0, 0.0, 6.0) / 6.0


def _l2_normalize(x: Any) -> Any:
    length = ops.sqrt(ops.maximum(ops.sum(ops.square(x), axis=-1, keepdims=True), 1e-12))
    return x / ops.maximum(length, 1e-6)


def _select(call: Call) -> Any:
    condition, chosen, other = call[0], call[1], call[2]
    if call.op.kind == "SELECT" and len(condition.shape) == 1 and len(chosen.shape) > 1:  # one for each row
        condition = ops.reshape(condition, (-1, *(1,) * (len(chosen.shape) - 1)))
    return ops.where(condition, chosen, other)


def reduced(function: Callable[..., Any]) -> Compute:
    """Return a reduction along known axes."""
    return lambda call: function(call[0], axis=call.axes(1), keepdims=bool(call.option("keepDims", False)))


def searched(function: Callable[..., Any]) -> Compute:
    """Return a function for the index of an extreme along a known axis."""

    def compute(call: Call) -> Any:
        (axis,) = call.axes(1)
        return ops.cast(function(call[0], axis=axis), held_type(call.op.outputs[0].dtype))

    return compute


def _cumulated(call: Call) -> Any:
    x = call[0]
    (axis,) = call.axes(1)
    x = ops.flip(x, axis) if call.option("reverse", False) else x
    total = ops.cumsum(x, axis=axis)
    total = total - x if call.option("exclusive", False) else total
    return ops.flip(total, axis) if call.option("reverse", False) else total


FUSED: Mapping[str, Callable[[Any], Any]] = {
    "NONE": lambda x: x,
    "RELU": ops.relu,
    "RELU_N1_TO_1": lambda x: ops.clip(x, -1.0, 1.0),
    "RELU6": lambda x: ops.clip(x, 0.0, 6.0),
    "TANH": ops.tanh,
    "SIGN_BIT": lambda x: ops.cast(x < 0, x.dtype),
}
"""Fused activation functions, by name."""

COMPUTE: Mapping[str, Compute] = {
    "ADD": elementwise(ops.add),
    "SUB": elementwise(ops.subtract),
    "MUL": elementwise(ops.multiply),
    "DIV": elementwise(ops.divide),
    "FLOOR_DIV": elementwise(ops.floor_divide),
    "FLOOR_MOD": elementwise(ops.mod),
    "POW": elementwise(ops.power),
    "SQUARED_DIFFERENCE": elementwise(lambda a, b: ops.square(ops.subtract(a, b))),
    "MAXIMUM": elementwise(ops.maximum),
    "MINIMUM": elementwise(ops.minimum),
    "ATAN2": elementwise(ops.arctan2),
    "EQUAL": elementwise(ops.equal),
    "NOT_EQUAL": elementwise(ops.not_equal),
    "GREATER": elementwise(ops.greater),
    "GREATER_EQUAL": elementwise(ops.greater_equal),
    "LESS": elementwise(ops.less),
    "LESS_EQUAL": elementwise(ops.less_equal),
    "LOGICAL_AND": elementwise(ops.logical_and),
    "LOGICAL_OR": elementwise(ops.logical_or),
    "LOGICAL_NOT": elementwise(ops.logical_not),
    "SELECT": _select,
    "SELECT_V2": _select,
    "RELU": elementwise(ops.relu),
    "RELU6": elementwise(FUSED["RELU6"]),
    "RELU_N1_TO_1": elementwise(FUSED["RELU_N1_TO_1"]),
    "RELU_0_TO_1": elementwise(lambda x: ops.clip(x, 0.0, 1.0)),
    "LEAKY_RELU": lambda call: _leaky_relu(call[0], float(call.option("alpha", 0.0))),
    "PRELU": elementwise(_leaky_relu),
    "ELU": elementwise(ops.elu),
    "GELU": lambda call: ops.gelu(call[0], approximate=bool(call.option("approximate", False))),
    "HARD_SWISH": elementwise(_hard_swish),
    "LOGISTIC": elementwise(ops.sigmoid),
    "TANH": elementwise(ops.tanh),
    "ABS": elementwise(ops.abs),
    "NEG": elementwise(ops.negative),
    "SIGN": elementwise(ops.sign),
    "SQRT": elementwise(ops.sqrt),
    "RSQRT": elementwise(ops.rsqrt),
    "SQUARE": elementwise(ops.square),
    "EXP": elementwise(ops.exp),
    "LOG": elementwise(ops.log),
    "SIN": elementwise(ops.sin),
    "COS": elementwise(ops.cos),
    "FLOOR": elementwise(ops.floor),
    "CEIL": elementwise(ops.ceil),
    "ROUND": elementwise(ops.round),
    "ZEROS_LIKE": elementwise(ops.zeros_like),
    "SOFTMAX": lambda call: ops.softmax(call[0] * float(call.option("beta", 1.0) or 1.0), axis=-1),
    "LOG_SOFTMAX": lambda call: ops.log_softmax(call[0], axis=-1),
    "L2_NORMALIZATION": lambda call: _l2_normalize(call[0]),
    "MEAN": reduced(ops.mean),
    "SUM": reduced(ops.sum),
    "REDUCE_MAX": reduced(ops.max),
    "REDUCE_MIN": reduced(ops.min),
    "REDUCE_PROD": reduced(ops.prod),
    "REDUCE_ANY": reduced(ops.any),
    "REDUCE_ALL": reduced(ops.all),
    "ARG_MAX": searched(ops.argmax),
    "ARG_MIN": searched(ops.argmin),
    "CUMSUM": _cumulated,
}
