"""Exports what was trained as a model file, and measures how closely the two agree.

Exporting executes the plan that was trained, with the learned ranges and weights instead of the initial ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from keras import ops

from ..bench.errors import real
from ..dtypes import Array
from ..errors import InvalidRecipe, InvalidSample, UnsupportedOp
from ..improve.pipeline import Result, carry_out
from ..plan.derive import settle
from ..plan.ends import with_interface
from ..plan.plan import Plan
from ..plan.request import TypeLike, interface_of
from ..runtime import Kernels
from ..runtime.runner import Runner
from ..sources.ports import entry
from ..sources.samples import Samples, row_list
from .backend import array_of
from .fake_quant_graph import FakeQuantGraph
from .forward_pass import ForwardPass
from .network import Trainable

FLOAT_UNIT = 1 / 256
"""One unit of a float output: an 8-bit step between 0 and 1."""


def export(trained: Trainable, *, input_type: TypeLike = "float32", output_type: TypeLike = "float32") -> Result:
    """Return the quantized model, made without calibration. `input_type` and `output_type` are those that its callers
    see."""
    blueprint = trained.blueprint
    if not blueprint.quantize:
        raise InvalidRecipe("this graph was built without quantization; build it with quantize=True to export it")
    interface = interface_of(input_type, output_type)
    settled = [settle(_learned(part, trained.step), blueprint.specs) for part in trained.graph.parts]
    if refused := [skipped for _, some in settled for skipped in some]:
        raise UnsupportedOp(
            "kernels cannot compute with the ranges that were learned:",
            *(f"  {s}" for s in refused),
            "train with fixed ranges (freeze_after=0), or keep these ops float in the recipe",
        )
    made = {plan.graph: plan for plan, _ in settled}
    made[blueprint.plan.graph] = with_interface(made[blueprint.plan.graph], interface)
    plans = tuple(made.get(p.graph, p) for p in blueprint.planned.plans)
    return carry_out(replace(blueprint.planned, plans=plans), blueprint.request, trained=True)


def _learned(graph: FakeQuantGraph, step: int) -> Plan:
    """Return the plan with learned ranges and constants."""
    plan = graph.blueprint.plan
    learned = zip(plan.groups, graph.ranges.deployed(step), strict=True)
    values, keys, grids = dict(plan.constants.values), dict(plan.constants.keys), dict(plan.constants.grids)
    rounded = ForwardPass(graph, step, training=False)
    for constant in graph.constants:
        value = constant.value
        if constant.uses[0] in graph.mean_shifts:
            value = array_of(rounded.keep_means(constant.uses[0], ops.convert_to_tensor(value)))
        for use in constant.uses:
            if use in graph.quantizers:
                grids[use] = graph.quantizers[use].params(value)
                value = graph.quantizers[use].deployed(value, grids[use])
        if constant.variable.trainable:
            key = f"{plan.key(constant.uses[0])}:trained"
            values[key] = value
            keys.update(dict.fromkeys(constant.uses, key))
    constants = replace(plan.constants, values=values, keys=keys, grids=grids)
    return replace(plan, groups=tuple(replace(group, params=p) for group, p in learned), constants=constants)


@dataclass(frozen=True)
class Parity:
    """The agreement of one output: how many elements were compared, the shares that agree exactly and within one unit,
    and the worst difference."""

    name: str
    elements: int
    equal: float
    within_one: float
    worst: float

    @classmethod
    def of(cls, name: str, gaps: Array) -> Parity:
        """Return the agreement from differences in units."""
        units = np.round(gaps)
        return cls(name, gaps.size, float((units == 0).mean()), float((units <= 1).mean()), float(units.max(initial=0)))

    def __str__(self) -> str:
        return (
            f"'{self.name}': {self.equal:.2%} of {self.elements} elements equal, {self.within_one:.2%} within one "
            f"unit, the worst {self.worst:.0f} units off"
        )


def parity(
    trained: Trainable, result: Result, samples: Samples, *, limit: int = 100, kernels: Kernels = "delegate"
) -> tuple[Parity, ...]:
    """Run `samples` through the trained graph and through LiteRT, and compare the outputs."""
    outputs, graph = trained.blueprint.outputs, entry(result.model).graph
    chosen = row_list(samples, entry(trained.blueprint.planned.model), limit)
    if not chosen:
        raise InvalidSample("no samples were given to compare")
    tensors = [graph.tensor(output.name) for output in outputs]
    held = [t.params if t.is_quantized else result.plan.stored.get(o) for o, t in zip(outputs, tensors, strict=True)]
    units = [FLOAT_UNIT if params is None else params.scale for params in held]
    runner = Runner.exposing(result.model, graph, tensors, kernels=kernels)
    gaps: list[list[Array]] = [[] for _ in outputs]
    for row in chosen:
        ours, theirs = trained(list(row), training=False), runner.values(row)
        for k, value in enumerate(ours if isinstance(ours, list) else [ours]):
            gap = array_of(value).astype(np.float64) - real(theirs[tensors[k]], tensors[k])
            gaps[k].append(np.abs(gap).reshape(-1) / units[k])
    return tuple(Parity.of(t.name, np.concatenate(gap)) for t, gap in zip(outputs, gaps, strict=True))
