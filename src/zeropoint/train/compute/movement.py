"""Ops that only move values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from ...affine import broadcast_shape
from ...dtypes import Array
from ...simulation.movement import strided_index
from ..backend import held_type
from .call import Call, Compute


def _reshape(call: Call) -> Any:
    return ops.reshape(call[0], call.output_shape())


def _split_unevenly(call: Call) -> list[Any]:
    (axis,) = call.axes(2)
    lengths = [tensor.shape[axis] for tensor in call.op.outputs]
    return list(ops.split(call[0], np.cumsum(lengths)[:-1].tolist(), axis=axis))


def _slice(call: Call) -> Any:
    begin, size = call.known_integers(1), call.known_integers(2)
    parts = []
    for axis, (start, count) in enumerate(zip(begin, size, strict=True)):
        whole = axis == 0 and call.op.outputs[0] in call.free
        parts.append(slice(None) if whole else slice(start, None if count < 0 else start + count))
    return call[0][tuple(parts)]


def _strided_slice(call: Call) -> Any:
    x, parts = call[0], strided_index(call.op, *map(call.known_integers, (1, 2, 3)))
    if isinstance(x, np.ndarray):
        return x[tuple(parts)]
    if call.op.outputs[0] in call.free and isinstance(parts[0], slice):
        parts[0] = slice(None)  # the recorded end is that of the recorded batch
    shape, axis = call.input_shape(0), 0
    for k, part in enumerate(parts):
        if part is Ellipsis:
            axis = len(shape) - sum(p is not None for p in parts[k + 1 :])
        elif part is not None:
            if isinstance(part, slice) and (part.step or 1) < 0:  # PyTorch does not support negative strides
                chosen = np.arange(shape[axis])[part]
                x = ops.take(x, chosen.astype(np.int32), axis=axis)
                parts[k] = slice(None)
            axis += 1
    return x[tuple(parts)]


def _pad(call: Call) -> Any:
    around = tuple((int(a), int(b)) for a, b in call.known(1))
    filler = call[2]
    if filler is None:
        return ops.pad(call[0], around)
    inside = ops.pad(ops.ones_like(call[0]), around)
    return ops.pad(call[0], around) + (1.0 - inside) * ops.reshape(filler, [1] * len(around))


def _mirror_pad(call: Call) -> Any:
    x, mode = call[0], "symmetric" if call.option("mode", 0) == 1 else "reflect"
    for axis, (before, after) in enumerate(call.known(1)):
        if before or after:
            order = np.pad(np.arange(call.input_shape(0)[axis]), (int(before), int(after)), mode)  # type: ignore[call-overload]
            x = ops.take(x, order.astype(np.int32), axis=axis)
    return x


def _gather(call: Call) -> Any:
    x, indices = call[0], call[1]
    axis, batch = int(call.option("axis", 0)) % len(x.shape), int(call.option("batchDims", 0))
    if batch == 0:
        return ops.take(x, indices, axis=axis)
    # [batch, before, axis, after] -> rows of one long table, one for each batch and position on the axis.
    moved = ops.moveaxis(x, axis, batch)
    places, rest = tuple(indices.shape[batch:]), tuple(moved.shape[batch + 1 :])
    flat = ops.reshape(indices, (-1, int(np.prod(places))))
    starts = ops.arange(ops.shape(flat)[0], dtype=flat.dtype) * x.shape[axis]
    rows = ops.take(ops.reshape(moved, (-1, *rest)), flat + ops.expand_dims(starts, 1), axis=0)
    spread = ops.reshape(rows, (-1, *x.shape[1:batch], *places, *rest))
    return ops.moveaxis(spread, [batch + k for k in range(len(places))], [axis + k for k in range(len(places))])


def _gather_nd(call: Call) -> Any:
    x, indices = call[0], call[1]
    depth = indices.shape[-1]
    sizes = np.array(x.shape[:depth])
    steps = np.concatenate([np.cumprod(sizes[:0:-1])[::-1], [1]]).astype(np.int32)
    rows = ops.sum(ops.cast(indices, "int32") * steps, axis=-1)
    return ops.take(ops.reshape(x, (-1, *x.shape[depth:])), rows, axis=0)


def _update_slice(call: Call) -> Any:
    """Place the update at its position within the operand. Starts are clamped, as in LiteRT."""
    x, update, start = call[0], call[1], call[2]
    shape, size = call.input_shape(0), call.input_shape(1)
    inside: Any = None
    for axis, (length, part) in enumerate(zip(shape, size, strict=True)):
        first = ops.clip(start[axis], 0, length - part)
        places = ops.arange(length, dtype="int32") - ops.cast(first, "int32")
        update = ops.take(update, ops.clip(places, 0, part - 1), axis=axis)
        hit = ops.logical_and(places >= 0, places < part)
        hit = ops.reshape(hit, broadcast_shape(axis, len(shape)))
        inside = hit if inside is None else ops.logical_and(inside, hit)
    return update if inside is None else ops.where(inside, update, x)


def _set_diagonal(call: Call) -> Any:
    rows, columns = call.input_shape(0)[-2:]
    diagonal = call[1]
    wide = ops.expand_dims(diagonal, -1) if rows <= columns else ops.expand_dims(diagonal, -2)
    return ops.where(np.eye(rows, columns, dtype=bool), wide, call[0])


def _dilate(call: Call) -> Any:
    shape, size = call.input_shape(0), call.output_shape()
    places = np.full(size, int(np.prod(shape)), np.int32)  # the filler comes after the last element
    places[tuple(slice(None, None, step) for step in call.known_integers(1))] = np.arange(np.prod(shape)).reshape(shape)
    table = ops.concatenate([ops.reshape(call[0], (-1,)), ops.reshape(call[2], (1,))])
    return ops.take(table, places, axis=0)


def _one_hot(call: Call) -> Any:
    depth = int(call.known(1))
    hit = ops.one_hot(call[0], depth, axis=int(call.option("axis", -1)), dtype="bool")
    return ops.where(hit, call[2], call[3])


def _sparse_to_dense(call: Call) -> Any:
    indices, shape = call.known(0), call.output_shape()
    indices = indices.reshape(-1, len(shape))
    source = np.full(shape, len(indices), np.int32)
    source[tuple(indices.T)] = np.arange(len(indices))
    values = ops.broadcast_to(ops.reshape(call[2], (-1,)), (len(indices),))
    table = ops.concatenate([values, ops.reshape(call[3], (1,))])
    return ops.take(table, source, axis=0)


def _space_to_depth(call: Call) -> Any:
    block = int(call.option("blockSize"))
    _, height, width, channels = call.input_shape(0)
    parts = ops.reshape(call[0], (-1, height // block, block, width // block, block, channels))
    moved = ops.transpose(parts, (0, 1, 3, 2, 4, 5))
    return ops.reshape(moved, call.output_shape())


def _depth_to_space(call: Call) -> Any:
    block = int(call.option("blockSize"))
    _, height, width, channels = call.input_shape(0)
    parts = ops.reshape(call[0], (-1, height, width, block, block, channels // block**2))
    moved = ops.transpose(parts, (0, 1, 3, 2, 4, 5))
    return ops.reshape(moved, call.output_shape())


def _space_to_batch(call: Call) -> Any:
    block, around = call.known_integers(1), call.known(2)
    rank, spatial = len(call.input_shape(0)), len(block)
    x = ops.pad(call[0], ((0, 0), *((int(a), int(b)) for a, b in around), *((0, 0),) * (rank - 1 - spatial)))
    batch, sides, rest = x.shape[0], x.shape[1 : 1 + spatial], tuple(x.shape[1 + spatial :])
    split = [n for side, b in zip(sides, block, strict=True) for n in (side // b, b)]
    inner, outer = [2 + 2 * k for k in range(spatial)], [1 + 2 * k for k in range(spatial)]
    tail = range(1 + 2 * spatial, 1 + 2 * spatial + len(rest))
    moved = ops.transpose(ops.reshape(x, (batch, *split, *rest)), [*inner, 0, *outer, *tail])
    return ops.reshape(moved, (-1, *(s // b for s, b in zip(sides, block, strict=True)), *rest))


def _batch_to_space(call: Call) -> Any:
    block, crops = call.known_integers(1), call.known(2)
    shape, spatial = call.input_shape(0), len(block)
    sides, rest = shape[1 : 1 + spatial], shape[1 + spatial :]
    parts = ops.reshape(call[0], (*block, -1, *sides, *rest))
    pairs = [n for k in range(spatial) for n in (spatial + 1 + k, k)]
    moved = ops.transpose(parts, [spatial, *pairs, *range(2 * spatial + 1, 2 * spatial + 1 + len(rest))])
    whole = ops.reshape(moved, (-1, *(s * b for s, b in zip(sides, block, strict=True)), *rest))
    cut = [slice(None)]
    cut += [slice(int(a), s * b - int(c)) for (a, c), s, b in zip(crops, sides, block, strict=True)]
    return whole[tuple(cut)]


def _top(call: Call) -> list[Any]:
    values, indices = ops.top_k(call[0], int(call.known(1)), sorted=True)
    return [values, ops.cast(indices, held_type(call.op.outputs[1].dtype))]


def _shape(call: Call) -> Array:
    """Return the recorded shape: in a graph for any batch size, its readers ignore the first number."""
    source = call.op.inputs[0]
    assert source is not None
    return np.array(source.shape, call.op.outputs[0].dtype.storage)


def _range(call: Call) -> Any:
    start, limit, step = (call.known(k).reshape(()).item() for k in range(3))
    return np.arange(start, limit, step).astype(call.op.outputs[0].dtype.storage)


COMPUTE: Mapping[str, Compute] = {
    "RESHAPE": _reshape,
    "SQUEEZE": _reshape,
    "EXPAND_DIMS": _reshape,
    "TRANSPOSE": lambda call: ops.transpose(call[0], call.known_integers(1)),
    "PACK": lambda call: ops.stack(list(call.inputs), axis=int(call.option("axis", 0))),
    "UNPACK": lambda call: ops.unstack(call[0], num=len(call.op.outputs), axis=int(call.option("axis", 0))),
    "CONCATENATION": lambda call: ops.concatenate(list(call.inputs), axis=int(call.option("axis", 0))),
    "SPLIT": lambda call: ops.split(call[1], len(call.op.outputs), axis=call.axes(0, of=1)[0]),
    "SPLIT_V": _split_unevenly,
    "SLICE": _slice,
    "STRIDED_SLICE": _strided_slice,
    "PAD": _pad,
    "PADV2": _pad,
    "MIRROR_PAD": _mirror_pad,
    "GATHER": _gather,
    "GATHER_ND": _gather_nd,
    "EMBEDDING_LOOKUP": lambda call: ops.take(call[1], call[0], axis=0),
    "DYNAMIC_UPDATE_SLICE": _update_slice,
    "FILL": lambda call: ops.broadcast_to(call[1], call.output_shape()),
    "BROADCAST_TO": lambda call: call[0] * ops.ones(call.output_shape(), dtype=call[0].dtype),
    "TILE": lambda call: ops.tile(call[0], call.known_integers(1)),
    "REVERSE_V2": lambda call: ops.flip(call[0], axis=call.axes(1)),
    "MATRIX_SET_DIAG": _set_diagonal,
    "DILATE": _dilate,
    "ONE_HOT": _one_hot,
    "SCATTER_ND": lambda call: ops.scatter(call.known(0), call[1], call.output_shape()),
    "SPARSE_TO_DENSE": _sparse_to_dense,
    "SPACE_TO_DEPTH": _space_to_depth,
    "DEPTH_TO_SPACE": _depth_to_space,
    "SPACE_TO_BATCH_ND": _space_to_batch,
    "BATCH_TO_SPACE_ND": _batch_to_space,
    "TOPK_V2": _top,
    "CAST": lambda call: ops.cast(call[0], held_type(call.op.outputs[0].dtype)),
    "SHAPE": _shape,
    "RANK": lambda call: np.array(len(call.input_shape(0)), np.int32),
    "RANGE": _range,
}
