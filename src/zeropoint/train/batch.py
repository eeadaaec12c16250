"""Whether a graph treats the rows of a batch alike, so that it can be run with any number of them.

Files are often made for one sample a run. As long as every op leaves the first dimension in its place, and neither
mixes nor picks rows, the same graph computes a batch. A reshape may fold rows together: the first dimension is then a
multiple of the batch, with the rows of one sample next to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..graph.model import Op, Tensor
from ..ops import OPS

Free = frozenset[Tensor]


def free_tensors(inputs: Sequence[Tensor], ops: Sequence[Op]) -> Free:
    """The tensors whose first dimension goes with the batch; none if the batch has to stay as recorded."""
    leading = {t.shape[0] if t.shape else None for t in inputs}
    if len(leading) != 1 or None in leading:
        return frozenset()
    (batch,) = leading
    assert batch is not None
    walk = _Walk(batch, set(inputs))
    return frozenset(walk.free) if all(walk.takes(op) for op in ops) else frozenset()


@dataclass
class _Walk:
    """`shapes` are numbers that were read off a free tensor's shape: true for the recorded batch alone."""

    batch: int
    free: set[Tensor]
    shapes: set[Tensor] = field(default_factory=set)

    def takes(self, op: Op) -> bool:
        operands = [t for t in op.inputs if t is not None]
        touched = [t for t in operands if t in self.free]
        if op.kind in OPS and OPS[op.kind].reads_shapes_only:
            self.shapes.update(op.outputs if touched else ())
            return True
        if any(t in self.shapes for t in operands) and op.kind != "RESHAPE":
            self.shapes.update(op.outputs)
            return not touched and all(t in self.shapes or t.is_constant for t in operands)
        if not touched:
            return True
        rule = _RULES.get(op.kind)
        if rule is None or not rule(op, self.free) or any(not t.shape for t in op.outputs):
            return False
        self.free.update(op.outputs)
        return op.kind != "RESHAPE" or op.outputs[0].shape[0] % self.batch == 0


Rule = Callable[[Op, set[Tensor]], bool]


def _always(op: Op, free: set[Tensor]) -> bool:  # noqa: ARG001 - one signature
    return True


def _first_input_only(op: Op, free: set[Tensor]) -> bool:
    """Weights, bounds and the like may not come from the batch."""
    return op.inputs[0] in free and not any(t in free for t in op.inputs[1:])


def _broadcasts(op: Op, free: set[Tensor]) -> bool:
    """Operands that go with the batch lead with it alike; others are the same for every row."""
    output = op.outputs[0].shape
    for tensor in op.inputs:
        assert tensor is not None
        same = len(tensor.shape) == len(output) and tensor.shape[0] == output[0]
        if tensor in free and not same:
            return False
        if tensor not in free and len(tensor.shape) == len(output) and tensor.shape[0] != 1:
            return False
    return True


def _along(axes: Callable[[Op], set[int]]) -> Rule:
    """Ops that work along axes, which must not be the first; all operands that hold data go with the batch."""

    def rule(op: Op, free: set[Tensor]) -> bool:  # noqa: ARG001 - one signature
        return 0 not in axes(op)

    return rule


def _together(axes: Callable[[Op], set[int]]) -> Rule:
    """The same, where every operand has to have as many rows."""

    def rule(op: Op, free: set[Tensor]) -> bool:
        return all(t in free for t in op.inputs) and 0 not in axes(op)

    return rule


def _rank(op: Op, slot: int = 0) -> int:
    tensor = op.inputs[slot]
    return 0 if tensor is None else len(tensor.shape)


def _numbers(op: Op, slot: int) -> list[int]:
    tensor = op.inputs[slot] if slot < len(op.inputs) else None
    data = None if tensor is None else tensor.data
    return [0] if data is None else [int(v) for v in np.asarray(data).reshape(-1)]


def _axes_at(slot: int, data: int = 0) -> Callable[[Op], set[int]]:
    return lambda op: {a % max(1, _rank(op, data)) for a in _numbers(op, slot)}


def _axis_option(op: Op) -> set[int]:
    return {int(op.option("axis", 0)) % max(1, len(op.outputs[0].shape))}


def _unpacked(op: Op) -> set[int]:
    return {int(op.option("axis", 0)) % max(1, _rank(op))}


def _last(op: Op) -> set[int]:
    return {_rank(op) - 1}


def _transposed(op: Op) -> set[int]:
    return {k for k, axis in enumerate(_numbers(op, 1)) if axis != k}


