"""What callers see of a graph: the types of its inputs and outputs, and the parameters of integers there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ..affine import QuantParams
from ..calibration import Grid
from ..display import counted
from ..dtypes import DType
from ..errors import InvalidRecipe, argument
from ..graph.model import Tensor
from ..graph.query import Uses
from ..ops import OpSpec
from ..ops.states import returned_states
from .match import reads_only_shape
from .plan import Held, Plan
from .request import Interface
from .tensor_ranges import TensorRanges

States = Sequence[tuple[Tensor, Tensor]]
"""Inputs that callers fill with an output of the previous run, each with that output."""


def with_interface(
    plan: Plan, interface: Interface, ranges: TensorRanges | None = None, wide: Collection[Tensor] = ()
) -> Plan:
    """Return `plan` with these types for callers, and int16 for the tensors in `wide`. `ranges` give the parameters of
    tensors that the graph itself has in float."""
    stored, outputs = dict(plan.stored), {}
    if interface.input is not DType.FLOAT32:
        for tensor in _floats(plan.graph.inputs):
            dtype = DType.INT16 if tensor in wide else interface.input
            stored[tensor] = _external(plan, tensor, dtype, plan.params(Held(tensor, _inner(plan, dtype))), ranges)
    if interface.output is not DType.FLOAT32:
        for tensor in _floats(plan.graph.outputs):
            dtype = DType.INT16 if tensor in wide else interface.output
            outputs[tensor] = _external(plan, tensor, dtype, stored.get(tensor), ranges)
    inputs = {t: stored[t] for t in plan.graph.inputs if t in stored}
    return replace(plan, stored=stored, inputs=inputs, outputs=outputs)


def with_one_scale(plan: Plan, states: States) -> Plan:
    """Return `plan` with the same parameters for outputs that callers feed back and the inputs that they fill."""
    tied = {b: plan.inputs[a] for a, b in states if a in plan.inputs and b in plan.outputs}
    return replace(plan, outputs={t: tied.get(t, p) for t, p in plan.outputs.items()})


def wide_states(plan: Plan, interface: Interface, states: States, ops: Mapping[str, OpSpec]) -> set[Tensor]:
    """Return both ends of states that the graph produces or reads in more than 8 bits.

    Callers only feed a state back, whatever its type. With 8 bits at the ends, every run would lose the additional
    precision.
    """
    uses, found = Uses(plan.graph), set[Tensor]()
    for source, result in states if interface.is_narrow else ():
        read = [plan.wanted.get(use) for use in uses.readers(source) if not reads_only_shape(use, ops)]
        if any(p is None or p.dtype.bits > 8 for p in (*read, plan.stored.get(result))):
            found |= {source, result}
    return found


def state_notes(plans: Iterable[Plan], interface: Interface, ops: Mapping[str, OpSpec]) -> Iterator[str]:
    """Yield notes on inputs that are states, or look like states, and that the model itself has in more than 8 bits."""
    for plan in plans if interface.is_narrow else ():
        given = [t for t, params in plan.inputs.items() if params.dtype is DType.INT16]
        guessed = [t for t, _ in returned_states(plan.graph)]
        lost = [t for t in guessed if t in wide_states(plan, interface, returned_states(plan.graph), ops)]
        if given:
            yield (
                f"{counted(len(given), 'state')} ({_listed(given)}) and the outputs that come back there are int16 for "
                "callers: the model has them in more than 8 bits, which every run would lose"
            )
        elif lost:
            yield (
                f"{counted(len(lost), 'input')} ({_listed(lost)}) may be a state, as an output is like it; the model "
                f"has more than 8 bits there. If that output comes back, say so ({argument('sequence', 'IN=OUT')}): "
                "both ends then get 16 bits and one scale"
            )


def _listed(tensors: Sequence[Tensor]) -> str:
    return ", ".join(f"'{t.name}'" for t in tensors)


def _floats(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t for t in tensors if t.dtype is DType.FLOAT32]


def _inner(plan: Plan, dtype: DType) -> DType:
    """Return the type in which the graph computes if callers pass or receive `dtype`."""
    is_unsigned = any(scheme.activations is DType.UINT8 for scheme in plan.schemes.values())
    return DType.INT8 if dtype is DType.UINT8 and not is_unsigned else dtype


def _external(
    plan: Plan, tensor: Tensor, dtype: DType, held: QuantParams | None, ranges: TensorRanges | None
) -> QuantParams:
    """Return the parameters that callers see: those of the graph if types agree, so that no conversion is needed."""
    inner = _inner(plan, dtype)
    if held is None or held.dtype is not inner:
        if ranges is not None and ranges.knows(tensor):
            low, high = ranges.choose(tensor, None, Grid(inner.bits, inner is DType.INT16))
        elif Uses(plan.graph).is_unused(tensor):
            low, high = 0.0, 0.0
        else:
            raise InvalidRecipe(f"'{tensor.name}' cannot be {dtype.label}: its range is not known")
        held = QuantParams.from_range(low, high, inner, symmetric=inner is DType.INT16, name=tensor.name)
    if held.dtype is not dtype:
        return QuantParams(held.scales, (held.zero_point + 128,), DType.UINT8)
    return held
