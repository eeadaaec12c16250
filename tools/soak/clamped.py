"""The float model with its values cut off where ranges end, which must make no difference; or shifted a little."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from zeropoint.affine import QuantParams
from zeropoint.dtypes import DType
from zeropoint.graph import Model, Op, Tensor
from zeropoint.graph.edit import copy_model
from zeropoint.graph.query import Use
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
    """The float model in which each tensor holds, and each op reads, but what the plan's integers for it can hold."""
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
    """The float model with these steps wherever the plan has numbers in integers."""
    model = copy_model(result.prepared)
    model.signatures.clear()
    graph, before, plan = model.main, result.prepared.main, result.plan
    twins = zip(graph.tensors, before.tensors, strict=True)
    change = _Change(steps, {t: plan.stored[twin] for t, twin in twins if twin in plan.stored})
    for tensor in graph.inputs:
        change.hold(tensor)
    for op, twin in zip(graph.ops, before.ops, strict=True):
        op.inputs = [change.read(t, plan.wanted.get(Use(twin, slot))) for slot, t in enumerate(op.inputs)]
        change.ops.append(op)
        for tensor in op.outputs:
            change.hold(tensor)
    graph.ops = change.ops
    graph.outputs = [change.read(t) or t for t in graph.outputs]
    graph.tensors = list(dict.fromkeys((*graph.inputs, *(t for op in graph.ops for t in op.tensors()), *graph.outputs)))
    return model


@dataclass
class _Change:
    """The ops of the changed graph so far, and the tensors in place of those that are `stored` in integers."""

    steps: Callable[[QuantParams], Steps]
    stored: Mapping[Tensor, QuantParams]
    ops: list[Op] = field(default_factory=list)
    held: dict[Tensor, Tensor] = field(default_factory=dict)

    def hold(self, tensor: Tensor) -> None:
        """Change what all readers of the tensor get."""
        if tensor in self.stored:
            self.held[tensor] = self._after(tensor, self.stored[tensor])

    def read(self, tensor: Tensor | None, wanted: QuantParams | None = None) -> Tensor | None:
        """What an op reads that wants such integers, which are converted from floats or from other integers."""
        if tensor is None or tensor.data is not None:
            return tensor
        held = self.held.get(tensor, tensor)
        return held if wanted is None or wanted == self.stored.get(tensor) else self._after(held, wanted)

    def _after(self, tensor: Tensor, params: QuantParams) -> Tensor:
        if tensor.dtype is not DType.FLOAT32 or len(tensor.shape) > MOST_AXES:
            return tensor
        for kind, operand in self.steps(params):
            after = Tensor(f"{tensor.name}/{kind.lower()}{len(self.ops)}", tensor.shape, DType.FLOAT32)
            constant = Tensor.constant(f"{after.name}/operand", np.float32([operand]), DType.FLOAT32)
            self.ops.append(Op(kind, [tensor, constant], [after], default_options(OPTIONS[kind]), 1))
            tensor = after
        return tensor
