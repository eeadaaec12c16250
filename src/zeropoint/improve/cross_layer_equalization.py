"""Cross-layer equalization: where channels that differ widely in size share one scale, the small ones drown.

Where a channel's factor can move from what makes it into the layers that read it, it does: dividing channel c of the
first by s_c and multiplying what the others do with it by s_c leaves the function as it was, as long as nothing between
them sees the tensor but ops with f(x / s) = f(x) / s for s > 0, moves of data, and products of matrices that sum over
something else. So it goes through a ReLU, from a layer norm's gain into the dense layers behind it, and from the value
projection of attention into the output projection. Through a ReLU6 it goes where the clip allows it: a channel that
stays far below 6 on the data, before and after.

Weights have a scale for each output channel, so dividing those of the first layer costs nothing; multiplying those of a
depthwise layer neither. In other layers a large factor would coarsen the other weights of the same output channel, so
there the factor is only the square root.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..calibration import Stats
from ..dtypes import Array, DType
from ..graph.edit import duplicate_constant, set_constant
from ..graph.model import Graph, Model, Op, Tensor
from ..graph.query import Use, Uses, tensor_keys
from ..ops import OPS, Activation, Weight, fused_activation

LARGEST_FACTOR = 64.0
"""Channels that hardly ever speak are left in peace: what calibration saw of them says little."""

HEADROOM = 2.0
"""How many times as large as on the data a channel may become before a clip that is the same for all cuts it off."""


@dataclass(frozen=True)
class Sink:
    """Weights that meet the channels along `axis`; `order` says which channel at each place."""

    weights: Use
    axis: int
    order: tuple[int, ...]


@dataclass(frozen=True)
class Link:
    """A tensor whose channels can be scaled: constants that make them, with their axes, and weights that meet them.

    `ceiling` is where a fused activation cuts all channels off.
    """

    tensor: Tensor
    makers: tuple[tuple[Use, int], ...]
    sinks: tuple[Sink, ...]
    ceiling: float = math.inf

    @property
    def is_free(self) -> bool:
        """Whether the readers have a scale for each of these channels: depthwise layers."""
        return all((layout := _layout(s.weights.op)) is not None and layout.axis == s.axis for s in self.sinks)


def equalize(model: Model, stats: Stats, keys: Mapping[Tensor, str] | None = None) -> list[Tensor]:
    """Edit `model` in place; return the tensors whose channels were scaled, which have to be measured anew.

    `keys` are the names by which `stats` knows the tensors, where the model was edited since.
    """
    keys = keys or tensor_keys(model)
    changed = []
    for graph in model.graphs:
        readers = Counter(t for op in graph.ops for t in op.inputs if t is not None)
        for link in list(links(graph)):
            seen = stats.tensors.get(keys[link.tensor])
            if seen is None or seen.channels is None:
                continue
            factors = channel_factors(np.maximum(-seen.channels.low, seen.channels.high), link.is_free, link.ceiling)
            if factors is not None:
                apply(graph, link, factors, readers)
                changed.append(link.tensor)
    return changed


def links(graph: Graph) -> Iterator[Link]:
    """Every tensor of the graph whose channels can be scaled."""
    uses = Uses(graph)
    for op in graph.ops:
        makers, ceiling = _makers(op, uses), _ceiling(op)
        if not makers or ceiling is None:
            continue
        tensor = op.outputs[0]
        sinks = _sinks(tensor, np.broadcast_to(np.arange(tensor.shape[-1]), tensor.shape), uses)
        if sinks:
            yield Link(tensor, makers, tuple(sinks), ceiling)


def _ceiling(op: Op) -> float | None:
    """The size at which the fused activation cuts off; None if it does more than that."""
    fused = fused_activation(op)
    if fused.bounds is None:
        return math.inf if fused.name == "NONE" else None
    return min(abs(bound) for bound in fused.bounds if bound)


def _layout(op: Op) -> Weight | None:
    """How the op's weights lie, for ops with an input, weights and a bias in this order."""
    spec = OPS.get(op.kind)
    role = spec.input_role(1) if spec is not None and isinstance(spec.input_role(0), Activation) else None
    return role if isinstance(role, Weight) and role.inputs is not None else None


def _makers(op: Op, uses: Uses) -> tuple[tuple[Use, int], ...]:
    """The constants that scale the channels of the op's output: weights and bias, or a gain and what is added to it."""
    if not op.outputs or not op.outputs[0].shape:
        return ()
    tensor, layout = op.outputs[0], _layout(op)
    if layout is not None:
        axis = layout.axis
        return _of_layer(op, axis) if axis is not None and _fits(op, axis, tensor.shape[-1]) else ()
    if op.kind == "MUL":
        return tuple((Use(op, k), 0) for k in (0, 1) if _is_per_channel(op.inputs[k], tensor))[:1]
    if op.kind == "ADD":
        for k in (0, 1):
            source, other = op.inputs[k], op.inputs[1 - k]
            first = None if source is None else uses.producer(source)
            alone = source is not None and len(uses.readers(source)) == 1 and not uses.is_output(source)
            if first is None or not alone or not _is_per_channel(other, tensor):
                continue
            if first.kind == "MUL" and fused_activation(first).name == "NONE":
                gain = _makers(first, uses)
                return (*gain, (Use(op, 1 - k), 0)) if gain else ()
    return ()


