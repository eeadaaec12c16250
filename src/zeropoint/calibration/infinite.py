"""Infinities that a model holds itself: padding with -inf below a maximum, masks with -inf below a softmax.

They say nothing about the data, so they are left out of the statistics without asking. They are known by where they
can come from: a constant, and the ops that only move values on from there. NaN and other infinities are mistakes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..dtypes import Array, DType
from ..graph.model import Graph, Model, Tensor
from ..graph.query import tensor_keys
from ..ops import OPS

Signs = frozenset[float]
"""Of +inf and -inf, those that a tensor may hold."""


def expected_infinities(model: Model) -> dict[str, Signs]:
    """The tensors, by key, that may hold infinities of the model's own."""
    keys = tensor_keys(model)
    return {keys[t]: signs for graph in model.graphs for t, signs in _moved(graph).items()}


def _moved(graph: Graph) -> Mapping[Tensor, Signs]:
    found: dict[Tensor, Signs] = {}
    for op in graph.ops:  # in order of execution, so what an op reads is known by then
        spec = OPS.get(op.kind)
        if spec is None or not spec.tied:
            continue
        held = frozenset[float]().union(*(found.get(t) or _constant(t) for t in op.inputs if t is not None))
        if held:
            found.update((t, held) for t in op.outputs if t.dtype is DType.FLOAT32)
    return found


def _constant(tensor: Tensor) -> Signs:
    if tensor.dtype is not DType.FLOAT32 or tensor.data is None:
        return frozenset()
    return frozenset(sign for sign in (np.inf, -np.inf) if (tensor.data == sign).any())


def unexpected(values: Array, signs: Signs) -> int:
    """How many of `values` are NaN, or infinite with another sign than one of these."""
    return int(np.isnan(values).sum()) + sum(int((values == s).sum()) for s in (np.inf, -np.inf) if s not in signs)
