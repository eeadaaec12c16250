"""Islands: the few ops that cause most of the error compute in float, or in 16 bits where float is not an option."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from ..bench.bench import Bench
from ..bench.errors import decibels
from ..display import counted
from ..dtypes import DType
from ..graph.model import Op
from ..ops import OpSpec, spec_of
from ..ops.execution import macs_of, total_macs
from ..ops.states import returned_states
from ..plan.plan import Plan
from ..plan.planner import dynamic_ops
from ..plan.request import Island, Request
from ..recipe import DYNAMIC, FLOAT, FLOAT16, INT16X8, WEIGHTS
from .candidate import Candidate, Lab, Proposals
from .float_islands import (
    GAIN,
    GOOD_ENOUGH,
    GOOD_IN_LOOPS,
    MOST_RUNS,
    MOST_WORK,
    POOR,
    RESCUE_WORK,
    RETAINED,
    FloatShare,
    Harms,
    find_island,
)
from .integer_norms import with_integer_norms
from .resumed_runs import ResumedRuns
from .smoothquant import SIDES, Side, smoothed

ISLAND_SAMPLES, MOST_ISLANDS = 16, 3
"""On how many samples it is measured what ops left float bring, and how often such ops are searched for."""

FEWEST_ISLAND_SAMPLES, ISLAND_MACS = 3, 1.6e9
"""Parts of the model are tried on fewer, down to these, if the others take more than so many multiply-accumulates."""

ISLANDS = (DYNAMIC, WEIGHTS, FLOAT16)
"""How a float island may hold the weights of its layers, the smallest and fastest first."""

WIDE = Island(INT16X8)


class FoundIsland(NamedTuple):
    """Ops to leave float, none if that does not help, and the SNR of the outputs in dB before and after that."""

    ops: tuple[Op, ...]
    before: float
    after: float

    @property
    def why(self) -> str:
        others = f" with {counted(len(self.ops) - 1, 'other')}" if len(self.ops) > 1 else ""
        return f"left float{others}: the SNR of the outputs rises from {self.before:.1f} to {self.after:.1f} dB"


def float_islands(lab: Lab, best: Candidate) -> Proposals:
    """Propose to leave the few ops that cause most of the error in float, if the target runs float as well."""
    request, samples, enough = best.request, lab.bench.judging(ISLAND_SAMPLES), _good_enough(best)
    if not request.may_leave_float or not request.recipe.has_integer_ops or decibels(lab.error) >= enough:
        return
    few = lab.bench.judging(_island_samples(best))
    is_large = few.judged_count < samples.judged_count
    harms, reached = _harms(best, few, is_large), decibels(samples.error(best.model()))
    for found in range(MOST_ISLANDS):
        if reached >= enough:
            return
        is_first_of_large = is_large and not found
        island = _searched_island(lab, best, few, harms, plans_each=not is_large)
        if is_first_of_large and not island.ops:
            island = _searched_island(lab, best, few, harms, plans_each=True)
        if not island.ops:
            return
        if is_first_of_large and (both := _with_another(lab, best, few, harms, island)) is not None:
            chosen, gain = with_smallest_weights(best, both, samples, reached, enough)
            if gain >= GAIN and _is_dynamic(chosen, both) and (yield chosen).best is chosen:
                return
        chosen, gain = with_smallest_weights(best, island, samples, reached, enough)
        if gain < GAIN or (best := (yield chosen).best) is not chosen:
            return
        reached += gain


def with_smallest_weights(
    best: Candidate, island: FoundIsland, samples: Bench, before: float, enough: float
) -> tuple[Candidate, float]:
    """Return the candidate whose island has weights as small as they can be without losing much of the gain, and its
    gain in dB over `before`; it need not be more than `enough`."""
    ops = best.request.ops
    has_weights = any(macs_of(op, ops) or _holds_weights(op, ops) for op in island.ops)
    tried: list[tuple[Candidate, float]] = []
    for scheme in ISLANDS if has_weights else (FLOAT,):
        candidate = best.with_islands(island.ops, Island(scheme, island.why))
        gain = decibels(samples.error(candidate.model())) - before
        tried.append((candidate, gain))
        if gain >= max(GAIN, min(RETAINED * (island.after - island.before), enough - before)):
            break  # as good as with float weights
    most = max(gain for _, gain in tried)
    return next(pair for pair in tried if pair[1] >= min(RETAINED * most, enough - before))


def _harms(candidate: Candidate, few: Bench, is_large: bool) -> Harms:
    """Return the stretches of the model. What each costs by itself is measured on one sample if the model is large and
    samples do not depend on each other: that only decides what is tried on more."""
    movable = _movable(candidate)
    harms = Harms.of(movable)
    if not is_large or few.in_sequence:
        return harms
    starts = [stretch[place] for stretch in harms.stretches for place in {0, len(stretch) // 2}]
    runs = ResumedRuns(candidate, few.judging(1), starts, before=movable)

    def harm(part: tuple[Op, ...]) -> float:
        own = set(part)
        return runs.error([op for op in movable if op not in own], part[0])

    return replace(harms, measure=harm)


def _movable(best: Candidate) -> tuple[Op, ...]:
    """Return the ops in integers that may be left float."""
    plan = best.planned.plans[0]
    return tuple(op for op in plan.graph.ops if op in plan.schemes and not _has_given_scale(op, best))


def _searched_island(
    lab: Lab, best: Candidate, few: Bench, harms: Harms, *, plans_each: bool = False, beside: FoundIsland | None = None
) -> FoundIsland:
    """Return the ops to leave float, `beside` those of an island that is not planned yet.

    Leaving ops float changes where their neighbours run. That is planned for each part that is tried, or ignored.
    """
    left = () if beside is None else beside.ops
    plan, movable = best.planned.plans[0], tuple(op for op in _movable(best) if op not in left)
    runs = ResumedRuns(best, few, movable[:1], before=left)

    @cache
    def snr(part: tuple[Op, ...]) -> float:
        if beside is not None and not part:
            return beside.after
        if plans_each or not part:
            return decibels(few.error(best.with_islands(part, Island(FLOAT)).model() if part else best.model()))
        return decibels(runs.error((*left, *part), part[0]))

    every = {op: macs_of(op, best.request.ops) for op in plan.graph.ops}
    work = {op: every[op] for op in movable}
    in_integers = {*movable, *plan.schemes} - {*left} | _hybrid_ops(plan, best, left)
    spent = sum(macs for op, macs in every.items() if op not in in_integers)
    report = lab.stage("looking for ops to leave float", MOST_RUNS)
    shares = ((share * sum(every.values()) - spent) / max(1, sum(work.values())) for share in (MOST_WORK, RESCUE_WORK))
    island = find_island(work, snr, snr(()), report, FloatShare(*shares), harms) if work else ()
    return FoundIsland(island, snr(()), snr(island))


def _hybrid_ops(plan: Plan, best: Candidate, left: Sequence[Op]) -> set[Op]:
    """Return the ops that compute with floats and integer weights, or would if they were `left` float."""
    found = {op for op, scheme in plan.dynamic.items() if not scheme.unpacked}
    return found | dynamic_ops(plan.graph, best.prepared, best.with_islands(left, Island(DYNAMIC)).request)


def _with_another(lab: Lab, best: Candidate, few: Bench, harms: Harms, island: FoundIsland) -> FoundIsland | None:
    """Return the island together with a second one, None if there is none or the first suffices. So the first need not
    be planned and judged by itself."""
    if island.after >= _good_enough(best):
        return None
    more = _searched_island(lab, best, few, harms, beside=island)
    ops = {*island.ops, *more.ops}
    return FoundIsland(tuple(op for op in _movable(best) if op in ops), island.before, more.after) if more.ops else None


def _is_dynamic(candidate: Candidate, island: FoundIsland) -> bool:
    """Whether the weights of this island, if it has any, are integers for kernels that take them: the share of work
    that it may hold presumes that."""
    keys, held = candidate.prepared.keys, candidate.request.islands
    return all(held[keys[op.outputs[0]]].scheme in (DYNAMIC, FLOAT) for op in island.ops)


def _has_given_scale(op: Op, candidate: Candidate) -> bool:
    """Whether a user gave the parameters of a tensor that the op reads or makes: these are to be used as they are."""
    given, keys = candidate.request.ranges.entries, candidate.prepared.keys
    entries = (given.get(keys.get(t, "")) for t in (*op.inputs, *op.outputs) if t is not None)
    return any(entry is not None and entry.params is not None for entry in entries)


def _good_enough(candidate: Candidate) -> float:
    """Return the SNR of the outputs in dB above which no islands are searched for."""
    return GOOD_IN_LOOPS if returned_states(candidate.prepared.model.main) else GOOD_ENOUGH


def _island_samples(candidate: Candidate) -> int:
    """Return the number of samples on which parts of a model are tried one by one: few for a large one."""
    macs = total_macs(candidate.prepared.model.main.ops, candidate.request.ops)
    return int(min(ISLAND_SAMPLES, max(FEWEST_ISLAND_SAMPLES, ISLAND_MACS // max(1, macs))))


def wide_islands(lab: Lab, best: Candidate) -> Proposals:
    """Propose 16 bits for the ops that cause most of the error, if the target has kernels for that and float is not an
    option.

    Layers get them only if the model is poor otherwise, because LiteRT's delegate has none of 16 bits: a quarter of the
    multiplications of a MobileNet made it 20 times as slow. Where 16 bits meet layers with 8, products scale the
    channels (SmoothQuant): after layers, then before them too.
    """
    request, samples, enough = best.request, lab.bench.judging(ISLAND_SAMPLES), _good_enough(best)
    if request.may_leave_float or not _leaves_bits_open(request) or decibels(lab.error) >= enough:
        return
    # Nothing needs to be clipped in 16 bits.
    base = replace(best, prepared=with_integer_norms(best.prepared, request), request=replace(request, limits={}))
    work = _work(base)
    if not any(p.wide_ops for p in base.with_islands(list(work), WIDE).planned.plans):
        return
    before = decibels(samples.error(best.model()))

    def snr(part: Sequence[Op]) -> float:
        return decibels(samples.error(_smoothed(base.with_islands(part, WIDE), SIDES).model()))

    others = tuple(op for op in work if not work[op])
    report = lab.stage("looking for ops that need 16 bits", MOST_RUNS)
    share = FloatShare() if before < POOR else FloatShare(most=0.0)
    island = others if others and snr(others) >= enough else find_island(work, snr, before, report, share)
    if island:
        why = f"with 16 bits for such ops the SNR of the outputs rises from {before:.1f} to {snr(island):.1f} dB"
        wide = base.with_islands(island, Island(INT16X8, why))
        yield wide
        for sides in (SIDES[:1], SIDES):
            if (candidate := _smoothed(wide, sides)) is not wide:
                yield candidate


def _leaves_bits_open(request: Request) -> bool:
    """Whether 8 bits are asked for, but not with parameters that a user has given for them."""
    has_params = any(given.params is not None for given in request.ranges.entries.values())
    return not has_params and any(rule.scheme.activations is DType.INT8 for rule in request.recipe.rules)


def _smoothed(candidate: Candidate, sides: Sequence[Side]) -> Candidate:
    """Return the candidate with channels scaled on these sides of layers, where 8 bits meet 16."""
    for side in sides:
        plan, request = candidate.planned.plans[0], candidate.request
        prepared, products = smoothed(candidate.prepared, request, plan, side) if plan.wide_ops else (None, {})
        if prepared is not None and products:
            request = replace(request, islands={**request.islands, **products})
            count = candidate.smoothed + len(products)
            candidate = replace(candidate, prepared=prepared, request=request, smoothed=count)
    return candidate


def _work(candidate: Candidate) -> dict[Op, int]:
    """Return the amount of computation of each integer op; the sums of squares of normalizations count as zero.

    Lookup tables are excluded: with 16 bits they would take twice the space.
    """
    plan, ops = candidate.planned.plans[0], candidate.request.ops
    work = {op: macs_of(op, ops) for op in plan.graph.ops if op in plan.schemes}
    tables = {op for op in work if not work[op] and _holds_weights(op, ops)}
    return {op: 0 if op.inputs[0] in op.inputs[1:] else macs for op, macs in work.items() if op not in tables}


def _holds_weights(op: Op, ops: Mapping[str, OpSpec]) -> bool:
    """Whether it reads a constant that can be stored in fewer bits: the weights of a layer, or a table of vectors."""
    return any(t.data is not None for t in spec_of(op, ops).held_tensors(op))
