"""A plan's graph with fake quantization: its ops, the variables that they read, and the rules by which they round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from keras import ops

from ..dtypes import Array
from ..errors import UnsupportedOp
from ..graph.model import Graph, Op, Tensor
from ..graph.query import Use, tensor_keys
from ..improve.squant import nonnegative_tensors
from ..ops import OpSpec
from ..ops.batching import Free, free_tensors
from ..ops.calls import LOOPS
from ..ops.sample_axis import WithSampleAxis, with_sample_axis
from ..ops.states import is_streaming
from ..plan.fit import typed
from ..plan.plan import Group, Held, Node, Plan, Planned
from ..plan.request import Request
from ..simulation.rescaling import Rescaling
from ..simulation.rules import OPTIMIZED, XNNPACK, Rules
from ..simulation.weighted import rescaling_of
from ..targets import CPU, Operand, Rewrite, Target, TypedOp
from ..train_bits import FEWEST_BITS, TrainBits
from . import fake_quant
from .activation_ranges import ActivationRanges
from .backend import LayerOf, variable_name
from .compute import COMPUTE, Call, compute, with_samples_in_front
from .mean_shift import InputMeans, MeanShift, mean_shifts
from .static_values import known_integers, loop_graphs, unrolled
from .weight_quantizers import LearnedScales, WeightQuantizer, quantizer_for
from .weights import TrainableConstant, Units, constants_of


def trainable_target(target: Target) -> Target:
    """Return the target without dynamic-range layers, which have no ranges that could be trained, and without gates in
    weights: what is trained are the weights of layers."""
    costs = None if target.costs is None else replace(target.costs, dynamic=False)
    return replace(target.without(Rewrite.GATED_WEIGHTS), costs=costs)


@dataclass(frozen=True)
class Blueprint:
    """What to build. `outputs` are the tensors to compute; `quantize` is False for a plan that quantizes nothing.
    `means` are those of the channels of tensors, by their keys."""

    planned: Planned
    plan: Plan
    request: Request
    outputs: tuple[Tensor, ...]
    settings: fake_quant.QuantSettings = field(default_factory=fake_quant.QuantSettings)
    freeze: tuple[str, ...] = ()
    quantize: bool = True
    stage: TrainBits | None = None
    means: Mapping[str, Array] = field(default_factory=dict)

    def bits(self, op: Op) -> TrainBits | None:
        """Return the bits that `op` is trained in; in an intermediate `stage`, at least as many as that has."""
        scheme = self.plan.schemes.get(op)
        trained = None if scheme is None else scheme.trained
        return None if trained is None else trained.at_least(self.stage)

    @property
    def has_few_levels(self) -> bool:
        """Whether some weights are trained in so few bits that biases and ranges have as far to go as they do."""
        trained = [bits.weights for op in self.plan.schemes if (bits := self.bits(op)) is not None]
        return min((self.settings.weight_bits or 8, *trained)) <= FEWEST_BITS

    @property
    def specs(self) -> Mapping[str, OpSpec]:
        return self.request.ops


@dataclass(frozen=True, eq=False)
class FakeQuantGraph:
    """The ops to compute, in order, and the variables that they read.

    `statics` are integers that do not depend on the inputs; `by_use` has the float constants, `quantizers` those of
    weights, `mean_shifts` what biases make up for; `groups` has the index of each place's group in the plan, which is
    also that of its range. `rules` are those of the kernels that will compute each op: XNNPACK's or LiteRT's own. With
    a `sample_axis`, every tensor that depends on the inputs has an additional leading axis. `loops` are unrolled.
    """

    blueprint: Blueprint
    ops: tuple[Op, ...]
    free: Free
    statics: Mapping[Tensor, Array]
    constants: tuple[TrainableConstant, ...]
    by_use: Mapping[Use, TrainableConstant]
    quantizers: Mapping[Use, WeightQuantizer]
    mean_shifts: Mapping[Use, MeanShift]
    groups: Mapping[Node, int]
    ranges: ActivationRanges
    rules: Mapping[Op, Rules]
    sample_axis: Mapping[Op, WithSampleAxis] | None
    loops: Mapping[Op, Loop]

    @classmethod
    def of(cls, blueprint: Blueprint, layer_of: LayerOf) -> FakeQuantGraph:
        plan, specs, changing = blueprint.plan, blueprint.specs, blueprint.has_few_levels
        needed = needed_ops(plan, blueprint.outputs)
        require_known(needed)
        require_whole_sequences(plan.graph)
        free = free_tensors(plan.graph.inputs, needed, specs)
        statics = known_integers(needed, specs, free)
        sample_axis = None if free else with_sample_axis(plan.graph.inputs, needed, statics, specs)
        constants = constants_of(Units(plan, specs, changing), needed, blueprint.freeze, layer_of)
        quantizers = _quantizers(blueprint, constants, layer_of)
        means = InputMeans(blueprint.means, tensor_keys(blueprint.planned.model), specs)
        return cls(
            blueprint,
            needed,
            free,
            statics,
            constants,
            {use: constant for constant in constants for use in constant.uses},
            quantizers,
            mean_shifts(constants, quantizers, means),
            {node: k for k, group in enumerate(plan.groups) for node in group.nodes},
            ActivationRanges(plan.groups, group_bits(blueprint), blueprint.settings, layer_of(None), fast=changing),
            {op: _rules(typed(plan, op, specs)) for op in needed if op in plan.schemes},
            sample_axis,
            {op: Loop.of(op, blueprint, statics, layer_of) for op in needed if op.kind in LOOPS},
        )

    @property
    def parts(self) -> tuple[FakeQuantGraph, ...]:
        """The graph itself and the bodies of its loops, each with its own plan."""
        return (self, *(loop.body for loop in self.loops.values()))

    @property
    def takes_any_batch(self) -> bool:
        """Whether it can be run with any batch size, or only with that of the file."""
        return bool(self.free) or self.sample_axis is not None

    def call(self, op: Op, inputs: Sequence[Any]) -> Call:
        """Return the op with values for its inputs, ready to be computed."""
        instead = None if self.sample_axis is None else self.sample_axis.get(op)
        return Call(op, inputs, self.free) if instead is None else with_samples_in_front(instead, inputs)

    def made(self, op: Op, results: Sequence[Any]) -> list[Any]:
        """Return the results of such a call, in the shapes of the op's outputs in this graph."""
        if self.sample_axis is None or op not in self.sample_axis:
            return list(results)
        return [ops.reshape(v, (-1, *t.shape)) for v, t in zip(results, op.outputs, strict=True)]

    def compute(self, op: Op, inputs: Sequence[Any]) -> list[Any]:
        return self.made(op, compute(self.call(op, inputs)))

    def stored(self, tensor: Tensor) -> int | None:
        """Return the group of a tensor as its producer stores it; None for float."""
        params = self.blueprint.plan.stored.get(tensor)
        return None if params is None else self.groups.get(Held(tensor, params.dtype))

    def rescaling(self, op: Op) -> Rescaling:
        """Return how the kernel of a layer requantizes its accumulators."""
        plan, slot = self.blueprint.plan, self.blueprint.specs[op.kind].bias_slot
        bias = None if slot is None else plan.wanted.get(Use(op, slot))
        return rescaling_of(op, self.rules[op], plan.stored[op.outputs[0]].dtype, None if bias is None else bias.dtype)

    def conversion(self, tensor: Tensor, group: int) -> Rules:
        """Return the rules by which a stored tensor is converted to the grid of another group."""
        plan = self.blueprint.plan
        forms = plan.stored[tensor], plan.groups[group].params
        read, made = (Operand(form.dtype, tensor.shape, form) for form in forms)
        return _rules(TypedOp(Op("QUANTIZE", [tensor], [tensor]), (read,), (made,)))


