"""A plan's graph with fake quantization: everything that stays the same from step to step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..dtypes import Array
from ..errors import UnsupportedOp
from ..graph.model import Op, Tensor
from ..graph.query import Use
from ..ops import OpSpec
from ..ops.batching import Free, free_tensors
from ..plan.plan import Held, Node, Plan, Planned
from ..plan.request import Request
from ..sources.ports import Port, entry
from .activation_ranges import ActivationRanges
from .backend import AddWeight, array_of
from .compute import COMPUTE, compute
from .fake_quant import QuantSettings
from .weights import TrainableConstant, WeightQuantizer, constants_of


@dataclass(frozen=True)
class Blueprint:
    """What to build. `outputs` are the tensors to compute; `quantize` is False for a plan that quantizes nothing."""

    planned: Planned
    plan: Plan
    request: Request
    outputs: tuple[Tensor, ...]
    settings: QuantSettings = field(default_factory=QuantSettings)
    freeze: tuple[str, ...] = ()
    quantize: bool = True

    @property
    def specs(self) -> Mapping[str, OpSpec]:
        return self.request.ops


@dataclass(frozen=True, eq=False)
class FakeQuantGraph:
    """The ops to compute, in order, and the variables that they read.

    `statics` are integers that do not depend on the inputs; `by_use` has the float constants, `quantizers` those of
    weights; `groups` has the number of each place's group in the plan, which is also that of its range.
    """

    blueprint: Blueprint
    ports: tuple[Port, ...]
    ops: tuple[Op, ...]
    free: Free
    statics: Mapping[Tensor, Array]
    constants: tuple[TrainableConstant, ...]
    by_use: Mapping[Use, TrainableConstant]
    quantizers: Mapping[Use, WeightQuantizer]
    groups: Mapping[Node, int]
    ranges: ActivationRanges

    @classmethod
    def of(cls, blueprint: Blueprint, add_weight: AddWeight) -> FakeQuantGraph:
        plan, specs = blueprint.plan, blueprint.specs
        needed = needed_ops(plan, blueprint.outputs)
        require_known(needed)
        free = free_tensors(plan.graph.inputs, needed, specs)
        constants = constants_of(plan, needed, specs, blueprint.freeze, add_weight)
        ranges = ActivationRanges(plan.groups, blueprint.settings, add_weight)
        return cls(
            blueprint,
            entry(blueprint.planned.model).ports,
            needed,
            free,
            _statics(needed, free, specs),
            constants,
            {use: constant for constant in constants for use in constant.uses},
            _quantizers(blueprint, constants, add_weight),
            {node: k for k, group in enumerate(plan.groups) for node in group.nodes},
            ranges,
        )

    def stored(self, tensor: Tensor) -> int | None:
        """The group of a tensor as its producer leaves it; None for float."""
        params = self.blueprint.plan.stored.get(tensor)
        return None if params is None else self.groups.get(Held(tensor, params.dtype))

    def used(self, use: Use) -> int | None:
        """The group of a tensor as the op at `use` reads it."""
        return self.groups.get(use)


def _quantizers(
    blueprint: Blueprint, constants: Sequence[TrainableConstant], add_weight: AddWeight
) -> dict[Use, WeightQuantizer]:
    plan, made = blueprint.plan, dict[Use, WeightQuantizer]()
    for constant in constants:
        for use in constant.uses:
            if use in plan.constants.grids:
                name, start = f"scale_{len(made) + 1}", plan.wanted[use]
                made[use] = WeightQuantizer(start, constant.value, blueprint.settings, add_weight, name)
    return made


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


def _statics(needed: Sequence[Op], free: Free, specs: Mapping[str, OpSpec]) -> dict[Tensor, Array]:
    """Integers that do not depend on the inputs: constants, shapes, and what is computed from them."""
    read = {tensor for op in needed for tensor in op.inputs if tensor is not None and not tensor.dtype.is_float}
    known: dict[Tensor, Array] = {t: np.asarray(t.data) for t in read if t.data is not None}
    for op in needed:
        spec = specs.get(op.kind)
        shapes_only = spec is not None and spec.reads_shapes_only
        if shapes_only or all(t is None or t in known for t in op.inputs):
            results = compute(op, [None if t is None else known.get(t) for t in op.inputs], free)
            arrays = [r if isinstance(r, np.ndarray) else array_of(r) for r in results]
            known.update(zip(op.outputs, arrays, strict=True))
    return known
