"""Bias correction: rounding the weights shifts the mean of every output channel; the bias compensates for the shift.

With weights W rounded to W + dW, an output channel's mean moves by sum(dW * E[x]) over the weights of that channel,
where E[x] is the mean of the input channel that each weight is multiplied by, as recorded by calibration
(`Layout.mean_shift`). Before that, low-bit weights are rounded so that the errors of a channel cancel (`squant`).
Nothing is run.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ..affine import QuantParams
from ..dtypes import Array
from ..graph.model import Tensor
from ..graph.query import Use
from ..plan.derive import derive
from ..plan.plan import Form, Plan, Planned, form_type
from ..plan.planner import plan_model
from ..plan.prepared import Prepared, ranges_of
from ..plan.request import Request
from ..plan.rewrite import EncodedAs, Encoder, rounded
from ..plan.tensor_ranges import TensorRanges
from ..plan.weights import bias_use
from .squant import balanced_weights, nonnegative_tensors

NARROW = 8
"""Weights of integer layers are balanced below this many bits: with 8 there is little to cancel."""


def plan_and_correct(prepared: Prepared, request: Request) -> Planned:
    """Plan a prepared model, with better weights and biases for ops with more than quick effort."""
    ranges = ranges_of(prepared, request)
    planned = plan_model(prepared, request, ranges)
    corrections = _Corrections(request, ranges, prepared.shifts, Encoder(prepared.integers))
    return replace(planned, plans=tuple(map(corrections.plan, planned.plans)))


@dataclass
class _Corrections:
    """Corrects weights and biases. `shifts` are those found by other candidates of the same model with the same
    statistics; `encoder` has the integers of its constants."""

    request: Request
    ranges: TensorRanges
    shifts: dict[tuple[Use, Form], Array | None]
    encoder: Encoder
    _balanced: dict[tuple[EncodedAs, bool], tuple[str, Array] | None] = field(default_factory=dict)

    def plan(self, plan: Plan) -> Plan:
        held: dict[Use, Form] = {use: plan.wanted[use] for use in plan.constants.grids}
        held |= {use: packed.form for use, packed in plan.packed.items()}
        layers = {use: form for use, form in held.items() if self._is_layer(use)}
        if not layers:
            return plan
        values, keys = dict(plan.constants.values), dict(plan.constants.keys)
        positive = nonnegative_tensors(plan.graph, self.request.ops)
        readers: dict[EncodedAs, list[Use]] = {}
        for use, form in held.items():
            readers.setdefault((use.tensor.buffer, form, use.tensor.shape), []).append(use)
        for uses in readers.values():
            layer = next((use for use in uses if use in layers), None)
            found = None if layer is None else self._weights(plan, layer, layers[layer], positive)
            if found is not None:
                values[found[0]] = found[1]
                keys.update(dict.fromkeys(uses, found[0]))
        for use, form in layers.items():
            bias = bias_use(use.op, self.request.ops[use.op.kind])
            if bias is None or bias.tensor.data is None:
                continue
            shift = self._shift(use, form, values[keys[use]] if use in keys else None)
            if shift is not None:
                keys[bias] = plan.key(bias)
                values[keys[bias]] = (bias.data - shift.reshape(bias.data.shape)).astype(np.float32)
        return derive(replace(plan, constants=replace(plan.constants, values=values, keys=keys)), self.request.ops)

    def _is_layer(self, use: Use) -> bool:
        """Whether these are the weights, and not some other constant, of a layer that takes one bias."""
        spec = self.request.ops.get(use.op.kind)
        if spec is None or self.request.recipe.effort(use.op, self.request.effort) == "quick":
            return False
        return spec.bias_slot is not None and use.slot in spec.weight_slots

    def _weights(self, plan: Plan, use: Use, form: Form, positive: set[Tensor]) -> tuple[str, Array] | None:
        """Return balanced weights with their key; one for all that read the same bytes in the same form and shape, in
        any graph."""
        tensor, source, is_integer = use.tensor, self._source(use), use.op in plan.schemes
        if not isinstance(form, QuantParams) or form.block is not None:
            return None
        grid = self.ranges.trained.constants.get(tensor)
        if grid is not None and grid.scales == form.scales:  # the weights already lie on this grid
            return None
        if is_integer and form.levels.bits >= NARROW:
            return None
        nonnegative = source in positive
        if is_integer and source is not None:
            nonnegative = self.ranges.bounds(source)[0] >= 0
        spot = (tensor.buffer, form, tensor.shape), nonnegative
        if spot not in self._balanced:
            layout = self.request.ops[use.op.kind].layout
            made = balanced_weights(use, layout, form, nonnegative=nonnegative)
            self._balanced[spot] = None if made is None else (plan.key(use), made)
        return self._balanced[spot]

    def _shift(self, use: Use, form: Form, weights: Array | None) -> Array | None:
        """Return how far the rounding of weights shifts the means of the outputs, if those of the inputs are known."""
        layout, source = self.request.ops[use.op.kind].layout, self._source(use)
        means = None if source is None else self.ranges.means(source)
        if layout is None or means is None or form_type(form).is_float:
            return None
        if weights is not None:
            return layout.mean_shift(use.op, weights - use.data, means)
        if (use, form) not in self.shifts:
            left = self.encoder.rounded(use.tensor, form) if isinstance(form, QuantParams) else rounded(use.data, form)
            self.shifts[use, form] = layout.mean_shift(use.op, left - use.data, means)
        return self.shifts[use, form]

    def _source(self, use: Use) -> Tensor | None:
        return next(self.request.ops[use.op.kind].read_activations(use.op), None)
