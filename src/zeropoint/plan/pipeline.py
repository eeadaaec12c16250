"""The main job: a float model and representative data in, an integer model out that runs in LiteRT."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from ..bench.judge import OpError
from ..calibration import Method, Ranges, Stats
from ..calibration.collect import Progress
from ..calibration.range_methods import Bounds
from ..dtypes import DType
from ..errors import InvalidModel, InvalidRecipe, InvalidSample, UnsupportedOp
from ..files import PathLike
from ..graph.edit import copy_model, signatures_follow
from ..graph.model import Graph, Model, Op
from ..graph.query import called_graphs, constants, tensor_keys
from ..improve.bias_correction import give_biases
from ..ops import OPS, OpSpec
from ..recipe import Effort, Recipe, preset, require_effort
from ..runtime import require_runnable
from ..sources.ports import entry_graphs
from ..tflite.write import save
from .forms import Encoder
from .masks import limit_to_what_counts
from .missing import require_ranges
from .plan import Plan, Repair, Skipped
from .planner import Interface, Planner
from .prepare import has_float_part, prepare
from .rewrite import rewrite
from .tensor_ranges import TensorRanges, fused_bounds
from .weight_only import Balancing, WeightOnly, gathers_to_lookups, wider_than_asked, without_blocks

RangeChoice = Method | Literal["auto"]
"""A method, or "auto": try several on the data and keep the best; without data, FALLBACK."""

WEIGHT_METHODS: tuple[Method, ...] = ("minmax", "mse")

FALLBACK: Method = "mse"
"""The best single method over the zoo."""


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
    methods: Mapping[str, Method] = field(default_factory=dict)  # by tensor, in place of `method`
    limits: Mapping[str, Bounds] = field(default_factory=dict)  # by tensor: what lies beyond is cut off

    def __post_init__(self) -> None:
        require_effort(self.effort)


Stage = Callable[[str, int], Progress]
"""(what, how many steps) -> who to tell about each."""


def untold(what: str, steps: int) -> Progress:  # noqa: ARG001 - one signature for all stages
    """The stage that nobody watches."""
    return lambda _: None


@dataclass(frozen=True)
class Step:
    """Something that was tried: the time it took, the outputs' relative squared error after it, if it was kept."""

    what: str
    seconds: float
    error: float | None = None
    kept: bool = True


@dataclass(frozen=True)
class Result:
    """The quantized model with the plans it was made by, one for each graph that was changed.

    `prepared` is the float model that the plans are for, `stats` what its ranges come from.
    """

    model: Model
    plans: tuple[Plan, ...]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    worst: tuple[OpError, ...] = ()
    prepared: Model | None = None
    stats: Stats | None = None

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
    """Prepare `model` in place and plan its graphs: entry graphs, and all others with weights to quantize."""
    keys = tensor_keys(model)  # as in the statistics: preparing takes tensors away, and names repeat
    trained = prepare(model, request.recipe)
    given = trained.ranges.merge(request.ranges)
    if request.recipe.has_integer_ops and request.stats is None and not given.entries:
        raise InvalidSample(
            "nothing tells the ranges of the tensors; give representative data (--data), statistics of it (--stats), "
            "or the ranges themselves (--ranges)"
        )
    gathers_to_lookups(model, request.recipe)
    if request.stats is not None:
        for graph in entry_graphs(model):
            give_biases(graph, _corrected(graph, request), request.ops)
    ranges = TensorRanges(keys, request.stats, given, _method(request), fused_bounds(model), trained, request.methods)
    for tensor, key in keys.items():
        if key in request.limits:
            ranges.limit(tensor, request.limits[key])
    limit_to_what_counts(model, ranges)
    called = called_graphs(model)  # whoever calls them gives and gets floats
    whole = [graph for graph in entry_graphs(model) if graph not in called]
    plans = [
        Planner(graph, request.recipe, request.ops, ranges, request.effort).plan(request.interface) for graph in whole
    ] + [Plan(graph) for graph in model.graphs if graph not in whole]
    if request.stats is None:
        require_ranges(plans, request.ops, ranges)
    weights = WeightOnly(request.recipe, request.ops, _weight_method(request))
    made = weights.share([weights.add(plan) for plan in plans])
    balancing = Balancing(request.recipe, request.ops, ranges, request.effort)
    made = tuple(balancing.add(plan) for plan in made)
    return tuple(plan for plan in made if plan.graph in whole or plan.does_anything or plan.skipped)


def _corrected(graph: Graph, request: Request) -> Iterator[Op]:
    """Ops whose biases are to make up for the rounding of weights."""
    for op in graph.ops:
        scheme = request.recipe.scheme(op)
        rounds = scheme.weights is not None and scheme.weights.is_integer
        if rounds and request.recipe.effort(op, request.effort) != "quick":
            yield op


@dataclass(frozen=True)
class Planned:
    """A prepared copy of a model, and what is to be done with it."""

    model: Model
    plans: tuple[Plan, ...]


def plan_model(model: Model, request: Request) -> Planned:
    """Plan `model`; it is not changed."""
    require_float_part(model, request.recipe)
    _require_fitting(request)
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


def _weight_method(request: Request) -> Method | None:
    """How the scales of weights are chosen where only these are quantized; None leaves it to their bits."""
    if request.method == "auto":
        return "minmax" if request.effort == "quick" else None
    return request.method if request.method in WEIGHT_METHODS else None


