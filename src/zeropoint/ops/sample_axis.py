"""Ops with an additional leading axis, so that several samples are computed together although the file takes one.

If a graph does not keep its first dimension in place (such as a transformer that drops the batch dimension and puts its
heads there), every tensor that depends on the inputs gets a leading axis of samples. An op then works along axes that
are one higher, or is unaffected, or has its first two axes folded into one if it treats rows independently.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..dtypes import Array
from ..graph.model import Op, Tensor
from . import batch
from .spec import OpSpec

Known = Mapping[Tensor, Array]
"""Integers that are known in advance: axes, shapes, paddings."""


@dataclass(frozen=True)
class WithSampleAxis:
    """An op to compute in place of another.

    Inputs that depend on the samples (those in `free`) are reshaped to the shapes of its inputs, with -1 for the first
    dimension. `repeated` inputs are the same for every sample, and get the axis first. `known` are operands that differ
    from the original's. Outputs are reshaped to [-1, *shape] of the original op's outputs.
    """

    op: Op
    free: frozenset[Tensor]
    known: Mapping[int, Array] = field(default_factory=dict)
    repeated: frozenset[int] = frozenset()


@dataclass(frozen=True)
class _Original:
    """The original op; `slots` are the inputs that have the sample axis."""

    op: Op
    slots: frozenset[int]
    values: Mapping[int, Array]

    def shape(self, slot: int) -> tuple[int, ...]:
        tensor = self.op.inputs[slot]
        return () if tensor is None else tensor.shape

    @property
    def rank(self) -> int:
        """The largest rank of the operands that have the axis."""
        return max(len(self.shape(slot)) for slot in self.slots)

    def lifted(
        self,
        options: Mapping[str, Any] | None = None,
        known: Mapping[int, Array] | None = None,
        rank: int | None = None,
        repeated: Collection[int] = (),
    ) -> WithSampleAxis:
        """Return the op with the axis: with other options and operands, and inputs of at least this rank besides it."""
        inputs = list(self.op.inputs)
        for slot in (*self.slots, *repeated):
            tensor, shape = inputs[slot], self.shape(slot)
            assert tensor is not None
            inputs[slot] = replace(tensor, shape=(1, *(1,) * ((rank or 0) - len(shape)), *shape), buffer=None)
        outputs = [replace(t, shape=(1, *t.shape)) for t in self.op.outputs]
        values = None if self.op.options is None else {**self.op.options.values, **(options or {})}
        record = None if values is None or self.op.options is None else replace(self.op.options, values=values)
        op = replace(self.op, inputs=inputs, outputs=outputs, options=record)
        free = frozenset([*(t for k in (*self.slots, *repeated) if (t := inputs[k]) is not None), *outputs])
        return WithSampleAxis(op, free, known or {}, frozenset(repeated))


Lift = Callable[[_Original], WithSampleAxis | None]


def _only(slot: int, lift: Lift) -> Lift:
    """Return a rule for ops of which only the operand at `slot` may depend on the samples."""
    return lambda it: lift(it) if it.slots == {slot} else None


def _axes_at(slot: int, data: int = 0) -> Lift:
    """Return a rule for ops that work along axes given by an operand."""

    def lift(it: _Original) -> WithSampleAxis | None:
        if slot not in it.values:
            return None
        axes = it.values[slot]
        return it.lifted(known={slot: np.asarray(axes % it.rank + 1, axes.dtype)})

    return _only(data, lift)


def _prefixed(front: Mapping[int, int | tuple[int, int]]) -> Lift:
    """Return a rule for ops with a number, or a pair, for each axis in these operands; `front` has those of the new
    axis."""

    def lift(it: _Original) -> WithSampleAxis | None:
        if not all(slot in it.values for slot in front):
            return None
        known = {slot: np.concatenate([[value], it.values[slot]]).astype(np.int32) for slot, value in front.items()}
        return it.lifted(known=known)

    return _only(0, lift)


def _permuted(it: _Original) -> WithSampleAxis | None:
    return it.lifted(known={1: np.concatenate([[0], it.values[1] + 1]).astype(np.int32)}) if 1 in it.values else None


def _joined(it: _Original) -> WithSampleAxis | None:
    """Add the axis to ops that join operands; operands that are the same for every sample are repeated."""
    axis = int(it.op.option("axis", 0)) % len(it.op.outputs[0].shape) + 1
    others = [slot for slot in range(len(it.op.inputs)) if slot not in it.slots]
    return it.lifted({"axis": axis}, repeated=others)


def _parted(it: _Original) -> WithSampleAxis | None:
    return it.lifted({"axis": int(it.op.option("axis", 0)) % it.rank + 1})


def _strided(it: _Original) -> WithSampleAxis | None:
    lifted = _prefixed({1: 0, 2: 0, 3: 1})(it)
    if lifted is None:
        return None
    kept = {f"{name}Mask": int(it.op.option(f"{name}Mask", 0)) << 1 | 1 for name in ("begin", "end")}
    moved = {f"{name}Mask": int(it.op.option(f"{name}Mask", 0)) << 1 for name in ("ellipsis", "newAxis", "shrinkAxis")}
    return it.lifted({**kept, **moved}, lifted.known)


def _gathered(it: _Original) -> WithSampleAxis | None:
    axis, together = int(it.op.option("axis", 0)) % len(it.shape(0)), int(it.op.option("batchDims", 0))
    if it.slots == {0, 1}:
        return it.lifted({"axis": axis + 1, "batchDims": together + 1})
    if together:
        return None
    if it.slots == {0}:
        return it.lifted({"axis": axis + 1})
    return it.lifted() if axis == 0 else None


def _aligned(it: _Original) -> WithSampleAxis:
    """Add the axis to element-wise ops and matrix products: operands of lower rank get axes of size 1 after the
    first."""
    return it.lifted(rank=len(it.op.outputs[0].shape))


def _plain(it: _Original) -> WithSampleAxis:
    return it.lifted()


LIFTS: Mapping[str, Lift] = {
    **dict.fromkeys(("RESHAPE", "SQUEEZE", "EXPAND_DIMS"), _only(0, _plain)),
    **dict.fromkeys(("SOFTMAX", "LOG_SOFTMAX", "L2_NORMALIZATION", "TOPK_V2"), _only(0, _plain)),
    **dict.fromkeys(
        ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "REDUCE_ANY", "REDUCE_ALL"), _axes_at(1)
    ),
    **dict.fromkeys(("ARG_MAX", "ARG_MIN", "CUMSUM", "REVERSE_V2"), _axes_at(1)),
    **dict.fromkeys(("PACK", "CONCATENATION"), _joined),
    "BATCH_MATMUL": _aligned,
    "EMBEDDING_LOOKUP": _only(0, _plain),
    "GATHER": _gathered,
    "SELECT_V2": _aligned,
    "SLICE": _prefixed({1: 0, 2: -1}),
    "SPLIT": _axes_at(0, data=1),
    "SPLIT_V": _axes_at(2),
    "STRIDED_SLICE": _strided,
    "TILE": _prefixed({1: 1}),
    "TRANSPOSE": _only(0, _permuted),
    "UNPACK": _parted,
    **dict.fromkeys(("PAD", "PADV2", "MIRROR_PAD"), _prefixed({1: (0, 0)})),
}


def with_sample_axis(
    inputs: Sequence[Tensor], sequence: Sequence[Op], known: Known, ops: Mapping[str, OpSpec]
) -> Mapping[Op, WithSampleAxis] | None:
    """Return what to compute in place of each op that depends on the inputs; None if an op does not allow it, or if the
    file takes several samples at once."""
    if not inputs or any(t.shape[:1] != (1,) for t in inputs):
        return None
    lifted, made = set(inputs), dict[Op, WithSampleAxis]()
    for op in sequence:
        slots = frozenset(k for k, t in enumerate(op.inputs) if t in lifted)
        if not slots or all(t in known for t in op.outputs):
            continue
        values = {k: known[t] for k, t in enumerate(op.inputs) if t is not None and t in known}
        found = _of_op(_Original(op, slots, values), lifted, ops.get(op.kind))
        if found is None:
            return None
        made[op] = found
        lifted.update(op.outputs)
    return made


def _of_op(it: _Original, lifted: set[Tensor], spec: OpSpec | None) -> WithSampleAxis | None:
    if it.op.kind in LIFTS:
        return LIFTS[it.op.kind](it)
    if spec is None or spec.batch is None:
        return None
    if spec.batch in (batch.broadcasts, batch.pointwise):
        return _aligned(it)
    folds = all(t.shape for t in it.op.outputs) and spec.batch(it.op, lifted)
    read = (it.op.inputs[slot] for slot in it.slots)
    return WithSampleAxis(it.op, frozenset([*(t for t in read if t is not None), *it.op.outputs])) if folds else None
