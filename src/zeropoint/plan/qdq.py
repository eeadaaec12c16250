"""What quantization-aware training left in a graph: FAKE_QUANT ops, and pairs of QUANTIZE and DEQUANTIZE.

Such a mark says which integers a tensor is going to be stored in. The marks are removed from the graph, and their
information is kept: parameters of constants and of activations, and what follows from those for tensors without a mark.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ..affine import PerAxis, QuantParams, dequantize, quantize
from ..calibration.given_ranges import Range, Ranges
from ..dtypes import Array, DType
from ..graph.edit import fold_into_constant, remove_op
from ..graph.model import Graph, Model, Op, Tensor
from ..graph.query import Use, Uses, tensor_keys
from ..ops import CLAMPS, OpSpec
from ..sources.ports import entry_graphs
from .plan import Packed


@dataclass(frozen=True)
class Trained:
    """What training left: `ranges` of activations with a mark, and `implied` ranges that follow from them where nothing
    was measured.

    `constants` have the parameters of marked constants, whose values lie on that grid. `uses` are places that read a
    tensor through a mark of their own, other than the tensor's first. `packed` says how the file stored constants that
    it had in fewer bits than float32.
    """

    ranges: Ranges = field(default_factory=lambda: Ranges({}))
    implied: Ranges = field(default_factory=lambda: Ranges({}))
    constants: Mapping[Tensor, QuantParams] = field(default_factory=dict)
    uses: Mapping[Use, QuantParams] = field(default_factory=dict)
    packed: Mapping[Tensor, Packed] = field(default_factory=dict)

    @property
    def has_marks(self) -> bool:
        """Whether training left parameters of tensors, which no longer hold once the tensors are changed."""
        return bool(self.ranges.entries or self.constants or self.uses)


@dataclass(frozen=True)
class _Mark:
    """The op that produces a marked tensor, the range, and the parameters if kernels have their type.

    `grid` are the parameters for constants: those of fewer than 8 bits as int8 with the same steps.
    """

    op: Op
    range: Range
    grid: QuantParams | None


def has_trained_ranges(model: Model) -> bool:
    """Whether some activation has a mark."""
    return any(
        source is not None and source.data is None
        for graph in entry_graphs(model)
        for source in (_marked(mark.op, Uses(graph)) for mark in _marks(graph))
    )


def take_trained(model: Model, ops: Mapping[str, OpSpec]) -> Trained:
    """Remove the marks from the entry graphs of `model`, in place, and return what they say."""
    taker = _Taker(tensor_keys(model))
    for graph in entry_graphs(model):
        for mark in list(_marks(graph)):
            taker.take(graph, mark)
        taker.transpose_constants(graph)
    implied = implied_ranges(model, ops, taker.keys, taker.ranges)
    return Trained(Ranges(taker.ranges), implied, taker.constants, taker.uses, taker.packed)


def implied_ranges(
    model: Model, ops: Mapping[str, OpSpec], keys: Mapping[Tensor, str], given: Mapping[str, Range]
) -> Ranges:
    """Return ranges for tensors that have none, as implied along ops that keep or fix the range of their inputs."""
    known = dict(given)
    for graph in entry_graphs(model) if known else ():
        _follow(graph, ops, keys, known)
    return Ranges({key: found for key, found in known.items() if key not in given})


def _marks(graph: Graph) -> Iterator[_Mark]:
    """Yield marks in graph order; for pairs, the DEQUANTIZE. Constants that are graph outputs are left alone."""
    uses = Uses(graph)
    for op in graph.ops:
        source = _marked(op, uses)
        if source is not None and (source.data is None or op.outputs[0] not in graph.outputs):
            yield _fake_quant(op) if op.kind == "FAKE_QUANT" else _pair(op)


def _marked(op: Op, uses: Uses) -> Tensor | None:
    """Return the float tensor, or the integer constant, that a mark applies to; None if the op is not a mark.

    QUANTIZE and DEQUANTIZE form a mark only if nothing else reads the integers between them.
    """
    source = op.inputs[0] if op.inputs and op.kind in ("FAKE_QUANT", "DEQUANTIZE") else None
    if source is None or op.kind == "FAKE_QUANT":
        return source
    if source.params is None or source.data is not None:
        return None if source.params is None else source
    first = uses.producer(source)
    if first is None or first.kind != "QUANTIZE" or uses.is_output(source):
        return None
    origin = first.inputs[0]
    is_pair = all(r.op.kind == "DEQUANTIZE" for r in uses.readers(source))
    return origin if is_pair and origin is not None and origin.dtype is DType.FLOAT32 else None


def _fake_quant(op: Op) -> _Mark:
    """Return the mark of a FAKE_QUANT op, with the kernel's arithmetic: q in [0 or 1, 2**bits - 1], zero nudged to an
    integer."""
    low, high = min(0.0, float(op.option("min"))), max(0.0, float(op.option("max")))
    bits, least = int(op.option("numBits", 8)) or 8, int(bool(op.option("narrowRange")))
    greatest, origin = 2**bits - 1, f"{op.kind} in the model"
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        return _Mark(op, Range(low, high, origin), None)
    # In float32, as in the kernel: a zero halfway between two integers is common.
    scale = float(np.float32(high - low) / np.float32(greatest - least))
    zero = min(max(math.floor(least - np.float32(low) / np.float32(scale) + np.float32(0.5)), least), greatest)
    low, high = scale * (least - zero), scale * (greatest - zero)
    if bits > 8:
        return _Mark(op, Range(low, high, origin), None)
    params = QuantParams((scale,), (zero - 2 ** (bits - 1),), DType.INT8)
    return _Mark(op, Range(low, high, origin, params if bits == 8 else _few_levels(scale, greatest - zero)), params)


def _few_levels(scale: float, above: int) -> QuantParams:
    """Return an activation of fewer than 8 bits as int8, with its `above` positive levels at the end of the type.

    Kernels saturate there, as the trained graph does; at the other end a ReLU clips, if there is one.
    """
    return QuantParams((scale,), (DType.INT8.max - above,), DType.INT8)


def _pair(op: Op) -> _Mark:
    """Return the mark of the integers before a DEQUANTIZE. Activations have one scale, and for 16 bits no zero
    point."""
    source = op.inputs[0]
    assert source is not None
    assert source.params is not None
    params, dtype = source.params, source.params.dtype
    holds = dtype in (DType.INT8, DType.UINT8) or (dtype is DType.INT16 and params.is_symmetric)
    held = QuantParams(params.scales, params.zero_points, dtype) if holds and len(params.scales) == 1 else None
    if dtype.is_packed and len(params.scales) == 1:
        held = _few_levels(params.scale, dtype.max - params.zero_point)
    shift = 2 ** (dtype.bits - 1) if dtype.kind == "uint" else 0
    zero_points = tuple(z - shift for z in params.zero_points)
    grid = QuantParams(params.scales, zero_points, DType.INT8, params.granularity) if dtype.bits <= 8 else None
    return _Mark(op, Range(*params.range(), "QUANTIZE in the model", held), grid)


@dataclass
class _Taker:
    """Removes marks one by one and collects what they say."""

    keys: Mapping[Tensor, str]
    ranges: dict[str, Range] = field(default_factory=dict)
    constants: dict[Tensor, QuantParams] = field(default_factory=dict)
    uses: dict[Use, QuantParams] = field(default_factory=dict)
    packed: dict[Tensor, Packed] = field(default_factory=dict)

    def take(self, graph: Graph, mark: _Mark) -> None:
        uses = Uses(graph)
        source, result = _marked(mark.op, uses), mark.op.outputs[0]
        if source is None:
            return
        between = mark.op.inputs[0]
        first = None if between is source or between is None else uses.producer(between)
        if source.data is not None:
            self._take_constant(graph, mark, source)
        else:
            self._take_activation(uses, mark, source)
            if result in graph.outputs and not (source in graph.inputs or source in graph.outputs):
                source.name = result.name  # callers know outputs by name
            mark.op.inputs[0] = source
            remove_op(graph, mark.op)
        if first is not None and Uses(graph).is_unused(first.outputs[0]):
            graph.ops.remove(first)

    def _take_constant(self, graph: Graph, mark: _Mark, source: Tensor) -> None:
        """Replace the mark's result by the constant's values on the grid of the mark."""
        result, values = mark.op.outputs[0], _on_grid(source, mark)
        result.shape = values.shape  # TensorFlow omits the shape of converted constants (2.21)
        constant = Tensor.constant(result.name, values, DType.FLOAT32)
        fold_into_constant(graph, mark.op, constant)
        if mark.grid is not None:
            self.constants[constant] = mark.grid
        if source.params is not None:
            self.packed[constant] = Packed(source.params, True)

    def transpose_constants(self, graph: Graph) -> None:
        """Put marked constants in the axis order in which ops read them: litert-torch (0.10) transposes PyTorch's."""
        for op in [op for op in graph.ops if op.kind == "TRANSPOSE" and op.outputs[0] not in graph.outputs]:
            source, order = op.inputs[:2]
            grid = self.constants.get(source) if source is not None else None
            if source is None or source.data is None or grid is None or order is None or order.data is None:
                continue
            axes = [int(axis) for axis in order.data]
            values = np.ascontiguousarray(source.data.transpose(axes))
            op.outputs[0].shape = values.shape
            constant = Tensor.constant(op.outputs[0].name, values, DType.FLOAT32)
            fold_into_constant(graph, op, constant)
            moved = grid.granularity if grid.axis is None else PerAxis(axes.index(grid.axis))
            self.constants[constant] = QuantParams(grid.scales, grid.zero_points, grid.dtype, moved)

    def _take_activation(self, uses: Uses, mark: _Mark, source: Tensor) -> None:
        """Take the first mark as the tensor's own; further ones apply only to those who read through them."""
        result = mark.op.outputs[0]
        own = self.ranges.setdefault(self.keys[source], mark.range)
        self.ranges[self.keys[result]] = mark.range
        if own != mark.range and mark.range.params is not None:
            self.uses.update(dict.fromkeys(uses.readers(result), mark.range.params))


