"""Recipe x op table: which ops compute in integers, and why the others do not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..dtypes import DType
from ..graph.model import Graph, Op, Tensor
from ..ops import CONVERSIONS, Activation, Bias, CellState, Need, OpSpec, ShapeOnly, Weight, fused_activation
from ..recipe import Recipe, Scheme
from .plan import Skipped
from .tensor_ranges import TensorRanges


@dataclass(frozen=True)
class Matched:
    schemes: Mapping[Op, Scheme]
    skipped: tuple[Skipped, ...]


def match(graph: Graph, recipe: Recipe, ops: Mapping[str, OpSpec], ranges: TensorRanges) -> Matched:
    """Decide for every op of `graph`."""
    schemes: dict[Op, Scheme] = {}
    skipped: list[Skipped] = []
    for op in graph.ops:
        asked = recipe.scheme(op)
        if not is_arithmetic(op, ops) or (asked.activations is None and asked.weights is not None):
            continue  # of the latter only constants are quantized: weight_only.py
        scheme = _with_kernel(asked, ops.get(op.kind))
        reason = next(_reasons(op, scheme, ops.get(op.kind), ranges), None)
        if reason is None:
            schemes[op] = scheme
        else:
            skipped.append(Skipped(op, reason))
    return Matched(schemes, tuple(skipped))


def _with_kernel(scheme: Scheme, spec: OpSpec | None) -> Scheme:
    """Weights of fewer than 8 bits are a wish: an op whose kernel lacks them takes the next wider it has."""
    if spec is None or scheme.activations is None or not spec.weight_slots:
        return scheme
    return replace(scheme, weights=nearest_type(spec.weights.get(scheme.activations, ()), scheme.weights))


def nearest_type(known: Sequence[DType], asked: DType | None) -> DType | None:
    """The narrowest of the types that a kernel has which is no narrower than asked for; else as asked for."""
    assert asked is not None
    return min((t for t in known if t.bits >= asked.bits), key=lambda t: t.bits, default=asked)


def is_arithmetic(op: Op, ops: Mapping[str, OpSpec]) -> bool:
    """Whether float data flow through it: not conversions, not side computations on indices and shapes."""
    if op.kind in CONVERSIONS:
        return False
    spec = ops.get(op.kind)
    flowing = [t for k, t in enumerate(op.inputs) if t is not None and not isinstance(_role(spec, k), ShapeOnly)]
    return any(t.dtype is DType.FLOAT32 for t in (*flowing, *op.outputs))


def _role(spec: OpSpec | None, slot: int) -> object:
    return None if spec is None else spec.input_role(slot)


def _reasons(op: Op, scheme: Scheme, spec: OpSpec | None, ranges: TensorRanges) -> Iterator[str]:
    """Why `op` cannot be computed as `scheme` asks; the first is the one to tell."""
    kind = scheme.activations
    if kind is None:
        yield "the recipe keeps it in float"
        return
    if op.kind == "CUSTOM":
        yield f"{op.label} is a custom op, which only its author can quantize"
        return
    if any(op.graphs()):
        yield f"{op.label} runs other graphs, which stay as they are"
        return
    if spec is None or kind not in spec.types:
        yield (spec.note if spec is not None else "") or f"LiteRT has no {kind.label} kernel for {op.label}"
        return
    if spec.weight_slots and scheme.weights is not None and scheme.weights not in spec.weights.get(kind, ()):
        yield f"LiteRT has no kernel for {op.label} with {scheme.weights.label} weights and {kind.label} activations"
    fused = fused_activation(op)
    if fused.name not in ("NONE", spec.own_activation) and fused.bounds is None:
        yield f"integer kernels ignore its fused {fused.name}"
    yield from _types(op, spec)
    yield from _needs(op, spec, kind, ranges)
    for tensor in flowing_tensors(op, spec):
        if not ranges.knows(tensor):
            yield unknown_range(tensor)
        elif ranges.is_unbounded(tensor):  # some kernels end the process at such scales
            yield f"'{tensor.name}' reaches values that stand for infinity"


def unknown_range(tensor: Tensor) -> str:
    return f"the range of '{tensor.name}' is not known"


def flowing_tensors(op: Op, spec: OpSpec) -> Iterator[Tensor]:
    """Operands that hold data in float and have to be given a scale from their range."""
    for slot, tensor in enumerate(op.inputs):
        if tensor is not None and isinstance(spec.input_role(slot), Activation | CellState):
            yield tensor
    yield from spec.made_activations(op)


def _types(op: Op, spec: OpSpec) -> Iterator[str]:
    """Operands of other types than float32 mean that the op computes with something else already."""
    for tensor in flowing_tensors(op, spec):
        if tensor.dtype is not DType.FLOAT32:
            yield f"'{tensor.name}' is {tensor.dtype.label}, not float32"
    for slot, operand in enumerate(op.inputs):
        if operand is None or not isinstance(spec.input_role(slot), Weight | Bias):
            continue
        if operand.dtype is not DType.FLOAT32:
            yield f"its weights are {operand.dtype.label} already"
        elif operand.data is None and isinstance(spec.input_role(slot), Bias):
            yield "its bias is not constant"


def _needs(op: Op, spec: OpSpec, kind: DType, ranges: TensorRanges) -> Iterator[str]:
    for need in spec.needs:
        if not _CHECKS[need](op, spec, kind, ranges):
            yield need.value


def _nonnegative(op: Op, spec: OpSpec, kind: DType, ranges: TensorRanges) -> bool:  # noqa: ARG001
    source = op.inputs[0]
    return source is not None and ranges.knows(source) and ranges.bounds(source)[0] >= 0


def _constant_divisor(op: Op, spec: OpSpec, kind: DType, ranges: TensorRanges) -> bool:  # noqa: ARG001
    return False  # divisions that can be products have become so by now


def _constant_weights(op: Op, spec: OpSpec, kind: DType, ranges: TensorRanges) -> bool:  # noqa: ARG001
    present = [op.inputs[k] for k in spec.weight_slots if k < len(op.inputs)]
    return all(t is None or t.data is not None for t in present)


def _no_normalization(op: Op, spec: OpSpec, kind: DType, ranges: TensorRanges) -> bool:  # noqa: ARG001
    return all(t is None for t in (*op.inputs[16:18], *op.inputs[20:24])) and len(op.inputs) >= 20


def _sum_fits(op: Op, spec: OpSpec, kind: DType, ranges: TensorRanges) -> bool:  # noqa: ARG001
    source = op.inputs[0]
    terms = 0 if source is None else source.size // max(1, op.outputs[0].size)
    return math.log2(max(1, terms)) + kind.bits - 1 < 31


_CHECKS = {
    Need.NONNEGATIVE: _nonnegative,
    Need.CONSTANT_DIVISOR: _constant_divisor,
    Need.CONSTANT_WEIGHTS: _constant_weights,
    Need.NO_NORMALIZATION: _no_normalization,
    Need.SUM_FITS: _sum_fits,
}
