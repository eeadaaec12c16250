"""Derives the parameters of every tensor and use from groups and constants; the only place where that is done.

A plan that was just solved, one with refined weights and one with trained ranges differ in their groups' parameters and
their constants. What follows from these is the same: biases with the product of two scales, coarser weights where a
bias would not fit, and ranges as wide as the kernels' limits demand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..affine import SMALLEST_SCALE, QuantParams
from ..dtypes import DType
from ..graph.model import Op, Tensor
from ..graph.query import Use
from ..ops import Activation, Bias, CellState, Need, OpSpec, Rescale, Trait, Weight, fused_activation
from ..ops.interpolation import COARSE, interpolation_error
from .conversions import overflowing_errors, overflowing_uses
from .plan import Held, Node, Plan, Repair, Skipped
from .signs import never_negative
from .tensor_ranges import TensorRanges
from .weights import bias_use, fit_bias

MOST_WIDENINGS = 5
PRODUCTS_BELOW = 2.0**15
"""The optimized int8 kernel of MUL saturates products to 16 bits and then adds the zero point, which may wrap."""

ENDS_BELOW = 2.0**30
"""Kernels store the bounds of a fused activation, such as the 6 of ReLU6, as 32-bit integers."""

SUMS_BELOW = 2.0**31
LARGEST_PRODUCT = 255 * 127
"""Of an 8-bit activation, less its zero point, and an 8-bit weight."""

FEWEST_STEPS_OF_OUTPUT = 16
"""An op stays float if its output would have fewer steps than this for the measured range."""

FEWEST_IN_FIXED = {DType.INT8: 1, DType.UINT8: 1, DType.INT16: FEWEST_STEPS_OF_OUTPUT}
"""The same for outputs whose scale a kernel fixes. Whoever asks for 8 bits must expect steps of 1/256."""

BEYOND = 2.0
"""Results may exceed a range that a kernel fixes by at most this factor: more is clipping, not rounding."""

TOO_FINE = "its output's scale is too small for the kernel, compared with those of its inputs"
WRAPS = "LiteRT quantizes what it reads, and wraps beyond 2**31 steps: larger ones would leave nothing of it"


def derive(plan: Plan, ops: Mapping[str, OpSpec]) -> Plan:
    """Return `plan` with the `stored` and `wanted` parameters that follow from its groups and constants."""
    params = {node: group.params for group in plan.groups for node in group.nodes}
    made = {Held(t, s.activations) for op, s in plan.schemes.items() if s.activations for t in op.outputs}
    stored = {n.tensor: p for n, p in params.items() if isinstance(n, Held) and (n in made or n.tensor.is_variable)}
    wanted = {use: p for use, p in params.items() if isinstance(use, Use)} | dict(plan.constants.grids)
    repairs = _with_biases(plan, stored, wanted, ops)
    kept = [r for r in plan.repairs if r.code != "bias_overflow"]
    return replace(
        plan,
        stored={**stored, **plan.received, **plan.inputs},
        wanted=wanted,
        repairs=tuple(dict.fromkeys(kept + repairs)),
    )


def _with_biases(
    plan: Plan, stored: Mapping[Tensor, QuantParams], wanted: dict[Use, QuantParams], ops: Mapping[str, OpSpec]
) -> list[Repair]:
    """Add the parameters of biases to `wanted`, with coarser weights where they would overflow; return these
    repairs."""
    repairs = []
    for op in plan.schemes:
        wanted |= {use: _behind_gain(wanted[gain]) for use, gain in normalized_biases(op, ops[op.kind])}
        for use, data, weights in biases(op, ops[op.kind]):
            values = plan.constants.at(use)
            if values is None or weights not in wanted:  # coupled gates have no weights for one gate
                continue
            fitted = fit_bias(wanted[weights], values, wanted[data], stored[op.outputs[0]], plan.bias_limit)
            wanted[weights], wanted[use], raised = fitted
            if raised:
                repairs.append(_coarser_weights(use.tensor, raised))
    return repairs


def biases(op: Op, spec: OpSpec) -> Iterator[tuple[Use, Use, Use]]:
    """Yield the uses of the op's biases, each with the data and the weights whose products it is added to."""
    for slot, tensor in enumerate(op.inputs):
        role = spec.input_role(slot)
        if tensor is not None and isinstance(role, Bias) and _gain(op, role) is None:
            yield Use(op, slot), Use(op, role.of[0]), Use(op, role.of[1])


def normalized_biases(op: Op, spec: OpSpec) -> Iterator[tuple[Use, Use]]:
    """Yield the uses of biases that are added after a layer normalization, each with the gain of that."""
    for slot, tensor in enumerate(op.inputs):
        role = spec.input_role(slot)
        if tensor is not None and isinstance(role, Bias) and (gain := _gain(op, role)) is not None:
            yield Use(op, slot), gain


