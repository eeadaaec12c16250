"""What holds for every quantized model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from zeropoint.dtypes import DType
from zeropoint.graph import Graph, Model, Op, Tensor, Uses
from zeropoint.improve.pipeline import Result
from zeropoint.ops import OPS, Activation
from zeropoint.plan.match import is_arithmetic

CONVERSIONS = ("QUANTIZE", "DEQUANTIZE")


def form(tensor: Tensor) -> tuple[object, ...]:
    return (tensor.dtype, tensor.quantization)


def redundant_conversions(graph: Graph) -> Iterator[str]:
    """Conversions to what is there already, twice the same, of a conversion, or that nothing reads."""
    uses = Uses(graph)
    made: Counter[tuple[object, ...]] = Counter()
    for op in graph.ops:
        if op.kind not in CONVERSIONS:
            continue
        source, result = op.inputs[0], op.outputs[0]
        assert source is not None
        made[(source, form(result))] += 1
        producer = uses.producer(source)
        if form(source) == form(result):
            yield f"{op} changes nothing"
        if made[(source, form(result))] > 1:
            yield f"{op} is done already"
        ends = {producer.inputs[0].dtype, result.dtype} if producer is not None and producer.inputs[0] else set()
        in_two_steps = ends == {DType.INT16, DType.UINT8}  # between which LiteRT has no kernel
        if producer is not None and producer.kind in CONVERSIONS and not in_two_steps:
            yield f"{op} converts what {producer} converted"
        if uses.is_unused(result):
            yield f"nothing reads {op}"


def flowing(op: Op) -> list[Tensor]:
    """Operands that hold data which flow."""
    spec = OPS[op.kind]
    ins = [t for k, t in enumerate(op.inputs) if t is not None and isinstance(spec.input_role(k), Activation)]
    return ins + [t for k, t in enumerate(op.outputs) if isinstance(spec.output_role(k), Activation)]


def broken_kernels(graph: Graph) -> Iterator[str]:
    """Integer ops whose operands are not as their kernels demand: types, ties, fixed outputs, symmetry."""
    for op in graph.ops:
        spec = OPS.get(op.kind)
        if op.kind in CONVERSIONS or spec is None or not op.outputs[0].is_quantized:
            continue
        tensors = flowing(op)
        dtype = op.outputs[0].dtype
        if {t.dtype for t in tensors} != {dtype}:
            yield f"{op} mixes types"
        if spec.tied and len({t.params for t in tensors}) > 1:
            yield f"{op} has operands of different parameters"
        if dtype in spec.fixed and op.outputs[0].params != spec.fixed[dtype].params(dtype):
            yield f"{op} has other parameters than its kernel fixes"
        if dtype is DType.INT16 and any(t.params is None or not t.params.is_symmetric for t in tensors):
            yield f"{op} is not symmetric"


def repeated_names(graph: Graph) -> Iterator[str]:
    """Reports, statistics and people know tensors by name; where the float model has no two alike, this has none."""
    names = Counter(t.name for t in graph.tensors)
    return (f"{count} tensors are called '{name}'" for name, count in names.items() if count > 1)


def unexplained_float_ops(result: Result) -> set[str]:
    """Ops that compute in float without a word about it, or the other way round, but for bodies of control flow."""
    bodies = [g for g in result.model.graphs if g not in entry_graphs(result.model)]
    inner = {t.name for graph in bodies for t in graph.tensors}
    said = {s.op.outputs[0].name for s in result.skipped} - inner
    dynamic = {op.outputs[0].name for op in result.plan.dynamic}  # the plan says so
    found = set()
    for graph in entry_graphs(result.model):
        for op in graph.ops:
            is_float = any(t is not None and t.dtype is DType.FLOAT32 for t in (*op.inputs, *op.outputs))
            if is_arithmetic(op, OPS) and is_float and not is_copy(op):
                # An output's name goes to the form that callers see.
                found.add(re.sub(rf"/{op.outputs[0].dtype.label}(#\d+)?$", "", op.name))
    return (said ^ found) - dynamic


def is_copy(op: Op) -> bool:
    """Whether `plan.in_place` or `plan.rewrite` put it there: such an op computes nothing new."""
    is_copy = op.kind == "TRANSPOSE" or (op.kind == "CONCATENATION" and len(op.inputs) == 1)
    return is_copy and op.name.endswith("/copy")


def entry_graphs(model: Model) -> list[Graph]:
    return list(dict.fromkeys(s.graph for s in model.signatures)) or [model.main]


def broken_laws(result: Result) -> list[str]:
    graphs = entry_graphs(result.model)
    laws = (redundant_conversions, broken_kernels, repeated_names)
    found = [text for graph in graphs for law in laws for text in law(graph)]
    return found + sorted(unexplained_float_ops(result))
