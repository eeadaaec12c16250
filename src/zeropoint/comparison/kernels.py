"""Compares runtimes on one quantized model: the first op that differs, by how much, and whether the outputs differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from ..dtypes import Array
from ..errors import InvalidRecipe, InvalidSample, MissingExtra, RuntimeFailure, UnsupportedOp
from ..graph.model import Model, Op, Tensor
from ..json_values import json_values
from ..ops import OPS, OpSpec
from ..ops.execution import execution_of
from ..runtime import Runner
from ..runtime.tflm import measure_arena
from ..simulation.kernels import kernel_of
from ..simulation.rules import KERNEL_SETS, KernelSet, Rules, rules_for
from ..simulation.trace import RUNTIMES, SimulationOptions, Trace, compute, simulate_all
from ..sources.samples import Samples
from ..tflite import to_bytes


@dataclass(frozen=True)
class OpDifference:
    """An op whose first output differs from the baseline's: in how many elements, and by how many units at most
    (integer steps; real numbers for a layer on float data). `own_units` is the difference that remains if the op reads
    the baseline's values: 0 if it only propagates earlier differences, None if unknown."""

    kernels: KernelSet
    position: int
    kind: str
    tensor: str
    differing: int
    elements: int
    units: float
    own_units: float | None


@dataclass(frozen=True)
class OutputDifference:
    """How an output of the model differs. `same_greatest` is the share of rows with the same largest element."""

    kernels: KernelSet
    tensor: str
    differing: int
    elements: int
    largest: float
    same_greatest: float


@dataclass(frozen=True)
class Refusal:
    """A runtime that does not run the model, and why."""

    kernels: KernelSet
    reason: str


@dataclass(frozen=True)
class KernelComparison:
    """Sets of kernels compared with the first of them, over all samples; only differences are listed."""

    samples: int
    kernels: tuple[KernelSet, ...]
    ops: tuple[OpDifference, ...]
    outputs: tuple[OutputDifference, ...]
    refused: tuple[Refusal, ...]

    @property
    def baseline(self) -> KernelSet:
        return self.kernels[0]

    def of(self, kernels: KernelSet) -> list[OpDifference]:
        """Return the ops that differ, in graph order."""
        return [op for op in self.ops if op.kernels == kernels]

    def to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = json_values(self)
        return values


def compare_kernels(
    model: Model,
    samples: Samples,
    kernels: Sequence[KernelSet] = KERNEL_SETS,
    *,
    signature: str | None = None,
    limit: int | None = None,
    ops: Mapping[str, OpSpec] = OPS,
) -> KernelComparison:
    """Run a quantized model in several runtimes, and compare every integer with the first runtime's.

    The runtimes themselves run the model; differences of a single op by itself are simulated.
    """
    if len(set(kernels)) < 2:
        raise InvalidRecipe(f"give at least two different sets of kernels, of {', '.join(KERNEL_SETS)}")
    options = SimulationOptions(kernels[0], signature, float_rest=True, ops=ops)
    comparer: _KernelComparer | None = None
    for trace in islice(simulate_all(model, samples, options), limit):
        comparer = comparer or _KernelComparer(trace, kernels)
        comparer.add(trace)
    if comparer is None:
        raise InvalidSample("there are no samples to compare runtimes on; give at least one")
    return comparer.comparison()