def _gain(op: Op, role: Bias) -> Use | None:
    return None if role.gain is None or op.input(role.gain) is None else Use(op, role.gain)


def _behind_gain(gain: QuantParams) -> QuantParams:
    """Return the parameters of a bias after layer normalization: the kernel has ten fractional bits in what it
    multiplies by the gain."""
    return QuantParams((gain.scale * 2.0**-10,), (0,), DType.INT32)


def settle(plan: Plan, ops: Mapping[str, OpSpec]) -> tuple[Plan, tuple[Skipped, ...]]:
    """Derive, and widen ranges until the limits of all kernels are met; return also the ops for which that does not
    help."""
    for _ in range(MOST_WIDENINGS):
        plan = derive(plan, ops)
        too_fine = list(_too_fine(plan, ops))
        refused = (*_refusals(plan, ops), *(found.skipped() for found in too_fine if found.is_lost()))
        if refused or not too_fine:
            return plan, refused
        groups = {node: k for k, group in enumerate(plan.groups) for node in group.nodes}
        widest = dict[int, _TooFine]()  # by group: several ops may demand the same
        for found in sorted(too_fine, key=lambda f: f.factor):
            widest[groups[found.node]] = found
        changed, repairs = list(plan.groups), []
        for group, found in widest.items():
            if changed[group].fixed:
                continue
            changed[group] = changed[group].widened(found.factor)
            text = f"its range is {found.factor:.3g} times as wide as measured, as the kernel's limits demand"
            repairs.append(Repair(found.node.tensor, text, "widened"))
        if not repairs:
            break
        plan = replace(plan, groups=tuple(changed), repairs=(*plan.repairs, *repairs))
    return plan, tuple(found.skipped() for found in _too_fine(plan, ops))


def _refusals(plan: Plan, ops: Mapping[str, OpSpec]) -> Iterator[Skipped]:
    """Yield ops whose operands have parameters with which the kernel could fail at run time, or compute something
    else."""
    yield from (Skipped(op, Need.NONNEGATIVE.value, "need") for op in _given_negatives(plan, ops))
    for op, scheme in plan.schemes.items():
        spec = ops[op.kind]
        assert scheme.activations is not None
        reason = next(_wrong_scales(op, spec, scheme.activations, plan), None)
        if reason is not None:
            yield Skipped(op, reason, "scale")


def _wrong_scales(op: Op, spec: OpSpec, dtype: DType, plan: Plan) -> Iterator[str]:
    """Yield reasons why the kernel does not compute correctly with these scales."""
    least, limit = spec.input_scales.get(dtype, (0.0, math.inf))
    for slot in range(len(op.inputs)):
        role, used = spec.input_role(slot), plan.wanted.get(Use(op, slot))
        if isinstance(role, Activation) and used is not None and not least <= used.scale < limit:
            taken = f"its {dtype.label} kernel takes input scales from {least:.3g} to {limit:.3g}"
            yield f"{taken}, and that of '{Use(op, slot).tensor.name}' is {used.scale:.3g}"
        if isinstance(role, CellState) and 4 * plan.stored[op.outputs[0]].scale < 2.0**role.least:
            yield f"its state has steps of at least {2.0**role.least:.3g}, far coarser than those of its output"
    if spec.tied and any(end >= plan.stored[op.outputs[0]].scale * ENDS_BELOW for end in _clamps(op)):
        yield f"the ends of its fused {fused_activation(op).name} do not fit into 32 bits in its output's scale"
    yield from _wrong_factors(op, spec, dtype, plan)


def _wrong_factors(op: Op, spec: OpSpec, dtype: DType, plan: Plan) -> Iterator[str]:
    """Yield reasons why the kernel cannot hold the factor between the scales of its inputs and of its output."""
    if spec.rescale is Rescale.ROOT and _root(op, plan) >= spec.rescale_limit(dtype):
        yield "its output's scale is too large for the kernel, compared with that of its input"
    read = [plan.wanted[use] for slot in range(len(op.inputs)) if (use := Use(op, slot)) in plan.wanted]
    if spec.rescale is Rescale.PRODUCT and not spec.weight_slots and read[0].scale * read[1].scale < SMALLEST_SCALE:
        yield "its kernel multiplies the scales of its inputs, and float32 holds nothing as small as that exactly"


def _root(op: Op, plan: Plan) -> float:
    return math.sqrt(plan.wanted[Use(op, 0)].scale) * plan.stored[op.outputs[0]].scale


