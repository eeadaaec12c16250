"""What each op computes, in `keras.ops`: one function for each kind, in one table.

Float arithmetic as LiteRT's, on every backend of Keras; tests run each row against LiteRT.
"""

from __future__ import annotations

from collections.abc import Mapping

from . import arithmetic, convolution, movement, pooling, recurrent
from .arithmetic import FUSED
from .call import Call, Compute, State, held_type

__all__ = ["COMPUTE", "FUSED", "Call", "Compute", "State", "held_type"]

COMPUTE: Mapping[str, Compute] = {
    **convolution.COMPUTE,
    **arithmetic.COMPUTE,
    **pooling.COMPUTE,
    **movement.COMPUTE,
    **recurrent.COMPUTE,
}