class _KernelComparer:
    """A model loaded into each runtime, with all integer tensors exposed."""

    def __init__(self, trace: Trace, kernels: Sequence[KernelSet]) -> None:
        graph = trace.entry.graph
        self.names, self.ops = trace.names, [op for op in graph.ops if op.outputs and _is_compared(op, trace.ops)]
        exposed = [*dict.fromkeys([*(op.outputs[0] for op in self.ops), *graph.outputs])]
        self.outputs = graph.outputs
        self.samples = 0
        opened = {name: _opened(trace, exposed, name) for name in kernels}
        self.runners = {name: runner for name, runner in opened.items() if isinstance(runner, Runner)}
        self.refused = [refusal for refusal in opened.values() if isinstance(refusal, Refusal)]
        if len(self.runners) < 2:
            raise RuntimeFailure(*(f"{refusal.kernels}: {refusal.reason}" for refusal in self.refused))
        self.rules = {name: rules_for(trace.model, graph, name) for name in self.runners}
        self.found: dict[tuple[KernelSet, Op], OpDifference] = {}
        self.ends: dict[tuple[KernelSet, Tensor], list[OutputDifference]] = {}

    def add(self, trace: Trace) -> None:
        self.samples += 1
        values = {name: runner.values(trace.row) for name, runner in self.runners.items()}
        baseline, *others = values
        known = replace(trace, values={**trace.values, **values[baseline]})
        for name in others:
            for op in self.ops:
                self._add_op(known, name, op, values[name][op.outputs[0]])
            for tensor in self.outputs:
                pair = values[baseline][tensor], values[name][tensor]
                self.ends.setdefault((name, tensor), []).append(self._output(name, tensor, *pair))

    def _add_op(self, known: Trace, name: KernelSet, op: Op, made: Array) -> None:
        tensor = op.outputs[0]
        off = _distance(known.values[tensor], made)
        if not off.any() and (name, op) not in self.found:
            return
        rules = self.rules[name][op]
        own = None if op in known.elsewhere or kernel_of(op, rules, known.ops) is None else self._own(known, op, rules)
        position = known.entry.graph.ops.index(op)
        start = OpDifference(name, position, op.label, self.names[tensor], 0, 0, 0.0, own)
        before = self.found.get((name, op), start)
        self.found[name, op] = replace(
            before,
            differing=before.differing + int(np.count_nonzero(off)),
            elements=before.elements + off.size,
            units=max(before.units, float(off.max(initial=0))),
            own_units=None if own is None or before.own_units is None else max(before.own_units, own),
        )

    def _own(self, known: Trace, op: Op, rules: Rules) -> float:
        """Return by how much these rules differ from the baseline on the same inputs."""
        made = compute(replace(known.call(op), rules=rules)).outputs[0]
        return float(_distance(known.values[op.outputs[0]], made).max(initial=0))

    def _output(self, name: KernelSet, tensor: Tensor, wanted: Array, made: Array) -> OutputDifference:
        off = _distance(wanted, made)
        rows = [np.atleast_1d(a).reshape(-1, a.shape[-1] if a.ndim else 1) for a in (wanted, made)]
        same = (rows[0].argmax(axis=1) == rows[1].argmax(axis=1)).mean() if off.size else 1.0
        counts = int(np.count_nonzero(off)), off.size
        return OutputDifference(name, self.names[tensor], *counts, float(off.max(initial=0)), float(same))

    def comparison(self) -> KernelComparison:
        ops = sorted(self.found.values(), key=lambda op: (op.kernels, op.position))
        outputs = [_joined(rows) for rows in self.ends.values() if any(row.differing for row in rows)]
        return KernelComparison(self.samples, tuple(self.runners), tuple(ops), tuple(outputs), tuple(self.refused))


def _opened(trace: Trace, exposed: list[Tensor], name: KernelSet) -> Runner | Refusal:
    """Load the model in a runtime and try it on the trace's sample; TensorFlow Lite Micro is first tried in another
    process."""
    try:
        if name == "tflm":
            measure_arena(to_bytes(trace.model))
        runner = Runner.exposing(trace.model, trace.entry.graph, exposed, kernels=RUNTIMES[name])
        runner.run(trace.row)
    except (RuntimeFailure, UnsupportedOp, MissingExtra) as error:
        return Refusal(name, str(error))
    return runner


def _joined(rows: Sequence[OutputDifference]) -> OutputDifference:
    """Combine the differences of one output over all samples."""
    return replace(
        rows[0],
        differing=sum(row.differing for row in rows),
        elements=sum(row.elements for row in rows),
        largest=max(row.largest for row in rows),
        same_greatest=float(np.mean([row.same_greatest for row in rows])),
    )


def _is_compared(op: Op, ops: Mapping[str, OpSpec]) -> bool:
    tensor = op.outputs[0]
    has_integers = tensor.dtype.is_integer or execution_of(op, ops) == "hybrid"
    return has_integers and tensor.dtype.storage is not None and tensor.size > 0


def _distance(a: Array, b: Array) -> Array:
    return np.asarray(np.abs(a.astype(np.float64) - b.astype(np.float64)))
