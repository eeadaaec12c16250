"""What each op computes, in `keras.ops`: a table with one function for each kind.

Float arithmetic as in LiteRT, on every backend of Keras; tests run each row against LiteRT.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import arithmetic, layers, movement
from .arithmetic import FUSED
from .call import Call, Compute, RecurrentState, with_samples_in_front

__all__ = ["COMPUTE", "FUSED", "Call", "Compute", "RecurrentState", "compute", "with_samples_in_front"]

COMPUTE: Mapping[str, Compute] = {**layers.COMPUTE, **arithmetic.COMPUTE, **movement.COMPUTE}


def compute(call: Call) -> list[Any]:
    """Return all outputs of an op."""
    made = COMPUTE[call.op.label](call)
    return list(made) if isinstance(made, list | tuple) else [made]
