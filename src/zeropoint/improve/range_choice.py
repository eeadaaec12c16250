"""Which range method is best for which tensor, by the error that it causes in the outputs.

In a quantized model every change of a range rolls the dice of all later roundings anew, and the effect of one tensor's
range drowns in that. So each tensor is rounded alone, in the float model, once with the range of each method; errors of
different tensors then nearly add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..affine import QuantParams
from ..bench.bench import Bench, Loaded
from ..calibration import Method
from ..calibration.collect import Progress
from ..dtypes import Array, DType
from ..graph.edit import copy_model, insert_chain
from ..graph.model import Graph, Model, Op, Tensor
from ..ops import OpSpec
from ..ops.execution import macs_of
from ..plan.plan import Plan
from ..sources.ports import entry
from ..tflite.schema import default_options

FEWEST_SAMPLES, MOST_SAMPLES = 2, 16
"""On how many samples the ranges of a tensor are compared."""

BUILDING_OP, BUILDING_BYTE = 1_000_000, 16
"""What it takes to build and load a model, for each op and each byte of its constants, in multiply-accumulates."""


def affordable_samples(model: Model, trials: int, most_macs: float, ops: Mapping[str, OpSpec]) -> int:
    """On how many samples so many trials can be run; 0 if on too few. It counts work, not time, and so is the same
    everywhere."""
    graph = entry(model).graph
    macs = max(1, sum(macs_of(op, ops) for op in graph.ops))
    constants = sum(t.buffer.raw.nbytes for t in graph.tensors if t.buffer is not None)
    left = most_macs / max(1, trials) - BUILDING_OP * len(graph.ops) - BUILDING_BYTE * constants
    return int(min(MOST_SAMPLES, left // macs)) if left >= FEWEST_SAMPLES * macs else 0


@dataclass(frozen=True)
class RangeGroup:
    """Tensors that share their parameters, whatever the method; by method, what these are."""

    tensors: tuple[Tensor, ...]
    params: Mapping[Method, QuantParams]

    @property
    def distinct(self) -> dict[QuantParams, Method]:
        return {params: method for method, params in reversed(list(self.params.items()))}


@dataclass(frozen=True)
class RangeTrials:
    """A float model, planned with the ranges of several methods; the first is the one to fall back to."""

    model: Model
    plans: Mapping[Method, Plan]
    bench: Bench

    @cached_property
    def groups(self) -> tuple[RangeGroup, ...]:
        """Tensors whose parameters the methods disagree on."""
        methods = list(self.plans)
        shared: dict[tuple[QuantParams, ...], list[Tensor]] = {}
        for tensor in self.plans[methods[0]].stored:
            known = tuple(p for m in methods if (p := self.plans[m].stored.get(tensor)) is not None)
            is_apart = tensor.dtype is DType.FLOAT32 and not tensor.is_variable  # kernels want states as they are
            if is_apart and len(known) == len(methods) and len(set(known)) > 1:
                shared.setdefault(known, []).append(tensor)
        return tuple(RangeGroup(tuple(own), dict(zip(methods, key, strict=True))) for key, own in shared.items())

    @property
    def count(self) -> int:
        """How many trials there are."""
        return sum(len(group.distinct) for group in self.groups)

    def best(self, samples: int, report: Progress) -> dict[Tensor, Method]:
        """The method for each tensor whose range another than the first picks better."""
        first, chosen = next(iter(self.plans)), {}
        for done, group in enumerate(self.groups, 1):
            loaded = Loaded(self.bench, self._rounding(group))
            errors = {m: loaded.error(samples, _feeds(params)) for params, m in group.distinct.items()}
            best = min(errors, key=errors.__getitem__)
            if group.params[best] != group.params[first]:
                chosen.update(dict.fromkeys(group.tensors, best))
            report(done)
        return chosen

    def _rounding(self, group: RangeGroup) -> Model:
        """The float model, in which nothing is rounded but these tensors: to a grid that is fed with each run.

        So one model serves for all methods, where building and loading it takes longer than running it.
        """
        here = next(iter(self.plans.values())).graph
        copy = copy_model(self.model)
        graph = copy.graphs[self.model.graphs.index(here)]
        twins = dict(zip(here.tensors, graph.tensors, strict=True))
        grid = [Tensor(f"zeropoint/{name}", (1,), DType.FLOAT32) for name in FED]
        graph.tensors += grid
        graph.inputs = [*graph.inputs, *grid]
        for tensor in group.tensors:
            _round(graph, twins[tensor], grid)
        return replace(copy, signatures=[])


FED = ("steps_per_unit", "lowest", "highest", "step")
"""What a grid is given by: 1 / scale, the least and the greatest number of steps, the scale."""


def _feeds(params: QuantParams) -> tuple[Array, ...]:
    """The values of FED for these parameters."""
    zero_point, dtype = params.zero_point, params.dtype
    values = 1 / params.scale, dtype.min - zero_point, dtype.max - zero_point, params.scale
    return tuple(np.array([value], np.float32) for value in values)


def _round(graph: Graph, tensor: Tensor, grid: list[Tensor]) -> None:
    """Let everything that reads `tensor` see step * clip(round(x / step))."""
    per_unit, lowest, highest, step = grid
    kinds = (("MUL", per_unit), ("ROUND", None), ("MAXIMUM", lowest), ("MINIMUM", highest), ("MUL", step))
    chain: list[Op] = []
    for k, (kind, operand) in enumerate(kinds):
        made = Tensor(f"{tensor.name}/rounded{k}", tensor.shape, DType.FLOAT32, shape_signature=tensor.shape_signature)
        source = chain[-1].outputs[0] if chain else tensor
        options = default_options("MulOptions") if kind == "MUL" else None
        chain.append(Op(kind, [source] if operand is None else [source, operand], [made], options))
    insert_chain(graph, tensor, chain)
