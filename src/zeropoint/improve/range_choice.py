"""Which range method is best for which tensor, by the error that it causes in the outputs.

In a quantized model every change of a range rolls the dice of all later roundings anew, and the effect of one tensor's
range drowns in that. So each tensor is rounded alone, in the float model, once with the range of each method; errors of
different tensors then nearly add up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..affine import QuantParams
from ..bench.judge import Judge
from ..calibration import Method
from ..calibration.collect import Progress
from ..dtypes import DType
from ..graph.edit import copy_model
from ..graph.model import Model, Tensor
from ..ops.execution import macs_of
from ..plan.pipeline import Planned
from ..plan.rewrite import round_to
from ..sources.ports import entry

FEWEST_SAMPLES, MOST_SAMPLES = 2, 16
"""On how many samples the ranges of a tensor are compared."""

BUILDING_OP, BUILDING_BYTE = 1_000_000, 16
"""What it takes to build and load a model, for each op and each byte of its constants, in multiply-accumulates."""


def affordable_samples(model: Model, trials: int, most_macs: float) -> int:
    """On how many samples so many trials can be run; 0 if on too few. It counts work, not time, and so is the same
    everywhere."""
    graph = entry(model).graph
    macs = max(1, sum(macs_of(op) for op in graph.ops))
    constants = sum(t.buffer.raw.nbytes for t in graph.tensors if t.buffer is not None)
    left = most_macs / max(1, trials) - BUILDING_OP * len(graph.ops) - BUILDING_BYTE * constants
    return int(min(MOST_SAMPLES, left // macs)) if left >= FEWEST_SAMPLES * macs else 0


@dataclass(frozen=True)
class Group:
    """Tensors that share their parameters, whatever the method; by method, what these are."""

    tensors: tuple[Tensor, ...]
    params: Mapping[Method, QuantParams]

    @property
    def distinct(self) -> dict[QuantParams, Method]:
        return {params: method for method, params in reversed(list(self.params.items()))}


@dataclass(frozen=True)
class RangeTrials:
    """The same float model, planned with the ranges of several methods; the first is the one to fall back to."""

    planned: Mapping[Method, Planned]
    judge: Judge

    def groups(self) -> list[Group]:
        """Tensors whose parameters the methods disagree on."""
        methods = list(self.planned)
        stored = {m: {t.name: p for t, p in planned.plans[0].stored.items()} for m, planned in self.planned.items()}
        shared: dict[tuple[QuantParams, ...], list[Tensor]] = {}
        for tensor in self.planned[methods[0]].plans[0].stored:
            params = [stored[m].get(tensor.name) for m in methods]
            known = tuple(p for p in params if p is not None)
            is_apart = tensor.dtype is DType.FLOAT32 and not tensor.is_variable  # kernels want states as they are
            if is_apart and len(known) == len(methods) and len(set(known)) > 1:
                shared.setdefault(known, []).append(tensor)
        return [Group(tuple(tensors), dict(zip(methods, key, strict=True))) for key, tensors in shared.items()]

    @property
    def model(self) -> Model:
        return next(iter(self.planned.values())).model

    def best(self, groups: Sequence[Group], samples: int, report: Progress) -> dict[str, Method]:
        """By name, the method for each tensor whose range another than the first picks better."""
        judge = self.judge.first(samples)
        first, chosen = next(iter(self.planned)), {}
        for done, group in enumerate(groups, 1):
            errors = {m: judge.error(self._rounded(group, params)) for params, m in group.distinct.items()}
            best = min(errors, key=errors.__getitem__)
            if group.params[best] != group.params[first]:
                chosen.update({tensor.name: best for tensor in group.tensors})
            report(done)
        return chosen

    def _rounded(self, group: Group, params: QuantParams) -> Model:
        """The float model, in which nothing is rounded but these tensors."""
        copy = copy_model(self.model)
        here = next(iter(self.planned.values())).plans[0].graph
        graph = copy.graphs[self.model.graphs.index(here)]
        twins = dict(zip(here.tensors, graph.tensors, strict=True))
        for tensor in group.tensors:
            round_to(graph, twins[tensor], params)
        return replace(copy, signatures=[])
