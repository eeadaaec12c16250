"""Limits on floats that are quantized: LiteRT's optimized QUANTIZE wraps beyond 2**31 units (LiteRT 2.3).

Measured values are far below that. But where large values cancel, and some of them are rounded to integers on the way,
what remains may be millions of times larger than it was in float.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..graph.model import Tensor
from ..graph.query import Use
from ..ops import OpSpec, Rescale, Trait
from .plan import Plan

WRAPS = 2.0**31
SLACK = 1.01


@dataclass(frozen=True)
class Overflow:
    """A use where floats are quantized with too small a scale, and the factor by which it must grow.

    `is_noise` says whether the range that was measured is below what rounding alone makes of the floats.
    """

    use: Use
    factor: float
    is_noise: bool


@dataclass(frozen=True)
class Magnitude:
    """How large floats can become, as far as it follows from the integers they are computed from, and how much rounding
    these can change them."""

    reach: float = 0.0
    noise: float = 0.0


def overflowing_uses(plan: Plan, ops: Mapping[str, OpSpec]) -> Iterator[Overflow]:
    """Yield uses where floats are quantized with too small a scale."""
    magnitudes = _magnitudes(plan, ops)
    for use, params in plan.wanted.items():
        if use.tensor.data is None and use.tensor not in plan.stored:
            found = magnitudes.get(use.tensor, Magnitude())
            factor = found.reach / (params.scale * WRAPS)
            if factor >= 1:
                yield Overflow(use, SLACK * factor, max(map(abs, params.range())) <= found.noise)


def with_room_in_outputs(plan: Plan, ops: Mapping[str, OpSpec]) -> Plan:
    """Return `plan` with output scales for which no float overflows that a caller gets as an integer."""
    magnitudes, outputs = _magnitudes(plan, ops), dict(plan.outputs)
    for tensor, params in plan.outputs.items():
        least = 0.0 if tensor in plan.stored else SLACK * magnitudes.get(tensor, Magnitude()).reach / WRAPS
        outputs[tensor] = replace(params, scales=(max(least, params.scale),))
    return replace(plan, outputs=outputs)


def _magnitudes(plan: Plan, ops: Mapping[str, OpSpec]) -> dict[Tensor, Magnitude]:
    found: dict[Tensor, Magnitude] = {}
    for op in plan.graph.ops:
        rule = None if op in plan.schemes or op.kind not in ops else _rule(ops[op.kind])
        if rule is not None:
            read = [_magnitude(t, plan, found) for t in ops[op.kind].read_activations(op)]
            reach = rule([m.reach for m in read])
            found[op.outputs[0]] = Magnitude(reach, rule([m.reach + m.noise for m in read]) - reach)
    return found


def _magnitude(tensor: Tensor, plan: Plan, found: Mapping[Tensor, Magnitude]) -> Magnitude:
    if tensor.data is not None:
        return Magnitude(float(np.abs(tensor.data).max(initial=0.0)))
    stored = plan.stored.get(tensor)
    return found.get(tensor, Magnitude()) if stored is None else Magnitude(max(map(abs, stored.range())), stored.scale)


def _rule(spec: OpSpec) -> Callable[[list[float]], float] | None:
    """Return the function from the magnitudes of an op's inputs to that of its output; None if there is none."""
    if spec.fixed:
        bound = max(abs(end) for dtype, fixed in spec.fixed.items() for end in fixed.params(dtype).range())
        return lambda _: bound
    if spec.saturates:  # activation functions: no larger than their input, nor than where they end
        end = max(abs(end) for ends in spec.saturates.values() for end in ends)
        return lambda read: min(max(read), end)
    if spec.rescale is Rescale.SQUARE:
        return lambda read: sum(read) ** 2
    if spec.traits & (Trait.ADDS | Trait.SUBTRACTS):
        return sum
    if Trait.MULTIPLIES in spec.traits:
        return math.prod
    return max if spec.traits & (Trait.TIED | Trait.HOMOGENEOUS | Trait.NO_LARGER) else None
