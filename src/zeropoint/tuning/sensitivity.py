"""What fewer bits would cost, layer by layer, measured in the float model, and the order in which to take them away.

Each layer's weights are rounded by themselves, everything else staying float, and the outputs are compared. Squared
errors of different layers nearly add up, so the choice of bits for all layers at once is a knapsack: of all single
moves to fewer bits, those on the lower convex hull of (bytes, error) are taken in the order of error for each byte they
save. That is the path of the Lagrangian relaxation; every place on it is a candidate, and few of them are tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ..bench.bench import Bench
from ..dtypes import DType
from ..graph.model import Op
from ..graph.query import Use
from ..ops.execution import macs_of
from ..plan.plan import Packed, Plan, Planned
from ..plan.planner import plan_model, prepare_model
from ..plan.request import Request
from ..plan.rewrite import build, held_bytes
from ..recipe import WEIGHTS, Recipe, Rule, Scheme
from ..targets import Target

BITS = (DType.INT8, DType.INT4, DType.INT2)

SMALLEST = 128
"""Weights of fewer elements stay float: their scales would take as much."""

SAMPLES, TRIAL_MACS = 24, 4e11
"""On how many samples layers are tried: so many, or as many as take this work in all."""


@dataclass(frozen=True)
class Choice:
    """Weights of a layer in so many bits: what they take, and what it costs the outputs by itself."""

    weights: DType
    bytes: int
    error: float


@dataclass(frozen=True)
class Layer:
    """An op with weights, by kind and name, and its choices, the widest first."""

    kind: str
    name: str
    choices: tuple[Choice, ...]

    def hull(self) -> tuple[Choice, ...]:
        """The choices that are the best for some price of a byte, the widest first."""
        kept: list[Choice] = []
        for choice in self.choices:
            while kept and (kept[-1].error >= choice.error or _dearer(kept, choice)):
                kept.pop()
            kept.append(choice)
        return tuple(kept)


def _price(wide: Choice, narrow: Choice) -> float:
    """Error for each byte that the move saves."""
    return (narrow.error - wide.error) / max(1, wide.bytes - narrow.bytes)


def _dearer(kept: Sequence[Choice], choice: Choice) -> bool:
    """Whether going to the last one costs more for each byte than going on to `choice`."""
    return len(kept) > 1 and _price(kept[-2], kept[-1]) >= _price(kept[-1], choice)


Config = tuple[DType, ...]
"""The type of each layer's weights."""


def path(layers: Sequence[Layer]) -> list[Config]:
    """Configurations from all layers at their widest to all at their narrowest, one move after the other."""
    hulls = [layer.hull() for layer in layers]
    moves = sorted(
        (_price(wide, narrow), place, narrow.weights)
        for place, hull in enumerate(hulls)
        for wide, narrow in pairwise(hull)
    )
    at = [hull[0].weights for hull in hulls]
    found = [tuple(at)]
    for _, place, weights in moves:
        at[place] = weights
        found.append(tuple(at))
    return found


def weight_layers(bench: Bench, target: Target) -> tuple[Layer, ...]:
    """The layers of the model of `bench`, as it is prepared for `target`, with what each choice of bits costs there."""
    plans = {dtype: _uniform(bench, dtype, target) for dtype in BITS}
    ops = [op for op in plans[BITS[0]].plans[0].graph.ops if _held(plans[BITS[0]].plans[0], op)]
    names = Counter((op.label, op.name) for op in ops)
    ops = [op for op in ops if names[op.label, op.name] == 1]  # others could not be named in a recipe
    macs = sum(macs_of(op, bench.ops) for op in bench.entry.graph.ops)
    runs = max(1, len(ops) * len(BITS))
    judge = bench.on(bench.rows[: max(2, min(SAMPLES, int(TRIAL_MACS / max(1, macs * runs))))])
    by_name = {dtype: _by_name(planned.plans[0]) for dtype, planned in plans.items()}
    found: list[Layer] = []
    for op in ops:
        choices = []
        for dtype, planned in plans.items():
            twin = by_name[dtype][op.label, op.name]
            held = _held(planned.plans[0], twin)
            made = build(_with_packed(planned, held), bench.ops)
            size = sum(held_bytes(use.tensor.size, packed.form) for use, packed in held.items())
            choices.append(Choice(dtype, size, judge.error(made)))
        found.append(Layer(op.label, op.name, tuple(choices)))
    return tuple(found)


def _uniform(bench: Bench, dtype: DType, target: Target) -> Planned:
    recipe = Recipe((Rule(replace(WEIGHTS, weights=dtype, min_elements=SMALLEST)),))
    request = Request(recipe, effort="quick", ops=bench.ops, target=target)
    return plan_model(prepare_model(bench.model, request), request)


def _held(plan: Plan, op: Op) -> Mapping[Use, Packed]:
    return {use: packed for use, packed in plan.packed.items() if use.op is op}


def _by_name(plan: Plan) -> dict[tuple[str, str], Op]:
    return {(op.label, op.name): op for op in plan.graph.ops}


def _with_packed(planned: Planned, held: Mapping[Use, Packed]) -> Planned:
    first, *others = planned.plans
    return replace(planned, plans=(replace(first, packed=held), *(replace(p, packed={}) for p in others)))


def narrowed(layers: Sequence[Layer], config: Config, base: Scheme) -> Recipe:
    """The recipe that gives the layers these types: one rule for all, one for each layer that is different."""
    usual = Counter(config).most_common(1)[0][0]
    rules = [Rule(_scheme(base, usual))]
    for layer, weights in zip(layers, config, strict=True):
        if weights is not usual:
            rules.append(Rule(_scheme(base, weights), ops=layer.kind, name=layer.name))
    return Recipe(tuple(rules))


def _scheme(base: Scheme, weights: DType) -> Scheme:
    smallest = SMALLEST if base.activations is None else base.min_elements
    return replace(base, weights=weights, min_elements=smallest)


def described(config: Config) -> str:
    """Of 27 layers 2 in 8 bits, 25 in 4."""
    counts = Counter(config)
    parts = [f"{counts[dtype]} in {dtype.bits}" for dtype in BITS if counts[dtype]]
    first, *others = parts
    return f"of {len(config)} layers {', '.join([f'{first} bits', *others])}"
