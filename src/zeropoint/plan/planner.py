"""From a float model and a request to plans: prepare once, then match, solve and derive whenever ranges change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..affine import QuantParams
from ..calibration import Range, Ranges
from ..calibration.range_methods import Bounds
from ..dtypes import Array, DType, Levels
from ..errors import InvalidModel, InvalidRecipe, InvalidSample, UnsupportedOp, argument, names_are_listed
from ..graph.edit import add_constant_input, copy_model, drop_unused, signatures_follow
from ..graph.model import Buffer, Graph, Model, Op, Tensor
from ..graph.names import short_names
from ..graph.query import Use, called_graphs, constants, tensor_keys
from ..ops import Coefficients, OpSpec, Weight
from ..recipe import Recipe, Scheme
from ..sources.ports import entry_graphs
from ..targets import OpVerdict, Rewrite
from .called import bind_constants, computing_graphs, inline_composites
from .conversions import overflows_in_calls, with_room_in_outputs
from .crossing import NOTHING_CROSSES, Crossing, crossings
from .decompose import decompose, has_float_part
from .derive import coarse_tables, unfit_outputs, wrapped_errors
from .ends import state_notes, wide_states, with_interface, with_one_scale
from .fit import fit_scales, symmetric_uses
from .given import clip_constants, default_notes, require_free
from .linear_layers import merge_linear_layers
from .masks import limit_to_what_counts
from .match import Matcher, TargetAnswers, require_ranges
from .new_ops import NewOps
from .origins import unused_notes, with_origins
from .pixel_shuffle import shuffle_pixels
from .placement import Placement
from .plan import Constants, Form, Plan, Planned, Skipped
from .poles import rounded_to_poles
from .prepare import prepare
from .qdq import Trained, implied_ranges
from .request import Interface, Request
from .rewrite import EncodedAs
from .saturation import Curve, curves, reaching, saturation
from .solve import Solver
from .space_to_depth import fold_pixels
from .swamped import split_swamped, swamped_notes
from .target_rewrites import fit_to_target, fuse_clamps
from .tensor_ranges import TensorRanges, fused_bounds
from .weight_only import WeightOnly, gathers_to_lookups, reuse_notes
from .weights import bias_use, scale_axis, weight_params


@dataclass(frozen=True)
class Matched:
    """The ops of a graph that compute in integers (`schemes`) or have integer weights with float arithmetic
    (`dynamic`), why others stay float (`skipped`), and where the target demands zero point 0 (`symmetric`).

    `request` and `ranges` are what it was derived from; `before` is what has kernels, regardless of speed. Range
    methods that choose within the observed range make no difference.
    """

    request: Request
    ranges: TensorRanges
    before: tuple[Mapping[Op, Scheme], Sequence[Skipped]]
    schemes: Mapping[Op, Scheme]
    dynamic: Mapping[Op, Scheme]
    skipped: tuple[Skipped, ...]
    symmetric: Collection[Use]

    def holds_for(self, request: Request, ranges: TensorRanges) -> bool:
        limits = [(one.bounded, one.masked, one.unbounded) for one in (self.ranges, ranges)]
        return self.is_for(request) and limits[0] == limits[1]

    def is_for(self, request: Request) -> bool:
        """Whether the request is the same except for ranges."""
        own = self.request
        alike = replace(request, method=own.method, methods=own.methods, effort=own.effort, limits=own.limits)
        return request.stats is own.stats and alike == own


GridKey = tuple[Buffer | None, tuple[int, ...], int | None, Levels]
"""The bytes of weights, their shape, the axis of their scales, and the levels of their integers."""


@dataclass(frozen=True)
class Prepared:
    """A float model that is ready for planning: folded, with biases to correct.

    `keys` are the names by which statistics know the tensors, from before the model was edited; `trained` is what
    quantization-aware training left in it. Candidates with other ranges share it, and everything computed from its
    constants: the parameters of weights (`grids`), how far their rounding shifts the outputs (`shifts`), their integers
    (`integers`); the `functions` that its graphs compute; which of their ops compute in integers, according to the last
    plan (`matched`); and what the target says about its ops (`verdicts`).
    """

    model: Model
    keys: Mapping[Tensor, str]
    trained: Trained
    grids: dict[GridKey, QuantParams] = field(default_factory=dict, compare=False, repr=False)
    shifts: dict[tuple[Use, Form], Array | None] = field(default_factory=dict, compare=False, repr=False)
    integers: dict[EncodedAs, Tensor] = field(default_factory=dict, compare=False, repr=False)
    functions: dict[Graph, tuple[Curve, ...]] = field(default_factory=dict, compare=False, repr=False)
    matched: dict[Graph, Matched] = field(default_factory=dict, compare=False, repr=False)
    verdicts: dict[tuple[Op, Scheme], OpVerdict] = field(default_factory=dict, compare=False, repr=False)

    def grid(self, tensor: Tensor, axis: int | None, levels: Levels) -> QuantParams:
        """Return the parameters of a constant that is used as weights."""
        key = tensor.buffer, tensor.shape, axis, levels
        if key not in self.grids:
            assert tensor.data is not None
            self.grids[key] = weight_params(tensor.data, axis, levels, tensor.name)
        return self.grids[key]

    def sharing_constants(self, other: Prepared | None) -> Prepared:
        """Return the same model with what was computed from constants that it shares with another version."""
        return self if other is None else replace(self, grids=other.grids, integers=other.integers)

    def copied(self) -> tuple[Prepared, dict[Tensor, Tensor]]:
        """Return a copy of the model for editing, without what training left, and its tensors by those of this one.

        Caches of its constants are keyed by their bytes, so edited constants get new entries.
        """
        copy = copy_model(self.model)
        pairs = list(zip(self.model.graphs, copy.graphs, strict=True))
        twins = {t: twin for old, new in pairs for t, twin in zip(old.tensors, new.tensors, strict=True)}
        keys = {twins[t]: key for t, key in self.keys.items() if t in twins}
        packed = {twins[t]: packed for t, packed in self.trained.packed.items() if t in twins}
        trained = Trained(implied=self.trained.implied, packed=packed)
        return Prepared(copy, keys, trained, grids=self.grids, integers=self.integers), twins

    def with_new(self, made: Mapping[Tensor, Range | Tensor]) -> Prepared:
        """Return the model with the ranges of tensors that edits have added, or other tensors with the same range."""
        implied = self.trained.implied.merge(Ranges({t.name: r for t, r in made.items() if isinstance(r, Range)}))
        known = {t: self.keys.get(r, r.name) if isinstance(r, Tensor) else t.name for t, r in made.items()}
        return replace(self, keys={**self.keys, **known}, trained=replace(self.trained, implied=implied))

    def curves(self, graph: Graph, ops: Mapping[str, OpSpec]) -> tuple[Curve, ...]:
        """Return the functions of one tensor that a graph computes."""
        if graph not in self.functions:
            self.functions[graph] = curves(graph, ops)
        return self.functions[graph]


def prepare_model(model: Model, request: Request) -> Prepared:
    """Return a copy of `model`, ready for planning; raises if the request does not fit it."""
    require_float_part(model, request.recipe, request.ops)
    request.require_consistent()
    if request.stats is not None:
        request.stats.require(model)
    request.ranges.require(model)
    copy = copy_model(model)
    keys = tensor_keys(copy)  # as in the statistics: preparing removes tensors, and names repeat
    keys |= {new: keys[old] for new, old in inline_composites(copy, request.recipe).items()}
    bind_constants(copy)
    with signatures_follow(copy):
        made = fit_to_target(copy, request.target, request.ops)
        trained = prepare(copy, request.recipe, request.ops)
        fuse_clamps(copy, request.target)
        gathers_to_lookups(copy, request.recipe)
        clip_constants(copy, request, keys)
        if request.stats is not None:
            for graph in entry_graphs(copy):
                _give_biases(graph, request)
    implied = implied_ranges(copy, request.ops, keys, request.ranges.entries)
    trained = replace(trained, implied=implied.merge(trained.implied))
    return _decomposed(Prepared(copy, keys, trained).with_new(made), request)


def _decomposed(prepared: Prepared, request: Request) -> Prepared:
    """Replace ops that have no integer kernels by ops that do; the model is edited in place."""
    given = prepared.trained.ranges.merge(request.ranges)
    ranges = None if request.stats is None and given.is_empty else ranges_of(prepared, request)

    def bounds(tensor: Tensor) -> Bounds | None:
        return None if ranges is None or not ranges.knows(tensor) else ranges.bounds(tensor)

    made = [decompose(graph, request, bounds) for graph in computing_graphs(prepared.model)]
    prepared = prepared.with_new({t: span for spans in made for t, span in spans.items()})
    for rewrite, edit in LAYER_REWRITES.items():
        if rewrite in request.target.rewrites:
            prepared = _with_rewritten_layers(prepared, request, edit)
    return prepared


LAYER_REWRITES = {
    Rewrite.LINEAR_LAYERS: merge_linear_layers,
    Rewrite.PIXEL_SHUFFLE: shuffle_pixels,
    Rewrite.SPACE_TO_DEPTH: fold_pixels,
}
"""Rewrites that give layers other weights, in order."""


def _with_rewritten_layers(
    prepared: Prepared, request: Request, edit: Callable[[Graph, Recipe, Collection[Tensor | None]], NewOps]
) -> Prepared:
    """Replace layers, unless their weights or what they compute have integers or ranges already."""
    packed, known = prepared.trained.packed, {*request.ranges.entries, *prepared.trained.ranges.entries}
    fixed = {*prepared.trained.constants, *(t for t, held in packed.items() if isinstance(held.form, QuantParams))}
    fixed |= {t for t, key in prepared.keys.items() if key in known}
    for graph in computing_graphs(prepared.model):
        new = edit(graph, request.recipe, fixed)
        packed = {**packed, **{made: packed[old] for made, old in new.constants.items() if old in packed}}
        drop_unused(graph)
        prepared = prepared.with_new(new.made)
    return replace(prepared, trained=replace(prepared.trained, packed=packed))


def require_float_part(model: Model, recipe: Recipe, ops: Mapping[str, OpSpec]) -> None:
    """Raise if there is nothing to do: the model is already quantized, or none of its ops has an integer kernel."""
    if recipe.has_integer_ops and not has_float_part(model, ops):
        raise InvalidModel(
            "the model has no float arithmetic that LiteRT could do in integers; "
            "if it is quantized already, give the float model instead"
        )
    if not recipe.has_integer_ops and not any(t.dtype.is_float for g in model.graphs for t in constants(g)):
        raise InvalidModel("the model has no float weights; if it is quantized already, give the float model instead")


def with_matched_rules(model: Model, request: Request) -> Request:
    """Return `request` with full op names in rules that use the short names shown to users.

    Raises for rules that match no op, unless these are allowed: most likely they are misspelled.
    """
    ops = [op for graph in model.graphs for op in graph.ops]
    if request.recipe.unmatched(ops):
        request = replace(request, recipe=request.recipe.spelled_out(ops, short_names(model)))
    if request.allow_unmatched or not request.recipe.unmatched(ops):
        return request
    prepared = prepare_model(model, replace(request, stats=None)).model  # a plan shows the names of its ops
    both = [*ops, *(op for graph in prepared.graphs for op in graph.ops)]
    if missing := request.recipe.unmatched(both):
        near = missing[0].nearest(both)
        raise InvalidRecipe(
            f"no op matches the rule {missing[0]}; {'' if near is None else f'did you mean {near}? '}"
            f"{names_are_listed()}; {argument('allow_unmatched', True)} lets rules match nothing"
        )
    return request


def _give_biases(graph: Graph, request: Request) -> None:
    """Add a bias of zeros to layers without one, so that there is something to correct."""
    for op in graph.ops:
        spec, scheme = request.ops.get(op.kind), request.recipe.scheme(op)
        rounds = scheme.weights is not None and scheme.weights.is_integer
        if spec is None or not rounds or request.recipe.effort(op, request.effort) == "quick":
            continue
        slot, weights = spec.bias_slot, op.inputs[1] if len(op.inputs) > 1 else None
        if slot is None or weights is None or weights.data is None or not op.outputs[0].shape:
            continue
        if bias_use(op, spec) is None:
            zeros = np.zeros(op.outputs[0].shape[-1], np.float32)
            add_constant_input(graph, op, slot, Tensor.constant(f"{op.name}/bias", zeros, DType.FLOAT32))


def ranges_of(prepared: Prepared, request: Request) -> TensorRanges:
    """Return the range of every tensor, as requested."""
    given = prepared.trained.ranges.merge(request.ranges)
    if request.recipe.has_integer_ops and request.stats is None and given.is_empty:
        raise InvalidSample(
            f"the ranges of the tensors are not known; give representative data ({argument('data')}), statistics of it "
            f"({argument('stats')}), or the ranges themselves ({argument('ranges')})"
        )
    prescribed = frozenset(name for name, entry in request.ranges.entries.items() if entry.params is not None)
    method, bounded = request.range_method, fused_bounds(prepared.model)
    ranges = TensorRanges(
        prepared.keys, request.stats, given, method, bounded, prepared.trained, request.methods, prescribed
    )
    ranges = replace(ranges, percentile=request.percentile)
    ranges = ranges.limited({t: request.limits[key] for t, key in prepared.keys.items() if key in request.limits})
    return limit_to_what_counts(prepared.model, ranges, request.ops)


def solved_ranges(plan: Plan, prepared: Prepared, request: Request) -> TensorRanges:
    """Return the ranges that the parameters of a plan's groups follow from."""
    ranges, ops, curves = ranges_of(prepared, request), request.ops, prepared.curves(plan.graph, request.ops)
    limits = saturation(plan.graph, plan.schemes, ops, curves, ranges)
    further = reaching(plan, curves, limits)
    return ranges.limited(saturation(plan.graph, plan.schemes, ops, further, ranges) if further else limits)


