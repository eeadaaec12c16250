"""Layers with weights: integer accumulators, requantized to the output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..dtypes import Array, DType
from ..graph.model import Op
from .call import Computed, Interim, KernelCall
from .rescaling import Rescaling, Scales

if TYPE_CHECKING:
    from .rules import Rules

EXACT = (("float32", 2.0**24), ("float64", 2.0**53))
"""Limit below which integer sums are exact in floating point, where matrix products are several times as fast."""


def product(left: Array, right: Array) -> Array:
    """Return the exact matrix product of integers, as int64."""
    largest = float(np.abs(left).max(initial=0)) * float(np.abs(right).sum(axis=-2).max(initial=0))
    for dtype, limit in EXACT:
        if largest < limit:
            return np.asarray(np.matmul(left.astype(dtype), right.astype(dtype)).astype(np.int64))
    return np.asarray(np.matmul(left, right))


def weighted(call: KernelCall) -> Computed:
    """Simulate CONV_2D, DEPTHWISE_CONV_2D, TRANSPOSE_CONV and FULLY_CONNECTED.

    output = zero point + rescale(sum over k of (x[k] - zero point) * (w[k] - zero point) + bias)
    """
    op, layout = call.op, call.layout
    x, weights = call.centered(layout.data), call.centered(layout.weights)
    patches = layout.patches(op, x, x.size + op.outputs[0].size)
    sums = product(patches, layout.matrix(op, weights).swapaxes(1, 2))  # [groups, positions, outputs of a group]
    sums = sums.transpose(1, 0, 2).reshape(op.outputs[0].shape)
    slot = call.bias_slot
    bias = call.value(slot).astype(np.int64) if slot is not None and call.has(slot) else np.int64(0)
    rescale = rescaling(call, slot)
    scales = Scales(call.scale(layout.data), call.scale(layout.weights), call.output_scale)
    units, steps = rescale(sums + bias, scales)
    steps = [
        Interim("sum of products", sums),
        Interim("bias", np.asarray(bias)),
        Interim("accumulator", sums + bias),
        *steps,
    ]
    return call.finished(units, steps)


def rescaling(call: KernelCall, bias_slot: int | None) -> Rescaling:
    bias = call.tensor(bias_slot).dtype if bias_slot is not None and call.has(bias_slot) else None
    return rescaling_of(call.op, call.rules, call.output.dtype, bias)


def rescaling_of(op: Op, rules: Rules, made: DType, bias: DType | None) -> Rescaling:
    """Return the requantization of a layer. With 16-bit activations, accumulators have 64 bits, unless the bias has 32
    bits or, in some kernels, there is no bias."""
    kind = op.kind
    if made is not DType.INT16:
        return rules.grouped if kind == "CONV_2D" and _has_groups(op) else rules.layers[kind]
    if bias is None:
        return rules.layers[kind] if kind in rules.narrow_without_bias else rules.wide_layers[kind]
    return (rules.layers if bias is DType.INT32 else rules.wide_layers)[kind]


def _has_groups(op: Op) -> bool:
    image, weights = op.inputs[:2]
    return image is not None and weights is not None and weights.shape[-1] != image.shape[-1]


def matrix_product(call: KernelCall) -> Computed:
    """Simulate BATCH_MATMUL of two tensors, both of which may be activations."""
    left, right = (
        values.swapaxes(-1, -2) if call.option(adjoint) else values
        for values, adjoint in ((call.centered(0), "adjX"), (call.centered(1), "adjY"))
    )
    sums = product(left, right)
    rescale = rescaling(call, None)
    units, steps = rescale(sums, Scales(call.scale(0), call.scale(1), call.output_scale))
    return call.finished(units, [Interim("sum of products", sums), *steps])