@dataclass(frozen=True, eq=False)
class Loop:
    """The body of a loop, whose iterations share its variables, and the integers that are known in each iteration."""

    body: FakeQuantGraph
    iterations: tuple[Mapping[Tensor, Array], ...]

    @classmethod
    def of(cls, op: Op, blueprint: Blueprint, statics: Mapping[Tensor, Array], layer_of: LayerOf) -> Loop:
        inner = body_blueprint(op, blueprint)
        _require_one_scale(op, blueprint.plan, inner.plan)
        return cls(FakeQuantGraph.of(inner, layer_of), unrolled(op, statics, blueprint.specs).iterations)


def body_blueprint(op: Op, blueprint: Blueprint) -> Blueprint:
    """Return what to build for the body of a loop."""
    _, body = loop_graphs(op)
    planned = {plan.graph: plan for plan in blueprint.planned.plans} if blueprint.quantize else {}
    return replace(blueprint, plan=planned.get(body, Plan(body)), outputs=tuple(body.outputs))


def _require_one_scale(op: Op, caller: Plan, body: Plan) -> None:
    """Raise unless a value that a loop carries has the same form wherever it passes between graphs."""
    for slot, (taken, given) in enumerate(zip(body.graph.inputs, body.graph.outputs, strict=True)):
        passed = {caller.wanted.get(Use(op, slot)), caller.stored.get(op.outputs[slot])}
        passed |= {body.stored.get(taken), body.outputs.get(given)}
        passed |= {body.stored.get(given)} if given in body.outputs else set()
        if len(passed) > 1:
            raise UnsupportedOp(
                f"{op.label} '{op.name}' passes '{taken.name}' on in more than one scale, which cannot be trained yet; "
                "keep the op that produces it in float (keep_float)"
            )


