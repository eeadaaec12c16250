"""What to calibrate, and how: the settings, the tensors to measure, and which of them hold infinities on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..dtypes import Array, DType
from ..errors import InvalidRecipe
from ..graph.model import Graph, Model, Tensor
from ..graph.query import activation_bytes, tensor_keys
from ..ops import REWRITTEN, UNPACKING, OpSpec
from ..ops.states import has_state, is_streaming
from ..parallel import cached_property, cores, side_by_side
from .stats import DECAY

OpTable = Mapping[str, OpSpec]
Signs = frozenset[float]
"""Of +inf and -inf, those that a tensor may hold."""


@dataclass(frozen=True)
class Settings:
    """How to calibrate. `limit` counts runs; `workers` None is one for each core; without `histograms` only minima and
    maxima are recorded, and of the rest only what costs nothing. With `keep_state` each run goes on from the state that
    the last one left, without it each starts from the initial one; None leaves it to the model: what runs step by step
    is kept running. `decay` is what the moving average keeps of the runs before at each run: 1 is a plain mean.
    `on` is "ray", or the address of a Ray cluster whose machines measure parts of the samples, with the same result."""

    limit: int | None = None
    workers: int | None = None
    histograms: bool = True
    keep_state: bool | None = None
    allow_nonfinite: bool = False
    decay: float = DECAY
    on: str | None = None

    def __post_init__(self) -> None:
        for name, value in (("limit", self.limit), ("workers", self.workers)):
            if value is not None and value < 1:
                raise InvalidRecipe(f"{name} must be at least 1, not {value}")
        if not 0 < self.decay <= 1:
            raise InvalidRecipe(f"the decay of the moving average lies above 0 and up to 1, not at {self.decay}")

    @property
    def threads(self) -> int:
        return self.workers or cores()

    def in_sequence(self, graph: Graph) -> bool:
        """Whether the samples of `graph` are one sequence, each run going on from the state that the last one left."""
        return has_state(graph) and (is_streaming(graph) if self.keep_state is None else self.keep_state)


@dataclass(frozen=True)
class CalibrationTask:
    """A graph of a model to measure, and how: all of its tensors, or `only` some."""

    model: Model
    graph: Graph
    settings: Settings
    ops: OpTable
    only: frozenset[Tensor] | None = None

    @cached_property
    def keys(self) -> Mapping[Tensor, str]:
        return tensor_keys(self.model)

    @cached_property
    def tensors(self) -> list[Tensor]:
        """What is measured, in order of execution."""
        return [t for t in measured_tensors(self.graph, self.ops) if self.only is None or t in self.only]

    @cached_property
    def in_sequence(self) -> bool:
        return self.settings.in_sequence(self.graph)

    @cached_property
    def interpreters(self) -> int:
        """How many run at a time."""
        return 1 if self.in_sequence else min(self.settings.threads, side_by_side(activation_bytes(self.graph)))

    @cached_property
    def infinities(self) -> Mapping[str, Signs]:
        """The tensors, by key, that may hold infinities of the model's own, and which."""
        found = (expected_infinities(graph, self.ops) for graph in self.model.graphs)
        return {self.keys[t]: signs for by_tensor in found for t, signs in by_tensor.items()}


def measured_tensors(graph: Graph, ops: OpTable) -> list[Tensor]:
    """Float tensors that an integer kernel could read or write, in order of execution, and the graph's own ends."""
    unpacked = _unpacked_constants(graph)
    known = {kind for kind, spec in ops.items() if spec.types or spec.hybrid} | REWRITTEN
    quantizable = [op for op in graph.ops if op.label in known]
    touched = (t for op in quantizable for t in (*op.inputs, *op.outputs) if t is not None)
    floats = (t for t in (*touched, *graph.inputs, *graph.outputs) if t.dtype is DType.FLOAT32 and t not in unpacked)
    return list(dict.fromkeys(t for t in floats if not t.is_constant and not t.is_variable))


def _unpacked_constants(graph: Graph) -> set[Tensor]:
    """Constants in another form, such as unpacked weights: their ranges follow from the data."""
    unpacking = [op for op in graph.ops if op.kind in UNPACKING and all(t is None or t.is_constant for t in op.inputs)]
    return {t for op in unpacking for t in op.outputs}


def weighted_activations(graph: Graph, ops: OpTable) -> set[Tensor]:
    """Activations that enter or leave ops with weights: later steps need their channels one by one."""
    weighted = [op for op in graph.ops if (spec := ops.get(op.kind)) is not None and spec.macs is not None]
    return {t for op in weighted for t in (*op.inputs, *op.outputs) if t is not None and not t.is_constant}


def expected_infinities(graph: Graph, ops: OpTable) -> dict[Tensor, Signs]:
    """Tensors with infinities that the model holds itself: padding with -inf before a maximum, masks with -inf before
    a softmax.

    They say nothing about the data, so they are left out of the statistics without asking. They are known by where they
    can come from: a constant, and the ops that only move values on from there. NaN and other infinities are mistakes.
    """
    found: dict[Tensor, Signs] = {}
    for op in graph.ops:  # in order of execution, so what an op reads is known by then
        spec = ops.get(op.kind)
        if spec is None or not spec.tied:
            continue
        held = frozenset[float]().union(*(found.get(t) or _infinite_constants(t) for t in op.inputs if t is not None))
        if held:
            found.update((t, held) for t in op.outputs if t.dtype is DType.FLOAT32)
    return found


def _infinite_constants(tensor: Tensor) -> Signs:
    if tensor.dtype is not DType.FLOAT32 or tensor.data is None:
        return frozenset()
    return frozenset(sign for sign in (np.inf, -np.inf) if (tensor.data == sign).any())


def count_unexpected(values: Array, signs: Signs) -> int:
    """How many of `values` are NaN, or infinite with a sign that is not among `signs`."""
    return int(np.isnan(values).sum()) + sum(int((values == s).sum()) for s in (np.inf, -np.inf) if s not in signs)
