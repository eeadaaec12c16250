"""What the table of a target cannot know: how fast this processor is. Ways to place the ops are timed side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..bench.latency import TimingOptions, benchmark
from ..errors import InvalidRecipe, argument
from ..graph.model import Model
from ..plan.planner import plan_model, prepare_model
from ..plan.request import Request
from ..plan.rewrite import build
from ..targets import Target
from ..tflite import to_bytes

ROUNDS = 15
FLOAT = "float"


@dataclass(frozen=True)
class MeasuredTarget:
    """The target with the costs that gave the fastest model here, and what each way took."""

    target: Target
    note: str


def ways(target: Target) -> Iterator[tuple[str, Target]]:
    """The target as it is, and with other ideas of what is quick."""
    costs = target.costs
    if costs is None:
        raise InvalidRecipe(
            f"there is nothing to choose for the target {target.name}; {argument('measure', True)} is for cpu"
        )
    yield "by the table", target
    yield "integers wherever possible", replace(target, costs=None)
    yield "no dynamic layers", replace(target, costs=replace(costs, dynamic=False))
    yield "integers no faster than floats", replace(target, costs=replace(costs, integer_mac=costs.float_mac))


def measured_target(model: Model, request: Request) -> MeasuredTarget:
    """Build each way with quick effort, time them in turns on one thread, and take the fastest."""
    quick = replace(request, effort="quick", method="minmax" if request.method == "auto" else request.method)
    prepared, targets, models = prepare_model(model, quick), dict[str, Target](), dict[str, Model]()
    for name, target in ways(request.target):
        made = build(plan_model(prepared, replace(quick, target=target)), request.ops)
        if all(to_bytes(made) != to_bytes(other) for other in models.values()):
            targets[name], models[name] = target, made
    timed = benchmark({FLOAT: model, **models}, TimingOptions(rounds=ROUNDS, inside=False))
    seconds = {timing.name: timing.latencies[0].fastest for timing in timed.models}
    best = min(models, key=lambda name: seconds[name])
    listed = ", ".join(f"{name} {1e3 * taken:.3f} ms" for name, taken in seconds.items())
    slower = "; the float model is faster than all of them here" if seconds[FLOAT] < seconds[best] else ""
    return MeasuredTarget(targets[best], f"{best}: fastest of those timed on this machine ({listed}){slower}")