def _of_layer(op: Op, axis: int) -> tuple[tuple[Use, int], ...]:
    has_bias = len(op.inputs) > 2 and op.inputs[2] is not None
    return ((Use(op, 1), axis), *(((Use(op, 2), 0),) if has_bias else ()))


def _fits(op: Op, axis: int, channels: int) -> bool:
    """Constant float weights, one slice of them along `axis` for each channel, and no groups."""
    weights, bias = op.inputs[1], op.inputs[2] if len(op.inputs) > 2 else None
    if weights is None or weights.data is None or weights.dtype is not DType.FLOAT32:
        return False
    return (bias is None or bias.data is not None) and weights.shape[axis] == channels


def _is_per_channel(constant: Tensor | None, tensor: Tensor) -> bool:
    if constant is None or constant.data is None or constant.dtype is not DType.FLOAT32:
        return False
    return constant.shape == (tensor.shape[-1],) and len(tensor.shape) > 1


def _sinks(tensor: Tensor, channels: Array, uses: Uses) -> list[Sink] | None:
    """All that reads the tensor, of whose elements `channels` says which channel they belong to; None if scaling would
    show somewhere."""
    if uses.is_output(tensor) or not uses.readers(tensor):
        return None
    found: list[Sink] = []
    for use in uses.readers(tensor):
        layout = _layout(use.op)
        if layout is not None and use.slot == 0:
            more = _absorbed(use.op, layout, channels)
        else:
            passed = _passed(use, channels)
            more = None if passed is None else _sinks(use.op.outputs[0], passed, uses)
        if more is None:
            return None
        found += more
    return found


def _absorbed(op: Op, layout: Weight, channels: Array) -> list[Sink] | None:
    """The layer's weights, if every place along the last axis belongs to one channel."""
    rows = channels.reshape(-1, channels.shape[-1])
    if layout.inputs is None or not _fits(op, layout.inputs, rows.shape[1]) or (rows != rows[0]).any():
        return None
    return [Sink(Use(op, 1), layout.inputs, tuple(map(int, rows[0])))]


def _passed(use: Use, channels: Array) -> Array | None:
    """Which channels the elements of the op's output belong to; None if it does more than pass factors on."""
    op, spec = use.op, OPS.get(use.op.kind)
    if spec is None or not op.outputs or fused_activation(op).name not in ("NONE", "RELU"):
        return None
    result = op.outputs[0].shape
    if op.kind == "RESHAPE" and use.slot == 0:
        return channels.reshape(result) if channels.size == int(np.prod(result)) else None
    if op.kind == "TRANSPOSE" and use.slot == 0:
        order = None if op.inputs[1] is None else op.inputs[1].data
        return None if order is None else channels.transpose(order)
    if op.kind == "BATCH_MATMUL":
        return _passed_by_product(use, channels, result)
    if spec.homogeneous and use.slot == 0:
        rows = channels.reshape(-1, channels.shape[-1])
        is_last = channels.shape[-1] == result[-1] and not (rows != rows[0]).any()
        return np.broadcast_to(rows[0], result) if is_last else None
    return None


def _passed_by_product(use: Use, channels: Array, result: tuple[int, ...]) -> Array | None:
    """Of a product of matrices, where nothing is summed over but elements of one channel."""
    transposed = bool(use.op.option("adjY" if use.slot else "adjX"))
    summed = (-1 if transposed else -2) if use.slot else (-2 if transposed else -1)
    first = np.take(channels, [0], axis=summed)
    if (channels != first).any():
        return None
    if transposed:
        first = np.swapaxes(first, -1, -2)
    return np.broadcast_to(first, result)


def channel_factors(peaks: Array, free: bool, ceiling: float = math.inf) -> Array | None:
    """s for each channel, or None if there is nothing to gain. `free`: large factors cost nothing.

    Below a `ceiling` small channels grow towards it, and those that come near it stay as they are.
    """
    highest = ceiling / HEADROOM
    alive = (peaks > 0) & (peaks < highest)
    if alive.sum() < 2:
        return None
    usual = np.median(peaks[alive]) if math.isinf(ceiling) else highest
    if max(peaks.max(), usual) < 2 * np.median(peaks[alive]):
        return None
    ratio = np.where(alive, peaks / usual, 1.0)
    power = 1.0 if free else 0.5
    return np.asarray(np.clip(ratio, 1 / LARGEST_FACTOR, LARGEST_FACTOR) ** power, np.float32)


def apply(graph: Graph, link: Link, factors: Array, readers: Counter[Tensor]) -> None:
    """Divide what makes the channels by the factors and multiply the weights that meet them.

    `readers` counts who reads a tensor, and is kept up to date: counting anew for each link would take time that grows
    with the square of the graph.
    """
    for use, axis in link.makers:
        _scale(graph, use, axis, 1 / factors, readers)
    for sink in link.sinks:
        _scale(graph, sink.weights, sink.axis, factors[list(sink.order)], readers)


def _scale(graph: Graph, use: Use, axis: int, factors: Array, readers: Counter[Tensor]) -> None:
    tensor = use.op.inputs[use.slot]
    assert tensor is not None
    if readers[tensor] > 1:  # shared with another op that must not change
        readers[tensor] -= 1
        tensor = duplicate_constant(graph, tensor, [use], "equalized")
        readers[tensor] = 1
    data = tensor.data
    assert data is not None
    shape = [1] * data.ndim
    shape[axis] = -1
    set_constant(tensor, data * factors.reshape(shape), DType.FLOAT32)