def _given_negatives(plan: Plan, ops: Mapping[str, OpSpec]) -> list[Op]:
    """Return ops that fail on negative numbers and have integers for them, which the graph does not rule out. What the
    graph is given in 16 bits is up to its callers."""
    found = []
    for op in (op for op in plan.schemes if Need.NONNEGATIVE in ops[op.kind].kernels.needs):
        params, is_input = plan.wanted.get(Use(op, 0)), Use(op, 0).tensor in plan.graph.inputs
        if params is not None and params.zero_point != params.dtype.min:
            found += [] if is_input and params.dtype is DType.INT16 else [op]
    never = never_negative(plan.graph, ops) if found else set()
    return [op for op in found if Use(op, 0).tensor not in never]


def unfit_outputs(plan: Plan, ops: Mapping[str, OpSpec], ranges: TensorRanges) -> Iterator[Skipped]:
    """Yield ops whose kernels fix an output scale that is too coarse for all of their results (a sigmoid of numbers
    below -11, for example), or a range that ends long before them (log-probabilities far below -16)."""
    for op, scheme in plan.schemes.items():
        dtype = scheme.activations
        fixed = None if dtype is None else ops[op.kind].fixed.get(dtype)
        if dtype is None or fixed is None or not ranges.knows(op.outputs[0]):
            continue
        furthest, fewest = max(map(abs, ranges.bounds(op.outputs[0]))), FEWEST_IN_FIXED[dtype]
        if 0 < furthest < fewest * fixed.scale:
            reason = f"its kernel makes steps of {fixed.scale:.3g}, and its results reach no more than {furthest:.3g}"
            yield Skipped(op, reason, "scale")
        measured, end = ranges.measured(op.outputs[0]), max(map(abs, plan.stored[op.outputs[0]].range()))
        greatest = 0.0 if measured is None else max(-measured.low.value, measured.high.value)
        if greatest > BEYOND * end:
            yield Skipped(op, f"its kernel makes numbers up to {end:.3g}, and results go to {greatest:.3g}", "scale")


def wrapped_errors(plan: Plan, ops: Mapping[str, OpSpec], ranges: TensorRanges) -> Iterator[Skipped]:
    """Yield ops that read floats with errors so large that LiteRT may wrap them when it quantizes them."""
    found = {use.op for use in overflowing_errors(plan, ops, ranges)}
    return (Skipped(op, WRAPS, "scale") for op in plan.schemes if op in found)


def overflowing_sums(plan: Plan, ops: Mapping[str, OpSpec], ranges: TensorRanges) -> Iterator[Skipped]:
    """Yield layers with so many weights per output that sums of their 8-bit products may exceed 32 bits."""
    for op, scheme in plan.schemes.items():
        layout = ops[op.kind].layout
        tensor = None if layout is None or scheme.activations is not DType.INT8 else op.inputs[layout.weights]
        if layout is None or tensor is None or tensor.data is None or tensor.size * LARGEST_PRODUCT < SUMS_BELOW:
            continue
        matrix = layout.matrix(op, tensor.data)
        terms = matrix.shape[-1]
        if terms * LARGEST_PRODUCT < SUMS_BELOW or not ranges.knows(op.outputs[0]):
            continue
        read, weights = plan.wanted[Use(op, layout.data)], plan.wanted[Use(op, layout.weights)]
        possible = np.abs(matrix).sum(axis=-1).ravel() * (read.dtype.max - read.dtype.min)
        seen = max(map(abs, ranges.bounds(op.outputs[0]))) / read.scale
        if np.any(np.minimum(possible, seen) / np.asarray(weights.scales) >= SUMS_BELOW):
            yield Skipped(op, f"its kernel sums {terms:,} products in 32 bits, which may overflow", "scale")


def coarse_tables(plan: Plan, ops: Mapping[str, OpSpec], ranges: TensorRanges) -> Iterator[Skipped]:
    """Yield ops whose int16 kernels interpolate a function between points that are too far apart for their inputs.

    The inputs are all measured values that the integers can represent, even where they do not matter later.
    """
    for op, scheme in plan.schemes.items():
        interpolated = ops[op.kind].interpolated
        if interpolated is None or scheme.activations is not DType.INT16:
            continue
        if ranges.bounds(op.outputs[0]) == (0.0, 0.0):
            yield Skipped(op, "it only ever made zeros, and its int16 kernel is not exact", "scale")
            continue
        read, made = plan.wanted[Use(op, 0)], plan.stored[op.outputs[0]]
        least, greatest = read.range()
        seen = [min(max(end, least), greatest) for end in ranges.bounds(Use(op, 0).tensor)]
        if interpolation_error(interpolated(op), (seen[0], seen[1]), read, made) > COARSE:
            yield Skipped(op, "its int16 kernel interpolates between 513 points that are too far apart here", "scale")


def _coarser_weights(bias: Tensor, channels: Sequence[int]) -> Repair:
    listed = ", ".join(map(str, channels[:5])) + (" ..." if len(channels) > 5 else "")
    text = f"the bias would overflow its integers; raised the weights' scale of channel {listed}"
    return Repair(bias, text, "bias_overflow")


