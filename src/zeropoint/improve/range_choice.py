"""Chooses the best range method for each tensor, by the error it causes in the outputs.

In a quantized model every change of a range changes all later roundings at random, which hides the effect of one
tensor's range. So each tensor is rounded alone, in the float model, once with the range of each method; errors of
different tensors then nearly add up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..affine import QuantParams
from ..bench.bench import Bench
from ..bench.loaded import Loaded
from ..bench.measure import SampledError
from ..calibration import Method
from ..calibration.collect import Progress
from ..dtypes import DType
from ..graph.edit import copy_model, insert_chain
from ..graph.model import Graph, Model, Op, Tensor
from ..ops import OpSpec
from ..ops.execution import total_macs
from ..parallel import cached_property
from ..plan.plan import Group, Held, Plan
from ..plan.solve import params_by_range
from ..plan.tensor_ranges import TensorRanges
from ..sources.ports import entry
from ..tflite.schema import default_options

FEWEST_SAMPLES, MOST_SAMPLES = 2, 4
"""Number of samples on which the ranges of a tensor are compared. The same for all, so that few are enough."""

ALIKE = 1.05
"""Scales with a smaller ratio are not worth comparing."""

ROUNDED_ELEMENT = 30
"""The cost of rounding one element, in multiply-accumulates."""

UNSEEN = 2.0**-22
"""A grid step, relative to the range, that leaves a tensor practically unchanged."""


def affordable_samples(model: Model, trials: int, most_macs: float, ops: Mapping[str, OpSpec]) -> int:
    """Return on how many samples this many trials can be run; 0 if too few. Counted in work rather than time, so that
    it is the same everywhere."""
    sequence = entry(model).graph.ops
    elements = sum(t.size for op in sequence for t in op.outputs)
    each = total_macs(sequence, ops) + ROUNDED_ELEMENT * elements
    samples = int(min(MOST_SAMPLES, most_macs // max(1, trials * each)))
    return samples if samples >= FEWEST_SAMPLES else 0


@dataclass(frozen=True)
class RangeGroup:
    """Tensors that share their parameters with every method; the parameters by method."""

    tensors: tuple[Tensor, ...]
    params: Mapping[Method, QuantParams]

    @cached_property
    def distinct(self) -> dict[Method, QuantParams]:
        """The methods that are worth comparing, including the first."""
        found: dict[Method, QuantParams] = {}
        for method, params in self.params.items():
            ratios = [max(params.scale, p.scale) / min(params.scale, p.scale) for p in found.values()]
            if all(ratio > ALIKE for ratio in ratios):
                found[method] = params
        return found

    @property
    def fine(self) -> QuantParams:
        """A grid so fine that rounding to it changes nothing."""
        peak = max(abs(end) for params in self.params.values() for end in params.range())
        return QuantParams((peak * UNSEEN,), (0,), DType.INT32)


@dataclass(frozen=True)
class RangeTrials:
    """A float model, its plan with float ends, and the methods that choose the `ranges`; the first is the plan's
    own."""

    model: Model
    plan: Plan
    ranges: TensorRanges
    methods: Sequence[Method]
    bench: Bench

    @cached_property
    def groups(self) -> tuple[RangeGroup, ...]:
        """The tensors on whose parameters the methods disagree.

        Groups whose parameters do not follow from their range alone, because a kernel, a user or the target wants
        others, are left out: no method would change them as expected.
        """
        own = [(group, tensors) for group in self.plan.groups if (tensors := self._rounded(group))]
        each = [params_by_range([group for group, _ in own], replace(self.ranges, method=m)) for m in self.methods]
        found = []
        for (group, tensors), *params in zip(own, *each, strict=True):
            if params[0] == group.params:
                found.append(RangeGroup(tensors, dict(zip(self.methods, params, strict=True))))
        return tuple(group for group in found if len(group.distinct) > 1)

    def _rounded(self, group: Group) -> tuple[Tensor, ...]:
        """Return the tensors of a group that are rounded to its grid, if that may change; kernels need states
        unchanged."""
        if group.fixed or not all(self.ranges.knows(node.tensor) for node in group.nodes):
            return ()
        held = dict.fromkeys(node.tensor for node in group.nodes if isinstance(node, Held))
        plain = (t for t in held if t.dtype is DType.FLOAT32 and not t.is_variable)
        return tuple(t for t in plain if self.plan.stored.get(t) == group.params)

    @property
    def count(self) -> int:
        """The number of trials."""
        return sum(len(group.distinct) for group in self.groups)

    def best(self, samples: int, report: Progress) -> dict[Tensor, Method]:
        """Return the method for each tensor whose range is chosen better by another method than the first."""
        first, chosen = self.methods[0], {}
        loaded = Loaded(self.bench, self._rounding()) if self.groups else None
        places = range(min(samples, len(self.bench.judged_rows)))
        exact = np.array([_grid(group.fine) for group in self.groups], np.float32)
        for done, group in enumerate(self.groups):
            errors: dict[Method, float] = {}
            for method, params in group.distinct.items():
                grids = exact.copy()
                grids[done] = _grid(params)
                assert loaded is not None
                least = min(errors.values(), default=math.inf)
                errors[method] = SampledError(tuple(loaded.errors(places, [grids.reshape(-1)], least))).share
            best = min(errors, key=errors.__getitem__)
            if best != first:
                chosen.update(dict.fromkeys(group.tensors, best))
            report(done + 1)
        return chosen

    def _rounding(self) -> Model:
        """Return the float model with all groups rounded to grids that are fed with each run: building and loading a
        model takes longer than running it, so one has to serve all trials."""
        here = self.plan.graph
        copy = copy_model(self.model)
        graph = copy.graphs[self.model.graphs.index(here)]
        twins = dict(zip(here.tensors, graph.tensors, strict=True))
        count = GRID * len(self.groups)
        grids, axis = Tensor("zeropoint/grids", (count,), DType.FLOAT32), np.zeros((), np.int32)
        parts = [Tensor(f"zeropoint/grid{k}", (1,), DType.FLOAT32) for k in range(count)]
        for k, group in enumerate(self.groups):
            for tensor in group.tensors:
                _round(graph, twins[tensor], parts[GRID * k : GRID * (k + 1)])
        operands = [Tensor.constant("zeropoint/axis", axis, DType.INT32), grids]
        graph.ops.insert(0, Op("SPLIT", [*operands], parts, default_options("SplitOptions", numSplits=count)))
        graph.tensors += [*operands, *(part for part in parts if part not in graph.tensors)]
        graph.inputs = [*graph.inputs, grids]
        return replace(copy, signatures=[])


GRID = 4
"""Number of values that define a grid."""


def _grid(params: QuantParams) -> tuple[float, ...]:
    """Return 1 / scale, the minimum and maximum number of steps, and the scale."""
    zero_point, dtype = params.zero_point, params.dtype
    return 1 / params.scale, dtype.min - zero_point, dtype.max - zero_point, params.scale


def _round(graph: Graph, tensor: Tensor, grid: Sequence[Tensor]) -> None:
    """Have all readers of `tensor` read step * clip(round(x / step))."""
    per_unit, lowest, highest, step = grid
    kinds = (("MUL", per_unit), ("ROUND", None), ("MAXIMUM", lowest), ("MINIMUM", highest), ("MUL", step))
    chain: list[Op] = []
    for k, (kind, operand) in enumerate(kinds):
        made = Tensor(f"{tensor.name}/rounded{k}", tensor.shape, DType.FLOAT32, shape_signature=tensor.shape_signature)
        source = chain[-1].outputs[0] if chain else tensor
        options = default_options("MulOptions") if kind == "MUL" else None
        chain.append(Op(kind, [source] if operand is None else [source, operand], [made], options))
    insert_chain(graph, tensor, chain)
