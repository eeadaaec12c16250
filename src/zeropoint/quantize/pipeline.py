"""The main job: a float model and representative data in, an integer model out that runs in LiteRT."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..calibrate import Method, Ranges, Stats
from ..dtypes import DType
from ..errors import InvalidModel, InvalidRecipe, InvalidSample, UnsupportedOp
from ..files import PathLike
from ..graph.edit import copy_model, signatures_follow
from ..graph.model import Model, Op
from ..graph.query import called_graphs, tensor_keys
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
from .tensor_ranges import TensorRanges, fused_bounds

RangeChoice = Method | Literal["auto"]
"""A method, or "auto": try several on the data and keep the best; without data, FALLBACK."""

FALLBACK: Method = "mse"
"""The best single method over the zoo."""

Effort = Literal["quick", "standard", "high"]
"""quick: each weight is rounded by itself, ranges are one method's. standard: biases make up for what rounding does to
the means, and several ways to set the ranges are tried. high: weights also make up for each other, layer by layer."""


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
    keys = tensor_keys(model)  # as in the statistics: preparing takes tensors away, and names repeat
    given = prepare(model, request.recipe).merge(request.ranges)
    if request.stats is None and not given.entries:
        raise InvalidSample(
            "nothing tells the ranges of the tensors; give representative data (--data), statistics of it (--stats), "
            "or the ranges themselves (--ranges)"
        )
    ranges = TensorRanges(keys, request.stats, given, _method(request), fused_bounds(model))
    limit_to_what_counts(model, ranges)
    called = called_graphs(model)
    return tuple(
        Planner(graph, request.recipe, request.ops, ranges, request.effort != "quick").plan(request.interface)
        for graph in entry_graphs(model)
        if graph not in called  # whoever calls it gives and gets floats
    )


@dataclass(frozen=True)
class Planned:
    """A prepared copy of a model, and what is to be done with it."""

    model: Model
    plans: tuple[Plan, ...]


def plan_model(model: Model, request: Request) -> Planned:
    """Plan `model`; it is not changed."""
    require_float_part(model)
    if request.stats is not None:
        request.stats.require(model)
    request.ranges.require(model)
    prepared = copy_model(model)
    with signatures_follow(prepared):
        plans = make_plans(prepared, request)
    if request.strict:
        refuse_float(plans)
    return Planned(prepared, plans)


def _method(request: Request) -> Method:
    if request.method == "auto":
        return "minmax" if request.effort == "quick" else FALLBACK
    return request.method


def run(model: Model, request: Request) -> Result:
    """Quantize `model`; it is not changed."""
    return carry_out(plan_model(model, request), request)


def carry_out(planned: Planned, request: Request) -> Result:
    """Make the model that was planned, and see that LiteRT runs it."""
    warnings = [f"no op matches the rule {rule}" for rule in request.recipe.unmatched(_ops(planned.model))]
    made = copy_model(planned.model)
    with signatures_follow(made):
        for plan in planned.plans:
            rewrite(plan.on(made.graphs[planned.model.graphs.index(plan.graph)]), request.ops)
    require_runnable(made)
    return Result(made, planned.plans, tuple(warnings), tuple(_wider_weights(planned.plans, request)))


def _wider_weights(plans: tuple[Plan, ...], request: Request) -> Iterator[str]:
    """Ops whose weights take more bits than asked for, because LiteRT has no kernel for so few."""
    kinds = Counter(
        (op.label, asked.label)
        for plan in plans
        for op, scheme in plan.schemes.items()
        if request.ops[op.kind].weight_slots and (asked := request.recipe.scheme(op).weights) is not scheme.weights
    )
    for (label, asked_label), count in kinds.items():
        yield f"{count} {label} with 8-bit weights: LiteRT has no {asked_label} kernel for it"


def _ops(model: Model) -> list[Op]:
    return [op for graph in model.graphs for op in graph.ops]


def require_float_part(model: Model) -> None:
    """Raise if there is nothing to do: the model is quantized already, or no op of it has an integer kernel."""
    if not has_float_part(model):
        raise InvalidModel(
            "the model has no float arithmetic that LiteRT could do in integers; "
            "if it is quantized already, give the float model instead"
        )


def refuse_float(plans: tuple[Plan, ...]) -> None:
    """Raise for strict integer models, listing every op that would stay float."""
    skipped = [s for plan in plans for s in plan.skipped]
    if skipped:
        raise UnsupportedOp(
            f"{len(skipped)} {'op' if len(skipped) == 1 else 'ops'} cannot be computed in integers:",
            *(f"  {s}" for s in skipped),
            "leave out --strict to keep them in float between integer ops, or change the model",
        )


def resolve_recipe(mode: str | None, recipe: Recipe | None, weight_bits: int = 8) -> Recipe:
    if recipe is not None and (mode is not None or weight_bits != 8):
        raise InvalidRecipe("give a recipe, or a mode and the bits of the weights, not both")
    return recipe if recipe is not None else preset("int8" if mode is None else mode, weight_bits)


def interface_of(input: str, output: str) -> Interface:
    allowed = ("float32", "int8", "uint8", "int16")
    for what, name in (("input", input), ("output", output)):
        if name not in allowed:
            raise InvalidRecipe(f"the {what} type {name!r} is not one of {', '.join(allowed)}")
    return Interface(DType.parse(input), DType.parse(output))
