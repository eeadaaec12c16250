"""Concatenations in which one input leaves hardly a step for another: coordinates up to 640 next to scores up to 1.

Kernels require one scale for everything that is joined. If the result only leaves the graph, or is split again, nothing
but the joining itself needs that scale: in float, or with 16 bits, each input keeps its precision. If a layer reads the
whole, its one scale stays, and all that can be done is to report the cost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..bench.errors import decibels
from ..calibration import TensorStats
from ..calibration.range_methods import Bounds
from ..display import counted
from ..dtypes import Array, DType
from ..graph.model import Op, Tensor
from ..graph.query import Uses
from ..ops import OpSpec, Trait
from .match import Matcher
from .plan import Plan, Skipped
from .request import Request
from .tensor_ranges import TensorRanges

SWAMPED_BELOW = 8
"""An input that spans fewer steps of the common scale has lost most of its 8 bits."""

AUDIBLE = 15.0
"""SNR in dB above which the loss of an input is not reported."""

SHOWN = 3

EVENLY = 1025
"""Number of values that represent a tensor of which only the range is known."""


@dataclass(frozen=True)
class SwampedInput:
    """An input of a joining op that spans only a few steps of the common scale, the one that spans most, and the SNR of
    the small one alone, rounded to that scale."""

    op: Op
    small: Tensor
    large: Tensor
    steps: float
    snr: float

    @property
    def reason(self) -> str:
        few = counted(max(1, round(self.steps)), "step")
        return (
            f"in one scale with '{self.large.name}', '{self.small.name}' would have {few} of 256, and {self.snr:.1f} dB"
        )

    @property
    def note(self) -> str:
        few = counted(max(1, round(self.steps)), "step")
        where = f"{self.op.label} '{self.op.name}' gives '{self.small.name}' {few} of 256"
        return f"{where}, because '{self.large.name}' needs the others; that leaves it {self.snr:.1f} dB"


def swamped_inputs(plan: Plan, ops: Mapping[str, OpSpec], ranges: TensorRanges) -> list[SwampedInput]:
    """Return, for each op that joins tensors in 8 bits, the input that loses most by the common scale, if it loses
    much."""
    found = []
    for op, scheme in plan.schemes.items():
        spec, held = ops[op.kind], plan.stored.get(op.outputs[0]) if op.outputs else None
        if not _joins(spec) or held is None or scheme.activations is None or scheme.activations.bits > 8:
            continue
        known = [t for t in dict.fromkeys(spec.read_activations(op)) if ranges.knows(t)]
        steps = {t: _span(ranges.bounds(t)) / held.scale for t in known}
        varying = {t: count for t, count in steps.items() if count > 0}
        if len(varying) < 2:
            continue
        small, large = min(varying, key=varying.__getitem__), max(varying, key=varying.__getitem__)
        if varying[small] < SWAMPED_BELOW < varying[large]:
            snr = rounded_snr(small, held.scale, ranges.measured(small), ranges.bounds(small))
            found.append(SwampedInput(op, small, large, varying[small], snr))
    return found


def _joins(spec: OpSpec) -> bool:
    """Whether the output contains all input values."""
    return _moves(spec) and Trait.VARIADIC in spec.traits


def _moves(spec: OpSpec) -> bool:
    return spec.moves_values and not spec.weight_slots


def _span(bounds: Bounds) -> float:
    return max(bounds[1], 0.0) - min(bounds[0], 0.0)


def rounded_snr(tensor: Tensor, step: float, seen: TensorStats | None, bounds: Bounds) -> float:
    """Return the SNR in dB of a tensor rounded to multiples of `step`, from what is known about its values."""
    weights: Array = np.ones(1)
    values: Array
    width = 0.0
    if tensor.data is not None:
        values = np.asarray(tensor.data, np.float64).reshape(-1)
    elif seen is not None and seen.histogram.counts.any():
        histogram = seen.histogram
        values, weights, width = histogram.centers(), histogram.counts.astype(np.float64), histogram.width
    else:
        values = np.linspace(*bounds, EVENLY)
    gaps = np.full_like(values, step**2 / 12) if step < width else (values - step * np.rint(values / step)) ** 2
    power = float((weights * values**2).sum())
    return max(0.0, decibels(float((weights * gaps).sum()) / power if power > 0 else 0.0))


# What can be done about it.


def split_swamped(
    plan: Plan, ranges: TensorRanges, matcher: Matcher, request: Request, tried: Collection[Op] = ()
) -> tuple[tuple[Skipped, ...], dict[Op, str]]:
    """Return ops to leave float, or to give 16 bits where float is not an option, so that nothing is swamped; with the
    reasons.

    Ops that were already `tried` with 16 bits are not returned again.
    """
    apart, uses = dict[Op, str](), Uses(plan.graph)
    if request.interface.output is DType.FLOAT32:
        for found in swamped_inputs(plan, request.ops, ranges):
            movers = _movers_behind(found, plan, uses, request.ops, ranges)
            if not any(matcher.is_bound(op) for op in movers):
                apart = dict.fromkeys(movers, found.reason) | apart
    if request.may_leave_float:
        return tuple(Skipped(op, reason, "scale") for op, reason in apart.items()), {}
    return (), {op: why for op, why in apart.items() if op not in tried and matcher.wide(op) is not None}


def _movers_behind(
    found: SwampedInput, plan: Plan, uses: Uses, ops: Mapping[str, OpSpec], ranges: TensorRanges
) -> list[Op]:
    """Return the joining op and those after it that only move its values; none if something computes with all of
    them."""
    movers, waiting = [found.op], [found.op]
    step = plan.stored[found.op.outputs[0]].scale
    while waiting:
        op = waiting.pop()
        for tensor in op.outputs:
            readers = [use.op for use in uses.readers(tensor) if use.op in plan.schemes]
            computing = [reader for reader in readers if not _moves(ops[reader.kind])]
            is_part = ranges.knows(tensor) and _span(ranges.bounds(tensor)) < SWAMPED_BELOW * step
            if computing and not is_part:
                return []
            new = [reader for reader in readers if _moves(ops[reader.kind]) and reader not in movers and not is_part]
            movers += new
            waiting += new
    return movers


def swamped_notes(plans: Sequence[Plan], ops: Mapping[str, OpSpec], ranges: TensorRanges) -> Iterator[str]:
    """Yield what is still swamped, with its cost, worst first."""
    found = [one for plan in plans for one in swamped_inputs(plan, ops, ranges) if one.snr < AUDIBLE]
    found.sort(key=lambda one: one.snr)
    yield from (one.note for one in found[:SHOWN])
    if len(found) > SHOWN:
        yield f"{len(found) - SHOWN} more concatenations like that"