def plan_model(prepared: Prepared, request: Request, ranges: TensorRanges | None = None) -> Planned:
    """Plan the graphs: entry graphs, those that they call, and all others with weights to quantize."""
    model, ranges = prepared.model, ranges or ranges_of(prepared, request)
    whole = computing_graphs(model)
    plans = _plan_graphs(whole, prepared, request, ranges)
    plans += [Plan(graph, k) for k, graph in enumerate(model.graphs) if graph not in whole]
    if request.stats is None:
        require_ranges(plans, request.ops, ranges)
    weights = WeightOnly(request.recipe, request.ops, request.weight_method, prepared.trained.packed, ranges)
    made = weights.share([weights.add(plan) for plan in plans])
    require_free(made, request, prepared.keys)
    made = with_origins(made, ranges, request.ops)
    notes = (*reuse_notes(prepared.trained.packed, made), *request.ranges.notes(), *default_notes(made, ranges))
    notes = (*notes, *unused_notes(made, request.ranges, prepared.keys))
    notes = (*notes, *swamped_notes(made, request.ops, ranges), *state_notes(made, request.interface, request.ops))
    planned = Planned(model, tuple(p for p in made if p.graph in whole or p.does_anything or p.skipped), notes)
    if request.strict:
        refuse_float(planned)
    return planned


