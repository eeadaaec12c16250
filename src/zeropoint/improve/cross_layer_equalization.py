"""Cross-layer equalization: if channels of very different magnitude share one scale, the small ones lose precision.

Dividing channel c of a tensor by s_c where it is produced, and multiplying by s_c in its readers, leaves the function
unchanged, as long as only ops with f(x / s) = f(x) / s for s > 0, moves of data, and matrix products that sum over
something else see the tensor in between. So a factor can move through a ReLU, from a layer norm's gain into the dense
layers after it, and from the value projection of attention into the output projection. It moves through a ReLU6 if the
clip allows it: in channels that stay far below 6 on the data, before and after.

Weights have per-output-channel scales, so dividing those of the first layer costs nothing; neither does multiplying
those of a depthwise layer. In other layers a large factor would make the other weights of the same output channel
coarser, so there the factor is only the square root.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..calibration import Stats
from ..calibration.stats import median
from ..dtypes import Array, DType
from ..graph.edit import duplicate_constant, set_constant
from ..graph.model import Graph, Model, Op, Tensor
from ..graph.query import Use, Uses, tensor_keys
from ..ops import OpSpec, Trait, fused_activation, spec_of
from ..ops.layout import Layout, MatrixProduct
from ..plan.weights import bias_use

LARGEST_FACTOR = 64.0
"""Channels that are almost always zero are scaled by no more than this: the data say little about them."""

HEADROOM = 2.0
"""A clip that all channels share must lie at least this many times above what a channel reached on the data."""


@dataclass(frozen=True)
class Sink:
    """Weights that are multiplied by the channels along `axis`; `order` maps each position to its channel.

    With `is_free` they have a scale for each of these channels, as those of depthwise layers do: large factors then
    cost nothing.
    """

    weights: Use
    axis: int
    order: tuple[int, ...]
    is_free: bool


@dataclass(frozen=True)
class Link:
    """A tensor whose channels can be scaled: the constants that produce them, with their axes, and the weights that
    read them.

    `ceiling` is where a fused activation clips all channels. `passing` are tensors on the way to the sinks, with the
    channel of each element.
    """

    tensor: Tensor
    passing: Mapping[Tensor, Array]
    makers: tuple[tuple[Use, int], ...]
    sinks: tuple[Sink, ...]
    ceiling: float

    @property
    def scaled(self) -> dict[Tensor, Array]:
        """Every tensor whose channels are scaled, with the channel of each element."""
        makers = (use.op.outputs[0] for use, _ in self.makers)  # the gain comes before the offset
        return {tensor: _channels_of(tensor) for tensor in (*makers, self.tensor)} | dict(self.passing)


def _channels_of(tensor: Tensor) -> Array:
    return np.broadcast_to(np.arange(tensor.shape[-1]), tensor.shape)


@dataclass(frozen=True, eq=False)
class Equalized:
    """A link with the factors that its channels were divided by."""

    link: Link
    divisors: Array

    @property
    def factors(self) -> dict[Tensor, Array]:
        """What the values of each tensor were multiplied by, in the smallest shape that broadcasts to its own."""
        return {tensor: 1 / self.divisors[_condensed(channels)] for tensor, channels in self.link.scaled.items()}


def _condensed(channels: Array) -> Array:
    """Return the array with size 1 along axes over which it is constant."""
    for axis in range(channels.ndim):
        first = channels.take([0], axis)
        if not channels.strides[axis] or (channels == first).all():
            channels = first
    return channels


def equalize(
    model: Model, stats: Stats, ops: Mapping[str, OpSpec], keys: Mapping[Tensor, str] | None = None
) -> list[Equalized]:
    """Edit `model` in place; return what was scaled, which has to be measured again.

    `keys` are the names by which `stats` knows the tensors, if the model has been edited since.
    """
    keys = keys or tensor_keys(model)
    changed = []
    for graph in model.graphs:
        readers = Counter(t for op in graph.ops for t in op.inputs if t is not None)
        for link in list(_Links(ops, Uses(graph)).of(graph)):
            seen = stats.tensors.get(keys[link.tensor])
            if seen is None or seen.channels is None:
                continue
            peaks, is_free = np.maximum(-seen.channels.low, seen.channels.high), all(s.is_free for s in link.sinks)
            factors = channel_factors(peaks, is_free, link.ceiling)
            if factors is not None:
                for use, axis in link.makers:
                    _scale(graph, use, axis, 1 / factors, readers)
                for sink in link.sinks:
                    _scale(graph, sink.weights, sink.axis, factors[list(sink.order)], readers)
                changed.append(Equalized(link, factors))
    return changed


@dataclass(frozen=True)
class _Links:
    """Follows the channels of tensors from their producers to the weights that read them."""

    ops: Mapping[str, OpSpec]
    uses: Uses

    def of(self, graph: Graph) -> Iterator[Link]:
        """Yield every tensor of the graph whose channels can be scaled."""
        for op in graph.ops:
            makers, ceiling = self._makers(op), _ceiling(op)
            if not makers or ceiling is None:
                continue
            tensor = op.outputs[0]
            passing: dict[Tensor, Array] = {}
            sinks = self._sinks(tensor, _channels_of(tensor), passing)
            if sinks:
                yield Link(tensor, passing, makers, tuple(sinks), ceiling)

    def _layout(self, op: Op) -> Layout | None:
        """Return the weight layout of ops with an input, weights and a bias, in this order."""
        return spec_of(op, self.ops).plain_layout

    def _has(self, op: Op, trait: Trait) -> bool:
        return op.kind in self.ops and trait in self.ops[op.kind].traits

    def _makers(self, op: Op) -> tuple[tuple[Use, int], ...]:
        """Return the constants that scale the channels of the op's output: weights and bias, or a gain and an
        offset."""
        if not op.outputs or not op.outputs[0].shape:
            return ()
        layout = self._layout(op)
        if layout is not None:
            bias = bias_use(op, self.ops[op.kind])
            fits = _fits(op, layout.outputs, op.outputs[0].shape[-1])
            return ((Use(op, layout.weights), layout.outputs), *(((bias, 0),) if bias else ())) if fits else ()
        if self._has(op, Trait.MULTIPLIES):
            return tuple((Use(op, k), 0) for k in (0, 1) if _is_per_channel(op.inputs[k], op.outputs[0]))[:1]
        return self._gain_and_offset(op) if self._has(op, Trait.ADDS) else ()

    def _gain_and_offset(self, op: Op) -> tuple[tuple[Use, int], ...]:
        """Return the gain and offset of a layer norm: of a sum that only a product feeds."""
        for k in (0, 1):
            source = op.inputs[k]
            if source is None or not _is_per_channel(op.inputs[1 - k], op.outputs[0]):
                continue
            product = self.uses.producer(source)
            is_alone = len(self.uses.readers(source)) == 1 and not self.uses.is_output(source)
            if product is not None and is_alone and self._has(product, Trait.MULTIPLIES):
                gain = self._makers(product) if fused_activation(product).name == "NONE" else ()
                return (*gain, (Use(op, 1 - k), 0)) if gain else ()
        return ()

    def _sinks(self, tensor: Tensor, channels: Array, passing: dict[Tensor, Array]) -> list[Sink] | None:
        """Return all weights that read the tensor, where `channels` is the channel of each element; None if scaling
        would be visible somewhere. Tensors on the way are added to `passing`."""
        if self.uses.is_output(tensor) or not self.uses.readers(tensor):
            return None
        found: list[Sink] = []
        for use in self.uses.readers(tensor):
            layout = self._layout(use.op)
            if layout is not None and use.slot == layout.data:
                more = _absorbed(use.op, layout, channels)
            else:
                passed = self._passed(use, channels)
                if passed is None:
                    return None
                passing[use.op.outputs[0]] = passed
                more = self._sinks(use.op.outputs[0], passed, passing)
            if more is None:
                return None
            found += more
        return found

    def _passed(self, use: Use, channels: Array) -> Array | None:
        """Return the channels of the elements of the op's output; None if it does more than pass factors on."""
        op, spec = use.op, self.ops.get(use.op.kind)
        if spec is None or not op.outputs or fused_activation(op).name not in ("NONE", "RELU"):
            return None
        result = op.outputs[0].shape
        if isinstance(spec.layout, MatrixProduct):
            return _passed_by_product(use, channels, result)
        if use.slot != 0:
            return None
        if op.kind == "RESHAPE":
            return channels.reshape(result) if channels.size == int(np.prod(result)) else None
        if op.kind == "TRANSPOSE":
            order = None if op.inputs[1] is None else op.inputs[1].data
            return None if order is None else channels.transpose(order)
        last = _along_last_axis(channels) if Trait.HOMOGENEOUS in spec.traits else None
        return np.broadcast_to(last, result) if last is not None and last.size == result[-1] else None


