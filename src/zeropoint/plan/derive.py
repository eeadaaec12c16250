"""From groups and constants to the parameters of every tensor and use; the only place where that is done.

A plan that was just solved, one with refined weights and one with what training learned differ in their groups'
parameters and in their constants. What follows from these is the same: biases with the product of two scales, weights
that are coarser where a bias would not fit, and ranges as wide as the kernels' limits demand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..affine import QuantParams
from ..calibration import Grid
from ..dtypes import DType
from ..errors import InvalidRecipe
from ..graph.model import Op, Tensor
from ..graph.query import Use, Uses
from ..ops import Activation, Bias, Need, OpSpec, Rescale, Weight
from .plan import Held, Node, Plan, Repair, Skipped
from .tensor_ranges import TensorRanges
from .weights import fit_bias

MOST_WIDENINGS = 5
TOO_FINE = "its output's scale is too small beside those of its inputs for the kernel"


def derive(plan: Plan, ops: Mapping[str, OpSpec]) -> Plan:
    """`plan` with the `stored` and `wanted` that follow from its groups and constants."""
    params = {node: group.params for group in plan.groups for node in group.nodes}
    made = {Held(t, s.activations) for op, s in plan.schemes.items() if s.activations for t in op.outputs}
    stored = {n.tensor: p for n, p in params.items() if isinstance(n, Held) and (n in made or n.tensor.is_variable)}
    wanted = {use: p for use, p in params.items() if isinstance(use, Use)} | dict(plan.constants.grids)
    repairs = []
    for op, scheme in plan.schemes.items():
        for use, data, weights in _biases(op, ops[op.kind]):
            values = plan.constants.at(use)
            if values is None or weights not in wanted:  # coupled gates lack some weights
                continue
            assert scheme.activations is not None
            fitted = fit_bias(wanted[weights], values, wanted[data].scale, scheme.activations, plan.bias_limit)
            wanted[weights], wanted[use], raised = fitted
            if raised:
                channels = ", ".join(map(str, raised[:5])) + (" ..." if len(raised) > 5 else "")
                text = f"the bias would overflow its integers; raised the weights' scale of channel {channels}"
                repairs.append(Repair(use.tensor, text, "bias_overflow"))
    kept = [r for r in plan.repairs if r.code != "bias_overflow"]
    return replace(plan, stored={**stored, **plan.inputs}, wanted=wanted, repairs=tuple(dict.fromkeys(kept + repairs)))


def _biases(op: Op, spec: OpSpec) -> Iterator[tuple[Use, Use, Use]]:
    """Where the op reads biases, each with the data and the weights whose products it is added to."""
    for slot, tensor in enumerate(op.inputs):
        role = spec.input_role(slot)
        if tensor is not None and isinstance(role, Bias):
            yield Use(op, slot), Use(op, role.of[0]), Use(op, role.of[1])


def settle(plan: Plan, ops: Mapping[str, OpSpec]) -> tuple[Plan, tuple[Skipped, ...]]:
    """Derive, and widen ranges until the limits of all kernels hold; the ops for which that is of no use."""
    for _ in range(MOST_WIDENINGS):
        plan = derive(plan, ops)
        refused = tuple(_refusals(plan, ops))
        too_fine = list(_too_fine(plan, ops))
        if refused or not too_fine:
            return plan, refused
        groups = {node: k for k, group in enumerate(plan.groups) for node in group.nodes}
        changed, repairs = list(plan.groups), []
        for node, factor in too_fine:
            if changed[groups[node]].fixed:
                continue
            changed[groups[node]] = changed[groups[node]].widened(factor)
            text = f"its range is {factor:.3g} times as wide as measured, as the kernel's limits demand"
            repairs.append(Repair(node.tensor, text, "widened"))
        if not repairs:
            break
        plan = replace(plan, groups=tuple(changed), repairs=(*plan.repairs, *repairs))
    makers = Uses(plan.graph)
    stuck = [makers.producer(node.tensor) for node, _ in _too_fine(plan, ops)]
    return plan, tuple(Skipped(op, TOO_FINE, "scale") for op in stuck if op is not None)


def _refusals(plan: Plan, ops: Mapping[str, OpSpec]) -> Iterator[Skipped]:
    """Ops whose operands came out such that the kernel could fail when it runs."""
    for op, scheme in plan.schemes.items():
        if Need.NONNEGATIVE in ops[op.kind].kernels.needs and scheme.activations is DType.INT8:
            used = plan.wanted.get(Use(op, 0))
            if used is not None and used.zero_point != DType.INT8.min:
                yield Skipped(op, Need.NONNEGATIVE.value, "need")


def _too_fine(plan: Plan, ops: Mapping[str, OpSpec]) -> Iterator[tuple[Node, float]]:
    """Outputs whose scale is too small for the kernel that makes them, with the factor it has to grow by."""
    for op, scheme in plan.schemes.items():
        spec = ops[op.kind]
        held = plan.stored.get(op.outputs[0]) if op.outputs else None
        if spec.rescale is Rescale.NONE or held is None or scheme.activations is None:
            continue
        limit = spec.rescale_limit(scheme.activations)
        ratio = _numerator(op, spec, plan.wanted) / held.scale
        if ratio >= limit:
            yield Held(op.outputs[0], scheme.activations), 1.01 * ratio / limit


def _numerator(op: Op, spec: OpSpec, wanted: Mapping[Use, QuantParams]) -> float:
    """The largest product or input scale that the kernel divides by the output's scale."""
    operands = [Use(op, k) for k in range(len(op.inputs)) if isinstance(spec.input_role(k), Activation | Weight)]
    scales = [max(wanted[use].scales) for use in operands if use in wanted]
    return scales[0] * scales[1] if spec.rescale is Rescale.PRODUCT else max(scales)


