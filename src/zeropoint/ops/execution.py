"""How an op of a finished model computes (integer, hybrid or float), how much, and with which factors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from ..affine import QuantParams
from ..graph.model import Op, Tensor
from ..graph.query import Uses
from .spec import Activation, OpSpec, Probabilities, Rescale, Weight, spec_of
from .table import CONVERSIONS, OPS

Execution = Literal["integer", "float", "hybrid", "conversion", "other"]


def execution_of(op: Op, ops: Mapping[str, OpSpec] = OPS) -> Execution:
    """Return how an op computes. Integer: all activations are quantized. Hybrid: float data, quantized weights. Other:
    indices and shapes."""
    if op.kind in CONVERSIONS:
        return "conversion"
    tensors = [t for t in (*op.inputs, *op.outputs) if t is not None]
    flowing = [t for t in tensors if not t.is_constant] or tensors
    if any(t.dtype.is_float for t in flowing):
        return "hybrid" if _has_quantized_weights(op, ops) else "float"
    return "integer" if any(t.is_quantized for t in tensors) else "other"


def _has_quantized_weights(op: Op, ops: Mapping[str, OpSpec]) -> bool:
    weights = spec_of(op, ops).weight_tensors(op)
    return any(t is not None and t.is_constant and t.is_quantized for t in weights or op.inputs)


def macs_of(op: Op, ops: Mapping[str, OpSpec] = OPS) -> int:
    """Return the multiply-accumulates of one run; 0 for ops that only move, add or map values."""
    spec = spec_of(op, ops)
    if spec.macs is None:
        return 0
    try:
        return spec.macs(op)
    except IndexError:  # in a file, an op may have fewer operands or dimensions than its kind requires
        return 0


def total_macs(several: Iterable[Op], ops: Mapping[str, OpSpec] = OPS) -> int:
    """Return the multiply-accumulates of one run of several ops."""
    return sum(macs_of(op, ops) for op in several)


HEADROOM = {8: 20, 16: 15}
"""Bits by which the inputs of a sum are shifted left, by the width of their type: headroom for rounding."""


def kernel_factors(op: Op, ops: Mapping[str, OpSpec] = OPS) -> Iterator[tuple[str, float]]:
    """Yield the real factors with which an integer kernel converts the scales of its inputs to that of its output.

    Each comes with a description; none for ops that pass integers through or look them up.
    """
    spec, result = spec_of(op, ops), op.outputs[0].params if op.outputs else None
    if spec.rescale is Rescale.NONE or result is None or result.axis is not None:
        return
    read = (t for k, t in enumerate(op.inputs) if isinstance(spec.input_role(k), Activation | Weight))
    data = [t.params for t in read if t is not None and t.params is not None]
    if len(data) >= (1 if spec.rescale in (Rescale.RATIO, Rescale.ROOT) else 2) and result.scale != 0:
        yield from ((what, real) for what, real in _FACTORS[spec.rescale](data, result) if 0 <= real < math.inf)


def _ratio(data: list[QuantParams], result: QuantParams) -> Iterator[tuple[str, float]]:
    yield "output", data[0].scales[0] / result.scale


def _product(data: list[QuantParams], result: QuantParams) -> Iterator[tuple[str, float]]:
    first, second = sorted(data[:2], key=lambda p: len(p.scales))
    for k, scale in enumerate(second.scales):
        yield f"channel {k}" if len(second.scales) > 1 else "output", first.scales[0] * scale / result.scale


def _sum(data: list[QuantParams], result: QuantParams) -> Iterator[tuple[str, float]]:
    """Yield the factors of a sum: both inputs are first rescaled to twice the larger scale."""
    common, headroom = 2 * max(data[0].scales[0], data[1].scales[0]), HEADROOM.get(result.dtype.bits)
    if common != 0 and headroom is not None:
        yield "input 0", data[0].scales[0] / common
        yield "input 1", data[1].scales[0] / common
        yield "output", common / (2.0**headroom * result.scale)


def _square(data: list[QuantParams], result: QuantParams) -> Iterator[tuple[str, float]]:
    """Yield the factors of a squared difference: as for a sum, with 7 bits of headroom before squaring."""
    common = 2 * max(data[0].scales[0], data[1].scales[0])
    if common != 0:
        yield "input 0", data[0].scales[0] / common
        yield "input 1", data[1].scales[0] / common
        yield "output", common**2 / (2.0**14 * result.scale)


def _root(data: list[QuantParams], result: QuantParams) -> Iterator[tuple[str, float]]:
    """Yield the factor of a reciprocal root; 16-bit kernels use a lookup table instead."""
    if result.dtype.bits == 8 and data[0].scale > 0:
        yield "output", 1 / (math.sqrt(data[0].scale) * result.scale)


_FACTORS = {
    Rescale.RATIO: _ratio,
    Rescale.PRODUCT: _product,
    Rescale.SUM: _sum,
    Rescale.SQUARE: _square,
    Rescale.ROOT: _root,
}


def logits_of(tensor: Tensor, uses: Uses, ops: Mapping[str, OpSpec]) -> tuple[Tensor, Probabilities | None]:
    """Return the tensor that a softmax or sigmoid computes `tensor` from, and its kind of probabilities; without one,
    `tensor` itself."""
    producer = uses.producer(tensor)
    if producer is None:
        return tensor, None
    known = spec_of(producer, ops).probabilities
    before = None if known is None else producer.inputs[0]
    return (tensor, None) if before is None else (before, known)