def _ceiling(op: Op) -> float | None:
    """Return the magnitude at which the fused activation clips; None if it does more than that."""
    fused = fused_activation(op)
    if fused.bounds is None:
        return math.inf if fused.name == "NONE" else None
    return min(abs(bound) for bound in fused.bounds if bound)


def _fits(op: Op, axis: int, channels: int) -> bool:
    """Whether the weights are constant floats, with one slice along `axis` for each channel, and no groups."""
    weights, bias = op.inputs[1], op.input(2)
    if weights is None or weights.data is None or weights.dtype is not DType.FLOAT32:
        return False
    return (bias is None or bias.data is not None) and weights.shape[axis] == channels


def _is_per_channel(constant: Tensor | None, tensor: Tensor) -> bool:
    if constant is None or constant.data is None or constant.dtype is not DType.FLOAT32:
        return False
    return constant.shape == (tensor.shape[-1],) and len(tensor.shape) > 1


def _along_last_axis(channels: Array) -> Array | None:
    """Return the channel of each position along the last axis; None if a position has several."""
    rows = channels.reshape(-1, channels.shape[-1])
    return None if (rows != rows[0]).any() else rows[0]


def _absorbed(op: Op, layout: Layout, channels: Array) -> list[Sink] | None:
    """Return the layer's weights, if every position along the last axis belongs to one channel."""
    last = _along_last_axis(channels)
    if last is None or not _fits(op, layout.inputs, last.size):
        return None
    is_free = layout.outputs == layout.inputs
    return [Sink(Use(op, layout.weights), layout.inputs, tuple(map(int, last)), is_free)]


