"""Cross-layer equalization: where channels that differ widely in size share one scale, the small ones drown.

Where a channel's factor can move from the layer that makes it into the layer that reads it, it does: dividing output
channel c of the first by s_c and multiplying what the second does with it by s_c leaves the function as it was, as
long as nothing between them but a ReLU sees the tensor, because relu(x / s) = relu(x) / s for s > 0. Weights have a
scale for each output channel, so dividing those of the first layer costs nothing; multiplying those of a depthwise
layer neither. In other layers a large factor would coarsen the other weights of the same output channel, so there
the factor is only the square root.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..calibrate import Stats
from ..dtypes import Array, DType
from ..graph.edit import duplicate_constant, set_constant
from ..graph.model import Graph, Model, Op, Tensor
from ..graph.query import Use, Uses, tensor_keys
from ..ops import OPS, Activation, Weight, fused_activation

LARGEST_FACTOR = 64.0
"""Channels that hardly ever speak are left in peace: what calibration saw of them says little."""


@dataclass(frozen=True)
class Pair:
    """Two layers with a tensor between them that only they touch, and the axes of their weights that it meets."""

    first: Op
    tensor: Tensor
    second: Op
    out_axis: int
    in_axis: int
    depthwise: bool


def equalize(model: Model, stats: Stats, keys: Mapping[Tensor, str] | None = None) -> list[Tensor]:
    """Edit `model` in place; return the tensors whose channels were scaled, which have to be measured anew.

    `keys` are the names by which `stats` knows the tensors, where the model was edited since.
    """
    keys = keys or tensor_keys(model)
    changed = []
    for graph in model.graphs:
        for pair in list(pairs(graph)):
            seen = stats.tensors.get(keys[pair.tensor])
            if seen is None or seen.channels is None:
                continue
            factors = channel_factors(np.maximum(-seen.channels.low, seen.channels.high), pair.depthwise)
            if factors is not None:
                apply(graph, pair, factors)
                changed.append(pair.tensor)
    return changed


def pairs(graph: Graph) -> Iterator[Pair]:
    """Consecutive layers between which channels can be scaled."""
    uses = Uses(graph)
    for op in graph.ops:
        layout = _layout(op)
        if layout is None or fused_activation(op).name not in ("NONE", "RELU"):
            continue
        tensor = op.outputs[0]
        readers = uses.readers(tensor)
        if len(readers) != 1 or uses.is_output(tensor) or readers[0].slot != 0:
            continue
        second = readers[0].op
        other = _layout(second)
        if other is None or layout.axis is None or other.inputs is None:
            continue
        if _scalable(op, layout.axis, tensor) and _scalable(second, other.inputs, tensor):
            yield Pair(op, tensor, second, layout.axis, other.inputs, other.inputs == other.axis)


def _layout(op: Op) -> Weight | None:
    """How the op's weights lie, for ops with an input, weights and a bias in this order."""
    spec = OPS.get(op.kind)
    role = spec.input_role(1) if spec is not None and isinstance(spec.input_role(0), Activation) else None
    return role if isinstance(role, Weight) and role.inputs is not None else None


def _scalable(op: Op, axis: int, tensor: Tensor) -> bool:
    """Constant float weights, one slice of them along `axis` for each channel of the tensor, and no groups."""
    weights, bias = op.inputs[1], op.inputs[2] if len(op.inputs) > 2 else None
    if weights is None or weights.data is None or weights.dtype is not DType.FLOAT32:
        return False
    return (bias is None or bias.data is not None) and weights.shape[axis] == tensor.shape[-1]


def channel_factors(peaks: Array, depthwise: bool) -> Array | None:
    """s for each channel, or None if there is nothing to gain."""
    alive = peaks > 0
    if alive.sum() < 2 or peaks[alive].max() < 2 * np.median(peaks[alive]):
        return None
    ratio = np.where(alive, peaks / np.median(peaks[alive]), 1.0)
    power = 1.0 if depthwise else 0.5
    return np.asarray(np.clip(ratio, 1 / LARGEST_FACTOR, LARGEST_FACTOR) ** power, np.float32)


def apply(graph: Graph, pair: Pair, factors: Array) -> None:
    """Divide the first layer's channels by the factors and multiply the second's."""
    _scale(graph, Use(pair.first, 1), pair.out_axis, 1 / factors)
    if len(pair.first.inputs) > 2 and pair.first.inputs[2] is not None:
        _scale(graph, Use(pair.first, 2), 0, 1 / factors)
    _scale(graph, Use(pair.second, 1), pair.in_axis, factors)


def _scale(graph: Graph, use: Use, axis: int, factors: Array) -> None:
    tensor = use.op.inputs[use.slot]
    assert tensor is not None
    if len(Uses(graph).readers(tensor)) > 1:  # shared with another op that must not change
        tensor = duplicate_constant(graph, tensor, [use], "equalized")
    data = tensor.data
    assert data is not None
    shape = [1] * data.ndim
    shape[axis] = -1
    set_constant(tensor, data * factors.reshape(shape), DType.FLOAT32)
