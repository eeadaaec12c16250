"""Tensors that are never negative, whatever the model is given."""

from __future__ import annotations

from collections.abc import Mapping

from ..graph.model import Graph, Op, Tensor
from ..ops import OpSpec, Trait, fused_activation

KEEPS_SIGN = Trait.KEEPS_SIGN | Trait.TIED | Trait.ADDS | Trait.SUMS


def never_negative(graph: Graph, ops: Mapping[str, OpSpec]) -> set[Tensor]:
    """Return the results of ops, also of their integer kernels, that follow from the graph to be zero or above."""
    found = set[Tensor]()
    for op in graph.ops:
        if op.kind in ops and _makes_none_below_zero(op, ops[op.kind], found):
            found.update(op.outputs)
    return found


def _makes_none_below_zero(op: Op, spec: OpSpec, found: set[Tensor]) -> bool:
    bounds = fused_activation(op).bounds
    if Trait.NEVER_NEGATIVE in spec.traits or (bounds is not None and bounds[0] >= 0):
        return True
    read = list(spec.read_activations(op))
    known = [t in found or _is_constant_without_negatives(t) for t in read]
    if Trait.GREATEST in spec.traits:
        return any(known)
    is_square = len(read) == 2 and read[0] is read[1]
    if Trait.MULTIPLIES in spec.traits:
        return is_square or all(known)
    if spec.layout is not None and not spec.weight_slots:  # of matrices: a row times itself has one result
        return (is_square and op.outputs[0].shape[-2:] == (1, 1)) or all(known)
    return bool(spec.traits & KEEPS_SIGN) and bool(known) and all(known)


def _is_constant_without_negatives(tensor: Tensor) -> bool:
    return tensor.data is not None and tensor.data.size > 0 and bool(tensor.data.min() >= 0)
