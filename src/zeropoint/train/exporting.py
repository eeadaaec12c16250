"""What was trained, as a model file: the same plan, carried out with the trained weights and ranges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ..affine import QuantParams
from ..dtypes import Array, DType
from ..errors import InvalidRecipe
from ..graph.model import Op, Tensor
from ..graph.query import Use
from ..ops import Activation, Bias, OpSpec, Rescale, Weight
from ..plan.pipeline import Planned, Result, carry_out, interface_of
from ..plan.plan import Plan, Repair
from ..plan.weights import fit_bias
from .network import Trainable

MOST_ROUNDS = 10


def export(trained: Trainable, *, input_type: str = "float32", output_type: str = "float32") -> Result:
    """The quantized model, made without calibration. Types are those that callers of it see."""
    blueprint = trained.blueprint
    if not blueprint.quantize:
        raise InvalidRecipe("this graph was built without quantization; build it with quantize=True to export it")
    interface = interface_of(input_type, output_type)
    plan = _Export(trained).plan()
    plan = _with_ends(plan, interface.input, interface.output)
    plans = tuple(plan if p.graph is plan.graph else p for p in blueprint.planned.plans)
    return carry_out(Planned(blueprint.planned.model, plans), blueprint.request)


@dataclass
class _Export:
    trained: Trainable
    params: list[QuantParams] = field(default_factory=list)
    repairs: list[Repair] = field(default_factory=list)

    def plan(self) -> Plan:
        plan = self.trained.blueprint.plan
        self.params = self.trained.ranges.params(self.trained.step)
        for _ in range(MOST_ROUNDS):
            made = self._derived(plan)
            too_fine = list(self._too_fine(made))
            if not too_fine:
                break
            for op, factor in too_fine:
                self._widen(op, factor)
        return replace(made, repairs=tuple(dict.fromkeys((*plan.repairs, *self.repairs, *made.repairs))))

    def _derived(self, plan: Plan) -> Plan:
        """The plan with the trained parameters and numbers in place of those that training started from."""
        ties = self.trained.ties
        stored = {t: self._of(ties.stored(t), p) for t, p in plan.stored.items()}
        wanted = {use: self._of(self._group(use, ties.used(use)), p) for use, p in plan.wanted.items()}
        values = dict(plan.values)
        for constant in self.trained.constants:
            value = constant.value
            for use in constant.uses:
                grid = self.trained.weight_grid(use)
                if grid is not None:
                    wanted[use] = grid.params(value)
                    value = grid.clipped(value, wanted[use])
            if constant.variable.trainable:
                values.update(dict.fromkeys(constant.uses, value))
        repairs = list(self._fit_biases(plan, wanted, values))
        inputs = {t: stored.get(t, p) for t, p in plan.inputs.items()}
        outputs = {t: stored.get(t, p) for t, p in plan.outputs.items()}
        return replace(
            plan, stored=stored, wanted=wanted, values=values, inputs=inputs, outputs=outputs, repairs=tuple(repairs)
        )

    def _of(self, group: int | None, before: QuantParams) -> QuantParams:
        return before if group is None else self.params[group]

    def _group(self, use: Use, group: int | None) -> int | None:
        """States are used as they are stored."""
        tensor = use.op.inputs[use.slot]
        return self.trained.ties.stored(tensor) if group is None and tensor is not None else group

    def _fit_biases(self, plan: Plan, wanted: dict[Use, QuantParams], values: Mapping[Use, Array]) -> Iterator[Repair]:
        """Biases get the product of the scales; one that does not fit raises the scale of its channel's weights."""
        for op, scheme in plan.schemes.items():
            for slot, tensor in enumerate(op.inputs):
                use, role = Use(op, slot), self._specs[op.kind].input_role(slot)
                if tensor is None or use not in wanted or not isinstance(role, Bias):
                    continue
                data, weights = Use(op, role.of[0]), Use(op, role.of[1])
                value = values.get(use, tensor.data)
                assert value is not None
                assert scheme.activations is not None
                fitted = fit_bias(wanted[weights], value, wanted[data].scale, scheme.activations)
                wanted[weights], wanted[use] = fitted.weights, fitted.bias
                if fitted.raised:
                    yield Repair(tensor, f"the bias would overflow; raised the weights' scale of {len(fitted.raised)}")

    @property
    def _specs(self) -> Mapping[str, OpSpec]:
        return self.trained.blueprint.request.ops

    def _too_fine(self, plan: Plan) -> Iterator[tuple[Op, float]]:
        """Ops whose output scale became too small for the kernel, with the factor it has to grow by."""
        for op, scheme in plan.schemes.items():
            spec = self._specs[op.kind]
            held = plan.stored.get(op.outputs[0])
            if spec.rescale is Rescale.NONE or held is None or scheme.activations is None:
                continue
            limit = spec.rescale_limit(scheme.activations)
            ratio = _numerator(op, spec, plan.wanted) / held.scale
            if ratio >= limit:
                yield op, 1.01 * ratio / limit

    def _widen(self, op: Op, factor: float) -> None:
        group = self.trained.ties.stored(op.outputs[0])
        assert group is not None
        before = self.params[group]
        self.params[group] = replace(before, scales=(before.scale * factor,))
        self.repairs.append(
            Repair(op.outputs[0], f"its range is {factor:.3g} times as wide as trained, as the kernel's limits demand")
        )


def _numerator(op: Op, spec: OpSpec, wanted: Mapping[Use, QuantParams]) -> float:
    """The largest product or input scale that the kernel divides by the output's scale."""
    scales = [
        max(wanted[use].scales)
        for slot in range(len(op.inputs))
        if isinstance(spec.input_role(slot), Activation | Weight) and (use := Use(op, slot)) in wanted
    ]
    return scales[0] * scales[1] if spec.rescale is Rescale.PRODUCT else max(scales)


def _with_ends(plan: Plan, input_type: DType, output_type: DType) -> Plan:
    """The plan with integer inputs and outputs for callers, in the form that the graph uses them."""
    stored, inputs, outputs = dict(plan.stored), dict(plan.inputs), dict(plan.outputs)
    if input_type is not DType.FLOAT32:
        for tensor in plan.graph.inputs:
            if tensor.dtype is DType.FLOAT32:
                inputs[tensor] = stored[tensor] = _external(tensor, _first_use(plan, tensor), input_type)
    if output_type is not DType.FLOAT32:
        for tensor in plan.graph.outputs:
            if tensor.dtype is DType.FLOAT32:
                outputs[tensor] = _external(tensor, plan.stored.get(tensor), output_type)
    return replace(plan, stored=stored, inputs=inputs, outputs=outputs)


def _first_use(plan: Plan, tensor: Tensor) -> QuantParams | None:
    return next((p for use, p in plan.wanted.items() if use.op.inputs[use.slot] is tensor), None)


def _external(tensor: Tensor, held: QuantParams | None, dtype: DType) -> QuantParams:
    inner = DType.INT8 if dtype is DType.UINT8 else dtype
    if held is None or held.dtype is not inner:
        what = "float" if held is None else held.dtype.label
        raise InvalidRecipe(f"'{tensor.name}' cannot be {dtype.label}: the graph computes with it as {what}")
    return QuantParams(held.scales, (held.zero_point + 128,), DType.UINT8) if dtype is DType.UINT8 else held
