"""Executes a plan: stores constants in their planned forms, and converts activations where forms differ.

Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ..affine import QuantParams, dequantize, quantize
from ..dtypes import Array, DType
from ..graph import edit
from ..graph.model import BlockScales, Buffer, Graph, Model, Op, Quantization, Tensor, attached, buffer_of
from ..graph.query import Use, Uses
from ..ops import UNPACKED_SINCE, OpSpec
from ..ops.delegate_faults import transposes_read_twice
from ..ops.interpolation import Function, table_of
from ..tflite.metadata import restated
from ..tflite.schema import default_options
from .in_place import copy_overwritten
from .lstm import lstm_intermediates
from .match import reads_only_shape
from .plan import Form, Plan, Planned, form_type


def held_bytes(elements: int, form: Form) -> int:
    """Return the bytes of this many elements in this form, including scales and zero points."""
    numbers = -(-elements * form_type(form).bits // 8)
    if isinstance(form, DType):
        return numbers
    return numbers + (12 if form.block is None else 2) * len(form.scales)


def integers(data: Array, params: QuantParams) -> Array:
    """Return the integers of a constant. Kernels for packed weights rely on the narrow range: LiteRT's 4-bit ones add
    7."""
    return quantize(data, params, narrow=params.is_symmetric and params.levels.bits < 8)


def rounded(data: Array, form: Form) -> Array:
    """Return `data` after rounding to this form, as float32."""
    if isinstance(form, DType):
        return data.astype(form.storage).astype(np.float32)
    return dequantize(integers(data, form), form)


EncodedAs = tuple[Buffer | None, Form, tuple[int, ...]]
"""The bytes of a constant, its form, and its shape."""


@dataclass
class Encoder:
    """Stores constants in their forms; tensors that shared bytes before, and still hold the same, keep sharing them.

    `known` are constants that are already encoded, from building another candidate of the same model.
    """

    known: dict[EncodedAs, Tensor] = field(default_factory=dict)
    _replaced: dict[tuple[EncodedAs, str], Tensor] = field(default_factory=dict)

    def encode(self, tensor: Tensor, form: Form, data: Array | None = None, key: str | None = None) -> None:
        """Store `tensor` as `form`, with the values `data` of this `key` instead of its own."""
        if key is None or data is None:
            held = self.held(tensor, form)
        else:
            spot = (tensor.buffer, form, tensor.shape), key
            if spot not in self._replaced:
                self._replaced[spot] = _given(tensor, data, form)
            held = self._replaced[spot]
        edit.give_buffer(tensor, held.buffer, held.dtype, _own_scales(held.quantization))

    def held(self, tensor: Tensor, form: Form) -> Tensor:
        """Return a constant in this form."""
        spot, data = (tensor.buffer, form, tensor.shape), tensor.data
        if spot not in self.known:
            assert data is not None
            self.known[spot] = _given(tensor, data, form)
        return self.known[spot]

    def rounded(self, tensor: Tensor, form: QuantParams) -> Array:
        """Return a constant after rounding to this form, as float32."""
        integers = self.held(tensor, form).data
        assert integers is not None
        return dequantize(integers, form)


def _own_scales(quantization: Quantization | None) -> Quantization | None:
    """Return the quantization with a copy of block scales that can live in another graph."""
    if quantization is None or not isinstance(quantization.details, BlockScales):
        return quantization
    details = quantization.details
    return replace(quantization, details=replace(details, scales=replace(details.scales)))


def _given(tensor: Tensor, data: Array, form: Form) -> Tensor:
    """Return a copy of a constant that holds `data` in this form; others may edit the tensor later."""
    made = replace(tensor)
    if isinstance(form, DType):
        edit.give_buffer(made, buffer_of(data, form), form, None)
    else:
        quantization = _in_blocks(made, form) if form.block is not None else Quantization.of(form)
        edit.give_buffer(made, buffer_of(integers(data, form), form.dtype), form.dtype, quantization)
    return made


def _in_blocks(tensor: Tensor, params: QuantParams) -> Quantization:
    """Return blockwise quantization: files keep the scales of blocks in a separate float16 tensor [rows, blocks]."""
    scales = params.arrays[0].astype(np.float16).reshape(tensor.shape[0], -1)
    record = default_options("BlockwiseQuantization", blockSize=params.block).replace(scales=None, zeroPoints=None)
    held = Tensor.constant(f"{tensor.name}/scales", scales, DType.FLOAT16)
    return Quantization(details=BlockScales(record, held, None))


def build(planned: Planned, ops: Mapping[str, OpSpec], encoder: Encoder | None = None) -> Model:
    """Return the planned model; the prepared one is not changed."""
    made, encoder = edit.copy_model(planned.model), encoder or Encoder()
    with edit.signatures_follow(made):
        for plan in planned.plans:
            rewrite(plan.on(made.graphs[plan.index]), ops, encoder)
    for graph in made.graphs:
        copy_overwritten(graph, ops)
        part_shared_transposes(graph)
    made.metadata = restated(planned.model, made)
    return made


def rewrite(plan: Plan, ops: Mapping[str, OpSpec], encoder: Encoder | None = None) -> None:
    """Edit the plan's graph in place. With one `encoder` for all graphs, constants that share bytes keep doing so."""
    graph, uses, encoder = plan.graph, Uses(plan.graph), encoder or Encoder()
    read = (use.tensor for uses_of in (plan.wanted, plan.packed, plan.constants.keys) for use in uses_of)
    changing = {*plan.stored, *plan.outputs, *read}
    for tensor in list(graph.tensors):
        if tensor.dtype is not DType.FLOAT32 or tensor not in changing:
            continue
        if tensor.has_data:
            _rewrite_constant(tensor, plan, uses, encoder)
        else:
            _rewrite_activation(tensor, plan, uses, ops)
    for op, scheme in plan.schemes.items():
        assert scheme.activations is not None
        _retarget(graph, op, scheme.activations, ops[op.kind], plan)
        if (table := ops[op.kind].table) is not None:
            _look_up(graph, op, table(op))
    for op in dict.fromkeys(use.op for use, packed in plan.packed.items() if not packed.unpacked):
        _retarget_hybrid(op, ops[op.kind], plan)
    edit.drop_unused(graph)