def _plan_graphs(graphs: Sequence[Graph], prepared: Prepared, request: Request, ranges: TensorRanges) -> list[Plan]:
    """Plan each graph by itself, with floats between a graph and those it calls; then again, if integers can pass
    there."""
    called, inner = called_graphs(prepared.model), replace(request, interface=Interface())
    asked = {graph: inner if graph in called else request for graph in graphs}
    plans = [_plan_graph(graph, prepared, asked[graph], ranges) for graph in graphs]
    crossing = crossings(prepared.model, plans, request.ops, ranges, strict=request.strict)
    if not crossing:
        return plans
    again = [_plan_graph(g, prepared, asked[g], ranges, crossing.get(g, NOTHING_CROSSES)) for g in graphs]
    loses_ops = any(len(new.schemes) < len(old.schemes) for new, old in zip(again, plans, strict=True))
    return plans if loses_ops or any(overflows_in_calls(new, request.ops, ranges) for new in again) else again


def _matcher(prepared: Prepared, request: Request, ranges: TensorRanges) -> Matcher:
    answers = TargetAnswers(request.target, request.ops, prepared.verdicts)
    return Matcher(request.recipe, answers, ranges, request.islands)


def _match(graph: Graph, request: Request, matcher: Matcher, last: Matched | None) -> Matched:
    before = schemes, skipped = matcher.match(graph)
    if last is not None and last.before == before and last.is_for(request):
        return replace(last, request=request, ranges=matcher.ranges)
    skipped = [*skipped]
    dynamic = {s.op: scheme for s in skipped if (scheme := matcher.island_weights(s.op)) is not None}
    if not request.strict:
        left, told = Placement(graph, schemes, matcher.answers).choose(request.recipe, request.interface)
        schemes = {op: scheme for op, scheme in schemes.items() if op not in left}
        dynamic |= {op: scheme for op, scheme in left.items() if scheme.weights is not None}
        skipped += told
    symmetric = symmetric_uses(schemes, request.ops, request.target)
    return Matched(request, matcher.ranges, before, schemes, dynamic, tuple(skipped), symmetric)


