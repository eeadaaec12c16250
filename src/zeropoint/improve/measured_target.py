"""Measures what the table of a target cannot know: the speed of this processor. Placements are timed side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..bench.latency import TimingOptions, benchmark, sample_for
from ..errors import InvalidRecipe, ZeropointError, argument
from ..graph.model import Model
from ..plan.planner import plan_model
from ..plan.prepared import prepare_model
from ..plan.request import Interface, Request
from ..plan.rewrite import build
from ..recipe import Recipe, Rule
from ..runtime import Runner
from ..targets import Rewrite
from ..tflite import to_bytes
from .gated_weights import with_gated_weights

ROUNDS = 15
FLOAT, BY_TABLE = "float", "by the table"

CLEARLY_FASTER = 0.95
"""The share of the table's time that another placement may take at most. Placements are timed with quick effort, so a
tie says little: steps of higher efforts may leave other ops in float in one of them than in the other."""


def ways(request: Request) -> Iterator[tuple[str, Request]]:
    """Yield the request as it is, with other cost assumptions, and with float arithmetic on integer weights."""
    target, costs = request.target, request.target.costs
    if costs is None:
        raise InvalidRecipe(
            f"there is nothing to choose for the target {target.name}; {argument('measure', True)} is for cpu"
        )
    yield BY_TABLE, request
    others = {
        "integers wherever possible": None,
        "no dynamic layers": replace(costs, dynamic=False),
        "integers no faster than floats": replace(costs, integer_mac=costs.float_mac),
        "integers for products of matrices": replace(
            costs, integer=1.5 * costs.integer, float_depthwise=True, table=None
        ),
    }
    for name, own in others.items():
        # Where functions and products before layers are float, gates cost little there.
        made_for = target.without(Rewrite.GATED_WEIGHTS) if own is not None and own.float_depthwise else target
        yield name, replace(request, target=replace(made_for, costs=own))
    if request.recipe.has_integer_ops and request.interface == Interface():
        for name, unpacked in (("dynamic layers", False), ("float on integer weights", True)):
            yield name, replace(request, recipe=_in_float(request.recipe, unpacked=unpacked), method="auto")


def _in_float(recipe: Recipe, *, unpacked: bool) -> Recipe:
    """Return the same weights with float activations, except for ops that a rule names: those stay as requested."""

    def changed(rule: Rule) -> Rule:
        scheme = replace(rule.scheme, activations=None, symmetric=False, unpacked=unpacked)
        return replace(rule, scheme=scheme) if rule.is_general and rule.scheme.activations is not None else rule

    return replace(recipe, rules=tuple(map(changed, recipe.rules)))


def measured_request(model: Model, request: Request) -> tuple[Request, str]:
    """Return the request for the fastest placement here, and the time of each; that by the table if none is clearly
    faster.

    Each is built with quick effort, and they are timed in turns on one thread, in CPU time, so that other load on the
    machine does not decide. The placement by the table must work; another one that does not is only reported.
    """
    asked, models, failed = dict[str, Request](), dict[str, Model](), dict[str, str]()
    for name, way in ways(request):
        try:
            made = _built(model, way, is_first=not models)
        except ZeropointError as error:
            if not models:
                raise
            failed[name] = str(error)
            continue
        if made is not None and all(to_bytes(made) != to_bytes(other) for other in models.values()):
            asked[name], models[name] = way, made
    timed = benchmark({FLOAT: model, **models}, TimingOptions(rounds=ROUNDS, inside=False, clock="cpu"))
    seconds = {timing.name: timing.latencies[0].fastest for timing in timed.models}
    fastest = min(models, key=lambda name: seconds[name])
    is_clear = seconds[fastest] <= CLEARLY_FASTER * seconds[BY_TABLE]
    best = fastest if is_clear else BY_TABLE
    why = "fastest of those timed on this machine" if is_clear else "none timed on this machine is clearly faster"
    took = [f"{name} {1e3 * taken:.3f} ms" for name, taken in seconds.items()]
    listed = ", ".join(took + [f"{name} not possible: {reason}" for name, reason in failed.items()])
    return asked[best], f"{best}: {why} ({listed})"


def _built(model: Model, request: Request, *, is_first: bool) -> Model | None:
    """Return the model of one placement, run once, because a model that fails cannot be timed. None if it leaves
    everything unchanged, which only the first may."""
    quick = replace(request, effort="quick", method="minmax" if request.method == "auto" else request.method)
    prepared = prepare_model(model, quick)
    planned = plan_model(prepared, quick)
    if request.effort != "quick" and (gated := with_gated_weights(prepared, planned, quick)) is not None:
        planned = plan_model(gated.prepared, quick)
    if not is_first and not any(plan.does_anything for plan in planned.plans):
        return None
    made = build(planned, request.ops)
    Runner(made).run(sample_for(made))
    return made