@dataclass(frozen=True)
class _TooFine:
    """An output whose scale is too small for its kernel, or a use whose scale is too small for the conversion to it,
    with the factor by which it must grow."""

    op: Op
    node: Node
    bits: int
    factor: float
    is_noise: bool

    def is_lost(self) -> bool:
        """Whether hardly a step would remain for its values, and these are not noise anyway."""
        return not self.is_noise and self.factor * FEWEST_STEPS_OF_OUTPUT > 2.0**self.bits

    def skipped(self) -> Skipped:
        return Skipped(self.op, WRAPS if isinstance(self.node, Use) else TOO_FINE, "scale")


def _too_fine(plan: Plan, ops: Mapping[str, OpSpec]) -> Iterator[_TooFine]:
    for op, scheme in plan.schemes.items():
        spec, dtype, held = ops[op.kind], scheme.activations, plan.stored.get(op.outputs[0]) if op.outputs else None
        if held is None or dtype is None or spec.rescale in (Rescale.NONE, Rescale.ROOT):
            continue
        excess = _excess(op, spec, plan.wanted, held)
        if excess >= 1:
            # What layers with weights make of so little; unless it is little because a ReLU6 clamps it.
            is_noise = bool(spec.weight_slots) and not any(_clamps(op))
            yield _TooFine(op, Held(op.outputs[0], dtype), dtype.bits, 1.01 * excess, is_noise)
    for found in overflowing_uses(plan, ops):
        if found.use.op in plan.schemes:  # otherwise both graphs have agreed on the scale
            yield _TooFine(found.use.op, found.use, plan.wanted[found.use].dtype.bits, found.factor, found.is_noise)


def _excess(op: Op, spec: OpSpec, wanted: Mapping[Use, QuantParams], held: QuantParams) -> float:
    """Return by which factor the output's scale is too small; below 1 if it is large enough."""
    uses = [Use(op, k) for k in range(len(op.inputs)) if isinstance(spec.input_role(k), Activation | Weight)]
    read = [wanted[use] for use in uses if use in wanted]
    excess = _numerator(spec.rescale, [max(p.scales) for p in read]) / (held.scale * spec.rescale_limit(held.dtype))
    if Trait.MULTIPLIES in spec.traits and held.dtype.bits == 8:
        excess = max(excess, _product_excess(read, held))
    own = spec.saturates.get(held.dtype) if spec.rescale is Rescale.RATIO and not fused_activation(op).bounds else None
    furthest = max([*_clamps(op), *(abs(end) for end in own or () if math.isfinite(end))], default=0.0)
    return max(excess, _sum_excess(op, spec, wanted, held), furthest / (held.scale * ENDS_BELOW))


def _clamps(op: Op) -> list[float]:
    """Return how far from zero the ends are at which the fused activation clamps."""
    return [abs(end) for end in fused_activation(op).bounds or () if math.isfinite(end)]


def _product_excess(read: Sequence[QuantParams], held: QuantParams) -> float:
    products = [x * y for x in read[0].range() for y in read[1].range()]
    furthest = max(products) if held.zero_point > 0 else -min(products)
    return furthest / held.scale / (PRODUCTS_BELOW - abs(held.zero_point))


def _sum_excess(op: Op, spec: OpSpec, wanted: Mapping[Use, QuantParams], held: QuantParams) -> float:
    """Return the excess due to the largest sums of a layer: results of int16 kernels pass through 32 bits before an
    activation clamps them."""
    if held.dtype is not DType.INT16 or not fused_activation(op).bounds or not spec.weight_slots:
        return 0.0
    weights, bias = Use(op, spec.weight_slots[0]), bias_use(op, spec)
    most = 0.0 if bias is None or bias.tensor.data is None else float(np.abs(bias.data).max(initial=0.0))
    if weights in wanted and weights.tensor.data is not None:
        read = [wanted[use] for k in range(len(op.inputs)) if (use := Use(op, k)) in wanted and use != weights]
        furthest = max(
            (abs(end) for params in read if params.dtype is held.dtype for end in params.range()), default=0.0
        )
        rows = np.moveaxis(np.abs(weights.tensor.data), wanted[weights].axis or 0, 0)
        most += furthest * float(rows.reshape(len(rows), -1).sum(axis=1, dtype=np.float64).max(initial=0.0))
    return most / held.scale / ENDS_BELOW


def _numerator(rescale: Rescale, scales: Sequence[float]) -> float:
    """Return what the kernel divides by the output's scale."""
    if rescale is Rescale.PRODUCT:
        return scales[0] * scales[1]
    if rescale is Rescale.SQUARE:
        return max(scales) ** 2
    return scales[0] if rescale is Rescale.RATIO else max(scales)
