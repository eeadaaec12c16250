"""Which ranges a plan would need, where none were measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..errors import InvalidSample
from ..ops import OpSpec
from .match import flowing_tensors, unknown_range
from .plan import Plan
from .tensor_ranges import TensorRanges

SHOWN = 20


def require_ranges(plans: Iterable[Plan], ops: Mapping[str, OpSpec], ranges: TensorRanges) -> None:
    """Raise if ops stayed float only because ranges were given, or trained, for some tensors and not for others."""
    missing: dict[str, None] = {}
    for skipped in (s for plan in plans for s in plan.skipped if s.op.kind in ops):
        tensors = list(flowing_tensors(skipped.op, ops[skipped.op.kind]))
        if skipped.reason in map(unknown_range, tensors):
            missing.update({t.name: None for t in tensors if not ranges.knows(t)})
    if missing:
        names = [f"  '{name}'" for name in missing]
        more = [f"  and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
        raise InvalidSample(
            f"{len(names)} {'tensor has' if len(names) == 1 else 'tensors have'} no range:",
            *names[:SHOWN],
            *more,
            "give representative data (--data) for these, or their ranges (--ranges), or keep what uses them in float "
            "(--keep-float)",
        )
