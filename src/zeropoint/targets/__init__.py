"""The targets that models are made for: one table of facts for each."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from ..errors import InvalidRecipe
from .check import Check as Check
from .check import CheckedOp as CheckedOp
from .check import check_model as check_model
from .cpu import CPU as CPU
from .edgetpu import EDGETPU as EDGETPU
from .ethos_u import ETHOS_U as ETHOS_U
from .litert import INT8_ONLY as INT8_ONLY
from .litert import INTEGER as INTEGER
from .litert import LITERT as LITERT
from .target import Costs as Costs
from .target import OpVerdict as OpVerdict
from .target import Rewrite as Rewrite
from .target import Speed as Speed
from .target import Target as Target
from .target import TargetRule as TargetRule
from .tflm import TFLM as TFLM
from .typed_op import Operand as Operand
from .typed_op import TypedOp as TypedOp

TARGETS: Mapping[str, Target] = {target.name: target for target in (CPU, INTEGER, INT8_ONLY, TFLM, *ETHOS_U, EDGETPU)}
"""Targets by name."""


def target_named(name: str) -> Target:
    """Return the target with this name."""
    if name not in TARGETS:
        near = difflib.get_close_matches(name.lower(), TARGETS, 1)
        hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(TARGETS)};"
        raise InvalidRecipe(f"there is no target {name!r}; {hint} `zeropoint targets` lists them all")
    return TARGETS[name]
