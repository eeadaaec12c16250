"""The float model with its values cut off where ranges end, which must make no difference; or shifted a little."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from zeropoint.affine import QuantParams
from zeropoint.dtypes import DType
from zeropoint.graph import Model, Op, Tensor
from zeropoint.graph.edit import copy_model
from zeropoint.improve.pipeline import Result
from zeropoint.tflite.schema import default_options

MOST_AXES = 4
"""LiteRT has no MINIMUM for more."""

Steps = tuple[tuple[str, float], ...]
"""Kinds of ops that follow each other, with their second operands."""

OPTIONS = {"ADD": "AddOptions", "MAXIMUM": "MaximumMinimumOptions", "MINIMUM": "MaximumMinimumOptions"}

GOLDEN = 0.6180339887
"""Its multiples leave no two remainders alike."""


def clamped(result: Result) -> Model:
    """The float model in which each tensor holds but what the plan's integers for it can hold."""
    return _changed(result, _clamp)


def shifted(result: Result) -> Model:
    """The float model in which each tensor is off by some other part of one step of the plan's integers, up or down."""
    parts = (2 * (k * GOLDEN % 1) - 1 for k in itertools.count(1))
    return _changed(result, lambda params: (("ADD", params.scale * next(parts)),))


def _clamp(params: QuantParams) -> Steps:
    """One step beyond the range: a probability of 1 lies there, and is rounded rather than cut off."""
    low, high = params.range()
    return ("MAXIMUM", low - params.scale), ("MINIMUM", high + params.scale)


def _changed(result: Result, steps: Callable[[QuantParams], Steps]) -> Model:
    """The float model with these steps behind each tensor that the plan holds in integers."""
    model = copy_model(result.prepared)
    model.signatures.clear()
    graph, twins = model.main, dict(zip(model.main.tensors, result.prepared.main.tensors, strict=True))
    stored = {t: result.plan.stored[twin] for t, twin in twins.items() if twin in result.plan.stored}
    added = {t: steps(p) for t, p in stored.items() if t.dtype is DType.FLOAT32 and len(t.shape) <= MOST_AXES}
    made: dict[Tensor | None, Tensor] = {}
    ops: list[Op] = []
    for tensor in (t for t in graph.inputs if t in added):
        ops += _following(tensor, added[tensor], made)
    for op in graph.ops:
        op.inputs = [made.get(t, t) for t in op.inputs]
        ops.append(op)
        for tensor in (t for t in op.outputs if t in added):
            ops += _following(tensor, added[tensor], made)
    graph.ops = ops
    graph.outputs = [made.get(t, t) for t in graph.outputs]
    graph.tensors = list(dict.fromkeys((*graph.inputs, *(t for op in ops for t in op.tensors()), *graph.outputs)))
    return model


def _following(tensor: Tensor, steps: Steps, made: dict[Tensor | None, Tensor]) -> Iterator[Op]:
    read = tensor
    for kind, operand in steps:
        after = Tensor(f"{tensor.name}/{kind.lower()}", tensor.shape, DType.FLOAT32)
        constant = Tensor.constant(f"{after.name}/operand", np.float32([operand]), DType.FLOAT32)
        yield Op(kind, [read, constant], [after], default_options(OPTIONS[kind]), 1)
        read = after
    made[tensor] = read
