"""What of a tensor counts: quantizers rightly cut off what the ops that read it cannot tell apart."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..dtypes import Array
from ..graph.model import Graph, Op, Tensor
from ..graph.query import Uses
from ..ops import OPS, Activation


@dataclass(frozen=True)
class Counts:
    """Values beyond `low` and `high` are as good as these; so are those more than `reach` below the greatest of their
    row, as before a softmax."""

    low: float = -math.inf
    high: float = math.inf
    reach: float = math.inf

    @property
    def is_all(self) -> bool:
        return self == Counts()

    def of(self, values: Array) -> Array:
        """`values` with what does not count taken away."""
        kept = np.clip(values, self.low, self.high) if self.low > -math.inf or self.high < math.inf else values
        if self.reach < math.inf and kept.ndim and kept.size:
            kept = np.maximum(kept, kept.max(axis=-1, keepdims=True) - np.float32(self.reach))
        return np.asarray(kept, np.float32)


def counted(graph: Graph) -> dict[Tensor, Counts]:
    """Of each tensor that only ops read which do not tell all values apart, what counts."""
    uses, found = Uses(graph), dict[Tensor, Counts]()
    for op in reversed(graph.ops):
        for tensor in op.outputs:
            readers = [use.op for use in uses.readers(tensor)]
            if not readers or uses.is_output(tensor):
                continue
            seen = [_told_apart(reader, tensor, found) for reader in readers]
            widest = Counts(min(c.low for c in seen), max(c.high for c in seen), max(c.reach for c in seen))
            if not widest.is_all:
                found[tensor] = widest
    return found


def _told_apart(reader: Op, tensor: Tensor, found: dict[Tensor, Counts]) -> Counts:
    spec = OPS.get(reader.kind)
    if spec is None or not reader.outputs:
        return Counts()
    if spec.negligible is not None:
        return Counts(reach=spec.negligible)
    if spec.tied and sum(isinstance(spec.input_role(k), Activation) for k in range(len(reader.inputs))) == 1:
        # It moves values; rows may have become others.
        behind = [found.get(t, Counts()) for t in reader.outputs]
        return Counts(min(c.low for c in behind), max(c.high for c in behind))
    low, high = spec.saturates.get(tensor.dtype, (-math.inf, math.inf))
    return Counts(low, high)
