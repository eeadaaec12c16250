"""What there is to measure in a graph, and whether several samples can be measured at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..dtypes import DType
from ..graph.model import Graph, Tensor
from ..ops import OPS, UNPACKING


def wanted(graph: Graph) -> Iterator[Tensor]:
    """Float tensors that an integer kernel could read or write, in order of execution, and the graph's own ends."""
    # Constants in disguise, like unpacked weights, have their range in their data.
    seen = {t for op in graph.ops if op.kind in UNPACKING and _is_constant(op.inputs[0]) for t in op.outputs}
    quantizable = [op for op in graph.ops if (spec := OPS.get(op.kind)) is not None and (spec.types or spec.hybrid)]
    touched = (t for op in quantizable for t in (*op.inputs, *op.outputs))
    for tensor in (*touched, *graph.inputs, *graph.outputs):
        if tensor is None or tensor in seen or tensor.dtype is not DType.FLOAT32:
            continue
        if not tensor.is_constant and not tensor.is_variable:
            seen.add(tensor)
            yield tensor


def _is_constant(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.is_constant


def feeds_weights(graph: Graph) -> set[Tensor]:
    """Activations that enter or leave ops with weights: later steps need their channels one by one."""
    found: set[Tensor] = set()
    for op in graph.ops:
        spec = OPS.get(op.kind)
        if spec is not None and spec.macs is not None:
            found.update(t for t in (*op.inputs, *op.outputs) if t is not None and not t.is_constant)
    return found


def reachable(graph: Graph) -> list[Graph]:
    """The graphs that `graph` calls, and those that they call, nearest first."""
    found: dict[Graph, None] = {}
    waiting = [graph]
    while waiting:
        for op in waiting.pop(0).ops:
            for callee in op.graphs():
                if callee not in found:
                    found[callee] = None
                    waiting.append(callee)
    return list(found)


BATCH, BATCH_ELEMENTS = 16, 1 << 20
"""At most so many samples, or elements of all their tensors, are one run: what it computes stays in the cache."""


def batch_size(tensors: Iterable[Tensor]) -> int:
    """How many samples may be run together."""
    return max(1, min(BATCH, BATCH_ELEMENTS // max(1, sum(t.size for t in tensors))))


def takes_batches(graph: Graph) -> bool:
    """Whether several samples may be fed as one: as far as can be told from the file, all tensors would just grow.

    Every float tensor is measured, so one that does not grow along makes the concatenation of the reductions fail.
    """
    measured = list(wanted(graph))
    floating = [t for op in graph.ops for t in (*op.inputs, *op.outputs) if t is not None and t.dtype is DType.FLOAT32]
    return (
        batch_size(measured) > 1
        and bool(graph.inputs)
        and all(_grows(t) for t in (*graph.inputs, *measured))
        and {t for t in floating if not t.is_constant} <= set(measured)
        and not any(t.is_variable or t.dtype.storage is None for t in graph.tensors)
        and not reachable(graph)
    )


def _grows(tensor: Tensor) -> bool:
    """Whether only the first dimension may vary, and it is one now."""
    signature = tensor.shape_signature or tensor.shape
    return len(tensor.shape) >= 2 and tensor.shape[0] == 1 and tensor.size > 0 and -1 not in signature[1:]
