"""Carry out a Plan. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Mapping

from ..affine import QuantParams, quantize
from ..dtypes import DType
from ..graph.edit import drop_unused, duplicate_constant, insert_after, retype, set_constant
from ..graph.model import Graph, Op, Quantization, Tensor
from ..graph.query import Use, Uses
from ..ops import OpSpec
from ..tflite.schema import default_options
from .plan import Form, Plan


def rewrite(plan: Plan, ops: Mapping[str, OpSpec]) -> None:
    """Edit the plan's graph in place."""
    graph = plan.graph
    uses = Uses(graph)
    for tensor in list(graph.tensors):
        if tensor.dtype is not DType.FLOAT32:
            continue
        if tensor.data is not None:
            _rewrite_constant(graph, tensor, plan, uses)
        else:
            _rewrite_activation(graph, tensor, plan, uses)
    for op, scheme in plan.schemes.items():
        assert scheme.activations is not None
        _retarget(graph, op, scheme.activations, ops[op.kind], plan)
    drop_unused(graph)


def _rewrite_constant(graph: Graph, tensor: Tensor, plan: Plan, uses: Uses) -> None:
    """Quantize a constant once for each form in which it is wanted."""
    data = tensor.data
    assert data is not None
    variants: dict[tuple[Form, int], list[Use]] = {}
    for use in uses.readers(tensor):
        variants.setdefault((plan.wanted.get(use), id(plan.values.get(use))), []).append(use)
    stays = uses.is_output(tensor) or any(form is None for form, _ in variants)
    for (form, _), readers in variants.items():
        if form is None:
            continue
        target = duplicate_constant(graph, tensor, readers, form.dtype.label) if stays else tensor
        stays = True  # the first form takes the constant's own place, others get copies
        set_constant(target, quantize(plan.values.get(readers[0], data), form), form.dtype, form)
    if (output := plan.outputs.get(tensor)) is not None:
        floats = [use for (form, _), readers in variants.items() if form is None for use in readers]
        if floats:
            duplicate_constant(graph, tensor, floats, "float32")
        set_constant(tensor, quantize(data, output), output.dtype, output)


def _rewrite_activation(graph: Graph, tensor: Tensor, plan: Plan, uses: Uses) -> None:
    """Store the tensor as planned, and convert it once for each other form in which it is wanted."""
    stored = plan.stored.get(tensor)
    readers = [use for use in uses.readers(tensor) if not _any_form(use, plan)]
    forms: dict[Form, list[Use]] = {}
    for use in readers:
        forms.setdefault(plan.wanted.get(use), []).append(use)
    output = plan.outputs.get(tensor) if uses.is_output(tensor) else stored
    if uses.is_output(tensor):
        forms.setdefault(output, [])
    is_input = tensor in graph.inputs
    name = tensor.name
    if stored is not None:
        retype(tensor, stored.dtype, stored)
    for form, wanting in forms.items():
        if form == stored:
            continue
        serves_output = uses.is_output(tensor) and form == output
        converted = _form_tensor(tensor, form)
        if serves_output and not is_input:
            # Callers know outputs by name, so the name goes with the form they see.
            converted.name, tensor.name = name, f"{name}/{_label(stored)}"
        op = _conversion(tensor, converted, stored, form)
        insert_after(graph, tensor, op, wanting, as_output=serves_output)


def _any_form(use: Use, plan: Plan) -> bool:
    """Ops that only read a shape take the tensor as it is."""
    return use.op not in plan.schemes and use.op.kind in ("SHAPE", "RANK")


def _form_tensor(tensor: Tensor, form: Form) -> Tensor:
    return Tensor(
        f"{tensor.name}/{_label(form)}",
        tensor.shape,
        DType.FLOAT32 if form is None else form.dtype,
        quantization=None if form is None else Quantization.of(form),
        shape_signature=tensor.shape_signature,
    )


def _label(form: Form) -> str:
    return "float32" if form is None else form.dtype.label


def _conversion(source: Tensor, result: Tensor, stored: Form, form: Form) -> Op:
    if form is None:
        version = 3 if stored is not None and stored.dtype is DType.INT16 else 2
        return Op("DEQUANTIZE", [source], [result], default_options("DequantizeOptions"), version)
    version = 2 if DType.INT16 in (form.dtype, stored.dtype if stored is not None else None) or stored else 1
    return Op("QUANTIZE", [source], [result], default_options("QuantizeOptions"), version)


def _retarget(graph: Graph, op: Op, activations: DType, spec: OpSpec, plan: Plan) -> None:
    """Version, options and intermediates that the integer kernel needs."""
    needed = spec.versions.get(activations.label, 1)
    narrow = [p for k in spec.weight_slots if (p := plan.wanted.get(Use(op, k))) is not None and p.dtype.is_packed]
    if narrow:
        needed = max(needed, spec.versions.get(narrow[0].dtype.label, 1))
    op.version = max(op.version, needed)
    changes = spec.options.get(activations, {})
    if changes and op.options is not None:
        op.options = op.options.replace(**changes)
    if spec.intermediates:
        output = plan.stored[op.outputs[0]]
        op.intermediates = [_intermediate(op, k, kind, output) for k, kind in enumerate(spec.intermediates)]
        graph.tensors += op.intermediates


def _intermediate(op: Op, k: int, kind: str, output: QuantParams) -> Tensor:
    name = f"{op.name}/intermediate{k}"
    if kind == "output":
        return Tensor(name, (0,), output.dtype, quantization=Quantization.of(output))
    return Tensor(name, (0,), DType.FLOAT32)
