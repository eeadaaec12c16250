"""Refines weights layer by layer: each is fitted to what the quantized layers before it produce, and rounded (GPTQ)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ..affine import QuantParams
from ..bench.errors import real
from ..bench.loaded import PARTS
from ..calibration.collect import Progress
from ..dtypes import Array
from ..graph.model import Model, Op
from ..graph.query import Use, Uses, activation_bytes, called_graphs
from ..ops import spec_of
from ..ops.execution import macs_of
from ..parallel import in_parallel, side_by_side
from ..plan.derive import settle
from ..plan.plan import Plan, Planned
from ..plan.request import Request
from ..plan.weights import bias_use
from ..recipe import reaches
from ..sources.ports import Row
from .clamped_fit import Affine, ClampedFit, ClampedOutputs
from .gptq import damped, refitted
from .layer_inputs import Frontier, Moments, Stretch
from .layer_rounding import RoundingData, rounded_layer, weight_steps
from .refined_layers import CarriedOut, RefinedLayer

ENOUGH = 4
"""Vectors for each input of a layer that its weights are refined for, if there are so many. With fewer, they are only
rounded: refitting and coordinate descent would fit them to these vectors and to no others."""

ATTEMPTS = 3
"""How often a layer is rounded, if its new biases do not fit the scales: each time those rows get coarser ones."""

MADE_UP_DAMPING = 0.1
"""The same share for synthetic inputs: they are less alike than real ones."""


@dataclass(frozen=True)
class Observed:
    """The moments of a layer's inputs for each part of the data, and its outputs behind a clamp, if these matter."""

    halves: Sequence[Moments]
    clamped: ClampedOutputs | None = None


