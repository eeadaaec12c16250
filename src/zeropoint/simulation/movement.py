"""Ops that only move values and compute none. Each returns its outputs in any shape of the right size.

They work on any kind of element: applied to positions instead of values, they show where each element came from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..dtypes import Array
from ..graph.model import Op
from .call import Computed, KernelCall

Moving = Callable[[KernelCall], Sequence[Array]]


def _ints(call: KernelCall, slot: int) -> list[int]:
    return [int(v) for v in np.ravel(call.value(slot))]


def _shape(call: KernelCall, slot: int = 0) -> tuple[int, ...]:
    return call.op.outputs[slot].shape


def real_zero(call: KernelCall) -> int:
    """Return the integer that represents real zero."""
    params = call.op.outputs[0].params
    return 0 if params is None else params.zero_point


def same(call: KernelCall) -> Sequence[Array]:
    """Simulate RESHAPE, SQUEEZE and EXPAND_DIMS: only the shape changes."""
    return [call.value(0)]


def shape(call: KernelCall) -> Sequence[Array]:
    return [np.array(call.value(0).shape)]


def rank(call: KernelCall) -> Sequence[Array]:
    return [np.array(call.value(0).ndim)]


def transpose(call: KernelCall) -> Sequence[Array]:
    return [call.value(0).transpose(_ints(call, 1))]


def pack(call: KernelCall) -> Sequence[Array]:
    return [np.stack([call.value(k) for k in range(len(call.values))], int(call.option("axis", 0)))]


def unpack(call: KernelCall) -> Sequence[Array]:
    return list(np.moveaxis(call.value(0), int(call.option("axis", 0)), 0))


def concatenate(call: KernelCall) -> Sequence[Array]:
    return [np.concatenate([call.value(k) for k in range(len(call.values))], int(call.option("axis", 0)))]


def split(call: KernelCall) -> Sequence[Array]:
    return np.split(call.value(1), len(call.op.outputs), _ints(call, 0)[0])


def split_by_sizes(call: KernelCall) -> Sequence[Array]:
    x, axis = call.value(0), _ints(call, 2)[0]
    sizes = [tensor.shape[axis] for tensor in call.op.outputs]
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def cut(call: KernelCall) -> Sequence[Array]:
    """Simulate SLICE: a size of -1 extends to the end."""
    x = call.value(0)
    ends = zip(_ints(call, 1), _ints(call, 2), x.shape, strict=True)
    return [x[tuple(slice(begin, length if size < 0 else begin + size) for begin, size, length in ends)]]


def strided_slice(call: KernelCall) -> Sequence[Array]:
    return [call.value(0)[tuple(strided_index(call.op, *(_ints(call, slot) for slot in (1, 2, 3))))]]


def strided_index(op: Op, begins: Sequence[int], ends: Sequence[int], steps: Sequence[int]) -> list[Any]:
    """Return what STRIDED_SLICE selects as a Python index: slices, integers for dropped dimensions, None for new ones,
    an ellipsis."""
    masks = [int(op.option(f"{name}Mask", 0)) for name in ("begin", "end", "ellipsis", "newAxis", "shrinkAxis")]
    index: list[Any] = []
    for k, (begin, end, step) in enumerate(zip(begins, ends, steps, strict=True)):
        no_begin, no_end, ellipsis, new_axis, shrinks = (bool(mask >> k & 1) for mask in masks)
        if ellipsis:
            index.append(Ellipsis)
        elif new_axis:
            index.append(None)
        elif shrinks:
            index.append(begin)
        else:
            first = None if no_begin else begin
            last = _end_from(first, end, step) if op.option("offset") else end
            index.append(slice(first, None if no_end else last, step))
    return index


def _end_from(begin: int | None, offset: int, step: int) -> int | None:
    """Return the end of a slice that is given relative to its begin; None for the end of the axis."""
    start = begin if begin is not None else 0 if step > 0 else -1
    return None if start < 0 <= start + offset else start + offset


def gather(call: KernelCall) -> Sequence[Array]:
    x, places = call.value(0), call.value(1)
    axis, batch = int(call.option("axis", 0)) % call.value(0).ndim, int(call.option("batchDims", 0))
    if not batch:
        return [np.take(x, places, axis)]
    rows = x.reshape(-1, *x.shape[batch:])
    chosen = places.reshape(-1, *places.shape[batch:])
    return [np.stack([np.take(row, place, axis - batch) for row, place in zip(rows, chosen, strict=True)])]


def gather_nd(call: KernelCall) -> Sequence[Array]:
    return [call.value(0)[tuple(np.moveaxis(call.value(1), -1, 0))]]


def embedding_lookup(call: KernelCall) -> Sequence[Array]:
    return [call.value(1)[call.value(0)]]


def update_slice(call: KernelCall) -> Sequence[Array]:
    x, part = call.value(0), call.value(1)
    starts = [min(max(s, 0), n - m) for s, n, m in zip(_ints(call, 2), x.shape, part.shape, strict=True)]
    result = x.copy()
    result[tuple(slice(s, s + m) for s, m in zip(starts, part.shape, strict=True))] = part
    return [result]


def pad(call: KernelCall) -> Sequence[Array]:
    value = int(np.ravel(call.value(2))[0]) if call.has(2) else real_zero(call)
    return [np.pad(call.value(0), call.value(1).astype(np.int64), constant_values=value)]


def mirror_pad(call: KernelCall) -> Sequence[Array]:
    mode = "symmetric" if int(call.option("mode", 0)) else "reflect"
    return [np.pad(call.value(0), call.value(1).astype(np.int64), mode=mode)]  # type: ignore[call-overload]


def fill(call: KernelCall) -> Sequence[Array]:
    return [np.full(_shape(call), call.value(1))]


def zeros_like(call: KernelCall) -> Sequence[Array]:
    return [np.full(_shape(call), real_zero(call))]


def set_diagonal(call: KernelCall) -> Sequence[Array]:
    result, places = call.value(0).copy(), np.arange(call.value(1).shape[-1])
    result[..., places, places] = call.value(1)
    return [result]


def dilate(call: KernelCall) -> Sequence[Array]:
    x = call.value(0)
    result = np.full(_shape(call), np.ravel(call.value(2))[0], x.dtype)
    result[tuple(slice(None, None, step) for step in _ints(call, 1))] = x
    return [result]


def one_hot(call: KernelCall) -> Sequence[Array]:
    places, depth = call.value(0), _ints(call, 1)[0]
    axis = int(call.option("axis", -1))
    hot = np.expand_dims(places, axis) == np.arange(depth).reshape(-1, *[1] * (places.ndim - axis % (places.ndim + 1)))
    return [np.where(hot, call.value(2), call.value(3))]


def sparse_to_dense(call: KernelCall) -> Sequence[Array]:
    places, values = call.value(0), call.value(2)
    result = np.full(_shape(call), np.ravel(call.value(3))[0], values.dtype)
    rank = result.ndim
    result[tuple(places.reshape(-1, rank).T)] = values
    return [result]


def scatter(call: KernelCall) -> Sequence[Array]:
    """Simulate SCATTER_ND, whose zero point is 0."""
    places, values = call.value(0), call.value(1)
    result = np.zeros(_shape(call), values.dtype)
    result[tuple(np.moveaxis(places, -1, 0))] = values
    return [result]


def tile(call: KernelCall) -> Sequence[Array]:
    return [np.tile(call.value(0), _ints(call, 1))]


def broadcast_to(call: KernelCall) -> Sequence[Array]:
    return [np.broadcast_to(call.value(0), _shape(call))]


def reverse(call: KernelCall) -> Sequence[Array]:
    return [np.flip(call.value(0), tuple(_ints(call, 1)))]


def select(call: KernelCall) -> Sequence[Array]:
    """Simulate SELECT and SELECT_V2: a one-dimensional condition selects rows."""
    condition, shape = call.value(0), _shape(call)
    if call.op.kind == "SELECT" and condition.ndim == 1 and len(shape) > 1:
        condition = condition.reshape(-1, *[1] * (len(shape) - 1))
    return [np.broadcast_to(np.where(condition, call.value(1), call.value(2)), shape)]


def _space_to_blocks(x: Array, block: int) -> Array:
    batch, height, width, channels = x.shape
    return x.reshape(batch, height // block, block, width // block, block, channels)


def space_to_depth(call: KernelCall) -> Sequence[Array]:
    return [_space_to_blocks(call.value(0), int(call.option("blockSize"))).transpose(0, 1, 3, 2, 4, 5)]


def depth_to_space(call: KernelCall) -> Sequence[Array]:
    block, x = int(call.option("blockSize")), call.value(0)
    batch, height, width, channels = x.shape
    parts = x.reshape(batch, height, width, block, block, channels // block**2)
    return [parts.transpose(0, 1, 3, 2, 4, 5)]


def space_to_batch(call: KernelCall) -> Sequence[Array]:
    x, blocks, pads = call.value(0), _ints(call, 1), call.value(2).astype(np.int64)
    rest = x.ndim - 1 - len(blocks)
    x = np.pad(x, [(0, 0), *pads.tolist(), *[(0, 0)] * rest], constant_values=call.rules.block_filler(call))
    split_shape = [x.shape[0]]
    for size, block in zip(x.shape[1:], blocks, strict=False):
        split_shape += [size // block, block]
    parts = x.reshape(*split_shape, *x.shape[1 + len(blocks) :])
    inner, outer = [2 * k + 2 for k in range(len(blocks))], [2 * k + 1 for k in range(len(blocks))]
    return [parts.transpose(*inner, 0, *outer, *range(1 + 2 * len(blocks), parts.ndim))]


def batch_to_space(call: KernelCall) -> Sequence[Array]:
    x, blocks, crops = call.value(0), _ints(call, 1), call.value(2).astype(np.int64).tolist()
    count, batch = len(blocks), x.shape[0] // int(np.prod(blocks))
    parts = x.reshape(*blocks, batch, *x.shape[1:])
    order = [count]
    for k in range(count):
        order += [count + 1 + k, k]
    joined = parts.transpose(*order, *range(2 * count + 1, parts.ndim))
    whole = joined.reshape(batch, *(s * b for s, b in zip(x.shape[1:], blocks, strict=False)), *x.shape[1 + count :])
    kept = [slice(None), *(slice(a, n - b) for (a, b), n in zip(crops, whole.shape[1:], strict=False))]
    return [whole[tuple(kept)]]


MOVING: dict[str, Moving] = {
    "BATCH_TO_SPACE_ND": batch_to_space,
    "BROADCAST_TO": broadcast_to,
    "CONCATENATION": concatenate,
    "DEPTH_TO_SPACE": depth_to_space,
    "DILATE": dilate,
    "DYNAMIC_UPDATE_SLICE": update_slice,
    "EMBEDDING_LOOKUP": embedding_lookup,
    "EXPAND_DIMS": same,
    "FILL": fill,
    "GATHER": gather,
    "GATHER_ND": gather_nd,
    "MATRIX_SET_DIAG": set_diagonal,
    "MIRROR_PAD": mirror_pad,
    "ONE_HOT": one_hot,
    "PACK": pack,
    "PAD": pad,
    "PADV2": pad,
    "RESHAPE": same,
    "REVERSE_V2": reverse,
    "RANK": rank,
    "SCATTER_ND": scatter,
    "SELECT": select,
    "SELECT_V2": select,
    "SHAPE": shape,
    "SLICE": cut,
    "SPACE_TO_BATCH_ND": space_to_batch,
    "SPACE_TO_DEPTH": space_to_depth,
    "SPARSE_TO_DENSE": sparse_to_dense,
    "SPLIT": split,
    "SPLIT_V": split_by_sizes,
    "SQUEEZE": same,
    "STRIDED_SLICE": strided_slice,
    "TILE": tile,
    "TRANSPOSE": transpose,
    "UNPACK": unpack,
    "ZEROS_LIKE": zeros_like,
}


def moved(call: KernelCall) -> Computed:
    """Simulate an op that only moves values."""
    values = MOVING[call.op.kind](call)
    return Computed(tuple(call.stored(value, k) for k, value in enumerate(values)))