def _rewrite_constant(tensor: Tensor, plan: Plan, uses: Uses, encoder: Encoder) -> None:
    """Store a constant once for each form in which it is wanted."""
    graph = plan.graph
    variants: dict[tuple[Form | None, str | None], list[Use]] = {}
    for use in uses.readers(tensor):
        variants.setdefault((plan.form(use), plan.constants.keys.get(use)), []).append(use)
    unchanged = variants.pop((None, None), [])
    stays = uses.is_output(tensor) or bool(unchanged)
    is_copied = stays or len(variants) > 1 or tensor in plan.outputs
    original = replace(tensor) if is_copied else tensor
    for (form, key), readers in variants.items():
        target = edit.duplicate_constant(graph, original, readers, _label(form)) if stays else tensor
        stays = True  # the first form replaces the constant itself, others get copies
        encoder.encode(target, form or DType.FLOAT32, plan.constants.at(readers[0]), key)
        graph.tensors += [t for t in attached(target) if t not in graph.tensors]
        if unpacked := [use for use in readers if use in plan.packed and plan.packed[use].unpacked]:
            edit.insert_after(graph, target, _conversion(target, _form_tensor(graph, target, None)), unpacked)
    if (output := plan.outputs.get(tensor)) is not None:
        if unchanged:
            edit.duplicate_constant(graph, original, unchanged, "float32")
        encoder.encode(tensor, output)


def _rewrite_activation(tensor: Tensor, plan: Plan, uses: Uses, ops: Mapping[str, OpSpec]) -> None:
    """Store the tensor as planned, and convert it once for each other form in which it is wanted."""
    graph, stored = plan.graph, plan.stored.get(tensor)
    forms: dict[QuantParams | None, list[Use]] = {}
    for use in uses.readers(tensor):
        if not reads_only_shape(use, ops):  # such ops take the tensor unchanged
            forms.setdefault(plan.wanted.get(use), []).append(use)
    output = plan.outputs.get(tensor) if uses.is_output(tensor) else stored
    if uses.is_output(tensor):
        forms.setdefault(output, [])
    is_input = tensor in graph.inputs
    name = tensor.name
    if stored is not None:
        edit.retype(tensor, stored.dtype, stored)
    converted: dict[QuantParams | None, Tensor] = {}
    for form, wanting in sorted(forms.items(), key=lambda item: _between(stored, item[0]) is not None):
        if form == stored:
            continue
        serves_output = uses.is_output(tensor) and form == output
        result, source = _form_tensor(graph, tensor, form), tensor
        if serves_output and not is_input:
            # Callers know outputs by name, so the name stays with the form they see.
            result.name, tensor.name = name, edit.unused_name(graph, f"{name}/{_label(stored)}")
        if (between := _between(stored, form)) is not None:
            source = converted.get(between) or _form_tensor(graph, tensor, between)
            first_step = [] if between in converted else [_conversion(tensor, source)]
            edit.replace_with(graph, tensor, source, first_step, wanting, as_output=serves_output)
            converted[between] = source
        edit.insert_chain(graph, source, [_conversion(source, result)], wanting, as_output=serves_output)
        converted[form] = result


