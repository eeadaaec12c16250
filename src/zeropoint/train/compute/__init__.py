"""What each op computes, in `keras.ops`: one function for each kind, in one table.

Float arithmetic as LiteRT's, on every backend of Keras; tests run each row against LiteRT.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...graph.model import Op, Tensor
from . import arithmetic, layers, movement
from .arithmetic import FUSED
from .call import Call, Compute, RecurrentState

__all__ = ["COMPUTE", "FUSED", "Call", "Compute", "RecurrentState", "compute"]

COMPUTE: Mapping[str, Compute] = {**layers.COMPUTE, **arithmetic.COMPUTE, **movement.COMPUTE}


def compute(op: Op, inputs: Sequence[Any], free: frozenset[Tensor]) -> list[Any]:
    """All outputs of an op; see `Call`."""
    made = COMPUTE[op.label](Call(op, inputs, free))
    return list(made) if isinstance(made, list | tuple) else [made]