def _padded(op: Op) -> set[int]:
    numbers = _numbers(op, 1)
    return {k // 2 for k, n in enumerate(numbers) if n} if len(numbers) == 2 * _rank(op) else {0}


def _repeated(op: Op) -> set[int]:
    return {k for k, n in enumerate(_numbers(op, 1)) if n != 1}


def _dropped(op: Op) -> set[int]:
    dims = op.option("squeezeDims") or ()
    return {int(d) % max(1, _rank(op)) for d in dims} or ({0} if op.outputs[0].shape[:1] != _leading(op) else set())


def _leading(op: Op) -> tuple[int, ...]:
    source = op.inputs[0]
    return () if source is None else source.shape[:1]


def _inserted(op: Op) -> set[int]:
    return {a % (_rank(op) + 1) for a in _numbers(op, 1)}


def _sliced(op: Op) -> set[int]:
    begin, size = _numbers(op, 1), _numbers(op, 2)
    return set() if begin[0] == 0 and size[0] in (-1, *_leading(op)) else {0}


def _sliced_in_steps(op: Op) -> set[int]:
    masks = [int(op.option(f"{name}Mask", 0)) & 1 for name in ("begin", "end", "ellipsis", "newAxis", "shrinkAxis")]
    begin, end, ellipsis, new_axis, shrink = masks
    if ellipsis:
        return set()
    starts = begin or _numbers(op, 1)[0] == 0
    ends = end or _numbers(op, 2)[0] in _leading(op)
    return set() if starts and ends and not new_axis and not shrink and _numbers(op, 3)[0] == 1 else {0}


def _gathers(op: Op, free: set[Tensor]) -> bool:
    axis, batch = int(op.option("axis", 0)) % max(1, _rank(op)), int(op.option("batchDims", 0))
    data, indices = op.inputs[0] in free, op.inputs[1] in free
    if data and indices:
        return batch >= 1
    return (data and axis > 0 and batch == 0) or (indices and axis == 0 and batch == 0)


def _looks_up(slot: int) -> Rule:
    """Only the operand at `slot` goes with the batch."""

    def rule(op: Op, free: set[Tensor]) -> bool:
        return [k for k, t in enumerate(op.inputs) if t in free] == [slot]

    return rule


def _multiplies(op: Op, free: set[Tensor]) -> bool:
    left, right = op.inputs
    assert left is not None
    assert right is not None
    if len(left.shape) == 2:
        return right not in free and not op.option("adjX", False)
    return _broadcasts_leading(left, right, op, free)


def _broadcasts_leading(left: Tensor, right: Tensor, op: Op, free: set[Tensor]) -> bool:
    output = op.outputs[0].shape
    for tensor in (left, right):
        leads = len(tensor.shape) == len(output) and tensor.shape[0] == output[0]
        if tensor in free and not leads:
            return False
        if tensor not in free and len(tensor.shape) == len(output) and tensor.shape[0] != 1:
            return False
    return len(output) > 2


def _batch_leads(op: Op, free: set[Tensor]) -> bool:
    return not op.option("timeMajor", False) and _first_input_only(op, free)


# fmt: off
_UNARY = (
    "RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "LEAKY_RELU", "ELU", "GELU",
    "HARD_SWISH", "LOGISTIC", "TANH", "ABS", "NEG", "SIGN", "SQRT",
    "RSQRT", "SQUARE", "EXP", "LOG", "SIN", "COS", "FLOOR",
    "CEIL", "ROUND", "ZEROS_LIKE", "CAST", "LOGICAL_NOT", "DEQUANTIZE", "IDENTITY",
    "AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D", "SPACE_TO_DEPTH", "DEPTH_TO_SPACE", "RESHAPE",
)
_BROADCASTING = (
    "ADD", "SUB", "MUL", "DIV", "FLOOR_DIV", "FLOOR_MOD", "POW",
    "SQUARED_DIFFERENCE", "MAXIMUM", "MINIMUM", "ATAN2", "EQUAL", "NOT_EQUAL", "GREATER",
    "GREATER_EQUAL", "LESS", "LESS_EQUAL", "LOGICAL_AND", "LOGICAL_OR", "SELECT_V2",
)
# fmt: on

_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_UNARY, _always),
    **dict.fromkeys(_BROADCASTING, _broadcasts),
    **dict.fromkeys(
        ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "Convolution2DTransposeBias"), _first_input_only
    ),
    "CUSTOM": lambda op, free: op.label in _RULES and _RULES[op.label](op, free),
    "TRANSPOSE_CONV": _looks_up(2),
    "PRELU": _first_input_only,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _batch_leads,
    "BATCH_MATMUL": _multiplies,
    **dict.fromkeys(("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"), _first_input_only),
    **dict.fromkeys(("SOFTMAX", "LOG_SOFTMAX", "L2_NORMALIZATION", "TOPK_V2"), _along(_last)),
    **dict.fromkeys(
        ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "REDUCE_ANY", "REDUCE_ALL", "ARG_MAX", "ARG_MIN"),
        _along(_axes_at(1)),
    ),
    **dict.fromkeys(("REVERSE_V2", "CUMSUM"), _along(_axes_at(1))),
    "CONCATENATION": _together(_axis_option),
    "PACK": _together(_axis_option),
    "UNPACK": _along(_unpacked),
    "SPLIT": _along(_axes_at(0, 1)),
    "SPLIT_V": _along(_axes_at(2)),
    "TRANSPOSE": _along(_transposed),
    **dict.fromkeys(("PAD", "PADV2", "MIRROR_PAD"), _along(_padded)),
    "TILE": _along(_repeated),
    "SQUEEZE": _along(_dropped),
    "EXPAND_DIMS": _along(_inserted),
    "SLICE": _along(_sliced),
    "STRIDED_SLICE": _along(_sliced_in_steps),
    "GATHER": _gathers,
    "GATHER_ND": _looks_up(1),
    "EMBEDDING_LOOKUP": _looks_up(0),
}
"""Kinds that are known to leave rows alone, and under which condition."""