def _plan_graph(
    graph: Graph,
    prepared: Prepared,
    request: Request,
    ranges: TensorRanges,
    crossing: Crossing = NOTHING_CROSSES,
) -> Plan:
    ops, matcher, index = request.ops, _matcher(prepared, request, ranges), prepared.model.graphs.index(graph)
    matched = prepared.matched.get(graph)
    if matched is None or not matched.holds_for(request, ranges):
        matched = prepared.matched[graph] = _match(graph, request, matcher, matched)
    schemes, dynamic, skipped = matched.schemes, matched.dynamic, list(matched.skipped)
    seen, curves = ranges, prepared.curves(graph, ops)
    states, wide = _states(graph, prepared, request), dict[Op, str]()
    # Terminates, because every round but the last drops an op, changes its bits once in each direction, or follows the
    # reach of a tensor once.
    while True:
        ranges = seen.limited(limits := saturation(graph, schemes, ops, curves, seen))
        constants = Constants(grids=_weight_grids(schemes, prepared, ops, ranges))
        exposed = _exposed(graph, schemes)
        groups = Solver(schemes, ops, ranges, matched.symmetric, exposed, states, crossing.nodes).solve()
        plan = Plan(graph, index, schemes, groups, constants, dynamic=dynamic, bias_limit=request.target.bias_limit)
        plan = replace(plan, inputs=crossing.inputs, received=crossing.received)
        plan, refused = _fitted(plan, request, seen)
        if not refused and (further := reaching(plan, curves, limits)):
            curves = further
            continue
        refused, widened = (refused, {}) if refused else split_swamped(plan, seen, matcher, request, wide)
        if not refused and not widened:
            break
        wide |= widened
        changed = {s.op: matcher.narrowed(s.op, schemes[s.op]) for s in refused}
        changed |= {op: matcher.wide(op) for op in widened}
        skipped += [s for s in refused if changed[s.op] is None]
        schemes = {op: new for op, scheme in schemes.items() if (new := changed.get(op, scheme)) is not None}
    order = {op: k for k, op in enumerate(graph.ops)}
    skipped.sort(key=lambda s: order[s.op])
    ends = wide_states(plan, request.interface, states, ops)
    plan = with_room_in_outputs(with_interface(plan, request.interface, ranges, ends), ops, seen)
    plan = with_one_scale(plan, states)
    skipped = [s for s in skipped if s.op not in crossing.calls]
    outputs = {**plan.outputs, **crossing.outputs}
    return replace(plan, skipped=tuple(skipped), wide_ops=_reasons(wide, schemes, matcher), outputs=outputs)


