"""Limits on numbers that are quantized, or rescaled: LiteRT's QUANTIZE wraps beyond 2**31 units (LiteRT 2.3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ..affine import QuantParams
from ..graph.query import Use
from ..ops import OpSpec
from .magnitudes import Errors, Magnitudes
from .plan import Plan
from .tensor_ranges import TensorRanges

WRAPS = 2.0**31
WRAPS_RESCALED = 2.0**30
"""The same for integers, which the kernel first multiplies by a power of two: up to twice the ratio of the scales."""

LARGEST_FLOAT = 2.0**127
SLACK = 1.01
SPREAD = 16.0
"""The largest error of a tensor is within this multiple of its estimate."""


@dataclass(frozen=True)
class Overflow:
    """A use where floats, or coarser integers, get too small a scale, and the factor by which it must grow.

    `is_noise` says whether the range that was measured is below what rounding alone makes of the numbers.
    """

    use: Use
    factor: float
    is_noise: bool


def overflowing_uses(plan: Plan, ops: Mapping[str, OpSpec]) -> Iterator[Overflow]:
    """Yield uses where floats, or integers with a much larger scale, are quantized with too small a scale."""
    magnitudes = Magnitudes(plan, ops)
    for use, params in _converted(plan):
        found = magnitudes.of(use.tensor)
        factor = found.reach / (params.scale * (WRAPS_RESCALED if use.tensor in plan.stored else WRAPS))
        if factor >= 1:
            yield Overflow(use, SLACK * factor, max(map(abs, params.range())) <= found.noise)


def overflowing_errors(plan: Plan, ops: Mapping[str, OpSpec], ranges: TensorRanges) -> Iterator[Use]:
    """Yield uses where floats are quantized with a scale that is too small for their errors."""
    errors, quantized = Errors(plan, ops, ranges), (u for u in _converted(plan) if u[0].tensor not in plan.stored)
    return (use for use, params in quantized if SPREAD * errors.of(use.tensor) >= params.scale * WRAPS)


def _converted(plan: Plan) -> Iterator[tuple[Use, QuantParams]]:
    """Yield where numbers are quantized, or converted to other integers."""
    for use, params in plan.wanted.items():
        if not use.tensor.has_data and plan.stored.get(use.tensor) != params:
            yield use, params


def overflows_in_calls(plan: Plan, ops: Mapping[str, OpSpec], ranges: TensorRanges) -> bool:
    """Whether floats that are quantized to be passed to another graph may overflow."""
    found = (*(overflow.use for overflow in overflowing_uses(plan, ops)), *overflowing_errors(plan, ops, ranges))
    return any(use.op not in plan.schemes for use in found)


def with_room_in_outputs(plan: Plan, ops: Mapping[str, OpSpec], ranges: TensorRanges) -> Plan:
    """Return `plan` with output scales for which no float overflows that a caller gets as an integer."""
    floats = {tensor: params for tensor, params in plan.outputs.items() if tensor not in plan.stored}
    if not floats:
        return plan
    magnitudes, errors, outputs = Magnitudes(plan, ops), Errors(plan, ops, ranges), dict(plan.outputs)
    for tensor, params in floats.items():
        largest = max(SLACK * magnitudes.of(tensor).reach, SPREAD * errors.of(tensor))
        if largest < LARGEST_FLOAT:  # beyond it there is no scale that helps
            outputs[tensor] = replace(params, scales=(max(largest / WRAPS, params.scale),))
    return replace(plan, outputs=outputs)
