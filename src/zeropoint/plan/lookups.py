"""GATHER of constant rows becomes EMBEDDING_LOOKUP, which takes integers with a scale for each row.

GATHER returns the integers it finds, so its table can have only one scale, and a conversion has to follow.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..dtypes import DType
from ..graph.edit import recast, replace_op, unused_name
from ..graph.model import Graph, Model, Op, Tensor
from ..graph.query import Use
from ..recipe import Recipe


def gathers_to_lookups(model: Model, recipe: Recipe) -> dict[Tensor, Tensor]:
    """Replace GATHER in mode dynamic, unless a rule asks for this kind of op: that would not match any more. Return new
    tensors, each with the one whose values it holds.

    The kernel of EMBEDDING_LOOKUP takes a list of indices, so others are flattened before it.
    """
    made: dict[Tensor, Tensor] = {}
    for graph in model.graphs:
        for op in [op for op in graph.ops if op.kind == "GATHER"]:
            is_lookup = recipe.scheme(op).label == "dynamic" and _picks_rows(op)
            if not is_lookup or recipe.rule(op) != recipe.rule(replace(op, kind="EMBEDDING_LOOKUP")):
                continue
            table, indices = Use(op, 0).tensor, Use(op, 1).tensor
            if len(indices.shape) == 1:
                recast(graph, op, "EMBEDDING_LOOKUP", [indices, table], None)
            else:
                made |= _flat_lookup(graph, op, table, indices)
    return made


def _picks_rows(op: Op) -> bool:
    table, indices = op.inputs
    if table is None or table.data is None or indices is None or len(table.shape) < 2:
        return False
    plain = op.option("axis", 0) == 0 and op.option("batchDims", 0) == 0
    is_listed = bool(indices.shape) and _known_shape(op.outputs[0]).count(-1) <= 1
    return plain and is_listed and indices.dtype is DType.INT32


def _known_shape(tensor: Tensor) -> list[int]:
    """Return the shape with -1 for dimensions that vary."""
    return list(tensor.shape_signature or tensor.shape)


def _flat_lookup(graph: Graph, op: Op, table: Tensor, indices: Tensor) -> dict[Tensor, Tensor]:
    """Replace `op`, and return the new tensor of rows, with that of the result."""
    result = op.outputs[0]
    flat = Tensor(unused_name(graph, f"{result.name}/flat"), (indices.size,), DType.INT32)
    rows = Tensor(unused_name(graph, f"{result.name}/rows"), (indices.size, *table.shape[1:]), DType.FLOAT32)
    if result.is_dynamic:
        flat.shape_signature, rows.shape_signature = (-1,), (-1, *table.shape[1:])
    ends = (
        Tensor.constant(unused_name(graph, f"{result.name}/{what}"), np.array(shape, np.int32), DType.INT32)
        for what, shape in (("list", [-1]), ("shape", _known_shape(result)))
    )
    replace_op(
        graph,
        op,
        [
            Op("RESHAPE", [indices, next(ends)], [flat]),
            Op("EMBEDDING_LOOKUP", [flat, table], [rows]),
            Op("RESHAPE", [rows, next(ends)], [result]),
        ],
    )
    return {rows: result}