def _fitted(plan: Plan, request: Request, seen: TensorRanges) -> tuple[Plan, tuple[Skipped, ...]]:
    """Return the plan with scales that kernels and target accept, and the ops that would still compute something
    else."""
    ops = request.ops
    plan, refused = fit_scales(plan, ops, request.target)
    refused = refused or (*coarse_tables(plan, ops, seen), *unfit_outputs(plan, ops, seen))
    refused = refused or tuple({s.op: s for s in rounded_to_poles(plan, ops, seen)}.values())
    return plan, refused or tuple(wrapped_errors(plan, ops, seen))


def _reasons(wide: Mapping[Op, str], schemes: Mapping[Op, Scheme], matcher: Matcher) -> dict[Op, str]:
    """Return why ops have 16 bits although the recipe asks for 8."""
    known = {**wide, **{op: island.why for op in schemes if (island := matcher.island(op))}}
    return {op: known[op] for op, scheme in schemes.items() if _is_wide(scheme) and op in known}


def _states(graph: Graph, prepared: Prepared, request: Request) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return inputs and outputs of the graph that are the same state."""
    by_key = {prepared.keys[t]: t for t in (*graph.inputs, *graph.outputs) if t in prepared.keys}
    return tuple((by_key[a], by_key[b]) for a, b in request.states if a in by_key and b in by_key)


def _exposed(graph: Graph, schemes: Mapping[Op, Scheme]) -> set[Tensor]:
    """Return the tensors that callers and float ops read."""
    return {*graph.outputs, *(t for op in graph.ops if op not in schemes for t in op.inputs if t is not None)}


def _is_wide(scheme: Scheme) -> bool:
    return scheme.activations is DType.INT16


def _weight_grids(
    schemes: Mapping[Op, Scheme], prepared: Prepared, ops: Mapping[str, OpSpec], ranges: TensorRanges
) -> dict[Use, QuantParams]:
    """Return the parameters of weights: those that they were trained with, or those that cover their values."""
    grids = {}
    for op, scheme in schemes.items():
        spec, levels = ops[op.kind], scheme.levels
        assert levels is not None
        for slot, tensor in enumerate(op.inputs):
            role = spec.input_role(slot)
            if tensor is None or tensor.data is None:
                continue
            if isinstance(role, Weight):
                axis = scale_axis(op, role, tensor.data.ndim, scheme)
                grids[Use(op, slot)] = ranges.weights(tensor, axis, levels) or prepared.grid(tensor, axis, levels)
            elif isinstance(role, Coefficients):
                grids[Use(op, slot)] = prepared.grid(tensor, None, DType.INT16.levels)
    return grids


def refuse_float(planned: Planned) -> None:
    """Raise for strict integer models, listing every op that would stay float."""
    skipped = [s for plan in planned.plans for s in plan.skipped]
    if skipped:
        raise UnsupportedOp(
            f"{len(skipped)} {'op' if len(skipped) == 1 else 'ops'} cannot be computed in integers:",
            *(f"  {s}" for s in skipped),
            f"omit {argument('strict', True)} to keep them in float between integer ops, or change the model",
        )
