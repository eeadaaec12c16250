"""Rules for when an op treats the samples of a batch independently: it keeps the first dimension in place, and neither
mixes nor selects rows. A rule gets the op and those of its inputs whose first dimension is the batch."""

from __future__ import annotations

from collections.abc import Callable, Set

import numpy as np

from ..graph.model import Op, Tensor

BatchRule = Callable[[Op, Set[Tensor]], bool]
Axes = Callable[[Op], set[int]]


def by_sample(op: Op, free: Set[Tensor]) -> bool:  # noqa: ARG001 - one signature
    """Always independent: the op does not look beyond one row."""
    return True


def pointwise(op: Op, free: Set[Tensor]) -> bool:  # noqa: ARG001 - one signature
    """Always independent: the op does not look beyond one element."""
    return True


def broadcasts(op: Op, free: Set[Tensor]) -> bool:
    """Element-wise with broadcasting: batched operands must agree in the first dimension, others are the same for every
    row."""
    output = op.outputs[0].shape

    def fits(tensor: Tensor) -> bool:
        same_rank = len(tensor.shape) == len(output)
        return same_rank and tensor.shape[0] == output[0] if tensor in free else not same_rank or tensor.shape[0] == 1

    return all(fits(t) for t in op.inputs if t is not None)


def only(slot: int) -> BatchRule:
    """Return a rule that only the operand at `slot` may be batched: not weights, bounds and the like."""
    return lambda op, free: [k for k, t in enumerate(op.inputs) if t in free] == [slot]


def along(axes: Axes) -> BatchRule:
    """Return a rule for ops that work along axes, which must not be the first."""
    return lambda op, free: 0 not in axes(op)  # noqa: ARG005 - one signature


def joined(axes: Axes) -> BatchRule:
    """Return a rule for ops that join operands along axes other than the first; all must have equally many rows."""
    return lambda op, free: all(t in free for t in op.inputs) and 0 not in axes(op)


def matrix_product(op: Op, free: Set[Tensor]) -> bool:
    left, right = op.inputs
    assert left is not None
    if len(left.shape) == 2:
        return right not in free and not op.option("adjX", False)
    return broadcasts(op, free) and len(op.outputs[0].shape) > 2


def gathers(op: Op, free: Set[Tensor]) -> bool:
    (axis,), batch = axis_of_input(op), int(op.option("batchDims", 0))
    data, indices = op.inputs[0] in free, op.inputs[1] in free
    if data and indices:
        return batch >= 1
    return batch == 0 and ((data and axis > 0) or (indices and axis == 0))


def steps_second(op: Op, free: Set[Tensor]) -> bool:
    """A recurrent layer whose first dimension is the batch, not time."""
    return not op.option("timeMajor", False) and only(0)(op, free)


# Which axes an op works along.


def axes_at(slot: int, data: int = 0) -> Axes:
    """Return the axes given by the input at `slot`, of the input at `data`."""
    return lambda op: {a % max(1, _rank(op, data)) for a in _numbers(op, slot)}


def axis_of_output(op: Op) -> set[int]:
    return {int(op.option("axis", 0)) % max(1, len(op.outputs[0].shape))}


def axis_of_input(op: Op) -> set[int]:
    return {int(op.option("axis", 0)) % max(1, _rank(op))}


def last_axis(op: Op) -> set[int]:
    return {_rank(op) - 1}


def transposed(op: Op) -> set[int]:
    return {k for k, axis in enumerate(_numbers(op, 1)) if axis != k}


def padded(op: Op) -> set[int]:
    numbers = _numbers(op, 1)
    return {k // 2 for k, n in enumerate(numbers) if n} if len(numbers) == 2 * _rank(op) else {0}


def repeated(op: Op) -> set[int]:
    return {k for k, n in enumerate(_numbers(op, 1)) if n != 1}


def squeezed(op: Op) -> set[int]:
    dims = op.option("squeezeDims") or ()
    return {int(d) % max(1, _rank(op)) for d in dims} or ({0} if op.outputs[0].shape[:1] != _leading(op) else set())


def inserted(op: Op) -> set[int]:
    return {a % (_rank(op) + 1) for a in _numbers(op, 1)}


def sliced(op: Op) -> set[int]:
    begin, size = _numbers(op, 1), _numbers(op, 2)
    return set() if begin[0] == 0 and size[0] in (-1, *_leading(op)) else {0}


def sliced_in_steps(op: Op) -> set[int]:
    masks = [int(op.option(f"{name}Mask", 0)) & 1 for name in ("begin", "end", "ellipsis", "newAxis", "shrinkAxis")]
    begin, end, ellipsis, new_axis, shrink = masks
    if ellipsis:
        return set()
    starts = begin or _numbers(op, 1)[0] == 0
    ends = end or _numbers(op, 2)[0] in _leading(op)
    return set() if starts and ends and not new_axis and not shrink and _numbers(op, 3)[0] == 1 else {0}


def _rank(op: Op, slot: int = 0) -> int:
    tensor = op.inputs[slot]
    return 0 if tensor is None else len(tensor.shape)


def _numbers(op: Op, slot: int) -> list[int]:
    """Return a constant input as integers; 0 if it is not constant, because it may then be the first axis."""
    tensor = op.input(slot)
    data = None if tensor is None else tensor.data
    return [0] if data is None else [int(v) for v in np.asarray(data).reshape(-1)]


def _leading(op: Op) -> tuple[int, ...]:
    source = op.inputs[0]
    return () if source is None else source.shape[:1]
