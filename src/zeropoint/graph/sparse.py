"""Sparse constants: files that leave out zeros say where the others belong, dimension by dimension.

The dimensions are gone through in an order of their own, those within blocks last. A dense one holds every index; a
sparse one lists the indices that are there, a segment of the list for each position reached so far.
"""

from __future__ import annotations

import math

import numpy as np

from ..dtypes import Array
from ..errors import InvalidModel
from .edit import copy_model, fold_into_constant
from .model import Graph, Model, Op, Record, Tensor

DENSE = 0
"""The schema's code for a dimension that holds every index."""


def with_dense_constants(model: Model) -> Model:
    """A model that computes the same without DENSIFY; tensors keep their places. `model` itself if it has none.

    With tensors exposed that it does not expose by itself, LiteRT computes NaN from sparse constants (2.3).
    """
    if not any(op.kind == "DENSIFY" for graph in model.graphs for op in graph.ops):
        return model
    copy = copy_model(model)
    for graph in copy.graphs:
        for op in [op for op in graph.ops if op.kind == "DENSIFY"]:
            fold_densify(graph, op)
    return copy


def fold_densify(graph: Graph, op: Op) -> None:
    """Let a dense constant take the place of what DENSIFY makes of a sparse one; other cases stay as they are."""
    source, result = op.inputs[0], op.outputs[0]
    values = None if source is None or result in graph.outputs else dense_data(source)
    if source is not None and values is not None and values.shape == result.shape:
        constant = Tensor.constant(result.name, values, source.dtype, source.params)
        fold_into_constant(graph, op, constant)


def dense_data(tensor: Tensor) -> Array | None:
    """The constant with its zeros; None if it is no sparse one, or of a type that has no elements of its own."""
    storage, sparsity = tensor.dtype.storage, tensor.sparsity
    if sparsity is None or tensor.buffer is None or storage is None or tensor.dtype.is_packed:
        return None
    places = _places(sparsity, tensor)
    values = tensor.buffer.raw
    if values.size != places.shape[1] * np.dtype(storage).itemsize:
        raise _damaged(tensor, f"{values.size} bytes for {places.shape[1]} elements")
    result = np.zeros(tensor.shape, storage)
    result[tuple(places)] = values.view(storage)
    return result


def _places(sparsity: Record, tensor: Tensor) -> Array:
    """The index of each stored element, [dimensions, elements]."""
    rank, blocked = len(tensor.shape), tuple(sparsity["blockMap"] or ())
    order, levels = tuple(sparsity["traversalOrder"] or ()), tuple(sparsity["dimMetadata"] or ())
    if sorted(order) != list(range(len(levels))) or len(levels) != rank + len(blocked):
        raise _damaged(tensor, "its dimensions do not add up")
    if any(not 0 <= k < rank for k in blocked):
        raise _damaged(tensor, "a block lies along a dimension that it does not have")
    found = np.zeros((0, 1), np.int64)
    for level in levels:
        found = _descended(found, level, tensor)
    places: Array = np.array([found[order.index(k)] for k in range(rank)])
    for k, dimension in enumerate(blocked, rank):
        inner = order.index(k)
        places[dimension] = places[dimension] * levels[inner]["denseSize"] + found[inner]
    if (places < 0).any() or (places >= np.array(tensor.shape).reshape(-1, 1)).any():
        raise _damaged(tensor, "an element lies outside of it")
    return places


def _descended(found: Array, level: Record, tensor: Tensor) -> Array:
    """Positions with the index along one more dimension."""
    if level["format"] == DENSE:
        size = level["denseSize"]
        if not 0 < size * found.shape[1] <= math.prod(tensor.shape):
            raise _damaged(tensor, f"a dimension of {size}")
        return np.vstack([np.repeat(found, size, axis=1), np.tile(np.arange(size), found.shape[1])])
    segments, indices = (_numbers(level[name]) for name in ("arraySegments", "arrayIndices"))
    lengths = np.diff(segments)
    if len(lengths) != found.shape[1] or (lengths < 0).any() or segments[0] != 0 or segments[-1] != len(indices):
        raise _damaged(tensor, "its segments do not fit its indices")
    return np.vstack([np.repeat(found, lengths, axis=1), indices])


def _numbers(vector: Record | None) -> Array:
    return np.array([] if vector is None else vector["values"] or (), np.int64)


def _damaged(tensor: Tensor, what: str) -> InvalidModel:
    return InvalidModel(f"the sparse constant '{tensor.name}' is damaged: {what}; convert the model again")