def _on_grid(source: Tensor, mark: _Mark) -> Array:
    data, grid = source.data, mark.grid
    assert data is not None
    if source.dtype is not DType.FLOAT32:
        assert source.params is not None
        return dequantize(data, source.params)
    if grid is None:
        return data
    # Kernels require weights without the lowest integer, as does training with a narrow range.
    inside = np.clip(data, np.float32(mark.range.low), np.float32(mark.range.high))
    return dequantize(quantize(inside, grid, narrow=grid.is_symmetric), grid)


# What follows from known ranges.


def _follow(graph: Graph, ops: Mapping[str, OpSpec], keys: Mapping[Tensor, str], known: dict[str, Range]) -> None:
    """Add ranges of tensors without a mark, along ops that only move values, clip them, or have a fixed output."""
    before = -1
    while len(known) > before:
        before = len(known)
        for op in graph.ops:
            spec = ops.get(op.kind)
            if spec is None:
                continue
            sides = spec.read_activations(op), spec.made_activations(op)
            inputs, outputs = ([keys[t] for t in side if _is_float_activation(t)] for side in sides)
            implied = _forward(op, spec, [known.get(key) for key in inputs])
            if implied is not None:
                known.update({key: implied for key in outputs if key not in known})
            after = [known[key] for key in outputs if key in known]
            if spec.tied and after:
                known.update({key: _merged(after) for key in inputs if key not in known})


def _is_float_activation(tensor: Tensor) -> bool:
    return tensor.data is None and tensor.dtype is DType.FLOAT32


def _forward(op: Op, spec: OpSpec, inputs: list[Range | None]) -> Range | None:
    """Return the range of an op's output that those of its inputs imply."""
    if DType.INT8 in spec.fixed:
        return Range(*spec.fixed[DType.INT8].params(DType.INT8).range())
    found = [r for r in inputs if r is not None]
    if not found or len(found) < len(inputs):
        return None
    limits = CLAMPS.get(op.kind)
    if limits is not None:
        return Range(max(found[0].low, limits[0]), max(min(found[0].high, limits[1]), limits[0]), found[0].origin)
    return _merged(found) if spec.tied else None


def _merged(ranges: list[Range]) -> Range:
    """Return one range that covers all; with parameters only if all agree on them."""
    params = ranges[0].params if len({r.params for r in ranges}) == 1 else None
    origin = ", ".join(dict.fromkeys(r.origin for r in ranges if r.origin))
    return Range(min(r.low for r in ranges), max(r.high for r in ranges), origin, params)
