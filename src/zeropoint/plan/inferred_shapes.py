"""Has RESHAPE infer the one size that the graph computes for it.

Keras writes the batch size of a Reshape or Flatten layer as SHAPE, STRIDED_SLICE and PACK, although RESHAPE finds a
single unknown size from the number of elements. Without these ops nothing interrupts what a delegate takes, LiteRT
knows all shapes before the first run, and devices that have no SHAPE need not leave their accelerator.
"""

from __future__ import annotations

import numpy as np

from ..dtypes import DType
from ..graph.edit import drop_unused, recast
from ..graph.model import Graph, Op, Tensor
from ..graph.query import Uses
from ..tflite.schema import default_options

_SIZES = ("PACK", "STRIDED_SLICE", "SHAPE")
"""Ops that compute sizes; they are removed once nothing reads them."""


def infer_sizes(graph: Graph) -> None:
    """Edit the graph in place: where a PACK of positive constants and one computed number is the shape that a RESHAPE
    reads, it becomes a constant with -1 for that number."""
    uses = Uses(graph)
    for op in [op for op in graph.ops if op.kind == "RESHAPE" and len(op.inputs) == 2]:
        source, wanted = op.inputs
        packed = None if wanted is None else uses.producer(wanted)
        sizes = () if packed is None or packed.kind != "PACK" else _sizes(packed)
        if source is not None and sizes.count(-1) == 1 and all(size > 0 for size in sizes if size != -1):
            shape = Tensor.constant(f"{op.name}/shape", np.array(sizes, np.int32), DType.INT32)
            recast(graph, op, "RESHAPE", [source, shape], default_options("ReshapeOptions", newShape=sizes))
    _drop_sizes(graph)


def _sizes(packed: Op) -> tuple[int, ...]:
    """Return the numbers that a PACK joins, -1 for those that are computed; nothing if it joins other than numbers."""
    tensors = [t for t in packed.inputs if t is not None]
    if any(t.shape for t in tensors):
        return ()
    return tuple(-1 if t.data is None else int(t.data) for t in tensors)


def _drop_sizes(graph: Graph) -> None:
    while True:
        uses = Uses(graph)
        unused = [op for op in graph.ops if op.kind in _SIZES and all(map(uses.is_unused, op.outputs))]
        if not unused:
            return drop_unused(graph)
        graph.ops = [op for op in graph.ops if op not in unused]
