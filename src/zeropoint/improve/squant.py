"""SQuant: rounds weights without data so that their errors cancel.

A layer's input is seldom centred on zero: after a ReLU everything is positive, and neighbouring pixels are similar. So
the sum of the rounding errors of a channel does more harm than their squares. Rounding a few weights the other way,
those closest to halfway between two integers, brings the sum over each channel, and over each input's window within it,
close to zero at little cost in squares.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..affine import QuantParams, dequantize, round_half_away
from ..dtypes import Array, DType
from ..graph.model import Graph, Tensor
from ..graph.query import Use
from ..ops import CLAMPS, OpSpec, Rescale, fused_activation
from ..ops.layout import Layout


def balanced_weights(use: Use, layout: Layout | None, params: QuantParams, *, nonnegative: bool) -> Array | None:
    """Return weights that `params` represent exactly, to replace those read; None if rounding to nearest is just as
    good.

    `nonnegative`: the op's input never goes below zero.
    """
    weights = None if layout is None else layout.by_input(use.op, use.data)
    if layout is None or weights is None or not params.is_symmetric or (weights.shape[2] == 1 and not nonnegative):
        return None
    steps = np.broadcast_to(params.arrays[0].astype(np.float64), weights.shape[:1])
    q = balanced(weights, steps, params.levels.max, rows=nonnegative)
    return dequantize(layout.from_inputs(use.op, q), params)


def nonnegative_tensors(graph: Graph, ops: Mapping[str, OpSpec]) -> set[Tensor]:
    """Return tensors that cannot hold values below zero, whatever the inputs."""
    found: set[Tensor] = set()
    for op in graph.ops:
        spec = ops.get(op.kind)
        if spec is None or len(op.outputs) == 0:
            continue
        bounds = fused_activation(op).bounds or CLAMPS.get(op.kind)
        fixed = spec.fixed.get(DType.INT8)
        cut = bounds is not None and bounds[0] >= 0
        starts_at_zero = fixed is not None and fixed.zero_point == DType.INT8.min
        keeps = spec.tied or spec.rescale is Rescale.RATIO  # moves values, scales them, or averages them
        if cut or starts_at_zero or (keeps and all(_is_nonnegative(t, found) for t in spec.read_activations(op))):
            found.update(op.outputs)
    return found


def _is_nonnegative(tensor: Tensor, found: set[Tensor]) -> bool:
    return tensor in found or (tensor.data is not None and bool((tensor.data >= 0).all()))


def balanced(weights: Array, steps: Array, limit: int, *, rows: bool = True) -> Array:
    """Return integers in [-limit, limit] for `weights` [rows, inputs, taps] with one step per row.

    The errors of the taps of each input add up to at most half a step; with `rows`, those of a whole row as well.
    """
    ratio = weights / steps[:, None, None]
    q = np.clip(round_half_away(ratio), -limit, limit)
    if weights.shape[2] > 1:
        _balance(ratio, q, limit)
    if rows:
        flat = (weights.shape[0], 1, weights.shape[1] * weights.shape[2])
        level = q.reshape(flat)
        _balance(ratio.reshape(flat), level, limit)
        q = level.reshape(weights.shape)
    return q


def _balance(ratio: Array, q: Array, limit: int) -> None:
    """Change `q` in place, by steps of one, so that ratio - q sums to at most a half along the last axis."""
    error = ratio - q
    total = error.sum(axis=-1, keepdims=True)
    sign = np.sign(total)
    # Moving one weight by one step changes the square by 1 - 2 |error|: least where the error is largest.
    gain = error * sign
    movable = np.abs(q + sign) <= limit
    order = np.argsort(np.where(movable & (gain > 0), -gain, np.inf), axis=-1, kind="stable")
    count = np.minimum(round_half_away(np.abs(total)), (movable & (gain > 0)).sum(axis=-1, keepdims=True))
    moves = np.arange(q.shape[-1]) < count
    change = np.zeros_like(q)
    np.put_along_axis(change, order, np.where(moves, sign, 0.0), axis=-1)
    q += change
