"""SmoothQuant: moves outliers of a few channels between activations and weights, where 8 and 16 bits meet.

A layer of a transformer can give one channel values a hundred times as large as those of all others; one scale for all
of them leaves nothing for the others. Cross-layer equalization moves factors where they cost nothing; but nothing else
can absorb what a layer adds to a residual stream, or reads from one. If that stream has 16 bits, a product with a
factor for each channel is inserted: y = s ∘ (W / s)·x after a layer, whose 8 bits then serve all channels alike, and
W·x = (W ∘ s)·(x / s) before one, with s = √(max|x| / max|W|) of each channel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..calibration import Range, TensorStats
from ..calibration.stats import median
from ..dtypes import Array, DType
from ..graph.edit import duplicate_constant, set_constant, unused_name
from ..graph.model import Graph, Op, Tensor
from ..graph.query import Use, Uses
from ..ops import OpSpec, fused_activation, spec_of
from ..ops.layout import Layout
from ..plan.plan import Plan
from ..plan.prepared import Prepared
from ..plan.request import Island, Request
from ..plan.weights import bias_use
from ..recipe import INT16X8
from ..tflite.schema import default_options

OUTLIERS = 8.0
"""Ratio of the largest channel to the median from which a product is worth its time."""

SMALLEST = 2.0**-6
"""Channels that are almost always zero count as this share of the median: the data say little about them."""


WHY = "its channels are scaled between 8 and 16 bits (SmoothQuant)"

Side = Literal["behind", "before"]
SIDES: tuple[Side, ...] = ("behind", "before")
"""Where the product is inserted: after a layer, or before one or more."""


@dataclass(frozen=True)
class Boundary:
    """A tensor between `layers` with 8 bits and ops with 16: the output of one layer, or the input of all of them."""

    tensor: Tensor
    layers: tuple[Op, ...]
    side: Side


def smoothed(prepared: Prepared, request: Request, plan: Plan, side: Side) -> tuple[Prepared, dict[str, Island]]:
    """Return the same function with products on one side of layers, and these products as islands; `plan` is the
    current plan."""
    copy, _ = prepared.copied()
    graph, made, islands = copy.model.graphs[plan.index], dict[Tensor, Range](), dict[str, Island]()
    for found in [b for b in boundaries(plan.on(graph), request.ops) if b.side == side]:
        key = copy.keys.get(found.tensor, "")
        seen = None if request.stats is None else request.stats.tensors.get(key)
        for tensor, span in smooth(graph, found, seen, request.ops).items():
            made[tensor] = span
            islands[key if side == "behind" else tensor.name] = Island(INT16X8, WHY)
    return copy.with_new(made), islands


def boundaries(plan: Plan, ops: Mapping[str, OpSpec]) -> Iterator[Boundary]:
    """Yield where layers with constant weights and 8 bits meet 16 bits, on both sides."""
    uses = Uses(plan.graph)
    is_wide = {op: scheme.activations is DType.INT16 for op, scheme in plan.schemes.items()}
    for tensor in plan.graph.tensors:
        found = None if not tensor.shape or uses.is_output(tensor) else _boundary(tensor, uses, is_wide)
        if found is not None and all(_layout(op, ops) is not None for op in found.layers):
            yield found


def _boundary(tensor: Tensor, uses: Uses, is_wide: Mapping[Op, bool]) -> Boundary | None:
    """Return where 8 and 16 bits meet at a tensor, if they do; ops that are not in `is_wide` compute in float."""
    maker, readers = uses.producer(tensor), [use.op for use in uses.readers(tensor)]
    if maker is None or not readers:
        return None
    if is_wide.get(maker) is False and all(map(is_wide.get, readers)):
        return Boundary(tensor, (maker,), "behind") if fused_activation(maker).name == "NONE" else None
    layers = tuple(op for op in readers if is_wide.get(op) is False)
    return Boundary(tensor, layers, "before") if layers and is_wide.get(maker) else None


def smooth(graph: Graph, found: Boundary, seen: TensorStats | None, ops: Mapping[str, OpSpec]) -> dict[Tensor, Range]:
    """Insert a product at a boundary, in place; return the range of the new tensor, nothing if it is not worth it."""
    if seen is None or seen.channels is None or len(seen.channels.low) != found.tensor.shape[-1]:
        return {}
    low, high = np.asarray(seen.channels.low, np.float64), np.asarray(seen.channels.high, np.float64)
    peaks = np.maximum(-low, high)
    usual = float(median(peaks))
    if not np.isfinite(peaks).all() or usual <= 0 or peaks.max() < OUTLIERS * usual:
        return {}
    factors = np.maximum(peaks, SMALLEST * usual)
    if found.side == "before":
        weights = [_input_peaks(op, ops) for op in found.layers]
        factors = np.sqrt(factors / np.maximum(np.max(weights, axis=0), SMALLEST * median(np.ravel(weights))))
    made = _insert_product(graph, found, np.asarray(factors if found.side == "behind" else 1 / factors, np.float32))
    for op in found.layers:
        _scale(graph, op, ops, np.asarray(factors, np.float32), found.side)
    return {made: Range(float((low / factors).min()), float((high / factors).max()))}


def _insert_product(graph: Graph, found: Boundary, factors: Array) -> Tensor:
    """Insert the product; return the new tensor: before the product after a layer, or after the product before
    layers."""
    name = unused_name(graph, f"{found.tensor.name}/smoothed")
    made = Tensor(name, found.tensor.shape, DType.FLOAT32, shape_signature=found.tensor.shape_signature)
    constant = Tensor.constant(unused_name(graph, f"{name}/factors"), factors, DType.FLOAT32)
    graph.tensors += [made, constant]
    source, result = (made, found.tensor) if found.side == "behind" else (found.tensor, made)
    maker = next(op for op in graph.ops if found.tensor in op.outputs)
    if found.side == "behind":
        maker.outputs = [made]
    else:
        for op in found.layers:
            op.inputs = [made if t is found.tensor else t for t in op.inputs]
    product = Op("MUL", [source, constant], [result], default_options("MulOptions"))
    graph.ops.insert(graph.ops.index(maker) + 1, product)
    return made


def _layout(op: Op, ops: Mapping[str, OpSpec]) -> Layout | None:
    """Return the weight layout of a layer with only its input, constant weights and a constant bias."""
    layout = spec_of(op, ops).plain_layout
    if layout is None or layout.inputs == layout.outputs:
        return None
    operands = [t for t in op.inputs[1:3] if t is not None]
    is_constant = all(t.data is not None and t.dtype is DType.FLOAT32 for t in operands)
    source, weights = op.inputs[0], op.inputs[1]
    fits = source is not None and weights is not None and source.shape[-1:] == (weights.shape[layout.inputs],)
    return layout if is_constant and fits else None


def _input_peaks(op: Op, ops: Mapping[str, OpSpec]) -> Array:
    layout = _layout(op, ops)
    assert layout is not None
    weights = np.abs(Use(op, layout.weights).data)
    return np.asarray(weights.max(axis=tuple(k for k in range(weights.ndim) if k != layout.inputs)))


def _scale(graph: Graph, op: Op, ops: Mapping[str, OpSpec], factors: Array, side: Side) -> None:
    """Divide the constants that produce the output channels, or multiply those that read the input channels."""
    layout, spec = _layout(op, ops), ops[op.kind]
    assert layout is not None
    places = [(Use(op, layout.weights), layout.outputs if side == "behind" else layout.inputs)]
    if side == "behind" and (bias := bias_use(op, spec)) is not None:
        places.append((bias, 0))
    for use, axis in places:
        if sum(use.tensor is t for other in graph.ops for t in other.inputs) > 1:
            duplicate_constant(graph, use.tensor, [use], "smoothed")
        shape = [-1 if k == axis else 1 for k in range(use.data.ndim)]
        scaled = use.data / factors.reshape(shape) if side == "behind" else use.data * factors.reshape(shape)
        set_constant(use.tensor, np.asarray(scaled, np.float32), DType.FLOAT32)
