"""Match, solve and derive until every kernel's limits hold; the result is a Plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ..affine import QuantParams
from ..calibration import Grid
from ..dtypes import Array, DType
from ..errors import InvalidRecipe
from ..graph.model import Graph, Op, Tensor
from ..graph.query import Use, Uses
from ..improve.bias_correction import rounding_error
from ..improve.squant import balanced_weights
from ..ops import Activation, Bias, CellState, Coefficients, Need, OpSpec, OutputState, Rescale, Weight
from ..recipe import Effort, Recipe, Scheme
from .match import Matched, match
from .plan import Plan, Repair, Skipped
from .solve import Solution, Solver
from .tensor_ranges import TensorRanges
from .weights import fit_bias, scale_axis, state_params, weight_params

MOST_ROUNDS, WIDENING_ROUNDS = 20, 5
"""Each round widens a range or, later, gives up an op; few models need a second one."""

TOO_FINE = "its output's scale is too small beside those of its inputs for the kernel"


@dataclass(frozen=True)
class Interface:
    """Types of the graph's float inputs and outputs as callers see them."""

    input: DType = DType.FLOAT32
    output: DType = DType.FLOAT32


@dataclass
class _Draft:
    """A plan in the making."""

    stored: dict[Tensor, QuantParams] = field(default_factory=dict)
    wanted: dict[Use, QuantParams] = field(default_factory=dict)
    values: dict[Use, Array] = field(default_factory=dict)
    repairs: list[Repair] = field(default_factory=list)


