"""How much each op of a model adds to its error: two models compared tensor by tensor, on a few samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..dtypes import Array, DType
from ..graph.model import Model, Tensor
from ..runtime import within
from ..runtime.runner import Runner
from ..sources.ports import Row, entry
from .errors import ErrorSum, decibels, real

HELD_BYTES = 1 << 26
"""Maximum bytes of a model's tensors held at a time when two models are compared."""

WORST = 3
"""Number of ops that are listed as the worst."""


@dataclass(frozen=True)
class OpError:
    """How much an op adds to the error: the relative squared error of its output, and the largest among its inputs."""

    label: str
    name: str
    error: float
    before: float

    @property
    def snr(self) -> float:
        return decibels(self.error)

    @property
    def snr_of_inputs(self) -> float:
        """The lowest SNR among the inputs."""
        return decibels(self.before)


@dataclass(frozen=True)
class TracedSamples:
    """Samples on which the intermediate tensors of two models are compared, and how they are run."""

    rows: tuple[Row, ...]
    in_sequence: bool = False
    time_limit: float | None = None

    def worst_ops(self, model: Model, made: Model) -> tuple[OpError, ...]:
        """Return the ops of `made` whose outputs differ most from those in `model`, beyond the error of their inputs:
        none that only pass on what they read."""
        with within(self.time_limit):
            errors, added = _errors_by_name(model, made, self.rows, self.in_sequence), []
        for op in entry(model).graph.ops:
            if op.outputs and op.outputs[0].name in errors:
                before = max((errors.get(t.name, 0.0) for t in op.inputs if t is not None), default=0.0)
                if errors[op.outputs[0].name] > before:
                    added.append(OpError(op.label, op.name, errors[op.outputs[0].name], before))
        return tuple(sorted(added, key=lambda e: e.before - e.error)[:WORST])


def _errors_by_name(model: Model, made: Model, rows: Sequence[Row], in_sequence: bool) -> dict[str, float]:
    """Return the relative squared errors of tensors that have the same name in both models.

    The models are loaded one after the other; large ones compute as many tensors at a time as fit in memory.
    """
    graphs = [entry(m).graph for m in (model, made)]
    named = [{t.name: t for op in graph.ops for t in op.outputs if t.shape} for graph in graphs]
    sums = {n: ErrorSum() for n, t in named[0].items() if n in named[1] and t.dtype is DType.FLOAT32}
    groups = list(_within(HELD_BYTES, [named[0][name] for name in sums]))
    chosen = rows if len(groups) < 2 else rows[:1]
    for group in groups:
        exact = Runner.exposing(model, graphs[0], group, checked=True).keeping_state(in_sequence)
        wanted = [{tensor.name: values for tensor, values in exact.values(row).items()} for row in chosen]
        del exact  # released before the other one is loaded
        twins = [named[1][t.name] for t in group]
        found = Runner.exposing(made, graphs[1], twins, checked=True).keeping_state(in_sequence)
        for row, values in zip(chosen, wanted, strict=True):
            _add_run(found.viewed_values(row), values, sums)
        del wanted, found
    return {name: total.relative for name, total in sums.items()}


def _within(held: int, tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the tensors in groups of at most `held` bytes."""
    group: list[Tensor] = []
    for tensor in tensors:
        if group and sum(t.size for t in (*group, tensor)) * 4 > held:
            yield group
            group = []
        group.append(tensor)
    if group:
        yield group


def _add_run(found: Mapping[Tensor, Array], exact: Mapping[str, Array], sums: Mapping[str, ErrorSum]) -> None:
    """Add one run of both models. The views of LiteRT's memory are released on return, as the next run requires."""
    for tensor, values in found.items():
        if exact[tensor.name].shape == values.shape:
            sums[tensor.name].add(exact[tensor.name], real(values, tensor))
