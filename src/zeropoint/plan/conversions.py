"""Limits on floats that are quantized: LiteRT's optimized QUANTIZE wraps beyond 2**31 units (LiteRT 2.3).

Measured values are far below that. But where large values cancel, and some of them are rounded to integers on the way,
what remains may be millions of times larger than it was in float.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from ..graph.model import Tensor
from ..graph.query import Use
from ..ops import OpSpec, Rescale, Trait
from .plan import Plan

WRAPS = 2.0**31
SLACK = 1.01


def overflowing_uses(plan: Plan, ops: Mapping[str, OpSpec]) -> Iterator[tuple[Use, float]]:
    """Yield uses where floats are quantized with too small a scale, with the factor by which it must grow."""
    reach = _reach(plan, ops)
    for use, params in plan.wanted.items():
        if use.tensor.data is None and use.tensor not in plan.stored:
            factor = reach.get(use.tensor, 0.0) / (params.scale * WRAPS)
            if factor >= 1:
                yield use, SLACK * factor


def with_room_in_outputs(plan: Plan, ops: Mapping[str, OpSpec]) -> Plan:
    """Return `plan` with output scales for which no float overflows that a caller gets as an integer."""
    reach, outputs = _reach(plan, ops), dict(plan.outputs)
    for tensor, params in plan.outputs.items():
        least = 0.0 if tensor in plan.stored else SLACK * reach.get(tensor, 0.0) / WRAPS
        outputs[tensor] = replace(params, scales=(max(least, params.scale),))
    return replace(plan, outputs=outputs)


def _reach(plan: Plan, ops: Mapping[str, OpSpec]) -> dict[Tensor, float]:
    """Return the largest magnitude that floats can have, as far as it follows from the integers they are computed
    from."""
    found: dict[Tensor, float] = {}
    for op in plan.graph.ops:
        rule = None if op in plan.schemes or op.kind not in ops else _rule(ops[op.kind])
        if rule is not None:
            found[op.outputs[0]] = rule([_greatest(t, plan, found) for t in ops[op.kind].read_activations(op)])
    return found


def _greatest(tensor: Tensor, plan: Plan, found: Mapping[Tensor, float]) -> float:
    if tensor.data is not None:
        return float(np.abs(tensor.data).max(initial=0.0))
    stored = plan.stored.get(tensor)
    return found.get(tensor, 0.0) if stored is None else max(map(abs, stored.range()))


def _rule(spec: OpSpec) -> Callable[[list[float]], float] | None:
    """Return the function from the magnitudes of an op's inputs to that of its output; None if there is none."""
    if spec.rescale is Rescale.SQUARE:
        return lambda read: sum(read) ** 2
    if spec.traits & (Trait.ADDS | Trait.SUBTRACTS):
        return sum
    if Trait.MULTIPLIES in spec.traits:
        return math.prod
    return max if Trait.TIED in spec.traits or Trait.HOMOGENEOUS in spec.traits else None
