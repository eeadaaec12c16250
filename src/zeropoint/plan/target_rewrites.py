"""Rewrites that make a model fit a target, applied before planning: it computes the same as before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from ..calibration import Range
from ..dtypes import DType
from ..errors import InvalidModel
from ..graph.edit import fold_into_constant, insert_after, recast, unused_name
from ..graph.model import Graph, Model, Op, Tensor
from ..ops import FUSED_CODES, OpSpec, spec_of
from ..ops.recurrent import LSTM, Gate
from ..runtime import Runner
from ..runtime.unit_steps import slice_without_steps
from ..sources.ports import entry_graphs
from ..targets import Rewrite, Target, TypedOp
from ..targets.conditions import InputCount
from ..tflite.schema import default_options


def fit_to_target(model: Model, target: Target, ops: Mapping[str, OpSpec]) -> dict[Tensor, Range | Tensor]:
    """Edit `model` in place; return the ranges of new tensors, or other tensors with the same range."""
    made: dict[Tensor, Range | Tensor] = {}
    if Rewrite.FIXED_SHAPES in target.rewrites:
        _fix_shapes(model, target)
    for graph in entry_graphs(model):
        if Rewrite.FIXED_SHAPES in target.rewrites:
            _fold_shapes(model, graph, ops)
        for op in list(graph.ops):
            wanted = REWRITES.get(op.kind)
            if wanted in target.rewrites:
                made |= _rewritten(wanted, graph, op, target, ops)
    return made


REWRITES = {
    "RELU_0_TO_1": Rewrite.PLAIN_CLAMPS,
    "CONCATENATION": Rewrite.SHORT_CONCATENATIONS,
    "STRIDED_SLICE": Rewrite.UNIT_STEPS,
    "SELECT": Rewrite.SELECT_V2,
    LSTM: Rewrite.LONG_LSTM,
}
"""The rewrite of each op kind, for targets that want it."""


def _rewritten(
    wanted: Rewrite | None, graph: Graph, op: Op, target: Target, ops: Mapping[str, OpSpec]
) -> Mapping[Tensor, Range | Tensor]:
    """Edit one op; return the ranges of new tensors."""
    match wanted:
        case Rewrite.PLAIN_CLAMPS:
            return {_split_clamp(graph, op): Range(-1.0, 1.0)}
        case Rewrite.SHORT_CONCATENATIONS:
            conditions = target.conditions(TypedOp.of_file(op, ops))
            most = next((c.most for c in conditions if isinstance(c, InputCount)), len(op.inputs))
            return dict.fromkeys(_join_in_steps(graph, op, most), op.outputs[0])
        case Rewrite.UNIT_STEPS:
            return slice_without_steps(graph, op)
        case Rewrite.SELECT_V2:
            _select_by_element(graph, op)
        case Rewrite.LONG_LSTM:
            op.inputs += [None] * (Gate.OUTPUT.normalization + 1 - len(op.inputs))
    return {}


def fuse_clamps(model: Model, target: Target) -> None:
    """Fuse a RELU_N1_TO_1 that no other op could take into a product with 1."""
    if Rewrite.PLAIN_CLAMPS not in target.rewrites:
        return
    for graph in entry_graphs(model):
        for op in graph.ops:
            source = op.inputs[0] if op.kind == "RELU_N1_TO_1" else None
            if source is not None and source.dtype is DType.FLOAT32:
                one = Tensor.constant(f"{op.name}/one", np.array(1, np.float32), DType.FLOAT32)
                options = default_options("MulOptions", fusedActivationFunction=FUSED_CODES[op.kind])
                recast(graph, op, "MUL", [source, one], options)


def _fix_shapes(model: Model, target: Target) -> None:
    """Fix the batch size that the file states. Other dynamic dimensions cannot be guessed."""
    for graph in entry_graphs(model):
        for tensor in graph.inputs:
            if any(d < 0 for d in tensor.dynamic_shape[1:]):
                shape = list(tensor.dynamic_shape)
                raise InvalidModel(
                    f"the input '{tensor.name}' has dynamic dimensions {shape}, and {target.name} needs fixed ones; "
                    "export the model with fixed shapes"
                )
    for tensor in (t for graph in model.graphs for t in graph.tensors):
        tensor.shape_signature = None


def _fold_shapes(model: Model, graph: Graph, ops: Mapping[str, OpSpec]) -> None:
    """Fold everything that depends only on shapes and constants: LiteRT itself computes it."""
    folded = [op for op in _computed_from_shapes(graph, ops) if op.outputs[0] not in graph.outputs]
    if not folded:
        return
    results = [op.outputs[0] for op in folded]
    runner = Runner.exposing(model, graph, results)
    zeros = [np.zeros(t.shape, t.dtype.storage) for t in graph.inputs]
    for op, value in zip(folded, runner.run(zeros), strict=True):
        op.outputs[0].shape = value.shape
        fold_into_constant(graph, op, Tensor.constant(op.outputs[0].name, value, op.outputs[0].dtype))


def _computed_from_shapes(graph: Graph, ops: Mapping[str, OpSpec]) -> list[Op]:
    """Return the ops that read only shapes, values computed from shapes, and constants."""
    found: list[Op] = []
    known: set[Tensor | None] = set()
    for op in graph.ops:
        spec = spec_of(op, ops)
        flowing = [t for t in op.inputs if t is not None and not t.is_constant]
        if len(op.outputs) == 1 and (spec.reads_shapes_only or (flowing and known.issuperset(flowing))):
            found.append(op)
            known.update(op.outputs)
    return found


def _split_clamp(graph: Graph, op: Op) -> Tensor:
    """RELU_0_TO_1(x) = RELU(RELU_N1_TO_1(x)), exactly; return the tensor between the two."""
    result = op.outputs[0]
    between = replace(result, name=unused_name(graph, f"{result.name}/clamped"))
    op.kind, op.version, op.outputs[0] = "RELU_N1_TO_1", 1, between
    insert_after(graph, between, Op("RELU", [between], [result]), [])
    return between


def _join_in_steps(graph: Graph, op: Op, most: int) -> Iterator[Tensor]:
    """Join at most `most` tensors at a time; yield the tensors between the steps."""
    result, axis = op.outputs[0], op.option("axis", 0)
    while len(op.inputs) > most and op.options is not None:
        first = op.inputs[:most]
        shape = list(result.shape)
        shape[axis] = sum(t.shape[axis] for t in first if t is not None)
        name = unused_name(graph, f"{result.name}/joined")
        between = Tensor(name, tuple(shape), result.dtype, quantization=result.quantization)
        step = Op("CONCATENATION", first, [between], op.options.replace(fusedActivationFunction=0), op.version)
        graph.ops.insert(graph.ops.index(op), step)
        graph.tensors.append(between)
        op.inputs = [between, *op.inputs[most:]]
        yield between


def _select_by_element(graph: Graph, op: Op) -> None:
    """Replace a SELECT with a condition for each element, or one for all, by the equivalent SELECT_V2."""
    condition, chosen, other = op.inputs
    if condition is not None and chosen is not None and other is not None and condition.shape in ((), chosen.shape):
        recast(graph, op, "SELECT_V2", [condition, chosen, other], default_options("SelectV2Options"))
