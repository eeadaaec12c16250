"""Finds where more bits, or better rounding of the weights, would help most.

Errors do not add up: a tensor stays rounded as long as one of the ops at its ends is narrow, and the ops of a layer
norm do not help one by one. So ops without multiplications, which cost almost nothing, are all widened first and then
narrowed again where that does no harm; then come layers, the best first, then whatever helps most in addition to those
already chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..bench.errors import decibels
from ..display import counted
from ..errors import argument, spelled
from ..graph.model import Op
from ..graph.query import Uses
from ..ops.execution import macs_of
from ..recipe import INT16X8, PRESETS, Rule, reaches
from .evidence import Fix, Hypothesis, ModelEvidence, listed, numbers, rule_for

HEALTHY = 24.0
"""SNR of the outputs in dB above which no op is called sensitive: such an error goes unnoticed."""

MOST = 0.1
"""The default share of multiply-accumulates that may get more bits."""

LEAST_GAIN = 1.5
"""In dB. A smaller gain is not worth more bits."""

COARSE = 0.4
"""If at least this share of the error remains with 16-bit activations, the weights are the cause."""

WIDE, EXACT = "int16x8", "float"

TAKEN = 0.8
"""Ops without multiplications are widened if that leaves at most this share of the error."""

SPARED = 1.02
"""An op goes back to fewer bits if that leaves the error below this multiple."""

WORTH = 0.97
"""Further layers are kept if they leave at most this share of the error."""

PASSED = 1.03
"""A step may temporarily raise the error by this factor on the way to a better set."""

MOST_TRIED = 12
"""The number of layers tried at each step: neighbours of those chosen, and the best by themselves."""

AS_GOOD = 1.07
"""16 bits are preferred to float up to this multiple of its error: integer hardware can do them."""

SEARCHED = 0.25
"""The share of the samples on which sets of ops are compared; the best one is judged on all."""

Layers = tuple[Op, ...]


@dataclass(frozen=True)
class WidenedOps:
    """Ops to compute with more bits: whole kinds, and single layers."""

    kinds: tuple[str, ...] = ()
    kind_scheme: str = WIDE
    layers: Layers = ()
    between: tuple[Op, ...] = ()  # ops without multiplications that lie only between these layers
    layer_scheme: str = EXACT

    @property
    def kind_rules(self) -> tuple[Rule, ...]:
        return tuple(Rule(PRESETS[self.kind_scheme], ops=kind) for kind in self.kinds)

    @property
    def fix(self) -> Fix:
        return Fix((*self.kind_rules, *(rule_for(op, self.layer_scheme) for op in (*self.layers, *self.between))))


class SensitiveOpSearch:
    """Searches for the smallest set of ops within a share of the multiply-accumulates."""

    def __init__(self, evidence: ModelEvidence) -> None:
        self.trials, self.ops, self.report = evidence.trials.on_fewer(SEARCHED), evidence.ops, evidence.request.report
        plan = self.trials.candidate(Fix()).planned.plans[0]
        self.graph, self.uses = plan.graph, Uses(plan.graph)
        self.macs = {op: macs_of(op, self.ops) for op in self.graph.ops}
        self.total = max(1, sum(self.macs.values()))
        self.room = (MOST if evidence.request.most is None else evidence.request.most) * self.total
        self.layers = [op for op in plan.schemes if self.macs[op]]
        self.light = [op for op in plan.schemes if not self.macs[op]]

    def error(self, widened: WidenedOps) -> float:
        kinds = Fix(widened.kind_rules)
        if widened.layers and widened.layer_scheme == EXACT:
            return self.trials.error_without((*widened.layers, *widened.between), kinds)
        # Rules for single ops of the prepared graph change nothing about how it is prepared.
        return self.trials.error(widened.fix, prepared_for=kinds)

    def best(self) -> WidenedOps:
        """Return the best set. Errors are cached by set."""
        best = self._widen_layers(self._widen_light_ops())
        wide = replace(best, layer_scheme=WIDE)
        return wide if self.error(wide) < AS_GOOD * self.error(best) else best

    def _widen_light_ops(self) -> WidenedOps:
        self.report("widening ops without multiplications")
        kinds = tuple(dict.fromkeys(op.label for op in self.light))
        wide, exact = WidenedOps(kinds, WIDE), WidenedOps(kinds, EXACT)
        best = wide if self.error(wide) < AS_GOOD * self.error(exact) else exact
        if self.error(best) > TAKEN * self.error(WidenedOps()):
            return WidenedOps()
        limit = SPARED * self.error(best)
        moves = tuple(k for k in kinds if k in self.ops and self.ops[k].tied)
        # Ops that only move data add no error, so all of them are narrowed again at once; the others kind by kind.
        for group in (moves, *((k,) for k in kinds if k not in moves)):
            if group and not self.trials.is_late:
                self.report(f"are {', '.join(group)} needed?")
                spared = replace(best, kinds=tuple(k for k in best.kinds if k not in group))
                best = spared if self.error(spared) <= limit else best
        return best

    def _widen_layers(self, start: WidenedOps) -> WidenedOps:
        """Add layers one at a time or in pairs of neighbours, also through steps that help little by themselves."""
        alone: dict[Layers, float] = {}
        for layers in self._parts():
            if self.trials.is_late:
                break
            self.report(f"widening {' and '.join(op.label for op in layers)}, {len(alone) + 1}")
            alone[layers] = self.error(self._with(start, layers))
        best = start
        for is_thrifty in (True, False):
            found = self._greedy(start, alone, is_thrifty)
            if self.error(found) < WORTH * self.error(best):
                best = found
        return best

    def _greedy(self, start: WidenedOps, alone: dict[Layers, float], is_thrifty: bool) -> WidenedOps:
        """Add whatever helps most at each step, or with `is_thrifty` whatever helps most for its cost."""
        best = at = start
        while not self.trials.is_late:
            limit, worth = PASSED * self.error(at), {}
            for layers in self._candidates(at, alone):
                error = self.error(self._with(at, layers))
                if error < limit:
                    gain = math.log(limit / max(error, 1e-30))
                    worth[layers] = gain / self._cost(layers) if is_thrifty else gain
            if not worth:
                break
            at = self._with(at, max(worth, key=worth.__getitem__))
            self.report(f"{counted(len(at.layers), 'layer')} widened")
            if self.error(at) < self.error(best):
                best = at
        return best

    def _cost(self, layers: Layers) -> int:
        return sum(self.macs[op] for op in layers)

    def _parts(self) -> list[Layers]:
        """Return layers that fit within the share, and pairs of neighbours, cheapest first: there may not be time for
        all."""
        fitting = [op for op in self.layers if self.macs[op] <= self.room]
        pairs = [(a, b) for a in fitting for b in self._next_layers(a, self._after) if b in fitting]
        parts: list[Layers] = [*((op,) for op in fitting), *(p for p in pairs if self._cost(p) <= self.room)]
        return sorted(parts, key=self._cost)

    def _candidates(self, best: WidenedOps, alone: dict[Layers, float]) -> Sequence[Layers]:
        """Return what to try next: layers next to those chosen, then the best by themselves, as far as they fit."""
        room = self.room - self._cost(best.layers)
        steps = (self._before, self._after)
        near = [(op,) for taken in best.layers for step in steps for op in self._next_layers(taken, step)]
        order = dict.fromkeys((*near, *sorted(alone, key=alone.__getitem__)))
        fitting = [p for p in order if p in alone and not set(p) & set(best.layers) and self._cost(p) <= room]
        return fitting[:MOST_TRIED]

    def _next_layers(self, op: Op, step: Callable[[Op], list[Op]]) -> Iterator[Op]:
        """Yield layers that are reached from `op` directly or through ops without multiplications."""
        seen, open_ops = {op}, step(op)
        while open_ops:
            other = open_ops.pop()
            if other in seen:
                continue
            seen.add(other)
            if self.macs[other]:
                yield other
            else:
                open_ops += step(other)

    def _before(self, op: Op) -> list[Op]:
        return [maker for t in op.inputs if t is not None and (maker := self.uses.producer(t)) is not None]

    def _after(self, op: Op) -> list[Op]:
        return [use.op for t in op.outputs for use in self.uses.readers(t)]

    def _with(self, best: WidenedOps, more: Layers) -> WidenedOps:
        """Return the set with more layers, and the light ops between them and those already chosen."""
        layers = tuple(op for op in self.layers if op in best.layers or op in more)
        inside, between = set(layers), list[Op]()
        for light in self.light:
            makers = self._before(light)
            is_enclosed = light.label not in best.kinds and makers and inside.issuperset(makers)
            if is_enclosed and any(op in layers for op in self._next_layers(light, self._after)):
                inside.add(light)
                between.append(light)
        return replace(best, layers=layers, between=tuple(between))


def sensitive_ops(evidence: ModelEvidence) -> Hypothesis | None:
    """The ops that gain most when computed with more bits, at little cost."""
    before = evidence.trials.error()
    if decibels(before) >= HEALTHY:
        return None
    search = SensitiveOpSearch(evidence)
    widened = search.best()
    error = evidence.trials.error(widened.fix)
    if decibels(error) - decibels(before) < LEAST_GAIN:
        return None
    moved = [op for op in search.graph.ops if op.label in widened.kinds or op in widened.layers]
    share = sum(search.macs[op] for op in widened.layers) / search.total
    what = listed([*widened.kinds, *(f"{op.label} '{op.name}'" for op in widened.layers)], 6)
    return Hypothesis(
        f"most of the error comes from {counted(len(moved), 'op')}",
        (
            f"outputs at {decibels(before):.1f} dB; with these ops in more bits at {decibels(error):.1f} dB",
            f"they hold {share:.1%} of the multiply-accumulates: {what}",
        ),
        f"{1 - error / before:.0%} of the squared error of the outputs comes from them",
        "compute them with 16 bits or in float, and the rest in 8",
        numbers(before=decibels(before), after=decibels(error), share=share, ops=len(moved)),
        tuple(op.name for op in moved),
        fixes=(widened.fix,),
        in_recipe=True,
    )


def coarse_weights(evidence: ModelEvidence) -> Hypothesis | None:
    """Weight rounding that alone causes much of the error, so that better rounding helps."""
    request, before = evidence.request, evidence.trials.error()
    is_wide = request.recipe.has_wide_activations
    if reaches(request.effort, "high") or is_wide or decibels(before) >= HEALTHY:
        return None
    with_wide = evidence.trials.error(Fix((Rule(INT16X8),)))
    share = with_wide / before if before > 0 else 0.0
    if not COARSE <= share <= 1:
        return None
    return Hypothesis(
        "rounding the weights alone causes much of the error",
        (
            f"with 8-bit activations the outputs are at {decibels(before):.1f} dB, with 16-bit ones at "
            f"{decibels(with_wide):.1f} dB: {share:.0%} of the squared error remains",
        ),
        "more bits for activations cannot help beyond that",
        f"let the weights compensate for each other's rounding ({argument('effort', 'high')}), or train "
        f"({spelled('zeropoint.distill', 'zeropoint train')})",
        numbers(share=share, wide=decibels(with_wide)),
        fixes=(Fix(effort="high"),),
        gain=-10 * math.log10(1 - share / 2),
    )
