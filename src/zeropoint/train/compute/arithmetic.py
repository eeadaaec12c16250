"""Sums, products, comparisons, functions of one value, and the normalizations along an axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from keras import ops

from .call import Call, Compute


def one(function: Callable[[Any], Any]) -> Compute:
    """A function of the only input."""
    return lambda call: function(call[0])


def two(function: Callable[[Any, Any], Any]) -> Compute:
    """A function of two inputs that broadcast."""
    return lambda call: function(call[0], call[1])


def clipped(low: float, high: float) -> Compute:
    return lambda call: ops.clip(call[0], low, high)


def _gelu(call: Call) -> Any:
    return ops.gelu(call[0], approximate=bool(call.option("approximate", False)))


def _leaky_relu(call: Call) -> Any:
    x = call[0]
    return ops.where(x >= 0, x, x * float(call.option("alpha", 0.0)))


def _prelu(call: Call) -> Any:
    x, slope = call[0], call[1]
    return ops.where(x >= 0, x, x * slope)


def _hard_swish(x: Any) -> Any:
    return x * ops.clip(x + 3.0, 0.0, 6.0) / 6.0


def _softmax(call: Call) -> Any:
    return ops.softmax(call[0] * float(call.option("beta", 1.0) or 1.0), axis=-1)


def _l2_normalize(x: Any) -> Any:
    length = ops.sqrt(ops.maximum(ops.sum(ops.square(x), axis=-1, keepdims=True), 1e-12))
    return x / ops.maximum(length, 1e-6)


def _select(call: Call) -> Any:
    condition, chosen, other = call[0], call[1], call[2]
    if call.op.kind == "SELECT" and len(condition.shape) == 1 and len(chosen.shape) > 1:  # one for each row
        condition = ops.reshape(condition, (-1, *(1,) * (len(chosen.shape) - 1)))
    return ops.where(condition, chosen, other)


def _squared_difference(a: Any, b: Any) -> Any:
    return ops.square(ops.subtract(a, b))


def _floor_mod(a: Any, b: Any) -> Any:
    return ops.mod(a, b)


COMPUTE: Mapping[str, Compute] = {
    "ADD": two(ops.add),
    "SUB": two(ops.subtract),
    "MUL": two(ops.multiply),
    "DIV": two(ops.divide),
    "FLOOR_DIV": two(ops.floor_divide),
    "FLOOR_MOD": two(_floor_mod),
    "POW": two(ops.power),
    "SQUARED_DIFFERENCE": two(_squared_difference),
    "MAXIMUM": two(ops.maximum),
    "MINIMUM": two(ops.minimum),
    "ATAN2": two(ops.arctan2),
    "EQUAL": two(ops.equal),
    "NOT_EQUAL": two(ops.not_equal),
    "GREATER": two(ops.greater),
    "GREATER_EQUAL": two(ops.greater_equal),
    "LESS": two(ops.less),
    "LESS_EQUAL": two(ops.less_equal),
    "LOGICAL_AND": two(ops.logical_and),
    "LOGICAL_OR": two(ops.logical_or),
    "LOGICAL_NOT": one(ops.logical_not),
    "SELECT": _select,
    "SELECT_V2": _select,
    "RELU": one(ops.relu),
    "RELU6": clipped(0.0, 6.0),
    "RELU_N1_TO_1": clipped(-1.0, 1.0),
    "RELU_0_TO_1": clipped(0.0, 1.0),
    "LEAKY_RELU": _leaky_relu,
    "PRELU": _prelu,
    "ELU": one(ops.elu),
    "GELU": _gelu,
    "HARD_SWISH": one(_hard_swish),
    "LOGISTIC": one(ops.sigmoid),
    "TANH": one(ops.tanh),
    "ABS": one(ops.abs),
    "NEG": one(ops.negative),
    "SIGN": one(ops.sign),
    "SQRT": one(ops.sqrt),
    "RSQRT": one(ops.rsqrt),
    "SQUARE": one(ops.square),
    "EXP": one(ops.exp),
    "LOG": one(ops.log),
    "SIN": one(ops.sin),
    "COS": one(ops.cos),
    "FLOOR": one(ops.floor),
    "CEIL": one(ops.ceil),
    "ROUND": one(ops.round),
    "ZEROS_LIKE": one(ops.zeros_like),
    "SOFTMAX": _softmax,
    "LOG_SOFTMAX": lambda call: ops.log_softmax(call[0], axis=-1),
    "L2_NORMALIZATION": one(_l2_normalize),
}

FUSED: Mapping[str, Callable[[Any], Any]] = {
    "NONE": lambda x: x,
    "RELU": ops.relu,
    "RELU_N1_TO_1": lambda x: ops.clip(x, -1.0, 1.0),
    "RELU6": lambda x: ops.clip(x, 0.0, 6.0),
    "TANH": ops.tanh,
    "SIGN_BIT": lambda x: ops.cast(x < 0, x.dtype),
}
"""Activations that an op applies to its output, by name."""