def _form_tensor(graph: Graph, tensor: Tensor, form: QuantParams | None) -> Tensor:
    made = _tensor_of(form, edit.unused_name(graph, f"{tensor.name}/{_label(form)}"), tensor.shape)
    made.shape_signature = tensor.shape_signature
    return made


def _tensor_of(form: QuantParams | None, name: str, shape: tuple[int, ...]) -> Tensor:
    if form is None:
        return Tensor(name, shape, DType.FLOAT32)
    return Tensor(name, shape, form.dtype, quantization=Quantization.of(form))


def _label(form: Form | None) -> str:
    return "float32" if form is None else form_type(form).label


def _between(source: QuantParams | None, result: QuantParams | None) -> QuantParams | None:
    """Return the form through which `source` is converted to `result`, if it takes two steps: LiteRT has no kernel
    between int16 and uint8, but both with int8."""
    if source is None or result is None or {source.dtype, result.dtype} != {DType.INT16, DType.UINT8}:
        return None
    unsigned = source if source.dtype is DType.UINT8 else result
    return QuantParams(unsigned.scales, (unsigned.zero_point - 128,), DType.INT8)


def _conversion(source: Tensor, result: Tensor) -> Op:
    """Return the op that converts `source` to `result`, the same values in another form."""
    if result.dtype is DType.FLOAT32:
        per_axis = source.params is not None and source.params.axis is not None
        version = max(UNPACKED_SINCE[source.dtype.label], UNPACKED_SINCE["per_axis"] if per_axis else 1)
        return Op("DEQUANTIZE", [source], [result], default_options("DequantizeOptions"), version)
    version = 2 if DType.INT16 in (source.dtype, result.dtype) or source.params is not None else 1
    return Op("QUANTIZE", [source], [result], default_options("QuantizeOptions"), version)


def _retarget(graph: Graph, op: Op, activations: DType, spec: OpSpec, plan: Plan) -> None:
    """Set the version, options and intermediates that the integer kernel needs."""
    needed = spec.kernels.versions.get(activations.label, 1)
    narrow = [p for k in spec.weight_slots if (p := plan.wanted.get(Use(op, k))) is not None and p.dtype.is_packed]
    if narrow:
        needed = max(needed, spec.kernels.versions.get(narrow[0].dtype.label, 1))
    op.version = max(op.version, needed)
    changes = spec.kernels.options.get(activations, {})
    if changes and op.options is not None:
        op.options = op.options.replace(**changes)
    if spec.kernels.intermediates:
        forms = lstm_intermediates(op, plan)
        op.intermediates = [_tensor_of(form, f"{op.name}/intermediate{k}", (0,)) for k, form in enumerate(forms)]
        graph.tensors += op.intermediates


def _look_up(graph: Graph, op: Op, function: Function | None) -> None:
    """Replace the op by a gather from a lookup table with an entry for every input integer."""
    source, result = op.inputs[0], op.outputs[0]
    assert function is not None
    assert source is not None
    assert source.params is not None
    assert result.params is not None
    table = table_of(function, source.params, result.params)
    places = edit.with_shape_of(source, edit.unused_name(graph, f"{op.name}/places"), DType.INT32)
    steps = [Op("CAST", [source], [places], default_options("CastOptions"))]
    if source.dtype.min < 0:
        counted = edit.with_shape_of(source, edit.unused_name(graph, f"{op.name}/counted"), DType.INT32)
        least = Tensor.constant(f"{op.name}/least", np.array(-source.dtype.min, np.int32), DType.INT32)
        steps.append(Op("ADD", [places, least], [counted], default_options("AddOptions")))
    entries = Tensor.constant(f"{op.name}/table", table, result.dtype, result.params)
    steps.append(Op("GATHER", [entries, steps[-1].outputs[0]], [result], default_options("GatherOptions"), 2))
    edit.replace_op(graph, op, steps)


def _retarget_hybrid(op: Op, spec: OpSpec, plan: Plan) -> None:
    """Set the version and options that the kernel needs for integer weights with float activations."""
    types = {form_type(p.form).label for k in range(len(op.inputs)) if (p := plan.packed.get(Use(op, k))) is not None}
    op.version = max(op.version, *(spec.kernels.versions.get(name, 1) for name in ("hybrid", *types)))
    if op.options is not None:
        op.options = op.options.replace(**spec.kernels.options.get(DType.FLOAT32, {}))


def part_shared_transposes(graph: Graph) -> None:
    """Edit the graph in place: what LiteRT's delegate would transpose once for both operands is computed twice."""
    for op, readers in transposes_read_twice(graph):
        shared = op.outputs[0]
        twin = replace(shared, name=edit.unused_name(graph, f"{shared.name}/copy"))
        edit.insert_after(graph, shared, replace(op, outputs=[twin]), readers[1:])
