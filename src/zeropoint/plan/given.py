"""Ranges that a user gives for specific tensors: what they mean for constants, and where kernels leave no choice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from ..calibration import Range
from ..dtypes import Array, DType
from ..errors import InvalidStats, argument
from ..graph.edit import set_constant
from ..graph.model import Model, Op, Tensor
from ..ops import Bias, spec_of
from ..ops.spec import Weight
from .plan import Plan
from .request import Request
from .tensor_ranges import TensorRanges


def clip_constants(model: Model, request: Request, keys: Mapping[Tensor, str]) -> None:
    """Clip constants to the ranges given for them; raises for those whose scale follows from others."""
    given = request.ranges.entries
    for op in (op for graph in model.graphs for op in graph.ops if given):
        spec = spec_of(op, request.ops)
        for slot, tensor in enumerate(op.inputs):
            if tensor is None or tensor.data is None or (entry := given.get(keys.get(tensor, ""))) is None:
                continue
            if isinstance(spec.input_role(slot), Bias):
                if request.ranges.foreign:
                    continue
                raise InvalidStats(
                    f"a range is given for '{tensor.name}', which is a bias: its scale is that of the data times that "
                    "of the weights; omit it"
                )
            if tensor.dtype is DType.FLOAT32:
                role = spec.held(slot) if entry.channels else None
                _clip(tensor, entry, role, op)


def _clip(tensor: Tensor, entry: Range, role: Weight | None, op: Op) -> None:
    """Clip a constant; per channel, if it has a role whose channels have given ranges."""
    assert tensor.data is not None
    if role is None:
        clipped = np.clip(tensor.data, entry.low, entry.high)
    else:
        clipped = _clip_channels(tensor, entry, role.axis_of(op, len(tensor.shape)))
    if not np.array_equal(clipped, tensor.data):
        set_constant(tensor, clipped.astype(np.float32), DType.FLOAT32)


def _clip_channels(tensor: Tensor, given: Range, axis: int | None) -> Array:
    assert tensor.data is not None
    count = len(given.channels)
    if axis is None or tensor.shape[axis] != count:
        has = "one scale for all" if axis is None else f"{tensor.shape[axis]} channels"
        raise InvalidStats(f"'{tensor.name}' is given ranges of {count} channels, and has {has}")
    lows, highs = (
        np.reshape(side, [-1 if k == axis else 1 for k in range(tensor.data.ndim)])
        for side in zip(*given.channels, strict=True)
    )
    return np.clip(tensor.data, lows, highs)


def require_free(plans: Iterable[Plan], request: Request, keys: Mapping[Tensor, str]) -> None:
    """Raise if a range was given for an output whose parameters are fixed in its kernel."""
    for op, scheme in (pair for plan in plans for pair in plan.schemes.items()):
        assert scheme.activations is not None
        fixed, given = request.ops[op.kind].fixed.get(scheme.activations), None
        if fixed is not None:
            given = request.ranges.entries.get(keys.get(op.outputs[0], ""))
        if fixed is None or given is None or request.ranges.foreign:  # other tools measure ranges that kernels fix
            continue
        least, greatest = fixed.params(scheme.activations).range()
        slack = 1.5 * fixed.scale  # the measured range, and a whole number in place of the last integer, are fine
        fits = least - slack <= given.low and given.high <= greatest + slack
        if not fits or 2 * max(-given.low, given.high) < max(-least, greatest):
            raise InvalidStats(
                f"the range {given.low:g} to {given.high:g} is given for '{op.outputs[0].name}', and the kernel of "
                f"{op.label} has {least:g} to {greatest:g} built in; leave it out"
            )


def default_notes(plans: Iterable[Plan], ranges: TensorRanges) -> Iterator[str]:
    """Yield a prominent warning if ranges are made up."""
    default = ranges.given.default
    nodes = (node for plan in plans for group in plan.groups for node in group.nodes)
    tensors = {node.tensor for node in nodes if default is not None and ranges.is_default(node.tensor)}
    if default is not None and tensors:
        yield (
            f"{len(tensors)} {'tensor has' if len(tensors) == 1 else 'tensors have'} the default range "
            f"{default.low:g} to {default.high:g}. Size and speed are those of a real model, but "
            f"ACCURACY IS MEANINGLESS: give {argument('data')} for a model to use"
        )
