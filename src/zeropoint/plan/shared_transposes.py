"""Gives both operands of a matrix product a transposed tensor of their own, if they share one.

LiteRT's delegate makes a TRANSPOSE of floats part of the BATCH_MATMUL that alone reads it. If that reads it twice, the
result is wrong unless the last two axes are swapped and no others (LiteRT 2.3), in float models as well.
"""

from __future__ import annotations

from dataclasses import replace

from ..dtypes import DType
from ..graph.edit import insert_after, unused_name
from ..graph.model import Graph
from ..graph.query import Uses


def part_shared_transposes(graph: Graph) -> None:
    """Edit the graph in place: a TRANSPOSE of floats that are both operands of a BATCH_MATMUL, and nothing
    else, is computed twice."""
    uses = Uses(graph)
    for op in [op for op in graph.ops if op.kind == "TRANSPOSE" and op.outputs[0].dtype is DType.FLOAT32]:
        shared = op.outputs[0]
        readers = [] if uses.is_output(shared) else uses.readers(shared)
        if len(readers) == 2 and readers[0].op is readers[1].op and readers[0].op.kind == "BATCH_MATMUL":
            twin = replace(shared, name=unused_name(graph, f"{shared.name}/copy"))
            insert_after(graph, shared, replace(op, outputs=[twin]), readers[1:])