def _passed_by_product(use: Use, channels: Array, result: tuple[int, ...]) -> Array | None:
    """Return the channels of a matrix product's output, if only elements of one channel are summed."""
    transposed = bool(use.op.option("adjY" if use.slot else "adjX"))
    summed = (-1 if transposed else -2) if use.slot else (-2 if transposed else -1)
    first = np.take(channels, [0], axis=summed)
    if (channels != first).any():
        return None
    if transposed:
        first = np.swapaxes(first, -1, -2)
    return np.broadcast_to(first, result)


def channel_factors(peaks: Array, free: bool, ceiling: float = math.inf) -> Array | None:
    """Return s for each channel, or None if there is nothing to gain. `free`: large factors cost nothing.

    Below a `ceiling`, small channels grow towards it, and those that come near it stay unchanged.
    """
    highest = ceiling / HEADROOM
    alive = (peaks > 0) & (peaks < highest)
    if alive.sum() < 2:
        return None
    middle = median(peaks[alive])
    usual = middle if math.isinf(ceiling) else highest
    if max(peaks.max(), usual) < 2 * middle:
        return None
    ratio = np.where(alive, peaks / usual, 1.0)
    power = 1.0 if free else 0.5
    return np.asarray(np.clip(ratio, 1 / LARGEST_FACTOR, LARGEST_FACTOR) ** power, np.float32)


def _scale(graph: Graph, use: Use, axis: int, factors: Array, readers: Counter[Tensor]) -> None:
    """Multiply the constant at `use`, along `axis`, by the factors.

    `readers` counts the readers of each tensor, and is kept up to date: counting again for each link would take
    quadratic time.
    """
    if readers[use.tensor] > 1:  # shared with another op, which must not change
        readers[use.tensor] -= 1
        readers[duplicate_constant(graph, use.tensor, [use], "equalized")] = 1
    shape = [1] * use.data.ndim
    shape[axis] = -1
    set_constant(use.tensor, use.data * factors.reshape(shape), DType.FLOAT32)
