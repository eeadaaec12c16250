"""Ops that compute in float: which of their constants are held in fewer bits, in what form, and why the others not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..affine import QuantParams
from ..calibration import Method
from ..dtypes import Array, DType
from ..graph.edit import recast
from ..graph.model import Buffer, Model, Op, Tensor
from ..graph.query import Use, Uses
from ..improve.bias_correction import rounding_error
from ..improve.squant import balanced_weights, nonnegative_tensors
from ..ops import CONVERSIONS, OpSpec, Weight, fused_activation
from ..recipe import INT8, Effort, Recipe, Scheme
from .forms import BlockParams, Form, Packed, form_type
from .match import nearest_type
from .plan import Plan, Repair, Skipped
from .tensor_ranges import TensorRanges
from .weights import block_params, scale_axis, unpacked_params, weight_params

HALF_LIMIT = float(np.finfo(np.float16).max)


def gathers_to_lookups(model: Model, recipe: Recipe) -> None:
    """Let EMBEDDING_LOOKUP do what GATHER does on the rows of a constant: it takes integers with a scale for each row.

    GATHER hands on the integers it finds, so that its table can have one scale only, and a conversion has to follow.
    """
    for graph in model.graphs:
        for op in graph.ops:
            if op.kind == "GATHER" and recipe.scheme(op).label == "dynamic" and _picks_rows(op):
                table, indices = op.inputs
                assert table is not None
                assert indices is not None
                recast(graph, op, "EMBEDDING_LOOKUP", [indices, table], None)


def _picks_rows(op: Op) -> bool:
    table, indices = op.inputs
    if table is None or table.data is None or indices is None or len(table.shape) < 2:
        return False
    plain = op.option("axis", 0) == 0 and op.option("batchDims", 0) == 0
    return plain and len(indices.shape) == 1 and indices.dtype is DType.INT32


@dataclass
class WeightOnly:
    """Adds to plans what concerns the constants of float ops. Called for all graphs of a model, then `share`."""

    recipe: Recipe
    ops: Mapping[str, OpSpec]
    method: Method | None
    """How the scales of weights are chosen; None: by the peak for 8 bits, by the squared error for fewer."""
    _forms: dict[tuple[Buffer, int | None, Scheme], Form] = field(default_factory=dict)

    def add(self, plan: Plan) -> Plan:
        draft = _Draft(dict(plan.packed), list(plan.skipped), list(plan.repairs))
        for op in plan.graph.ops:
            scheme = self.recipe.scheme(op)
            if op in plan.schemes or scheme.activations is not None or scheme.weights is None:
                continue
            if op.kind in CONVERSIONS:
                continue
            if scheme.weights is DType.FLOAT16:
                self._add_half(op, scheme, draft)
            else:
                self._add_integers(op, scheme, draft)
        lookups = draft.lookups
        return replace(
            plan,
            packed=draft.packed,
            schemes={**plan.schemes, **dict.fromkeys(lookups, INT8)},
            stored={**plan.stored, **{op.outputs[0]: params for op, (_, params) in lookups.items()}},
            wanted={**plan.wanted, **dict(lookups.values())},
            skipped=tuple(draft.skipped),
            repairs=tuple(draft.repairs),
        )

    def _add_half(self, op: Op, scheme: Scheme, draft: _Draft) -> None:
        for slot, tensor, data in _float_constants(op):
            if data.size < scheme.min_elements:
                continue
            finite = data[np.isfinite(data)]
            if finite.size and np.abs(finite).max() > HALF_LIMIT:
                draft.repairs.append(Repair(tensor, f"stays float32: it reaches beyond float16's {HALF_LIMIT:g}"))
            else:
                draft.packed[Use(op, slot)] = Packed(DType.FLOAT16, True)

    def _add_integers(self, op: Op, scheme: Scheme, draft: _Draft) -> None:
        spec = self.ops.get(op.kind)
        constants = {slot: (tensor, data) for slot, tensor, data in _float_constants(op)}
        held = {slot: role for slot in constants if spec is not None and (role := spec.held(slot)) is not None}
        if not held:
            largest = max((data.size for _, data in constants.values()), default=0)
            if (reason := _nothing_held(op, spec, largest, scheme)) is not None:
                draft.skipped.append(Skipped(op, reason))
            return
        assert spec is not None
        total = sum(constants[slot][1].size for slot in held)
        if total < scheme.min_elements:
            draft.skipped.append(Skipped(op, f"its weights have fewer than {scheme.min_elements} elements"))
        elif any(not np.isfinite(constants[slot][1]).all() for slot in held):
            draft.skipped.append(Skipped(op, "its weights are not all finite"))
        elif scheme.unpacked:
            for slot, role in held.items():
                draft.packed[Use(op, slot)] = Packed(self._form(op, constants[slot][0], role, scheme), True)
        elif (reason := next(_no_hybrid(op, spec, held), None)) is None:
            widened = replace(scheme, weights=nearest_type(spec.hybrid, scheme.weights))
            for slot, role in held.items():
                draft.packed[Use(op, slot)] = Packed(self._form(op, constants[slot][0], role, widened), False)
        elif spec.tied and DType.INT8 in spec.types and len(held) == 1:
            self._add_lookup(op, spec, Use(op, *held), draft)
        else:
            draft.skipped.append(Skipped(op, reason))

    def _add_lookup(self, op: Op, spec: OpSpec, use: Use, draft: _Draft) -> None:
        """An op that hands on what it finds in a table: it does so in integers, and a conversion follows."""
        table = op.inputs[use.slot]
        assert table is not None
        assert table.data is not None
        if list(spec.read_activations(op)) != [table]:
            draft.skipped.append(Skipped(op, "other data flow through it as well, in float"))
        elif any(t.dtype is not DType.FLOAT32 for t in op.outputs) or len(op.outputs) != 1:
            draft.skipped.append(Skipped(op, "its output is not one tensor of floats"))
        else:
            draft.lookups[op] = (use, weight_params(table.data, None, DType.INT8, table.name))

    def _form(self, op: Op, tensor: Tensor, role: Weight, scheme: Scheme) -> Form:
        """One form for all tensors of the same bytes, layout and scheme, in whatever graph."""
        data = tensor.data
        assert data is not None
        assert tensor.buffer is not None
        assert scheme.weights is not None
        axis = scale_axis(op, role, data.ndim, scheme)
        spec = self.ops[op.kind]
        blocks = scheme.block is not None and _in_blocks(op, spec, data, scheme)
        spot = (tensor.buffer, axis, scheme if blocks else replace(scheme, block=None))
        if spot not in self._forms:
            if blocks:
                assert scheme.block is not None
                made: Form = block_params(data, scheme.block, scheme.weights, self.method)
            elif scheme.asymmetric:
                made = unpacked_params(data, axis, scheme.weights, tensor.name)
            else:
                made = weight_params(data, axis, scheme.weights, tensor.name, self.method)
            self._forms[spot] = made
        return self._forms[spot]

    def share(self, plans: Sequence[Plan]) -> tuple[Plan, ...]:
        """Let every op that reads a constant of which a packed form exists read that one, unpacked for it if need be.

        So no float copy of a quantized constant is left, except for ops that a rule keeps in float.
        """
        forms: dict[Buffer, Packed] = {}
        for plan in plans:
            for use, packed in plan.packed.items():
                forms.setdefault(_buffer(use), Packed(packed.form, True))
        return tuple(replace(plan, packed={**plan.packed, **dict(self._unpacked(plan, forms))}) for plan in plans)

    def _unpacked(self, plan: Plan, forms: Mapping[Buffer, Packed]) -> Iterator[tuple[Use, Packed]]:
        uses = Uses(plan.graph)
        for tensor in plan.graph.tensors:
            if tensor.dtype is not DType.FLOAT32 or tensor.buffer is None or tensor.buffer not in forms:
                continue
            for use in uses.readers(tensor):
                rule = self.recipe.rule(use.op)
                kept_float = rule is not None and rule.scheme.label == "float"
                if use not in plan.packed and use not in plan.wanted and not kept_float:
                    yield use, forms[tensor.buffer]


@dataclass
class _Draft:
    packed: dict[Use, Packed]
    skipped: list[Skipped]
    repairs: list[Repair]
    lookups: dict[Op, tuple[Use, QuantParams]] = field(default_factory=dict)


def _float_constants(op: Op) -> Iterator[tuple[int, Tensor, Array]]:
    for slot, tensor in enumerate(op.inputs):
        if tensor is not None and tensor.dtype is DType.FLOAT32 and tensor.data is not None and tensor.size:
            yield slot, tensor, tensor.data


def _buffer(use: Use) -> Buffer:
    tensor = use.op.inputs[use.slot]
    assert tensor is not None
    assert tensor.buffer is not None
    return tensor.buffer


def _nothing_held(op: Op, spec: OpSpec | None, largest: int, scheme: Scheme) -> str | None:
    """Why an op keeps its constants, if that is worth telling."""
    weights = () if spec is None else tuple(op.inputs[k] for k in spec.weight_slots if k < len(op.inputs))
    for tensor in weights:
        if tensor is not None and tensor.is_quantized:
            return f"its weights are {tensor.dtype.label} already"
        if tensor is not None and tensor.dtype.is_float and tensor.data is None:
            return "its weights are not constant"
    if largest < max(1, scheme.min_elements):
        return None
    if scheme.unpacked:
        return "its constants are data, not weights"
    return f"LiteRT has no kernel for {op.label} with integer constants and float activations"


def _no_hybrid(op: Op, spec: OpSpec, held: Mapping[int, Weight]) -> Iterator[str]:
    """Why the kernel cannot take the weights as integers."""
    if not spec.hybrid:
        yield f"LiteRT has no kernel for {op.label} with integer weights and float activations"
    for slot in range(len(op.inputs)):
        tensor = op.inputs[slot]
        if slot not in held and tensor is not None and isinstance(spec.input_role(slot), Weight):
            yield "its weights are not all constant floats, and the kernel wants them to be of one type"


def _in_blocks(op: Op, spec: OpSpec, data: Array, scheme: Scheme) -> bool:
    """Whether these weights can have a scale for each block; else each channel has one."""
    assert scheme.block is not None
    # The builtin kernel for blocks leaves out a fused activation (LiteRT 2.3).
    plain = fused_activation(op).name == "NONE"
    return scheme.weights in spec.blockwise and data.ndim == 2 and data.shape[1] % scheme.block == 0 and plain


@dataclass
class Balancing:
    """Lets rounding errors cancel: within the weights, and in the biases behind them where means are known."""

    recipe: Recipe
    ops: Mapping[str, OpSpec]
    ranges: TensorRanges
    effort: Effort
    _weights: dict[tuple[Buffer, Form, bool], Array | None] = field(default_factory=dict)

    def add(self, plan: Plan) -> Plan:
        positive = nonnegative_tensors(plan.graph, self.ops)
        readers: dict[tuple[Buffer, Form], list[Use]] = {}
        for use, packed in plan.packed.items():
            readers.setdefault((_buffer(use), packed.form), []).append(use)
        values = dict(plan.values)
        for uses in readers.values():
            layer = next((use for use in uses if self._is_layer(use)), None)
            if layer is not None:
                weights = self._balanced(layer, plan.packed[layer].form, self._source(layer) in positive)
                values.update(dict.fromkeys(uses, weights) if weights is not None else {})
        for use, packed in plan.packed.items():
            if self._is_layer(use):
                values.update(self._bias(use, packed.form, values.get(use)))
        return replace(plan, values=values)

    def _is_layer(self, use: Use) -> bool:
        """Whether these are the weights, and not some other constant, of a layer with one bias."""
        spec = self.ops.get(use.op.kind)
        if spec is None or self.recipe.effort(use.op, self.effort) == "quick":
            return False
        return spec.bias_slot is not None and use.slot in spec.weight_slots

    def _source(self, use: Use) -> Tensor | None:
        return next(self.ops[use.op.kind].read_activations(use.op), None)

    def _balanced(self, use: Use, form: Form, nonnegative: bool) -> Array | None:
        """One array for all uses of the same bytes in the same form, so that they stay one constant."""
        spot = (_buffer(use), form, nonnegative)
        if spot not in self._weights:
            data, made = _data(use), None
            if isinstance(form, QuantParams) and data is not None:
                layout = self.ops[use.op.kind].layout
                made = balanced_weights(use.op, layout, data, form, nonnegative=nonnegative)
            self._weights[spot] = made
        return self._weights[spot]

    def _bias(self, use: Use, form: Form, weights: Array | None) -> dict[Use, Array]:
        """The bias that takes back what the rounding of weights does to the means, where these are known."""
        source, slot, data = self._source(use), self.ops[use.op.kind].bias_slot, _data(use)
        assert slot is not None
        means = None if source is None else self.ranges.means(source)
        bias = use.op.inputs[slot] if slot < len(use.op.inputs) else None
        if means is None or data is None or bias is None or bias.data is None or form_type(form).is_float:
            return {}
        error = rounding_error(data, form) if weights is None else weights - data
        layout = self.ops[use.op.kind].layout
        shift = None if layout is None else layout.mean_shift(use.op, error, means)
        return {} if shift is None else {Use(use.op, slot): (bias.data - shift.reshape(bias.shape)).astype(np.float32)}


def _data(use: Use) -> Array | None:
    tensor = use.op.inputs[use.slot]
    return None if tensor is None else tensor.data


def wider_than_asked(plans: Sequence[Plan], recipe: Recipe) -> Iterator[tuple[Op, DType, DType]]:
    """Ops whose weights take more bits than asked for: op, asked type, type."""
    for plan in plans:
        for use, packed in plan.packed.items():
            asked, made = recipe.scheme(use.op).weights, form_type(packed.form)
            if asked is not None and not packed.unpacked and made.bits > asked.bits:
                yield use.op, asked, made


def without_blocks(plans: Sequence[Plan], recipe: Recipe) -> Iterator[Op]:
    """Ops that have one scale a channel although blocks were asked for."""
    for plan in plans:
        for use, packed in plan.packed.items():
            if recipe.scheme(use.op).block is not None and not isinstance(packed.form, BlockParams):
                yield use.op
