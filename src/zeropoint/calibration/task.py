"""What to calibrate, and how: the settings, the tensors to measure, and which of them contain infinities on purpose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..dtypes import Array, DType
from ..errors import InvalidRecipe
from ..graph.model import Graph, Model, Tensor
from ..graph.query import live_bytes, tensor_keys
from ..ops import REWRITTEN, UNPACKING, OpSpec, spec_of
from ..ops.states import has_state, is_streaming
from ..parallel import cached_property, cores, side_by_side
from .loud_samples import Reaches
from .stats import DECAY

OpTable = Mapping[str, OpSpec]
Signs = frozenset[float]
"""Which of +inf and -inf a tensor may hold."""


@dataclass(frozen=True)
class Settings:
    """How to calibrate.

    Attributes:
        limit: The maximum number of runs.
        workers: The number of threads; one for each core by default.
        histograms: Whether to collect histograms, which most range methods need. Without them only minima and maxima
            are recorded, and whatever else costs nothing.
        keep_state: Whether each run starts from the state that the previous one left, rather than from the initial
            state; by default decided from the model: those that run step by step keep it.
        allow_nonfinite: Ignore NaN and infinite values instead of raising.
        decay: The decay of the moving average per run; 1 gives a plain mean.
        on: "ray", or the address of a Ray cluster that measures parts of the samples, with the same result.
    """

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
            raise InvalidRecipe(f"the decay of the moving average must be above 0 and at most 1, not {self.decay}")

    @property
    def threads(self) -> int:
        return self.workers or cores()

    def in_sequence(self, graph: Graph) -> bool:
        """Whether the samples of `graph` form one sequence, each run starting from the state that the previous one
        left."""
        return has_state(graph) and (is_streaming(graph) if self.keep_state is None else self.keep_state)


@dataclass
class RunRecorder:
    """Keeps the values of some tensors of a graph in the first `most` runs of calibration, so that those who need them
    later do not run the model again. Runs on other machines, or with unexpected shapes, are not recorded."""

    most: int
    tensors: Callable[[Graph], Sequence[Tensor]]
    _runs: dict[int, list[Array] | None] = field(default_factory=dict)

    def keep(self, numbers: Sequence[int], values: Sequence[Array]) -> None:
        """Keep the values of a run of samples with these numbers, which are rows along the first axis if there are
        several."""
        for k, number in enumerate(numbers):
            own = [array if len(numbers) == 1 else array[k : k + 1] for array in values]
            # A sample of several runs has no values of its own.
            self._runs[number] = None if number in self._runs else [array.copy() for array in own]

    def values(self, number: int) -> list[Array] | None:
        """Return the values of a sample, in the order of the tensors; None if they were not recorded."""
        return self._runs.get(number)


@dataclass(frozen=True)
class CalibrationTask:
    """A graph of a model to measure, and how: all of its tensors, or `only` some."""

    model: Model
    graph: Graph
    settings: Settings
    ops: OpTable
    only: frozenset[Tensor] | None = None
    recorder: RunRecorder | None = None
    reaches: Reaches | None = None

    @cached_property
    def keys(self) -> Mapping[Tensor, str]:
        return tensor_keys(self.model)

    @cached_property
    def tensors(self) -> list[Tensor]:
        """The tensors to measure, in order of execution."""
        return [t for t in measured_tensors(self.graph, self.ops) if self.only is None or t in self.only]

    @cached_property
    def in_sequence(self) -> bool:
        return self.settings.in_sequence(self.graph)

    @cached_property
    def recorded(self) -> list[Tensor]:
        """The tensors whose values are recorded; none if one of them is not computed."""
        tensors = [] if self.recorder is None or self.in_sequence else list(self.recorder.tensors(self.graph))
        made = {t for op in self.graph.ops for t in op.outputs}
        return tensors if made.issuperset(tensors) else []

    def interpreters(self, measured: Graph) -> int:
        """Return the number of interpreters that run the graph in parallel, as it is `measured`."""
        most = 1 if self.in_sequence else self.settings.threads
        return most if most == 1 else min(most, side_by_side(live_bytes(measured)))

    @cached_property
    def infinities(self) -> Mapping[str, Signs]:
        """The tensors, by key, that may hold infinities of the model's own, and of which sign."""
        found = (expected_infinities(graph, self.ops) for graph in self.model.graphs)
        return {self.keys[t]: signs for by_tensor in found for t, signs in by_tensor.items()}


def measured_tensors(graph: Graph, ops: OpTable) -> list[Tensor]:
    """Return the float tensors that an integer kernel could read or write, in order of execution, and the graph's
    inputs and outputs."""
    unpacked = _unpacked_constants(graph)
    known = {kind for kind, spec in ops.items() if spec.types or spec.hybrid} | REWRITTEN
    quantizable = [op for op in graph.ops if op.label in known]
    touched = (t for op in quantizable for t in (*op.inputs, *op.outputs) if t is not None)
    floats = (t for t in (*touched, *graph.inputs, *graph.outputs) if t.dtype is DType.FLOAT32 and t not in unpacked)
    return list(dict.fromkeys(t for t in floats if not t.is_constant and not t.is_variable))


def _unpacked_constants(graph: Graph) -> set[Tensor]:
    """Return tensors that are constants in another form, such as dequantized weights: their ranges follow from the
    data."""
    unpacking = [op for op in graph.ops if op.kind in UNPACKING and all(t is None or t.is_constant for t in op.inputs)]
    return {t for op in unpacking for t in op.outputs}


def weighted_activations(graph: Graph, ops: OpTable) -> set[Tensor]:
    """Return activations that are inputs or outputs of ops with weights: later steps need per-channel statistics of
    them."""
    weighted = [op for op in graph.ops if spec_of(op, ops).macs is not None]
    return {t for op in weighted for t in (*op.inputs, *op.outputs) if t is not None and not t.is_constant}


def expected_infinities(graph: Graph, ops: OpTable) -> dict[Tensor, Signs]:
    """Return tensors with infinities that the model itself contains: padding with -inf before a maximum, masks with
    -inf before a softmax.

    They say nothing about the data, so they are excluded from the statistics. They are recognized by origin: a
    constant, and ops that only move its values. NaN and other infinities are errors.
    """
    found: dict[Tensor, Signs] = {}
    for op in graph.ops:  # in order of execution, so the inputs of an op are already known
        if not spec_of(op, ops).tied:
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
    """Return how many of `values` are NaN, or infinite with a sign that is not among `signs`."""
    return int(np.isnan(values).sum()) + sum(int((values == s).sum()) for s in (np.inf, -np.inf) if s not in signs)
