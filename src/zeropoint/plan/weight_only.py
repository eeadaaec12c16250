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
from ..ops import CONVERSIONS, OpSpec, Weight, fused_activation
from ..recipe import INT8, PerChannel, Recipe, Scheme
from .derive import derive
from .encode import Form, Packed, form_type
from .match import nearest_type
from .plan import Group, Held, Plan, Repair, Skipped
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
        draft = _Additions(dict(plan.packed), list(plan.skipped), list(plan.repairs))
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
        made = replace(
            plan,
            packed=draft.packed,
            schemes={**plan.schemes, **dict.fromkeys(draft.lookups, INT8)},
            groups=(*plan.groups, *draft.lookups.values()),
            skipped=tuple(draft.skipped),
            repairs=tuple(draft.repairs),
        )
        return derive(made, self.ops) if draft.lookups else made

    def _add_half(self, op: Op, scheme: Scheme, draft: _Additions) -> None:
        for slot, tensor, data in _float_constants(op):
            if data.size < scheme.min_elements:
                continue
            finite = data[np.isfinite(data)]
            if finite.size and np.abs(finite).max() > HALF_LIMIT:
                text = f"stays float32: it reaches beyond float16's {HALF_LIMIT:g}"
                draft.repairs.append(Repair(tensor, text, "float16_range"))
            else:
                draft.packed[Use(op, slot)] = Packed(DType.FLOAT16, True)

    def _add_integers(self, op: Op, scheme: Scheme, draft: _Additions) -> None:
        spec = self.ops.get(op.kind)
        constants = {slot: (tensor, data) for slot, tensor, data in _float_constants(op)}
        held = {slot: role for slot in constants if spec is not None and (role := spec.held(slot)) is not None}
        if not held:
            largest = max((data.size for _, data in constants.values()), default=0)
            if (reason := _nothing_held(op, spec, largest, scheme)) is not None:
                draft.skip(op, reason)
            return
        assert spec is not None
        total = sum(constants[slot][1].size for slot in held)
        if total < scheme.min_elements:
            draft.skip(op, f"its weights have fewer than {scheme.min_elements} elements")
        elif any(not np.isfinite(constants[slot][1]).all() for slot in held):
            draft.skip(op, "its weights are not all finite")
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
            draft.skip(op, reason)

    def _add_lookup(self, op: Op, spec: OpSpec, use: Use, draft: _Additions) -> None:
        """An op that hands on what it finds in a table: it does so in integers, and a conversion follows."""
        table = op.inputs[use.slot]
        assert table is not None
        assert table.data is not None
        if list(spec.read_activations(op)) != [table]:
            draft.skip(op, "other data flow through it as well, in float")
        elif any(t.dtype is not DType.FLOAT32 for t in op.outputs) or len(op.outputs) != 1:
            draft.skip(op, "its output is not one tensor of floats")
        else:
            params = weight_params(table.data, None, DType.INT8, table.name)
            draft.lookups[op] = Group((use, Held(op.outputs[0], DType.INT8)), params, fixed=True, symmetric=True)

    def _form(self, op: Op, tensor: Tensor, role: Weight, scheme: Scheme) -> Form:
        """One form for all tensors of the same bytes, layout and scheme, in whatever graph."""
        data = tensor.data
        assert data is not None
        assert tensor.buffer is not None
        assert scheme.weights is not None
        spec = self.ops[op.kind]
        axis = scale_axis(op, spec, role, data.ndim, scheme)
        blocks = scheme.block is not None and _in_blocks(op, spec, data, scheme)
        spot = (tensor.buffer, axis, scheme if blocks else replace(scheme, granularity=PerChannel()))
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
class _Additions:
    packed: dict[Use, Packed]
    skipped: list[Skipped]
    repairs: list[Repair]
    lookups: dict[Op, Group] = field(default_factory=dict)

    def skip(self, op: Op, reason: str) -> None:
        self.skipped.append(Skipped(op, reason, "weights"))


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
            blocks = isinstance(packed.form, QuantParams) and packed.form.block is not None
            if recipe.scheme(use.op).block is not None and not blocks:
                yield use.op
