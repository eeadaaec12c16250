"""What a trainable graph is made of: everything that stays the same from step to step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..dtypes import Array
from ..errors import UnsupportedOp
from ..graph.model import Op, Tensor
from ..graph.query import Use
from ..ops import OPS, Coefficients, Weight
from ..plan.pipeline import Planned, Request
from ..plan.plan import Plan
from ..sources.ports import Port, entry
from .arrays import array_of
from .batch import Free, free_tensors
from .compute import COMPUTE, Call
from .constants import Constant, WeightGrid, constants_of
from .learned_ranges import Ranges
from .settings import QuantSettings
from .ties import Ties, ties_of


@dataclass(frozen=True)
class Blueprint:
    """What to build. `outputs` are the tensors to compute; `quantize` False leaves fake quantization out."""

    planned: Planned
    plan: Plan
    request: Request
    outputs: tuple[Tensor, ...]
    settings: QuantSettings = field(default_factory=QuantSettings)
    freeze: tuple[str, ...] = ()
    quantize: bool = True


@dataclass(frozen=True, eq=False)
class Parts:
    """`statics` are integers that do not depend on the inputs; `by_use` has the float constants."""

    blueprint: Blueprint
    ports: tuple[Port, ...]
    ops: tuple[Op, ...]
    free: Free
    statics: Mapping[Tensor, Array]
    constants: tuple[Constant, ...]
    by_use: Mapping[Use, Constant]
    ties: Ties
    ranges: Ranges
    grids: Mapping[Use, WeightGrid]

    @classmethod
    def of(cls, blueprint: Blueprint, add_weight: Callable[..., Any]) -> Parts:
        plan, specs = blueprint.plan, blueprint.request.ops
        needed = needed_ops(plan, blueprint.outputs)
        require_known(needed)
        free = free_tensors(plan.graph.inputs, needed, specs)
        constants = tuple(constants_of(plan, needed, specs, blueprint.freeze, add_weight))
        prescribed = {name for name, r in blueprint.request.ranges.entries.items() if r.params is not None}
        ties = ties_of(plan, specs, prescribed) if blueprint.quantize else Ties((), {})
        return cls(
            blueprint,
            entry(blueprint.planned.model).ports,
            needed,
            free,
            _statics(needed, free),
            constants,
            {use: c for c in constants for use in c.uses},
            ties,
            Ranges(ties.groups, blueprint.settings, add_weight),
            _weight_grids(blueprint, constants, add_weight) if blueprint.quantize else {},
        )


def _weight_grids(
    blueprint: Blueprint, constants: Sequence[Constant], add_weight: Callable[..., Any]
) -> dict[Use, WeightGrid]:
    plan, specs = blueprint.plan, blueprint.request.ops
    grids = {}
    for constant in constants:
        for use in constant.uses:
            spec = specs.get(use.op.kind)
            if spec and use in plan.wanted and isinstance(spec.input_role(use.slot), Weight | Coefficients):
                grids[use] = WeightGrid(plan.wanted[use], constant.tensor.shape, blueprint.settings)
                grids[use].prepare(constant.value, add_weight, f"scale_{len(grids)}")
    return grids


def needed_ops(plan: Plan, outputs: Sequence[Tensor]) -> tuple[Op, ...]:
    """The ops that `outputs` depend on, in order."""
    wanted, found = set(outputs), []
    for op in reversed(plan.graph.ops):
        if any(t in wanted for t in op.outputs):
            found.append(op)
            wanted.update(t for t in op.inputs if t is not None)
    return tuple(reversed(found))


def require_known(needed: Sequence[Op]) -> None:
    """Raise with all ops that there is no function for."""
    missing = [op for op in needed if op.label not in COMPUTE]
    if missing:
        ends = dict.fromkeys(
            t.name for op in missing for t in op.inputs if t is not None and not t.is_constant and t.dtype.is_float
        )
        raise UnsupportedOp(
            "these ops cannot be trained through:",
            *(f"  {op.label} '{op.name}'" for op in missing),
            "train the part in front of them: outputs=[...] with names out of " + ", ".join(map(repr, ends)),
        )


def _statics(needed: Sequence[Op], free: Free) -> dict[Tensor, Array]:
    """Integers that do not depend on the inputs: constants, shapes, and what is computed from them."""
    known: dict[Tensor, Array] = {}
    for op in needed:
        for tensor in op.inputs:
            if tensor is not None and tensor.data is not None and not tensor.dtype.is_float:
                known[tensor] = np.asarray(tensor.data)
        operands = [t for t in op.inputs if t is not None]
        shapes_only = op.kind in OPS and OPS[op.kind].reads_shapes_only
        if shapes_only or all(t in known for t in operands):
            results = COMPUTE[op.label](Call(op, [None if t is None else known.get(t) for t in op.inputs], free))
            results = results if isinstance(results, list) else [results]
            known.update(
                (t, array_of(r) if not isinstance(r, np.ndarray) else r)
                for t, r in zip(op.outputs, results, strict=True)
            )
    return known