@dataclass(frozen=True)
class Planner:
    """Plans one graph. Biases take back what rounding the weights does to the means, unless the effort is quick."""

    graph: Graph
    recipe: Recipe
    ops: Mapping[str, OpSpec]
    ranges: TensorRanges
    effort: Effort = "standard"

    def plan(self, interface: Interface) -> Plan:
        matched = match(self.graph, self.recipe, self.ops, self.ranges)
        self._limit_to_saturation(matched.schemes)
        widened: list[Repair] = []
        for attempt in range(MOST_ROUNDS):
            solution = Solver(self.graph, matched.schemes, self.ops, self.ranges).solve()
            draft = self._derive(matched.schemes, solution)
            refused = list(self._refusals(matched.schemes, solution))
            too_fine = list(self._too_fine(matched.schemes, solution, draft))
            if not refused and not too_fine:
                break
            if attempt < WIDENING_ROUNDS:
                widened += [self._widen(op, factor, solution) for op, factor in too_fine]
            else:  # the output's parameters are prescribed, or pull others along without end
                refused += [Skipped(op, TOO_FINE) for op, _ in too_fine]
            matched = _without(matched, refused)
        self._add_interface(draft, solution, interface)
        ops = self.graph.ops
        order = {op: k for k, op in enumerate(ops)}
        return Plan(
            self.graph,
            matched.schemes,
            {t: p for t, p in draft.stored.items() if t not in self.graph.inputs or interface.input != DType.FLOAT32},
            draft.wanted,
            {t: draft.stored[t] for t in self.graph.inputs if t in draft.stored},
            self._outputs(draft, interface),
            draft.values,
            limits={t: self.ranges.bounded[t] for t in self.graph.tensors if t in self.ranges.bounded},
            skipped=tuple(sorted(matched.skipped, key=lambda s: order[s.op])),
            repairs=tuple(dict.fromkeys((*widened, *draft.repairs))),
        )

    def _limit_to_saturation(self, schemes: Mapping[Op, Scheme]) -> None:
        """What only saturating integer ops read need not be told apart beyond their ends."""
        uses = Uses(self.graph)
        for tensor in self.graph.tensors:
            ends = []
            for use in uses.readers(tensor):
                dtype = schemes[use.op].activations if use.op in schemes else None
                ends.append(None if dtype is None else self.ops[use.op.kind].saturates.get(dtype))
            intervals = [e for e in ends if e is not None]
            if intervals and len(intervals) == len(ends) and not uses.is_output(tensor):
                self.ranges.limit(tensor, (min(low for low, _ in intervals), max(high for _, high in intervals)))

    def _derive(self, schemes: Mapping[Op, Scheme], solution: Solution) -> _Draft:
        """Forms of every tensor and use of the integer ops, weights and biases included."""
        draft = _Draft()
        for op, scheme in schemes.items():
            spec = self.ops[op.kind]
            dtype = scheme.activations
            assert dtype is not None
            for slot, tensor in enumerate(op.inputs):
                used = solution.used(op, slot)
                if tensor is not None and used is not None:
                    draft.wanted[Use(op, slot)] = used
            for tensor in op.outputs:
                held = solution.held(tensor, dtype)
                if held is not None:
                    draft.stored[tensor] = held
            self._derive_constants(op, scheme, spec, draft)
            self._derive_states(op, spec, draft)
        return draft

    def _derive_constants(self, op: Op, scheme: Scheme, spec: OpSpec, draft: _Draft) -> None:
        assert scheme.activations is not None
        assert scheme.weights is not None
        for slot, tensor in enumerate(op.inputs):
            role = spec.input_role(slot)
            if tensor is None or tensor.data is None:
                continue
            if isinstance(role, Weight):
                axis = scale_axis(op, role, tensor.data.ndim, scheme)
                trained = self.ranges.weights(tensor, axis, scheme.weights)
                params = trained or weight_params(tensor.data, axis, scheme.weights, tensor.name)
                draft.wanted[Use(op, slot)] = params
                if trained is None:
                    self._balance(op, spec, Use(op, slot), params, draft)
            elif isinstance(role, Coefficients):
                draft.wanted[Use(op, slot)] = weight_params(tensor.data, None, DType.INT16, tensor.name)
        for slot, tensor in enumerate(op.inputs):
            role = spec.input_role(slot)
            if tensor is None or tensor.data is None or not isinstance(role, Bias):
                continue
            data_use, weight_use = Use(op, role.of[0]), Use(op, role.of[1])
            if weight_use not in draft.wanted:  # coupled gates: the bias of a gate that is not there
                continue
            input_scale = draft.wanted[data_use].scale
            values = self._corrected(op, spec, slot, draft)
            fitted = fit_bias(draft.wanted[weight_use], values, input_scale, scheme.activations)
            draft.wanted[weight_use], draft.wanted[Use(op, slot)] = fitted.weights, fitted.bias
            if fitted.raised:
                channels = ", ".join(map(str, fitted.raised[:5])) + (" ..." if len(fitted.raised) > 5 else "")
                text = f"the bias would overflow its integers; raised the weights' scale of channel {channels}"
                draft.repairs.append(Repair(tensor, text))

    def _balance(self, op: Op, spec: OpSpec, use: Use, params: QuantParams, draft: _Draft) -> None:
        """With few bits, round the weights of layers so that errors cancel; with 8 there is little to cancel."""
        if params.dtype.bits >= 8 or spec.bias_slot is None or self.recipe.effort(op, self.effort) == "quick":
            return
        source = next(spec.read_activations(op), None)
        weights = op.inputs[use.slot]
        assert weights is not None
        assert weights.data is not None
        nonnegative = source is not None and self.ranges.bounds(source)[0] >= 0
        values = balanced_weights(op, spec.layout, weights.data, params, nonnegative=nonnegative)
        if values is not None:
            draft.values[use] = values

    def _corrected(self, op: Op, spec: OpSpec, slot: int, draft: _Draft) -> Array:
        """The bias at `slot`, corrected for the rounding of the weights where the means of the input are known."""
        tensor, role = op.inputs[slot], spec.inputs[slot]
        assert isinstance(role, Bias)
        assert tensor is not None
        assert tensor.data is not None
        source, weights = op.inputs[role.of[0]], op.inputs[role.of[1]]
        means = None if source is None else self.ranges.means(source)
        if self.recipe.effort(op, self.effort) == "quick":
            return tensor.data
        if slot != spec.bias_slot or means is None or weights is None or weights.data is None:
            return tensor.data
        weight_use = Use(op, role.of[1])
        made = draft.values.get(weight_use)
        error = rounding_error(weights.data, draft.wanted[weight_use]) if made is None else made - weights.data
        shift = None if spec.layout is None else spec.layout.mean_shift(op, error, means)
        if shift is None:
            return tensor.data
        draft.values[Use(op, slot)] = (tensor.data - shift.reshape(tensor.data.shape)).astype(np.float32)
        return draft.values[Use(op, slot)]

    def _derive_states(self, op: Op, spec: OpSpec, draft: _Draft) -> None:
        for slot, tensor in enumerate(op.inputs):
            role = spec.input_role(slot)
            if tensor is None:
                continue
            if isinstance(role, OutputState):
                draft.stored[tensor] = draft.stored[op.outputs[0]]
            elif isinstance(role, CellState):
                low, high = self.ranges.choose(tensor, "minmax", Grid(16, True))
                draft.stored[tensor] = state_params(low, high, role.least, role.greatest)
            else:
                continue
            draft.wanted[Use(op, slot)] = draft.stored[tensor]

    def _refusals(self, schemes: Mapping[Op, Scheme], solution: Solution) -> Iterator[Skipped]:
        """Ops whose operands came out such that the kernel could fail when it runs."""
        for op, scheme in schemes.items():
            if Need.NONNEGATIVE in self.ops[op.kind].needs and scheme.activations is DType.INT8:
                used = solution.used(op, 0)
                if used is not None and used.zero_point != DType.INT8.min:
                    yield Skipped(op, Need.NONNEGATIVE.value)

    def _too_fine(self, schemes: Mapping[Op, Scheme], solution: Solution, draft: _Draft) -> Iterator[tuple[Op, float]]:
        """Ops whose output scale is too small for the kernel, with the factor it has to grow by."""
        for op, scheme in schemes.items():
            spec = self.ops[op.kind]
            assert scheme.activations is not None
            held = solution.held(op.outputs[0], scheme.activations)
            if spec.rescale is Rescale.NONE or held is None:
                continue
            ratio = _numerator(op, spec, draft) / held.scale
            limit = spec.rescale_limit(scheme.activations)
            if ratio >= limit:
                yield op, 1.01 * ratio / limit

    def _widen(self, op: Op, factor: float, solution: Solution) -> Repair:
        tensor = op.outputs[0]
        held = next(p for node, p in solution.params.items() if not isinstance(node, Use) and node[0] is tensor)
        low, high = held.range()
        self.ranges.widened[tensor] = (low * factor, high * factor)
        return Repair(tensor, f"its range is {factor:.3g} times as wide as measured, as the kernel's limits demand")

    def _add_interface(self, draft: _Draft, solution: Solution, interface: Interface) -> None:
        for tensor in self.graph.inputs:
            if tensor.dtype is DType.FLOAT32 and interface.input is not DType.FLOAT32:
                draft.stored[tensor] = self._external(tensor, interface.input, solution, None)

    def _outputs(self, draft: _Draft, interface: Interface) -> dict[Tensor, QuantParams]:
        if interface.output is DType.FLOAT32:
            return {}
        outputs = [t for t in self.graph.outputs if t.dtype is DType.FLOAT32]
        for tensor in outputs:
            stored = draft.stored.get(tensor)
            if stored is not None and (stored.dtype, interface.output) == (DType.INT16, DType.UINT8):
                raise InvalidRecipe(
                    f"the output '{tensor.name}' is int16, and LiteRT has no kernel to convert that to uint8; "
                    "choose int8, int16 or float32"
                )
        return {t: self._external(t, interface.output, None, draft.stored.get(t)) for t in outputs}

    def _external(
        self, tensor: Tensor, dtype: DType, solution: Solution | None, stored: QuantParams | None
    ) -> QuantParams:
        """What a caller gives or gets: the inner form where types agree, so that no conversion is needed."""
        inner = DType.INT8 if dtype is DType.UINT8 else dtype
        held = stored if solution is None else solution.held(tensor, inner)
        if held is None or held.dtype is not inner:
            if self.ranges.knows(tensor):
                low, high = self.ranges.choose(tensor, None, Grid(inner.bits, inner is DType.INT16))
            elif Uses(self.graph).is_unused(tensor):
                low, high = 0.0, 0.0
            else:
                raise InvalidRecipe(f"'{tensor.name}' cannot be {dtype.label}: its range is not known")
            held = QuantParams.from_range(low, high, inner, symmetric=inner is DType.INT16, name=tensor.name)
        if dtype is DType.UINT8:
            return QuantParams(held.scales, (held.zero_point + 128,), DType.UINT8)
        return held


def _numerator(op: Op, spec: OpSpec, draft: _Draft) -> float:
    """The largest product or input scale that the kernel divides by the output's scale."""
    data = [
        draft.wanted[use]
        for slot in range(len(op.inputs))
        if isinstance(spec.input_role(slot), Activation | Weight) and (use := Use(op, slot)) in draft.wanted
    ]
    if spec.rescale is Rescale.PRODUCT:
        return max(data[0].scales) * max(data[1].scales)
    return max(max(p.scales) for p in data)


def _without(matched: Matched, refused: list[Skipped]) -> Matched:
    gone = {s.op for s in refused}
    return Matched({op: s for op, s in matched.schemes.items() if op not in gone}, (*matched.skipped, *refused))