# What callers see.


@dataclass(frozen=True)
class Interface:
    """Types of the graph's float inputs and outputs as callers see them."""

    input: DType = DType.FLOAT32
    output: DType = DType.FLOAT32


def with_interface(plan: Plan, interface: Interface, ranges: TensorRanges | None = None) -> Plan:
    """`plan` with these types for callers. `ranges` tell the parameters of what the graph itself has in float."""
    stored, outputs = dict(plan.stored), {}
    if interface.input is not DType.FLOAT32:
        inner = _inner(interface.input)
        for tensor in _floats(plan.graph.inputs):
            stored[tensor] = _external(plan, tensor, interface.input, plan.params(Held(tensor, inner)), ranges)
    if interface.output is not DType.FLOAT32:
        for tensor in _floats(plan.graph.outputs):
            held = stored.get(tensor)
            if held is not None and (held.dtype, interface.output) == (DType.INT16, DType.UINT8):
                raise InvalidRecipe(
                    f"the output '{tensor.name}' is int16, and LiteRT has no kernel to convert that to uint8; "
                    "choose int8, int16 or float32"
                )
            outputs[tensor] = _external(plan, tensor, interface.output, held, ranges)
    inputs = {t: stored[t] for t in plan.graph.inputs if t in stored}
    return replace(plan, stored=stored, inputs=inputs, outputs=outputs)


def _floats(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t for t in tensors if t.dtype is DType.FLOAT32]


def _inner(dtype: DType) -> DType:
    return DType.INT8 if dtype is DType.UINT8 else dtype


def _external(
    plan: Plan, tensor: Tensor, dtype: DType, held: QuantParams | None, ranges: TensorRanges | None
) -> QuantParams:
    """What a caller gives or gets: what the graph has where types agree, so that no conversion is needed."""
    inner = _inner(dtype)
    if held is None or held.dtype is not inner:
        if ranges is not None and ranges.knows(tensor):
            low, high = ranges.choose(tensor, None, Grid(inner.bits, inner is DType.INT16))
        elif Uses(plan.graph).is_unused(tensor):
            low, high = 0.0, 0.0
        else:
            raise InvalidRecipe(f"'{tensor.name}' cannot be {dtype.label}: its range is not known")
        held = QuantParams.from_range(low, high, inner, symmetric=inner is DType.INT16, name=tensor.name)
    if dtype is DType.UINT8:
        return QuantParams(held.scales, (held.zero_point + 128,), DType.UINT8)
    return held
