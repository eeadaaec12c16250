"""Convolutions that follow each other without an activation between them, as one: the product of their matrices.

    V (W x + b) + c = (V W) x + (V b + c)

Inverted residual blocks end in a convolution without an activation, and the next block begins with another one. Where
both together have no fewer multiplications than their product, one layer, its rounding and its memory are saved. Where
there are fewer, they are a bottleneck, which is left as it is.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ..dtypes import Array, DType
from ..graph.model import Graph, Op, Tensor
from ..graph.query import Use, Uses
from ..ops.layout import strides_of
from ..recipe import Recipe
from .new_ops import NewOps


def merge_linear_layers(graph: Graph, recipe: Recipe, fixed: Collection[Tensor | None] = ()) -> NewOps:
    """Edit `graph` in place where `recipe` asks for int8. Ops that a rule names, and tensors that are `fixed` because
    they have integers or ranges already, stay as they are."""
    new, uses = NewOps(graph), Uses(graph)
    for op in [op for op in graph.ops if _has_constants(op)]:
        between = Use(op, 0).tensor
        before = uses.producer(between)
        if before is None or not _has_constants(before) or uses.is_output(between) or len(uses.readers(between)) > 1:
            continue
        is_fixed = any(t in fixed for t in (between, before.inputs[1], op.inputs[1]))
        is_free = not is_fixed and all(recipe.leaves_free(each, DType.INT8) for each in (before, op))
        if is_free and _pays(before, op) and _merge(before, op, new):
            uses = Uses(graph)
    return new


def _has_constants(op: Op) -> bool:
    return op.kind == "CONV_2D" and all(t is None or t.data is not None for t in op.inputs[1:])


def _pays(before: Op, op: Op) -> bool:
    """Whether `op` is linear in the pixels of `before`, and one layer has no more multiplications than both."""
    first, second = Use(before, 1).tensor.shape, Use(op, 1).tensor.shape
    is_plain = before.option("fusedActivationFunction") == 0 and second[1:3] == (1, 1) and strides_of(op) == (1, 1)
    has_groups = first[3] != Use(before, 0).tensor.shape[3] or second[3] != first[0]
    both = first[0] * (first[1] * first[2] * first[3] + second[0])
    return is_plain and not has_groups and second[0] * first[1] * first[2] * first[3] <= both


def _merge(before: Op, op: Op, new: NewOps) -> bool:
    """Have `op` do the work of both, if float32 holds the product; return whether it does."""
    weights = Use(op, 1).tensor
    matrix = Use(op, 1).data[:, 0, 0].astype(np.float64)
    kernel = np.tensordot(matrix, Use(before, 1).data, axes=(1, 0))
    offset = matrix @ convolution_bias(before) + convolution_bias(op)
    if before.options is None or op.options is None or not (_fits_float32(kernel) and _fits_float32(offset)):
        return False
    merged = new.constant_from(weights, f"{weights.name}/merged", kernel)
    bias = new.constant_from(op.input(2) or before.input(2), f"{op.name}/bias", offset)
    op.inputs = [before.inputs[0], merged, bias]
    op.options = before.options.replace(fusedActivationFunction=op.option("fusedActivationFunction"))
    new.graph.ops.remove(before)
    return True


def _fits_float32(values: Array) -> bool:
    """Whether float32 holds the values of each output: products of weights around 1e20 or 1e-25 it does not."""
    with np.errstate(over="ignore", under="ignore"):
        error = np.abs(values.astype(np.float32) - values)
    others = tuple(range(1, values.ndim))
    return bool((error.max(axis=others) <= 1e-6 * np.abs(values).max(axis=others)).all())


def convolution_bias(op: Op) -> Array:
    """Return the bias of a convolution with constants; zeros if it has none."""
    bias = op.input(2)
    return np.zeros(op.outputs[0].shape[3]) if bias is None or bias.data is None else bias.data.astype(np.float64)
