"""What the table of a target cannot know: how fast this processor is. Ways to compute are timed side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..bench.latency import TimingOptions, benchmark
from ..errors import InvalidRecipe, argument
from ..graph.model import Model
from ..plan.planner import plan_model, prepare_model
from ..plan.request import Interface, Request
from ..plan.rewrite import build
from ..recipe import Recipe, Rule
from ..tflite import to_bytes

ROUNDS = 15
FLOAT = "float"


def ways(request: Request) -> Iterator[tuple[str, Request]]:
    """The request as it is, with other ideas of what is quick, and with float arithmetic on integer weights."""
    target, costs = request.target, request.target.costs
    if costs is None:
        raise InvalidRecipe(
            f"there is nothing to choose for the target {target.name}; {argument('measure', True)} is for cpu"
        )
    yield "by the table", request
    others = {
        "integers wherever possible": None,
        "no dynamic layers": replace(costs, dynamic=False),
        "integers no faster than floats": replace(costs, integer_mac=costs.float_mac),
    }
    for name, own in others.items():
        yield name, replace(request, target=replace(target, costs=own))
    if request.recipe.has_integer_ops and request.interface == Interface():
        for name, unpacked in (("dynamic layers", False), ("float on integer weights", True)):
            yield name, replace(request, recipe=_in_float(request.recipe, unpacked=unpacked), method="auto")


def _in_float(recipe: Recipe, *, unpacked: bool) -> Recipe:
    """The same weights beside float activations, but for ops that a rule names: those stay as they are asked for."""

    def changed(rule: Rule) -> Rule:
        scheme = replace(rule.scheme, activations=None, symmetric=False, unpacked=unpacked)
        return replace(rule, scheme=scheme) if rule.is_general and rule.scheme.activations is not None else rule

    return replace(recipe, rules=tuple(map(changed, recipe.rules)))


def measured_request(model: Model, request: Request) -> tuple[Request, str]:
    """The request for whatever is fastest here, and what each way took.

    Each is built with quick effort, and they are timed in turns on one thread, in CPU time: other work on the machine
    is no reason to choose one.
    """
    asked, models = dict[str, Request](), dict[str, Model]()
    for name, way in ways(request):
        quick = replace(way, effort="quick", method="minmax" if way.method == "auto" else way.method)
        planned = plan_model(prepare_model(model, quick), quick)
        made = build(planned, request.ops)
        is_new = all(to_bytes(made) != to_bytes(other) for other in models.values())
        if is_new and (not models or any(plan.does_anything for plan in planned.plans)):
            asked[name], models[name] = way, made
    timed = benchmark({FLOAT: model, **models}, TimingOptions(rounds=ROUNDS, inside=False, clock="cpu"))
    seconds = {timing.name: timing.latencies[0].fastest for timing in timed.models}
    best = min(models, key=lambda name: seconds[name])
    listed = ", ".join(f"{name} {1e3 * taken:.3f} ms" for name, taken in seconds.items())
    return asked[best], f"{best}: fastest of those timed on this machine ({listed})"