def _rules(op: TypedOp) -> Rules:
    return XNNPACK if CPU.verdict(op).place == CPU.place else OPTIMIZED


def _quantizers(
    blueprint: Blueprint, constants: Sequence[TrainableConstant], layer_of: LayerOf
) -> dict[Use, WeightQuantizer]:
    plan, made = blueprint.plan, dict[Use, WeightQuantizer]()
    for constant in constants:
        for use in constant.uses:
            if use in plan.constants.grids:
                add = LearnedScales(layer_of(use.op), variable_name(constant.tensor.name))
                trained, data = blueprint.bits(use.op), constant.value
                made[use] = quantizer_for(plan.wanted[use], data, blueprint.settings, trained, add)
    return made


def group_bits(blueprint: Blueprint) -> list[int]:
    """Return the bits of each group's values: those its ops are trained in, if none of its values can be negative.

    Kernels saturate at the end of their type, so the highest of few levels is put there; the lowest one is where a ReLU
    begins. Values on both sides of zero have no such end, and keep all levels of their type.
    """
    plan = blueprint.plan
    makers = {t: op for op in plan.graph.ops for t in op.outputs}
    rectified = nonnegative_tensors(plan.graph, blueprint.specs)

    def bits(group: Group) -> int:
        whole, tensors = group.params.dtype.bits, {node.tensor for node in group.nodes}
        if group.fixed or whole != 8 or not tensors <= rectified:
            return whole
        trained = [None if (op := makers.get(t)) is None else blueprint.bits(op) for t in tensors]
        return max((whole if one is None else one.activations for one in trained), default=whole)

    return [bits(group) for group in plan.groups]


def needed_ops(plan: Plan, outputs: Sequence[Tensor]) -> tuple[Op, ...]:
    """Return the ops that `outputs` depend on, in order."""
    wanted, found = set(outputs), []
    for op in reversed(plan.graph.ops):
        if any(t in wanted for t in op.outputs):
            found.append(op)
            wanted.update(t for t in op.inputs if t is not None)
    return tuple(reversed(found))


def trained_ops(blueprint: Blueprint) -> tuple[Op, ...]:
    """Return the ops to compute, including those in the bodies of loops."""
    own = needed_ops(blueprint.plan, blueprint.outputs)
    bodies = [body_blueprint(op, blueprint) for op in own if op.kind in LOOPS]
    return (*own, *(op for body in bodies for op in needed_ops(body.plan, body.outputs)))


def require_known(needed: Sequence[Op]) -> None:
    """Raise with all ops that there is no function for."""
    missing = [op for op in needed if op.label not in COMPUTE and op.kind not in LOOPS]
    if missing:
        ends = dict.fromkeys(
            t.name for op in missing for t in op.inputs if t is not None and not t.is_constant and t.dtype.is_float
        )
        raise UnsupportedOp(
            "these ops cannot be trained through:",
            *(f"  {op.label} '{op.name}'" for op in missing),
            "train the part before them: outputs=[...] with names from " + ", ".join(map(repr, ends))
            if ends
            else "nothing comes before them that could be trained alone",
        )


def require_whole_sequences(graph: Graph) -> None:
    """Raise for models that compute one step per run: in training, every sample starts from the initial state."""
    if is_streaming(graph):
        raise UnsupportedOp(
            "the model keeps its state from run to run, one step at a time, but training starts every sample from the "
            "initial state; train a version of it that takes whole sequences"
        )
