"""What LiteRT's delegate computes wrongly, in float models too (ai-edge-litert 2.3)."""

from __future__ import annotations

from ..dtypes import DType
from ..graph.model import Graph, Model, Op
from ..graph.query import Use, Uses


def identity_pools(graph: Graph) -> list[Op]:
    """Return pooling that is the identity: windows of 1x1 with stride 1, without an activation.

    After an op with a fused activation, the delegate drops the convolution before them, or returns uninitialized
    memory.
    """
    sizes = ("filterWidth", "filterHeight", "strideW", "strideH")
    pools = [op for op in graph.ops if op.kind in ("MAX_POOL_2D", "AVERAGE_POOL_2D")]
    return [
        op for op in pools if all(op.option(name) == 1 for name in sizes) and op.option("fusedActivationFunction") == 0
    ]


def transposes_read_twice(graph: Graph) -> list[tuple[Op, list[Use]]]:
    """Return every TRANSPOSE of floats that are both operands of a BATCH_MATMUL, and nothing else, with these two uses.

    The delegate makes a TRANSPOSE part of the BATCH_MATMUL that alone reads it. If that reads it twice, the result is
    wrong unless the last two axes are swapped and no others.
    """
    if not any(op.kind == "BATCH_MATMUL" and op.inputs[0] is op.inputs[1] for op in graph.ops):
        return []
    uses, found = Uses(graph), []
    for op in graph.ops:
        if op.kind != "TRANSPOSE" or op.outputs[0].dtype is not DType.FLOAT32 or uses.is_output(op.outputs[0]):
            continue
        readers = uses.readers(op.outputs[0])
        if len(readers) == 2 and readers[0].op is readers[1].op and readers[0].op.kind == "BATCH_MATMUL":
            found.append((op, readers))
    return found


def has_delegate_faults(model: Model) -> bool:
    """Whether the delegate may compute some part of the model wrongly."""
    return any(identity_pools(graph) or transposes_read_twice(graph) for graph in model.graphs)
