"""From a prepared float model and a request to plans: match, solve and derive whenever ranges change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..affine import QuantParams
from ..display import counted
from ..dtypes import DType
from ..errors import UnsupportedOp, argument
from ..graph.model import Graph, Op, Tensor
from ..graph.query import Use, called_graphs
from ..ops import Coefficients, OpSpec, Weight
from ..recipe import Scheme
from .called import computing_graphs
from .conversions import overflows_in_calls, with_room_in_outputs
from .crossing import NOTHING_CROSSES, Crossing, crossings
from .derive import coarse_tables, overflowing_sums, unfit_outputs, wrapped_errors
from .ends import state_notes, wide_states, with_interface, with_one_scale
from .fit import fit_scales, symmetric_uses
from .given import default_notes, require_free
from .match import Matcher, TargetAnswers, require_ranges
from .needs import imprecise_notes
from .origins import unused_notes, with_origins
from .placement import Placement
from .plan import Constants, Plan, Planned, Skipped
from .poles import rounded_to_poles
from .prepared import Matched, Prepared, ranges_of
from .request import Interface, Request
from .saturation import reaching, saturation
from .solve import Solver
from .swamped import split_swamped, swamped_notes
from .tensor_ranges import TensorRanges
from .weight_only import WeightOnly, reuse_notes
from .weights import scale_axis


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
    packed = prepared.trained.packed
    answers = None if request.strict else TargetAnswers(request.target, request.ops, prepared.verdicts)
    weights = WeightOnly(request.recipe, request.ops, request.weight_method, packed, ranges, answers, prepared.forms)
    made = weights.share([weights.add(plan) for plan in plans])
    require_free(made, request, prepared.keys)
    made = with_origins(made, ranges, request.ops)
    notes = (*reuse_notes(packed, made), *request.ranges.notes(), *default_notes(made, ranges))
    notes = (*notes, *weights.notes(), *unused_notes(made, request.ranges, prepared.keys))
    notes = (*notes, *swamped_notes(made, request.ops, ranges), *state_notes(made, request.interface, request.ops))
    notes = (*notes, *imprecise_notes(made, request.ops, ranges))
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
    has_floats = not request.strict and request.target.tool is None
    return Matcher(request.recipe, answers, ranges, request.islands, has_floats)


def dynamic_ops(graph: Graph, prepared: Prepared, request: Request) -> set[Op]:
    """Return the ops of float islands whose kernels take integer weights."""
    matcher = _matcher(prepared, request, ranges_of(prepared, request))
    schemes = ((op, matcher.island_weights(op)) for op in graph.ops)
    return {op for op, scheme in schemes if scheme is not None and not scheme.unpacked}


def _matched(graph: Graph, prepared: Prepared, request: Request, matcher: Matcher) -> Matched:
    """Return which ops of a graph compute in integers, as the last plan has left it if that still holds."""
    last = prepared.matched.get(graph)
    if last is None or not last.holds_for(request, matcher.ranges):
        prepared.matched[graph] = _match(graph, request, matcher, last)
    return prepared.matched[graph]


def _match(graph: Graph, request: Request, matcher: Matcher, last: Matched | None) -> Matched:
    before = schemes, skipped = matcher.match(graph)
    if last is not None and last.before == before and last.is_for(request):
        return replace(last, request=request, ranges=matcher.ranges)
    skipped = [*skipped]
    dynamic = {s.op: scheme for s in skipped if (scheme := matcher.island_weights(s.op)) is not None}
    if not request.strict:
        left, in_float = Placement(graph, schemes, matcher.answers).choose(request.recipe, request.interface)
        schemes = {op: scheme for op, scheme in schemes.items() if op not in left}
        dynamic |= {op: scheme for op, scheme in left.items() if scheme.weights is not None}
        skipped += in_float
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
    matched = _matched(graph, prepared, request, matcher)
    schemes, dynamic, skipped = matched.schemes, matched.dynamic, list(matched.skipped)
    seen, curves = ranges, prepared.curves(graph, ops) if schemes else ()
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
    ends = wide_states(plan, request.interface, states, ops)
    plan = with_room_in_outputs(with_interface(plan, request.interface, ranges, ends), ops, seen)
    plan = with_one_scale(plan, states)
    order = {op: k for k, op in enumerate(graph.ops)}
    left = sorted((s for s in skipped if s.op not in crossing.calls), key=lambda s: order[s.op])
    outputs = {**plan.outputs, **crossing.outputs}
    return replace(plan, skipped=tuple(left), wide_ops=_reasons(wide, schemes, matcher), outputs=outputs)


def _fitted(plan: Plan, request: Request, seen: TensorRanges) -> tuple[Plan, tuple[Skipped, ...]]:
    """Return the plan with scales that kernels and target accept, and the ops that would still compute something
    else."""
    ops = request.ops
    plan, refused = fit_scales(plan, ops, request.target)
    refused = refused or (*coarse_tables(plan, ops, seen), *unfit_outputs(plan, ops, seen))
    refused = refused or tuple(overflowing_sums(plan, ops, seen))
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
            if tensor is None or not tensor.has_data:
                continue
            role = spec.input_role(slot)
            if isinstance(role, Weight):
                axis = scale_axis(op, role, len(tensor.shape), scheme)
                grids[Use(op, slot)] = ranges.weights(tensor, axis, levels) or prepared.grid(tensor, axis, levels)
            elif isinstance(role, Coefficients):
                grids[Use(op, slot)] = prepared.grid(tensor, None, DType.INT16.levels)
    return grids


def refuse_float(planned: Planned) -> None:
    """Raise for strict integer models, listing every op that would stay float."""
    skipped = [s for plan in planned.plans for s in plan.skipped]
    if skipped:
        which = "it" if len(skipped) == 1 else "them"
        raise UnsupportedOp(
            f"{counted(len(skipped), 'op')} cannot be computed in integers:",
            *(f"  {s}" for s in skipped),
            f"omit {argument('strict', True)} to keep {which} in float between integer ops, or change the model",
        )
