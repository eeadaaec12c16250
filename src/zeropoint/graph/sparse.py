"""Sparse constants: the file omits zeros and stores the positions of the other elements, dimension by dimension.

Dimensions are traversed in the file's own order, block dimensions last. A dense dimension holds every index; a sparse
one lists the indices that are present, with one segment of the list for each position reached so far.
"""

from __future__ import annotations

import numpy as np

from ..dtypes import Array
from ..errors import InvalidModel
from .edit import copy_model, fold_into_constant
from .model import Graph, Model, Op, Record, Tensor

DENSE = 0
"""The schema's code for a dense dimension, which holds every index."""


def with_dense_constants(model: Model) -> Model:
    """Return an equivalent model without DENSIFY, with tensors in the same positions; `model` itself if it has none.

    When intermediate tensors are exposed as outputs, LiteRT 2.3 computes NaN from sparse constants.
    """
    if not any(op.kind == "DENSIFY" for graph in model.graphs for op in graph.ops):
        return model
    copy = copy_model(model)
    for graph in copy.graphs:
        for op in [op for op in graph.ops if op.kind == "DENSIFY"]:
            fold_densify(graph, op)
    return copy


def fold_densify(graph: Graph, op: Op) -> None:
    """Replace the output of a DENSIFY op by a dense constant if its input is a constant; otherwise do nothing."""
    source, result = op.inputs[0], op.outputs[0]
    values = None if source is None or result in graph.outputs else dense_data(source)
    if source is not None and values is not None and values.shape == result.shape:
        constant = Tensor.constant(result.name, values, source.dtype, source.params)
        fold_into_constant(graph, op, constant)


def dense_data(tensor: Tensor) -> Array | None:
    """Return the constant with its zeros filled in; None if it is not sparse or its type has no fixed-size elements."""
    storage, sparsity = tensor.dtype.storage, tensor.sparsity
    if sparsity is None or tensor.buffer is None or storage is None or tensor.dtype.is_packed:
        return None
    problem = index_problem(tensor, sparsity)
    if problem is not None:
        raise InvalidModel(f"the sparse constant '{tensor.name}' is damaged: {problem}; convert the model again")
    result = np.zeros(tensor.shape, storage)
    result[tuple(_places(sparsity, len(tensor.shape)))] = tensor.buffer.raw.view(storage)
    return result


def index_problem(tensor: Tensor, sparsity: Record) -> str | None:
    """Describe what is wrong with the index of a sparse constant. The index is only counted, not expanded: it may be
    hostile.
    """
    levels, sizes = _levels(sparsity), _sizes(sparsity, tensor.shape)
    if sizes is None:
        return "its dimensions do not add up"
    places = 1
    for dimension, level in zip(sparsity["traversalOrder"], levels, strict=True):
        size = sizes[dimension]
        if level["format"] == DENSE:
            if level["denseSize"] != size:
                return f"a dimension of {level['denseSize']} instead of {size}"
            places *= size
            continue
        segments, indices = _listed(level)
        is_rising = len(segments) == places + 1 and segments[0] == 0 and bool((np.diff(segments) >= 0).all())
        if not is_rising or segments[-1] != len(indices):
            return "its segments do not fit its indices"
        if ((indices < 0) | (indices >= size)).any():
            return "an element lies outside its shape"
        places = len(indices)
    stored = 0 if tensor.buffer is None else tensor.buffer.raw.size
    return None if stored == tensor.dtype.nbytes(places) else f"{stored} bytes for {places} elements"


def _sizes(sparsity: Record, shape: tuple[int, ...]) -> list[int] | None:
    """Return the size of each dimension, block dimensions last; None if order, levels and blocks do not match."""
    order, blocked, levels = tuple(sparsity["traversalOrder"] or ()), _blocked(sparsity), _levels(sparsity)
    rank, sizes = len(shape), list(shape)
    if sorted(order) != list(range(rank + len(blocked))) or len(levels) != len(order):
        return None
    for k, dimension in enumerate(blocked, rank):
        block = levels[order.index(k)]["denseSize"]
        if not 0 <= dimension < rank or block <= 0 or sizes[dimension] % block:
            return None
        sizes[dimension] //= block
        sizes.append(block)
    return sizes


def _places(sparsity: Record, rank: int) -> Array:
    """Return the index of each stored element, as an array [dimensions, elements]."""
    order, levels = tuple(sparsity["traversalOrder"]), _levels(sparsity)
    found = np.zeros((0, 1), np.int64)
    for level in levels:
        found = _descended(found, level)
    places: Array = np.array([found[order.index(k)] for k in range(rank)])
    for k, dimension in enumerate(_blocked(sparsity), rank):
        inner = order.index(k)
        places[dimension] = places[dimension] * levels[inner]["denseSize"] + found[inner]
    return places


def _descended(found: Array, level: Record) -> Array:
    """Extend positions by their index along one more dimension."""
    if level["format"] == DENSE:
        size = level["denseSize"]
        return np.vstack([np.repeat(found, size, axis=1), np.tile(np.arange(size), found.shape[1])])
    segments, indices = _listed(level)
    return np.vstack([np.repeat(found, np.diff(segments), axis=1), indices])


def _levels(sparsity: Record) -> tuple[Record, ...]:
    return tuple(sparsity["dimMetadata"] or ())


def _blocked(sparsity: Record) -> tuple[int, ...]:
    return tuple(sparsity["blockMap"] or ())


def _listed(level: Record) -> tuple[Array, Array]:
    """Return where the elements of each position begin in the list of indices, and the list itself."""
    vectors = (level[name] for name in ("arraySegments", "arrayIndices"))
    segments, indices = (np.array((v or {"values": ()})["values"] or (), np.int64) for v in vectors)
    return segments, indices