def _require_fitting(request: Request) -> None:
    """Raise for wishes that need integer arithmetic where none is asked for."""
    if request.recipe.has_integer_ops:
        return
    if request.interface != Interface():
        raise InvalidRecipe(
            "integer inputs and outputs need integer arithmetic (--mode int8 or int16x8); where only weights are "
            "quantized, activations are float"
        )
    if request.strict:
        raise InvalidRecipe("--strict needs integer arithmetic (--mode int8 or int16x8); this mode computes in float")
    if request.method not in (*WEIGHT_METHODS, "auto"):
        raise InvalidRecipe(f"{request.method!r} is for ranges of activations; for weights choose minmax or mse")


def run(model: Model, request: Request) -> Result:
    """Quantize `model`; it is not changed."""
    return carry_out(plan_model(model, request), request)


def run_without_data(model: Model, request: Request) -> Result:
    """`run`, and a note about what could not be done because there is nothing to run the model on."""
    result = run(model, request)
    return replace(result, notes=(*result.notes, *_left_out(request)))


def _left_out(request: Request) -> Iterator[str]:
    rounds = any(r.scheme.weights is not None and r.scheme.weights.is_integer for r in request.recipe.rules)
    effort = request.recipe.highest_effort(request.effort)
    if effort == "quick" or not rounds:
        return
    if request.stats is None:
        yield "biases are not corrected: that takes the means of activations (--data or --stats)"
    if effort == "high":
        yield "no compensated rounding, and no choice by the error of the outputs: high effort takes data (--data)"
    elif request.recipe.has_integer_ops and request.method == "auto":
        yield f"ranges by {FALLBACK}: choosing by the error of the outputs takes data (--data)"


def carry_out(planned: Planned, request: Request) -> Result:
    """Make the model that was planned, and see that LiteRT runs it."""
    warnings = [f"no op matches the rule {rule}" for rule in request.recipe.unmatched(_ops(planned.model))]
    if not any(plan.does_anything for plan in planned.plans):
        warnings.append("nothing was quantized")
    made = copy_model(planned.model)
    encoder = Encoder()
    with signatures_follow(made):
        for plan in planned.plans:
            rewrite(plan.on(made.graphs[planned.model.graphs.index(plan.graph)]), request.ops, encoder)
    require_runnable(made)
    notes = tuple(_other_weights(planned.plans, request))
    return Result(made, planned.plans, tuple(warnings), notes, prepared=planned.model, stats=request.stats)


def _other_weights(plans: tuple[Plan, ...], request: Request) -> Iterator[str]:
    """Ops whose weights are held in another way than asked for, because LiteRT has no kernel for that."""
    recipe, wider = request.recipe, Counter[tuple[str, str, str]]()
    for plan in plans:
        for op, scheme in plan.schemes.items():
            asked = recipe.scheme(op).weights
            if request.ops[op.kind].weight_slots and asked is not None and scheme.weights not in (asked, None):
                wider[op.label, asked.label, scheme.weights.label] += 1
    for op, asked, made in dict.fromkeys(wider_than_asked(plans, recipe)):
        wider[op.label, asked.label, made.label] += 1
    for (label, asked_label, made_label), count in wider.items():
        yield f"{count} {label} with {made_label} weights: LiteRT has no {asked_label} kernel for it"
    for label, count in Counter(op.label for op in dict.fromkeys(without_blocks(plans, recipe))).items():
        yield f"{count} {label} with a scale for each channel: LiteRT has no kernel for such blocks of it"


def _ops(model: Model) -> list[Op]:
    return [op for graph in model.graphs for op in graph.ops]


def require_float_part(model: Model, recipe: Recipe) -> None:
    """Raise if there is nothing to do: the model is quantized already, or no op of it has an integer kernel."""
    if recipe.has_integer_ops and not has_float_part(model):
        raise InvalidModel(
            "the model has no float arithmetic that LiteRT could do in integers; "
            "if it is quantized already, give the float model instead"
        )
    if not recipe.has_integer_ops and not any(t.dtype.is_float for g in model.graphs for t in constants(g)):
        raise InvalidModel("the model has no float weights; if it is quantized already, give the float model instead")


def refuse_float(plans: tuple[Plan, ...]) -> None:
    """Raise for strict integer models, listing every op that would stay float."""
    skipped = [s for plan in plans for s in plan.skipped]
    if skipped:
        raise UnsupportedOp(
            f"{len(skipped)} {'op' if len(skipped) == 1 else 'ops'} cannot be computed in integers:",
            *(f"  {s}" for s in skipped),
            "leave out --strict to keep them in float between integer ops, or change the model",
        )


@dataclass(frozen=True)
class WeightOptions:
    """What a mode leaves open about weights; fields of Scheme."""

    bits: int = 8
    block: int | None = None
    asymmetric: bool = False
    min_elements: int | None = None


def resolve_recipe(mode: str | None, recipe: Recipe | None, weights: WeightOptions) -> Recipe:
    if recipe is not None:
        if mode is not None or weights != WeightOptions():
            raise InvalidRecipe("give a recipe, or a mode with options for the weights, not both")
        return recipe
    changes: dict[str, object] = {"block": weights.block, "asymmetric": weights.asymmetric}
    if weights.min_elements is not None:
        changes["min_elements"] = weights.min_elements
    return preset("int8" if mode is None else mode, weights.bits, **changes)


def interface_of(input: str, output: str) -> Interface:
    allowed = ("float32", "int8", "uint8", "int16")
    for what, name in (("input", input), ("output", output)):
        if name not in allowed:
            raise InvalidRecipe(f"the {what} type {name!r} is not one of {', '.join(allowed)}")
    return Interface(DType.parse(input), DType.parse(output))
