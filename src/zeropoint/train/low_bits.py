"""Low-bit training: which layers get few bits, where their ranges start, and how to go from one bit width to the
next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from ..affine import QuantParams
from ..calibration import Grid, Stats, choose_range
from ..errors import InvalidRecipe
from ..graph.model import Graph, Model, Op
from ..graph.query import Uses, tensor_keys
from ..ops import OpSpec, spec_of
from ..plan.plan import Group, Plan
from ..recipe import INT8, Recipe, Rule
from ..recipe_files import recipe_from
from ..sources.ports import entry
from ..train_bits import TrainBits
from .backend import array_of
from .fake_quant_graph import Blueprint, FakeQuantGraph, group_bits

Stages = tuple[TrainBits, ...]
"""Bit widths to train in, one after the other; the last is that of the result."""


def stages_of(asked: str | Sequence[str]) -> Stages:
    """Parse "w2a8", "w8a8,w4a8,w2a8", or several such strings."""
    texts = asked.split(",") if isinstance(asked, str) else asked
    found = tuple(TrainBits.parse(text) for text in texts)
    if not found:
        raise InvalidRecipe("no bits to train in were given; choose from w8a8 down to w1a1, ternary or binary")
    for wide, narrow in pairwise(found):
        if narrow.weights > wide.weights or narrow.activations > wide.activations:
            raise InvalidRecipe(f"training goes from more bits to fewer, not from {wide} to {narrow}")
    return found


def low_bit_recipe(model: Model, bits: TrainBits, ops: Mapping[str, OpSpec], *, every_layer: bool = False) -> Recipe:
    """Return a recipe for `bits` in all layers, with 8-bit weights in the first and the last ones unless `every_layer`.

    These have the fewest weights and are the most sensitive: one reads the data itself, the other produces the result.
    """
    recipe = recipe_from({"rules": [{"scheme": "int8", "train_bits": str(bits)}]})
    if every_layer:
        return recipe
    graph = entry(model).graph
    first, last = outermost_layers(graph, ops)
    wide = replace(INT8, train_bits=str(TrainBits(8, bits.activations)))
    rules = [Rule(wide, name=op.outputs[0].name) for op in (*first, *(op for op in last if op not in first))]
    return recipe.then(*rules)


def outermost_layers(graph: Graph, ops: Mapping[str, OpSpec]) -> tuple[list[Op], list[Op]]:
    """Return layers with weights before which there is no other, and those after which there is none."""
    uses = Uses(graph)
    layers = dict.fromkeys(op for op in graph.ops if any(t.is_constant for t in spec_of(op, ops).weight_tensors(op)))
    makers = {op: {uses.producer(t) for t in op.inputs if t is not None} for op in graph.ops}
    behind, before = set[Op | None](), set[Op | None]()
    for op in graph.ops:
        if any(maker in behind or maker in layers for maker in makers[op]):
            behind.add(op)
    for op in reversed(graph.ops):
        if op in layers or op in before:
            before |= makers[op]
    return [op for op in layers if op not in behind], [op for op in layers if op not in before]


def with_narrow_ranges(blueprint: Blueprint, stats: Stats | None) -> Blueprint:
    """Return a blueprint in which ranges with few levels start where these lose least, according to the statistics;
    that is far below the peak."""
    if stats is None:
        return blueprint
    keys = tensor_keys(blueprint.planned.model)

    def narrowed(group: Group, bits: int) -> Group:
        named = {keys.get(node.tensor, "") for node in group.nodes}
        seen = [stats.tensors[key] for key in sorted(named) if key in stats.tensors]
        if bits >= group.params.dtype.bits or not seen:
            return group
        highs = [[choose_range(one, "mse", Grid(b))[1] for one in seen] for b in (bits, 8)]
        share = max(highs[0]) / max(highs[1]) if max(highs[1]) > 0 else 1.0
        return replace(group, params=_from_zero(group.params.range()[1] * min(share, 1.0), group))

    return _with_groups(blueprint, narrowed)


def at_stage(blueprint: Blueprint, trained: Any, stage: TrainBits | None) -> Blueprint:
    """Return the blueprint for the stage after `trained`: its weights and ranges, rounded to fewer levels."""
    staged = replace(blueprint, stage=stage)
    for part in trained.graph.parts:
        plan = next(p for p in blueprint.planned.plans if p.graph is part.blueprint.plan.graph)
        staged = _on_plan(staged, _continued(replace(staged, plan=plan), part, trained.step))
    return staged


def _continued(blueprint: Blueprint, trained: FakeQuantGraph, step: int) -> Plan:
    """Return the plan of one graph with what was learned in it."""
    plan = blueprint.plan
    values, keys = dict(plan.constants.values), dict(plan.constants.keys)
    for constant in trained.constants:
        if constant.variable.trainable:
            key = f"{plan.key(constant.uses[0])}:stage"
            quantizer = trained.quantizers.get(constant.uses[0])
            values[key] = constant.value if quantizer is None else array_of(quantizer.effective(constant.value))
            keys.update(dict.fromkeys(constant.uses, key))
    few = [bits < group.params.dtype.bits for bits, group in zip(group_bits(blueprint), plan.groups, strict=True)]
    groups = tuple(
        replace(group, params=_from_zero(params.range()[1], group) if narrow else params)
        for group, params, narrow in zip(plan.groups, trained.ranges.deployed(step), few, strict=True)
    )
    return replace(plan, groups=groups, constants=replace(plan.constants, values=values, keys=keys))


def _from_zero(high: float, group: Group) -> QuantParams:
    return QuantParams.from_range(0.0, high, group.params.dtype, name=group.nodes[0].tensor.name)


def _with_groups(blueprint: Blueprint, change: Any) -> Blueprint:
    plan = blueprint.plan
    groups = tuple(change(g, b) for g, b in zip(plan.groups, group_bits(blueprint), strict=True))
    return _on_plan(blueprint, replace(plan, groups=groups))


def _on_plan(blueprint: Blueprint, plan: Plan) -> Blueprint:
    """Return the blueprint with the plan of one of its graphs: the one that callers run, or one that is called."""
    plans = tuple(plan if p.graph is plan.graph else p for p in blueprint.planned.plans)
    own = plan if plan.graph is blueprint.plan.graph else blueprint.plan
    return replace(blueprint, plan=own, planned=replace(blueprint.planned, plans=plans))
