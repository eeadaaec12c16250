"""Ops that compute in float: which of their constants are stored in fewer bits, in what form, and why others are
not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..affine import QuantParams
from ..calibration import Method
from ..dtypes import Array, DType
from ..graph.model import Buffer, Op, Tensor
from ..graph.query import Use
from ..ops import CONVERSIONS, Bias, OpSpec, Weight, fused_activation, spec_of
from ..recipe import INT8, SMALLEST, PerChannel, Recipe, Scheme
from .derive import derive
from .match import TargetAnswers, nearest_type
from .plan import Form, Group, Held, Packed, Plan, Repair, Skipped
from .tensor_ranges import TensorRanges, given_weights
from .weights import block_params, scale_axis, unpacked_params, weight_params

HALF_LIMIT = float(np.finfo(np.float16).max)
HALF_LOSS = 2.0**-8
"""Relative error above which a constant stays float32; for values above 6.1e-5, that of float16 is at most 2**-11."""


FormKey = tuple[Buffer | None, tuple[int, ...], int | None, Scheme, Method | None]
"""The bytes of weights, their shape, the axis of their scales, how they are stored, and the method for the scales."""


@dataclass
class WeightOnly:
    """Adds the constants of float ops to plans. Call it for all graphs of a model, then `share`."""

    recipe: Recipe
    ops: Mapping[str, OpSpec]
    method: Method | None
    """The method that chooses the scales of weights; None: minmax for 8 bits, mse for fewer."""
    before: Mapping[Tensor, Packed] = field(default_factory=dict)
    """How the file stored constants that it had in fewer bits."""
    ranges: TensorRanges | None = None
    """Ranges, of which only those given for constants are used."""
    answers: TargetAnswers | None = None
    """What the target says about integer weights between floats; None if it is not asked."""
    forms: dict[FormKey, Form] = field(default_factory=dict)
    """Those that other plans of the same model have computed, and this one adds."""
    slow: Counter[str] = field(default_factory=Counter)
    """How many ops of each kind get floats instead, because the target is faster that way."""

    def add(self, plan: Plan) -> Plan:
        draft = _Additions(dict(plan.packed), list(plan.skipped), list(plan.repairs))
        for op in plan.graph.ops:
            scheme = plan.dynamic.get(op) or self.recipe.scheme(op)
            has_float_data = op not in plan.schemes and op.kind not in CONVERSIONS and scheme.activations is None
            if not has_float_data or scheme.weights is None or self._is_hybrid_already(op, scheme):
                continue
            if scheme.weights is DType.FLOAT16:
                self._add_half(op, scheme, draft)
            else:
                self._add_integers(op, scheme, draft)
        draft.packed.update(self._as_in_the_file(plan, draft))
        repairs = tuple(dict.fromkeys(draft.repairs))  # many ops may share an epsilon
        plan = replace(plan, packed=draft.packed, skipped=tuple(draft.skipped), repairs=repairs)
        if not draft.lookups:
            return plan
        schemes = {**plan.schemes, **dict.fromkeys(draft.lookups, INT8)}
        return derive(replace(plan, schemes=schemes, groups=(*plan.groups, *draft.lookups.values())), self.ops)

    def _as_in_the_file(self, plan: Plan, draft: _Additions) -> Iterator[tuple[Use, Packed]]:
        """Yield constants that ops keep reading as floats, stored as in the file, which must not grow."""
        layers = {use.op for use, packed in draft.packed.items() if isinstance(packed.form, QuantParams)}
        for op in plan.graph.ops:
            if op in plan.schemes or op in draft.lookups:
                continue
            for use in _float_constants(op):
                packed = self.before.get(use.tensor)
                # A bias that is dequantized first would prevent the delegate from taking a layer with integer weights,
                # whether these are dequantized or not (LiteRT 2.3).
                if packed is not None and use not in draft.packed and not (packed.unpacked and op in layers):
                    yield use, packed

    def _kept(self, use: Use, scheme: Scheme) -> QuantParams | None:
        """Return the integers that the file has, if they are no wider than requested."""
        packed = self.before.get(use.tensor)
        asked = scheme.levels or scheme.weights
        if packed is None or not isinstance(packed.form, QuantParams) or asked is None:
            return None
        return packed.form if packed.form.levels.bits <= asked.bits else None

    def _is_hybrid_already(self, op: Op, scheme: Scheme) -> bool:
        """Whether its kernel already takes integer weights in the file, as narrow as the scheme asks for."""
        packed = [(use, self.before.get(use.tensor)) for use in _float_constants(op)]
        hybrid = [use for use, before in packed if before is not None and not before.unpacked]
        return bool(hybrid) and all(self._kept(use, scheme) is not None for use in hybrid)

    def _add_half(self, op: Op, scheme: Scheme, draft: _Additions) -> None:
        for use in _float_constants(op):
            if use.data.size < scheme.min_elements or self._kept(use, scheme) is not None:
                continue
            finite = use.data[np.isfinite(use.data)].astype(np.float64)
            if finite.size and np.abs(finite).max() > HALF_LIMIT:
                text = f"stays float32: it reaches beyond float16's {HALF_LIMIT:g}"
                draft.repairs.append(Repair(use.tensor, text, "float16_range"))
            elif (lost := _lost_in_half(finite, alone=self._counts_alone(use))) is not None:
                text = f"stays float32: float16 would make {float(np.float16(lost)) + 0.0:.3g} of {lost:.3g}"
                draft.repairs.append(Repair(use.tensor, text, "float16_precision"))
            else:
                draft.packed[use] = Packed(DType.FLOAT16, True)

    def _counts_alone(self, use: Use) -> bool:
        """Whether each element matters by itself, as for an epsilon or a divisor; weights and tables matter as a
        whole."""
        spec = spec_of(use.op, self.ops)
        role = spec.held(use.slot) or spec.input_role(use.slot)
        return use.data.size < SMALLEST and not isinstance(role, Weight | Bias)

    def _add_integers(self, op: Op, scheme: Scheme, draft: _Additions) -> None:
        spec, constants = spec_of(op, self.ops), list(_float_constants(op))
        held = {use: role for use in constants if (role := spec.held(use.slot)) is not None}
        if not held:
            reason = _nothing_held(op, spec, max((use.data.size for use in constants), default=0), scheme)
        elif sum(use.data.size for use in held) < scheme.min_elements and not any(self._kept(u, scheme) for u in held):
            reason = f"its weights have fewer than {scheme.min_elements} elements"
        elif not all(np.isfinite(use.data).all() for use in held):
            reason = "its weights are not all finite"
        else:
            reason = self._pack(op, spec, held, scheme, draft)
        if reason is not None:
            draft.skipped.append(Skipped(op, reason, "weights"))

    def _pack(self, op: Op, spec: OpSpec, held: Mapping[Use, Weight], scheme: Scheme, draft: _Additions) -> str | None:
        """Store the weights as the scheme asks; return the reason if that is not possible."""
        reason = None if scheme.unpacked else next(_no_hybrid(op, spec, held), None)
        if reason is not None:
            is_lookup = spec.tied and DType.INT8 in spec.types and len(held) == 1
            return self._add_lookup(op, spec, next(iter(held)), draft) if is_lookup else reason
        if not scheme.unpacked:
            scheme = scheme.held_in(nearest_type(spec.hybrid, scheme.weights))
            if self._is_faster_unpacked(op, scheme):
                self.slow[op.label] += 1
                scheme = replace(scheme, unpacked=True)
        for use, role in held.items():
            draft.packed[use] = Packed(self._form(use, spec, role, scheme), scheme.unpacked)
        return None

    def _is_faster_unpacked(self, op: Op, scheme: Scheme) -> bool:
        """Whether the target is faster with weights converted to floats, and no rule names the op."""
        rule = self.recipe.rule(op)
        is_free = rule is None or rule.is_general
        return is_free and self.answers is not None and self.answers.is_faster_unpacked(op, scheme)

    def notes(self) -> Iterator[str]:
        """Yield notes on ops that compute in float although their kernels take integer weights."""
        for label, count in self.slow.items():
            assert self.answers is not None
            name = self.answers.target.name
            yield f"{count} {label} compute with floats on integer weights: {name} is faster that way, at the same size"

    def _add_lookup(self, op: Op, spec: OpSpec, use: Use, draft: _Additions) -> str | None:
        """Add an op that returns entries of a table: it does so in integers, and a conversion follows."""
        if list(spec.read_activations(op)) != [use.tensor]:
            return "other data flow through it as well, in float"
        if any(t.dtype is not DType.FLOAT32 for t in op.outputs) or len(op.outputs) != 1:
            return "its output is not one tensor of floats"
        params = weight_params(use.data, None, DType.INT8.levels, use.tensor.name)
        draft.lookups[op] = Group((use, Held(op.outputs[0], DType.INT8)), params, fixed=True, symmetric=True)
        return None

    def _form(self, use: Use, spec: OpSpec, role: Weight, scheme: Scheme) -> Form:
        """Return one form for all tensors of the same bytes, shape, layout and scheme, in any graph."""
        data, levels, name = use.data, scheme.levels, use.tensor.name
        assert levels is not None
        axis = scale_axis(use.op, role, data.ndim, scheme)
        block = _block(use.op, spec, data, scheme)
        kept = self._kept(use, scheme)
        if kept is not None and (scheme.unpacked or _is_taken(kept, axis, block)):
            return kept if scheme.unpacked else replace(kept, dtype=levels.dtype)
        own = scheme if block else replace(scheme, granularity=PerChannel())
        spot = use.tensor.buffer, use.tensor.shape, axis, own, self.method
        if block is None and not scheme.asymmetric and self.ranges is not None and self.ranges.is_given(use.tensor):
            return given_weights(use.tensor, self.ranges.given.entries[self.ranges.keys[use.tensor]], axis, levels)
        if spot not in self.forms:
            if block is not None:
                self.forms[spot] = block_params(data, block, levels, self.method)
            elif scheme.asymmetric:
                self.forms[spot] = unpacked_params(data, axis, levels, name)
            else:
                self.forms[spot] = weight_params(data, axis, levels, name, self.method)
        return self.forms[spot]

    def share(self, plans: Sequence[Plan]) -> tuple[Plan, ...]:
        """Have every op that reads a constant with a packed form read that one, dequantized for it if necessary.

        So no float copy of a quantized constant remains, except for ops that a rule keeps in float.
        """
        forms: dict[Buffer | None, tuple[Form, Tensor]] = {}
        for plan in plans:
            for use, packed in plan.packed.items():
                forms.setdefault(use.tensor.buffer, (packed.form, use.tensor))
        return tuple(replace(plan, packed={**plan.packed, **dict(self._unpacked(plan, forms))}) for plan in plans)

    def _unpacked(self, plan: Plan, forms: Mapping[Buffer | None, tuple[Form, Tensor]]) -> Iterator[tuple[Use, Packed]]:
        kept = {repair.tensor for repair in plan.repairs if repair.code == "float16_precision"}
        for op in plan.graph.ops:
            rule = self.recipe.rule(op)
            if rule is not None and rule.scheme.label == "float":
                continue
            for use in _float_constants(op):
                if use.tensor.buffer not in forms or use in plan.packed or use in plan.wanted or use.tensor in kept:
                    continue
                form, first = forms[use.tensor.buffer]
                if _has_same_scales(form, first, use.tensor):
                    yield use, Packed(form, True)


def reuse_notes(before: Mapping[Tensor, Packed], plans: Iterable[Plan]) -> Iterator[str]:
    """Yield notes on what happens to constants that the file stored as integers."""
    kept: dict[Tensor, bool] = {}
    labels: dict[Tensor, str] = {}
    for plan in plans:
        for use in (use for op in plan.graph.ops for use in _float_constants(op) if use.tensor in before):
            old, new = before[use.tensor].form, plan.form(use)
            if isinstance(old, QuantParams):
                same = isinstance(new, QuantParams) and (new.scales, new.zero_points) == (old.scales, old.zero_points)
                kept[use.tensor] = kept.get(use.tensor, True) and same
                labels[use.tensor] = old.dtype.label
    for label, count in Counter(labels.values()).items():
        again = sum(not same for tensor, same in kept.items() if labels[tensor] == label)
        fate = f"{again} of them are rounded once more" if again else "they keep their integers"
        yield f"{count} {'constant is' if count == 1 else 'constants are'} {label} in the file already: {fate}"


@dataclass
class _Additions:
    packed: dict[Use, Packed]
    skipped: list[Skipped]
    repairs: list[Repair]
    lookups: dict[Op, Group] = field(default_factory=dict)


def _lost_in_half(values: Array, *, alone: bool) -> float | None:
    """Return the value with the largest loss in float16, if that is too much: of any `alone`, or of all together."""
    values = values[values != 0]
    errors = np.abs(values.astype(np.float16) - values)
    loses = bool((errors > HALF_LOSS * np.abs(values)).any()) if alone else _norm(errors) > HALF_LOSS * _norm(values)
    return float(values[np.argmax(errors / np.abs(values))]) if loses else None


def _norm(values: Array) -> float:
    return float(np.sqrt(np.square(values).sum()))


def _has_same_scales(form: Form, tensor: Tensor, other: Tensor) -> bool:
    """Whether the form of a tensor also fits another one of the same bytes, which may have another shape."""
    if tensor.shape == other.shape or isinstance(form, DType) or len(form.scales) == 1:
        return True
    return form.axis == 0 and tensor.shape[:1] == other.shape[:1]


def _is_taken(params: QuantParams, axis: int | None, block: int | None) -> bool:
    """Whether a hybrid kernel accepts weights with these parameters, given its axis or blocks."""
    return params.is_symmetric and params.axis in (None, axis) and params.block in (None, block)


def _float_constants(op: Op) -> Iterator[Use]:
    for slot, tensor in enumerate(op.inputs):
        if tensor is not None and tensor.dtype is DType.FLOAT32 and tensor.has_data and tensor.size:
            yield Use(op, slot)


def _nothing_held(op: Op, spec: OpSpec, largest: int, scheme: Scheme) -> str | None:
    """Return why an op keeps its constants, if that is worth reporting."""
    for tensor in spec.weight_tensors(op):
        if tensor.is_quantized:
            return f"its weights are {tensor.dtype.label} already"
        if tensor.dtype.is_float and tensor.data is None:
            return "its weights are not constant"
    if largest < max(1, scheme.min_elements):
        return None
    if scheme.unpacked:
        return "its constants are data, not weights"
    return f"LiteRT has no kernel for {op.label} with integer constants and float activations"


def _no_hybrid(op: Op, spec: OpSpec, held: Mapping[Use, Weight]) -> Iterator[str]:
    """Yield why the kernel cannot take the weights as integers."""
    if not spec.hybrid:
        yield f"LiteRT has no kernel for {op.label} with integer weights and float activations"
    if spec.macs is not None and op.inputs[0] is not None and not op.inputs[0].shape:
        yield "its input has no shape in the file, which LiteRT's delegate needs for integer weights"
    for slot, tensor in enumerate(op.inputs):
        if Use(op, slot) not in held and tensor is not None and isinstance(spec.input_role(slot), Weight):
            yield "its weights are not all constant floats, and the kernel wants them to be of one type"


def _block(op: Op, spec: OpSpec, data: Array, scheme: Scheme) -> int | None:
    """Return how many of these weights share a scale; None for per-channel scales, requested or not."""
    block = scheme.block
    if block is None or scheme.weights not in spec.kernels.blockwise or data.ndim != 2 or data.shape[1] % block:
        return None
    return block if fused_activation(op).name == "NONE" else None  # the kernel ignores that (LiteRT 2.3)
