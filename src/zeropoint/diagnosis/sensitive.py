"""The ops that bring back most when they are computed with more bits, for little arithmetic.

Errors do not add up: a tensor stays rounded as long as one of the ops at its ends is narrow, and the parts of a layer
norm are of no use one by one. So ops without multiplications, which cost next to nothing, are all taken first and then
given back where that does no harm; layers come after them, the best first, then whatever helps most beside those taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..graph.model import Graph, Op
from ..graph.query import Uses
from ..ops import OPS
from ..ops.execution import macs_of
from ..recipe import PlainRules
from .trial import Fix, Lab, rule_for

WIDE, EXACT = "int16x8", "float"

TAKEN = 0.8
"""Ops without multiplications are widened if that leaves at most this share of the error."""

SPARED = 1.02
"""An op goes back to fewer bits if that leaves the error below this multiple."""

WORTH = 0.97
"""Further layers are kept if they leave at most this share of the error."""

PASSED = 1.03
"""A step may raise the error to this multiple on the way to a better place."""

TRIED = 12
"""Layers tried at each step: neighbours of those taken, and the best by themselves."""

AS_GOOD = 1.07
"""16 bits are preferred to float up to this multiple of its error: integer hardware can do them."""

Told = Callable[[str], None]


@dataclass(frozen=True)
class Widened:
    """Ops to be computed with more bits: whole kinds, and single layers."""

    kinds: tuple[str, ...] = ()
    kind_scheme: str = WIDE
    layers: tuple[Op, ...] = ()
    between: tuple[Op, ...] = ()  # ops without multiplications that only layers of these enclose
    layer_scheme: str = EXACT

    @property
    def rules(self) -> PlainRules:
        kinds = tuple({"scheme": self.kind_scheme, "ops": kind} for kind in self.kinds)
        return (*kinds, *(rule_for(op, self.layer_scheme) for op in (*self.layers, *self.between)))


@dataclass
class Search:
    """Looks for the smallest set within `most` (a share of the multiply-accumulates)."""

    lab: Lab
    most: float
    told: Told | None = None

    def __post_init__(self) -> None:
        plan = self.lab.planned().plans[0]
        self.graph: Graph = plan.graph
        self.uses = Uses(self.graph)
        narrow = [op for op in self.graph.ops if op in plan.schemes]
        self.layers = [op for op in narrow if macs_of(op)]
        self.light = [op for op in narrow if not macs_of(op)]
        self.total = max(1, sum(macs_of(op) for op in self.graph.ops))

    def error(self, widened: Widened) -> float:
        return self.lab.error(Fix(widened.rules))

    def found(self) -> tuple[Widened, float]:
        """The best set, and the error with it."""
        best, error = Widened(), self.lab.error()
        best, error = self._light(best, error)
        best, error = self._heavy(best, error)
        if best.layers:
            wide = replace(best, layer_scheme=WIDE)
            wide_error = self.error(wide)
            if wide_error < AS_GOOD * error:
                best, error = wide, wide_error
        return best, error

    def _light(self, best: Widened, error: float) -> tuple[Widened, float]:
        kinds = tuple(dict.fromkeys(op.label for op in self.light))
        if not kinds:
            return best, error
        self._tell(f"widening {len(self.light)} ops without multiplications")
        tried = {scheme: replace(best, kinds=kinds, kind_scheme=scheme) for scheme in (WIDE, EXACT)}
        errors = {scheme: self.error(widened) for scheme, widened in tried.items()}
        scheme = WIDE if errors[WIDE] < AS_GOOD * errors[EXACT] else EXACT
        if errors[scheme] > TAKEN * error:
            return best, error
        best, error = tried[scheme], errors[scheme]
        limit = SPARED * error
        for group in self._spared_together(kinds):
            if self.lab.is_late:
                break
            self._tell(f"are {', '.join(group)} needed?")
            spared = replace(best, kinds=tuple(k for k in best.kinds if k not in group))
            its_error = self.error(spared)
            if its_error <= limit:
                best, error = spared, its_error
        return best, error

    def _spared_together(self, kinds: Sequence[str]) -> list[tuple[str, ...]]:
        """Kinds to be given back: those that only move data all at once, as they add no error; the others by kind."""
        moves = tuple(k for k in kinds if k in OPS and OPS[k].tied)
        return [*([moves] if moves else []), *((k,) for k in kinds if k not in moves)]

    def _heavy(self, best: Widened, error: float) -> tuple[Widened, float]:
        """Add layers one by one or two neighbours at a time, also through steps that help little by themselves."""
        alone: dict[tuple[Op, ...], float] = {}
        for layers in self._parts():
            if self.lab.is_late:
                break
            self._tell(f"widening {' and '.join(op.label for op in layers)}, {len(alone) + 1}")
            alone[layers] = self.error(self._with(best, layers))
        starts = best, error
        for is_thrifty in (True, False):
            found, its_error = self._greedy(*starts, alone, is_thrifty)
            if its_error < WORTH * error:
                best, error = found, its_error
        return best, error

    def _greedy(
        self, at: Widened, reached: float, alone: dict[tuple[Op, ...], float], is_thrifty: bool
    ) -> tuple[Widened, float]:
        """Take step after step what helps most, or with `is_thrifty` what helps most for its arithmetic."""
        best, error = at, reached
        while not self.lab.is_late:
            errors = {layers: self.error(self._with(at, layers)) for layers in self._candidates(at, alone)}
            errors = {layers: e for layers, e in errors.items() if e < PASSED * reached}
            if not errors:
                break

            def worth(layers: tuple[Op, ...]) -> float:
                gain = math.log(PASSED * reached / max(errors[layers], 1e-30))  # noqa: B023 - used at once
                return gain / (_cost(layers) if is_thrifty else 1)

            layers = max(errors, key=worth)
            at, reached = self._with(at, layers), errors[layers]
            self._tell(f"{len(at.layers)} layers widened")
            if reached < error:
                best, error = at, reached
        return best, error

    def _parts(self) -> list[tuple[Op, ...]]:
        """Layers that fit by themselves and pairs of neighbours, the cheapest first: time may not suffice for all."""
        fitting = [op for op in self.layers if macs_of(op) <= self.most * self.total]
        pairs = [(a, b) for a in fitting for b in self._walk(a, self._after) if b in fitting]
        parts = [*((op,) for op in fitting), *(p for p in pairs if _cost(p) <= self.most * self.total)]
        return sorted(parts, key=_cost)

    def _candidates(self, best: Widened, alone: dict[tuple[Op, ...], float]) -> Sequence[tuple[Op, ...]]:
        """What to try next: layers beside the ones taken, then the best by themselves, as far as they fit."""
        room = self.most * self.total - _cost(best.layers)
        near = [(op,) for taken in best.layers for op in self._neighbours(taken)]
        order = dict.fromkeys((*near, *sorted(alone, key=alone.__getitem__)))
        fitting = [p for p in order if p in alone and not set(p) & set(best.layers) and _cost(p) <= room]
        return fitting[:TRIED]

    def _neighbours(self, op: Op) -> Iterator[Op]:
        """Layers that `op` reads from or that read from it, directly or through ops without multiplications."""
        yield from self._walk(op, self._before)
        yield from self._walk(op, self._after)

    def _walk(self, op: Op, step: Callable[[Op], list[Op]]) -> Iterator[Op]:
        seen, open_ops = {op}, step(op)
        while open_ops:
            other = open_ops.pop()
            if other in seen:
                continue
            seen.add(other)
            if macs_of(other):
                yield other
            else:
                open_ops += step(other)

    def _before(self, op: Op) -> list[Op]:
        makers = (None if t is None else self.uses.producer(t) for t in op.inputs)
        return [maker for maker in makers if maker is not None]

    def _after(self, op: Op) -> list[Op]:
        return [use.op for t in op.outputs for use in self.uses.readers(t)]

    def _with(self, best: Widened, more: Sequence[Op]) -> Widened:
        """More layers taken as well, and the light ops between them and others that are."""
        layers = tuple(o for o in self.layers if o in best.layers or o in more)
        inside = set(layers)
        between: list[Op] = []
        for light in self.light:
            before = self._before(light)
            if (
                light.label not in best.kinds
                and before
                and all(o in inside for o in before)
                and self._leads_to(light, layers)
            ):
                inside.add(light)
                between.append(light)
        return replace(best, layers=layers, between=tuple(between))

    def _leads_to(self, light: Op, layers: Sequence[Op]) -> bool:
        return any(other in layers for other in self._walk(light, self._after))

    def _tell(self, what: str) -> None:
        if self.told is not None:
            self.told(what)


def _cost(ops: Sequence[Op]) -> int:
    return sum(map(macs_of, ops))
