"""The float model with its values cut off where ranges end: what lies beyond must make no difference to the outputs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from zeropoint.affine import QuantParams
from zeropoint.dtypes import DType
from zeropoint.graph import Model, Op, Tensor
from zeropoint.graph.edit import copy_model
from zeropoint.improve.pipeline import Result
from zeropoint.tflite.schema import default_options

MOST_AXES = 4
"""LiteRT has no MINIMUM for more."""


def clamped(result: Result) -> Model:
    """The float model in which each tensor holds but what the plan's integers for it can hold."""
    model = copy_model(result.prepared)
    model.signatures.clear()
    graph, twins = model.main, dict(zip(model.main.tensors, result.prepared.main.tensors, strict=True))
    stored = {t: result.plan.stored[twin] for t, twin in twins.items() if twin in result.plan.stored}
    ends = {t: _ends(p) for t, p in stored.items() if t.dtype is DType.FLOAT32 and len(t.shape) <= MOST_AXES}
    cut: dict[Tensor | None, Tensor] = {}
    ops: list[Op] = []
    for tensor in (t for t in graph.inputs if t in ends):
        ops += _clamp(tensor, ends[tensor], cut)
    for op in graph.ops:
        op.inputs = [cut.get(t, t) for t in op.inputs]
        ops.append(op)
        for tensor in (t for t in op.outputs if t in ends):
            ops += _clamp(tensor, ends[tensor], cut)
    graph.ops = ops
    graph.outputs = [cut.get(t, t) for t in graph.outputs]
    graph.tensors = list(dict.fromkeys((*graph.inputs, *(t for op in ops for t in op.tensors()), *graph.outputs)))
    return model


def _ends(params: QuantParams) -> tuple[float, float]:
    """One step beyond the range: a probability of 1 lies there, and is rounded rather than cut off."""
    low, high = params.range()
    return low - params.scale, high + params.scale


def _clamp(tensor: Tensor, ends: tuple[float, float], cut: dict[Tensor | None, Tensor]) -> Iterator[Op]:
    read = tensor
    for kind, end in (("MAXIMUM", ends[0]), ("MINIMUM", ends[1])):
        made = Tensor(f"{tensor.name}/{kind.lower()}", tensor.shape, DType.FLOAT32)
        limit = Tensor.constant(f"{made.name}/end", np.float32([end]), DType.FLOAT32)
        yield Op(kind, [read, limit], [made], default_options("MaximumMinimumOptions"), 1)
        read = made
    cut[tensor] = read
