"""The main job: a float model and representative data in, an integer model out that runs in LiteRT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..calibrate import Method, Ranges, Stats
from ..dtypes import DType
from ..errors import InvalidModel, InvalidRecipe, UnsupportedOp
from ..files import PathLike
from ..graph.edit import copy_model, signatures_follow
from ..graph.model import Model, Op
from ..ops import OPS, OpSpec
from ..recipe import Recipe, preset
from ..runtime import require_runnable
from ..sources.ports import entry_graphs
from ..tflite.write import save
from .masks import limit_to_what_counts
from .plan import Plan, Repair, Skipped
from .planner import Interface, Planner
from .prepare import has_float_part, prepare
from .rewrite import rewrite
from .tensor_ranges import TensorRanges

RangeChoice = Method | Literal["auto"]
"""A method, or "auto": try several on the data and keep the best; without data, FALLBACK."""

FALLBACK: Method = "mse"
"""The best single method over the zoo."""

Effort = Literal["quick", "standard"]
"""quick: each weight is rounded by itself, ranges are one method's. standard: biases make up for what rounding does to
the means, and several ways to set the ranges are tried."""


@dataclass(frozen=True)
class Request:
    """What to make of a model. Every range comes from `stats` or, first, from `ranges`."""

    recipe: Recipe
    stats: Stats | None = None
    ranges: Ranges = field(default_factory=lambda: Ranges({}))
    method: RangeChoice = "auto"
    interface: Interface = field(default_factory=Interface)
    strict: bool = False
    effort: Effort = "standard"
    ops: Mapping[str, OpSpec] = field(default_factory=lambda: OPS)


@dataclass(frozen=True)
class Result:
    """The quantized model with the plans it was made by, one for each entry graph."""

    model: Model
    plans: tuple[Plan, ...]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def plan(self) -> Plan:
        return self.plans[0]

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Every op that stayed float, with the reason."""
        return tuple(s for plan in self.plans for s in plan.skipped)

    @property
    def repairs(self) -> tuple[Repair, ...]:
        return tuple(r for plan in self.plans for r in plan.repairs)

    def save(self, path: PathLike, *, overwrite: bool = False) -> int:
        """Write the model, whole or not at all; return the file's size."""
        return save(self.model, path, overwrite=overwrite)


def make_plans(model: Model, request: Request) -> tuple[Plan, ...]:
    """Prepare `model` in place and plan each of its entry graphs."""
    given = prepare(model)
    ranges = TensorRanges.of(model, request.stats, given.merge(request.ranges), _method(request))
    return tuple(
        Planner(graph, request.recipe, request.ops, ranges, request.effort != "quick").plan(request.interface)
        for graph in entry_graphs(model)
    )


def _planned(model: Model, request: Request) -> tuple[Model, tuple[Plan, ...]]:
    require_float_part(model)
    if request.stats is not None:
        request.stats.require(model)
    request.ranges.require(model)
    prepared = copy_model(model)
    with signatures_follow(prepared):
        plans = make_plans(prepared, request)
    return prepared, plans


def _method(request: Request) -> Method:
    if request.method == "auto":
        return "minmax" if request.effort == "quick" else FALLBACK
    return request.method


def run(model: Model, request: Request) -> Result:
    """Quantize `model`; it is not changed."""
    prepared, plans = _planned(model, request)
    warnings = [f"no op matches the rule {rule}" for rule in request.recipe.unmatched(_ops(prepared))]
    if request.strict:
        refuse_float(plans)
    made = copy_model(prepared)
    with signatures_follow(made):
        for plan in plans:
            rewrite(plan.on(made.graphs[prepared.graphs.index(plan.graph)]), request.ops)
    require_runnable(made)
    return Result(made, plans, tuple(warnings))


def _ops(model: Model) -> list[Op]:
    return [op for graph in model.graphs for op in graph.ops]


def require_float_part(model: Model) -> None:
    """Raise if the model is quantized already."""
    if not has_float_part(model):
        raise InvalidModel("the model has no float arithmetic left to quantize; give the float model instead")


def refuse_float(plans: tuple[Plan, ...]) -> None:
    """Raise for strict integer models, listing every op that would stay float."""
    skipped = [s for plan in plans for s in plan.skipped]
    if skipped:
        listed = "".join(f"\n  {s}" for s in skipped)
        raise UnsupportedOp(
            f"{len(skipped)} ops cannot be computed in integers:{listed}\n"
            "leave out --strict to keep them in float between integer ops, or change the model"
        )


def resolve_recipe(mode: str | None, recipe: Recipe | None) -> Recipe:
    if recipe is not None and mode is not None:
        raise InvalidRecipe("give a mode or a recipe, not both")
    return recipe if recipe is not None else preset(mode or "int8")


def interface_of(input: str, output: str) -> Interface:
    allowed = ("float32", "int8", "uint8", "int16")
    for what, name in (("input", input), ("output", output)):
        if name not in allowed:
            raise InvalidRecipe(f"the {what} type {name!r} is not one of {', '.join(allowed)}")
    return Interface(DType.parse(input), DType.parse(output))
