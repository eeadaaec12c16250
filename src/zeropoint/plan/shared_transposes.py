"""Gives both operands of a matrix product a transposed tensor of their own, if they share one."""

from __future__ import annotations

from dataclasses import replace

from ..graph.edit import insert_after, unused_name
from ..graph.model import Graph
from ..ops.delegate_faults import transposes_read_twice


def part_shared_transposes(graph: Graph) -> None:
    """Edit the graph in place: what LiteRT's delegate would transpose once for both operands is computed twice."""
    for op, readers in transposes_read_twice(graph):
        shared = op.outputs[0]
        twin = replace(shared, name=unused_name(graph, f"{shared.name}/copy"))
        insert_after(graph, shared, replace(op, outputs=[twin]), readers[1:])
