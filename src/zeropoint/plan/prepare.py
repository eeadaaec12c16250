"""Folds that make a model plainly float before it is planned. The model computes the same as before."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..dtypes import DType
from ..graph.edit import absorb, drop_unused, fold_into_constant, recast
from ..graph.model import Graph, Model, Op, Tensor
from ..graph.query import Uses
from ..ops import CONVERSIONS, FUSED_ACTIVATIONS, OPS, OpSpec, Trait, Weight
from ..ops.layout import VALID
from ..recipe import Recipe
from ..sources.ports import entry_graphs
from ..tflite.schema import default_options
from .qdq import Trained, take_trained


def prepare(model: Model, recipe: Recipe, ops: Mapping[str, OpSpec] = OPS) -> Trained:
    """Edit `model` in place; return what training left in it. Ops that `recipe` tells apart stay apart."""
    trained = take_trained(model, ops)
    for graph in entry_graphs(model):  # others stay as they are
        for op in list(graph.ops):
            if op.kind in CONVERSIONS:
                _fold_float16(graph, op)
        _fuse_activations(graph, recipe, ops)
        for op in graph.ops:
            if recipe.scheme(op).activations is not None:
                _quotient_to_product(graph, op)
                _global_pool_to_mean(graph, op)
        drop_unused(graph)
    return trained


def _fuse_activations(graph: Graph, recipe: Recipe, ops: Mapping[str, OpSpec]) -> None:
    """Let an op apply the ReLU behind it: its integers then need not reach below zero only to be cut off."""
    codes = {f.name: code for code, f in enumerate(FUSED_ACTIVATIONS) if f.bounds is not None}
    uses = Uses(graph)
    for op in list(graph.ops):
        source = op.inputs[0] if op.kind in codes else None
        producer = None if source is None else uses.producer(source)
        if source is None or producer is None or producer.options is None or uses.is_output(source):
            continue
        spec = ops.get(producer.kind)
        if spec is None or Trait.FUSES not in spec.traits or len(uses.readers(source)) > 1:
            continue
        if recipe.rule(producer) is not recipe.rule(op) or recipe.scheme(op).activations is None:
            continue
        if producer.option("fusedActivationFunction") == 0:
            absorb(graph, op, producer, producer.options.replace(fusedActivationFunction=codes[op.kind]))
            uses = Uses(graph)


def _quotient_to_product(graph: Graph, op: Op) -> None:
    """A division by a constant, as a product with its reciprocal.

    The integer kernel of DIV shifts by more than 31 bits, and so garbles the quotients of small numbers (LiteRT 2.3).
    """
    source, divisor = op.inputs if op.kind == "DIV" else (None, None)
    if source is None or divisor is None or divisor.dtype is not DType.FLOAT32 or divisor.data is None:
        return
    with np.errstate(divide="ignore", over="ignore"):
        factors = np.reciprocal(divisor.data)
    if np.isfinite(factors).all():
        factor = Tensor.constant(f"{divisor.name}/reciprocal", factors, DType.FLOAT32)
        fused = op.option("fusedActivationFunction", 0)
        recast(graph, op, "MUL", [source, factor], default_options("MulOptions", fusedActivationFunction=fused))


def _global_pool_to_mean(graph: Graph, op: Op) -> None:
    """An average over the whole image, as a mean: the integer kernel of that one has an output scale of its own."""
    source = op.inputs[0] if op.kind == "AVERAGE_POOL_2D" else None
    if source is None or len(source.shape) != 4 or op.option("fusedActivationFunction") != 0:
        return
    window = (op.option("filterHeight"), op.option("filterWidth"))
    if window == source.shape[1:3] and op.outputs[0].shape[1:3] == (1, 1) and op.option("padding") == VALID:
        axes = Tensor.constant(f"{op.name}/axes", np.array([1, 2], np.int32), DType.INT32)
        recast(graph, op, "MEAN", [source, axes], default_options("ReducerOptions", keepDims=True))


def _fold_float16(graph: Graph, op: Op) -> None:
    """A constant that is kept in float16 and unpacked for float arithmetic becomes a float32 constant."""
    source = op.inputs[0]
    if source is None or source.dtype is not DType.FLOAT16 or source.data is None:
        return
    if op.outputs[0] not in graph.outputs:
        values = source.data.astype(np.float32)
        fold_into_constant(graph, op, Tensor.constant(op.outputs[0].name, values, DType.FLOAT32))


def has_float_part(model: Model, ops: Mapping[str, OpSpec] = OPS) -> bool:
    """Whether some op that integers could flow through still computes in float."""
    for graph in model.graphs:
        for op in graph.ops:
            spec = ops.get(op.kind)
            if spec is None or not spec.types:
                continue
            roles = [(spec.input_role(k), t) for k, t in enumerate(op.inputs) if t is not None]
            hybrid = any(isinstance(role, Weight) and t.is_quantized for role, t in roles)
            if not hybrid and any(t.dtype is DType.FLOAT32 for t in (*(t for _, t in roles), *op.outputs)):
                return True
    return False
