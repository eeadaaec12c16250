"""What LiteRT's kernels assume without checking, from the rows of the op table: a model that violates it is not run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..dtypes import DType
from ..graph.check import RUNNABLE_INVARIANTS, refuse
from ..graph.model import Graph, Model, Op, Tensor
from .calls import CALLS, Passed
from .spec import OpSpec, Trait, Untouched, Weight, spec_of
from .table import CONVERSIONS, OPS, UNPACKING


def check_runnable(model: Model) -> None:
    """Raise InvalidModel if LiteRT would read memory that does not exist or was never filled."""
    found = (text for graph in model.graphs for text in _problems(graph))
    refuse(found, "; such a model can be inspected, but not run")


def _problems(graph: Graph) -> Iterator[str]:
    for invariant in RUNNABLE_INVARIANTS:
        yield from invariant(graph)
    for op in graph.ops:
        for op_invariant in OP_INVARIANTS:
            for text in op_invariant(op):
                yield f"{op.label} '{op.name}' {text}"


def has_operands(op: Op) -> Iterator[str]:
    """Every operand is present, except optional ones."""
    spec = OPS.get(op.kind)
    if op.kind in CONVERSIONS | UNPACKING:
        spec = OpSpec(op.kind, (Untouched(),))
    if spec is None:
        return
    count = max(len(spec.inputs), len(op.inputs)) if Trait.VARIADIC in spec.traits else len(spec.inputs)
    for slot in range(count):
        if not spec.is_optional(slot) and op.input(slot) is None:
            yield f"has no input {slot}"
    if spec.outputs and not op.outputs:
        yield "has no output"


def types_agree(op: Op) -> Iterator[str]:
    """Floats stay floats, and ops that only move data keep their type."""
    spec = OPS.get(op.kind)
    if spec is None or Trait.CASTS in spec.traits:
        return
    flowing = [t for t in (*spec.read_activations(op), *spec.made_activations(op)) if not _is_unpacked(t, spec)]
    if not flowing:
        return
    first, *others = flowing
    for other in others:
        differs = other.dtype is not first.dtype if spec.tied else other.dtype.is_float != first.dtype.is_float
        if differs:
            yield f"has both {first.dtype.label} '{first.name}' and {other.dtype.label} '{other.name}'"


def indices_are_whole(op: Op) -> Iterator[str]:
    """Indices, axes, shapes and booleans are not floats. Recurrent ops have biases and states in these slots."""
    spec = spec_of(op, OPS)
    if Trait.RECURRENT in spec.traits:
        return
    for roles, tensors in ((spec.inputs, op.inputs), (spec.outputs, op.outputs)):
        for role, tensor in zip(roles, tensors, strict=False):
            if isinstance(role, Untouched) and tensor is not None and tensor.dtype.is_float:
                yield f"has {tensor.dtype.label} '{tensor.name}' where indices or booleans belong"


def _is_unpacked(tensor: Tensor, spec: OpSpec) -> bool:
    """Whether a kernel itself converts a constant to float."""
    return tensor.is_constant and bool(spec.hybrid)


def channels_fit(op: Op) -> Iterator[str]:
    """A layer has one bias and one output channel for each output channel of its weights."""
    spec = spec_of(op, OPS)
    slot = spec.bias_slot
    if slot is None:
        return
    (place,) = spec.weight_slots
    weights, role = op.input(place), spec.inputs[place]
    if weights is None or not weights.is_constant or not isinstance(role, Weight) or role.axis is None:
        return
    if role.axis >= len(weights.shape):
        yield f"has weights '{weights.name}' of {len(weights.shape)} dimensions"
        return
    channels, bias = weights.shape[role.axis], op.input(slot)
    if bias is not None and bias.size != channels:
        yield f"has {bias.size} biases for {channels} channels"
    made = op.outputs[0].shape if op.outputs else ()
    if made and not _is_open_at_the_end(op.outputs[0]) and made[-1] != channels:
        yield f"has {channels} channels where its output has {made[-1]}"


def _is_open_at_the_end(tensor: Tensor) -> bool:
    return tensor.dynamic_shape[-1:] == (-1,)


def unpacks_in_shape(op: Op) -> Iterator[str]:
    """A dequantized or densified tensor has the shape of its source."""
    if op.kind in UNPACKING:
        for packed, made in zip(op.inputs[:1], op.outputs[:1], strict=False):
            if packed is not None and packed.is_constant and packed.shape != made.shape:
                yield f"makes {list(made.shape)} of {list(packed.shape)}"


def calls_fit(op: Op) -> Iterator[str]:
    """The graphs that an op calls take its inputs and return its outputs."""
    if op.kind in CALLS and None in op.inputs:
        yield "has an absent input"
    for call in CALLS.get(op.kind, ()):
        callee = op.option(call.option)
        if not isinstance(callee, Graph):
            yield "calls no graph"
            continue
        for what, passed, side, own in (
            ("inputs", call.takes, op.inputs, callee.inputs),
            ("outputs", call.gives, op.outputs, callee.outputs),
        ):
            wanted, found = _passed_types(passed, side), [t.dtype.label for t in own]
            if wanted != found:
                yield f"calls '{callee.name}', whose {what} are {_listed(found)} where {_listed(wanted)} belong"


def _passed_types(passed: Passed, side: list[Tensor | None] | list[Tensor]) -> list[str]:
    if passed is Passed.CONDITION:
        return [DType.BOOL.label]
    tensors = {Passed.NOTHING: side[:0], Passed.ALL: side, Passed.ALL_BUT_FIRST: side[1:]}[passed]
    return ["nothing" if t is None else t.dtype.label for t in tensors]


def _listed(types: list[str]) -> str:
    return f"[{', '.join(types)}]"


OP_INVARIANTS: tuple[Callable[[Op], Iterator[str]], ...] = (
    has_operands,
    types_agree,
    indices_are_whole,
    channels_fit,
    unpacks_in_shape,
    calls_fit,
)