@dataclass(frozen=True)
class Refiner:
    """Refines the plans of a prepared model on some samples, which may be one sequence.

    A layer's moments are taken from about this many `vectors`; more for layers with more inputs. If it `refits`,
    weights are fitted to what the quantized layers before produce. If the samples are `made_up`, biases stay unchanged:
    the means are not known. If it `heeds_clamps`, layers are fitted to what is left of their outputs behind a fused
    activation that only clamps, which takes several times as long. Integers of few bits are searched in layers that
    take at most `searched_macs` for that.
    """

    model: Model
    request: Request
    samples: Sequence[Row]
    stage: Callable[[str, int], Progress]
    vectors: int
    in_sequence: bool = False
    refits: bool = True
    made_up: bool = False
    heeds_clamps: bool = False
    searched_macs: float = math.inf

    def refine(self, planned: Planned) -> Planned:
        called = called_graphs(planned.model)  # the samples are not its inputs
        plans = (plan if plan.graph in called else self.refined_plan(plan) for plan in planned.plans)
        return replace(planned, plans=tuple(plans))

    def may_refit(self, planned: Planned) -> bool:
        """Whether any layer may have enough vectors to refit its weights; true if input sizes are dynamic, since it is
        then unknown."""
        if any(t.is_dynamic for plan in planned.plans for t in plan.graph.inputs):
            return True
        layers = (layer for plan in planned.plans for layer in self._layers(plan))
        return any(layer.positions * len(self.samples) >= ENOUGH * layer.blocks.width for layer in layers)

    def macs(self, planned: Planned) -> int:
        """Return how many multiply-accumulates a sample takes in the quantized model and in the float one."""
        total = 0
        for plan in planned.plans:
            frontier = Frontier(plan.graph, self.samples, self.in_sequence)
            layers = ((layer.op, layer.source.tensor) for layer in self._layers(plan))
            total += 2 * frontier.macs_until(plan.graph, layers, lambda op: macs_of(op, self.request.ops))
        return total

    def refined_plan(self, plan: Plan, ops: Collection[Op] | None = None) -> Plan:
        """Return the plan with the weights of all layers refined, or of those among `ops`."""
        layers = [layer for layer in self._layers(plan) if ops is None or layer.op in ops]
        if not layers:
            return plan
        report = self.stage("compensating", len(layers))
        runs = [Frontier(plan.graph, self.samples, self.in_sequence) for _ in range(2)]
        made = CarriedOut.of(self.model, plan, self.request.ops)
        for done, layer in enumerate(layers, 1):
            refined = self._refined(plan, layer, self._observed(made, layer, runs))
            if refined is not plan and not made.exchange(refined, layer):
                made = CarriedOut.of(self.model, refined, self.request.ops)
            plan = refined
            report(done)
        return plan

    def _layers(self, plan: Plan) -> Iterator[RefinedLayer]:
        """Yield the layers that can be refined, in order of execution: with integer weights that no other op reads."""
        uses = Uses(plan.graph)
        for op in plan.graph.ops:
            spec = spec_of(op, self.request.ops)
            layout = spec.layout
            if layout is None or not layout.applies_to(op):
                continue
            use = Use(op, layout.weights)
            form, weights = plan.form(use), op.inputs[use.slot]
            if not isinstance(form, QuantParams) or not form.is_symmetric or weights is None or weights.data is None:
                continue
            effort = self.request.recipe.effort(op, self.request.effort)
            is_asked = reaches(effort, "high") or (effort == "standard" and form.levels.bits < 8)
            is_given = weights.name in self.request.ranges.entries
            if is_asked and not is_given and len(uses.readers(weights)) == 1:
                yield RefinedLayer(op, layout, form, bias_use(op, spec))

    def _refined(self, plan: Plan, layer: RefinedLayer, observed: Observed) -> Plan:
        moments, has_bias = Moments.mean(observed.halves), layer.bias is not None
        if self.made_up:
            moments = moments.without_means(damped(moments.second, MADE_UP_DAMPING))
        whole, blocks = moments.pair(has_bias), layer.blocks
        weights, damping = layer.exact.weights, None
        target, has_enough = blocks.split(weights), moments.vectors >= ENOUGH * blocks.width
        halves = [] if self.made_up else [half.pair(has_bias) for half in observed.halves]
        if self.refits and has_enough:
            target, damping = refitted(target, whole, halves)
        fit = None
        if observed.clamped is not None and damping is not None:
            wanted = layer.exact.biases + np.einsum("goi,gi->go", weights, moments.float_first - moments.first)
            start = Affine(weights, wanted).with_weights(target, moments.first)
            fit = ClampedFit(observed.clamped, start, whole, damping)
            target = fit.target
        known = RoundingData(whole, halves, has_enough, weights.size * blocks.width <= self.searched_macs)
        for _ in range(ATTEMPTS):
            form, rounded = rounded_layer(layer, target, known, fit)
            made = blocks.join(rounded) * weight_steps(form, weights)
            new = {layer.weights: layer.layout.from_matrix(layer.op, made).astype(np.float32)}
            if layer.bias is not None:
                first, wanted = (blocks.join(part[:, None])[:, 0] for part in (moments.first, moments.float_first))
                shift = np.einsum("goi,gi->go", weights, wanted) - np.einsum("goi,gi->go", made, first)
                biases = layer.exact.biases + shift if fit is None else fit.biases(made)
                new[layer.bias] = biases.reshape(-1).astype(np.float32)
            refined, given = self._with(plan, layer, form, new)
            coarser = replace(layer, form=form).with_scales_of(given)
            if refined is not plan or coarser is None:
                return refined
            layer = coarser
        return plan

    def _with(
        self, plan: Plan, layer: RefinedLayer, form: QuantParams, new: dict[Use, Array]
    ) -> tuple[Plan, QuantParams]:
        """Return the plan with new constants, and the parameters that it gives the weights: if these are not `form`,
        because the bias dictates scales or the kernel does not accept it, the plan is unchanged."""
        values = {**plan.constants.values, **{plan.key(use): value for use, value in new.items()}}
        keys = {**plan.constants.keys, **{use: plan.key(use) for use in new}}
        constants = replace(plan.constants, values=values, keys=keys)
        if layer.weights in plan.packed:
            packed = replace(plan.packed[layer.weights], form=form)
            return replace(plan, constants=constants, packed={**plan.packed, layer.weights: packed}), form
        constants = replace(constants, grids={**constants.grids, layer.weights: form})
        made, refused = settle(replace(plan, constants=constants), self.request.ops)
        given = made.wanted[layer.weights] if not refused and made.groups == plan.groups else form
        assert isinstance(given, QuantParams)
        is_taken = not refused and made.groups == plan.groups and given == form
        return (made if is_taken else plan), given

    def _observed(self, made: CarriedOut, layer: RefinedLayer, runs: Sequence[Frontier]) -> Observed:
        """Return what the layer reads, as quantized so far and in the float model."""
        quantized, original = runs
        op, slot = layer.op, layer.source.slot
        stretches = (
            quantized.until(made.model, made.graph, made.twins[op], slot),
            original.until(self.model, made.source, op, slot),
        )
        least = 0 if layer.blocks.count > 1 else self.vectors  # moments of wide layers are slow enough
        most = max(1, -(-max(least, ENOUGH * layer.blocks.width) // len(self.samples)))  # from each sample
        clamp = layer.clamp if self.heeds_clamps and self.refits else None
        kept: dict[int, tuple[Array, Array]] = {}

        def pair(number: int, own: Array, exact: Array) -> tuple[Array, Array]:
            found = layer.vectors(own, most), layer.vectors(exact, most)
            if clamp is not None:
                kept[number] = found[0], np.clip(layer.exact.outputs(found[1]), *clamp)
            return found

        def observed(numbers: Sequence[int], run: tuple[Stretch, Stretch]) -> Moments:
            x, f = run
            pairs = (pair(number, real(x.run(number), x.source), f.run(number)) for number in numbers)
            return Moments.of(pairs, crossed=self.refits)

        every, count = range(len(self.samples)), min(PARTS, len(self.samples))
        parts = _halves(every, count) if self.in_sequence else [every[k::PARTS] for k in range(count)]
        if self.in_sequence or side_by_side(activation_bytes(made.source)) == 1:
            halves = [observed(part, stretches) for part in parts]
        else:
            others = [stretches, *((stretches[0].another(), stretches[1].another()) for _ in range(1, count))]
            halves = in_parallel(lambda k: observed(parts[k], others[k]), range(count))
        in_order = [kept[number] for number in every] if clamp is not None else []
        return Observed(halves, None if clamp is None else ClampedOutputs.joined(in_order, clamp))


def _halves(samples: Sequence[int], parts: int) -> list[Sequence[int]]:
    """Return the samples in order, split into `parts`."""
    ends = [k * len(samples) // parts for k in range(parts + 1)]
    return [samples[start:end] for start, end in pairwise(ends)]
