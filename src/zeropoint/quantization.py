"""The front door: a float model in, a quantized model out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .calibration import Ranges, Settings, Stats
from .calibration.collect import Progress
from .improve.pipeline import Result, quantize_on, run_without_data
from .ops import OPS, OpSpec
from .plan.request import RangeChoice, Request, WeightOptions, interface_of, resolve_recipe, resolve_target
from .recipe import Effort, Recipe, keep_float
from .runtime import trusting
from .sources.models import ModelSource, load
from .sources.samples import Samples
from .targets import Target


def quantize(
    model: ModelSource,
    mode: str | None = None,
    data: Samples | Mapping[str, Samples] | None = None,
    *,
    stats: Stats | None = None,
    ranges: Ranges | None = None,
    recipe: Recipe | None = None,
    range: RangeChoice = "auto",
    effort: Effort = "standard",
    weight_bits: int = 8,
    block: int | None = None,
    asymmetric: bool = False,
    min_elements: int | None = None,
    input_type: str = "float32",
    output_type: str = "float32",
    strict: bool = False,
    target: Target | str | None = None,
    measure: bool = False,
    keep: Sequence[str] | str = (),
    settings: Settings | None = None,
    progress: Progress | None = None,
    ops: Mapping[str, OpSpec] = OPS,
    trusted: bool = True,
) -> Result:
    """Quantize a float model.

    `mode` is "int8" (the default) or "int16x8" for integer arithmetic; or, without any data, "dynamic" (integer
    weights, float activations that kernels round as they run), "weights" (integers that are made float before use) or
    "float16". `recipe` says it op by op instead. Ranges come from running `data`, or from `stats` of an earlier
    calibration, or from `ranges` given outright. `range` is the method that picks them; "auto" tries several on the
    data. `effort` is "quick", "standard" or "high" (minutes). `weight_bits` is 8, 4 or 2; `block` the number of 4-bit
    weights that share a scale; weights below `min_elements` stay float where only weights are quantized. `keep` are
    patterns of op kinds or names that stay float; `strict` refuses if anything has to. `target` is what the model is
    made for (`zeropoint targets` lists them): "cpu" where inputs and outputs stay float, or else "integer". With
    `measure`, ways to place the ops on it are timed on this machine, and the fastest is taken. `ops` is another op
    table, such as `OPS | {"MY_OP": spec}`. A model that is not `trusted` runs in a child process, which it cannot
    escape from.
    """
    source = load(model)
    weights = WeightOptions(weight_bits, block, asymmetric, min_elements)
    kept = map(keep_float, (keep,) if isinstance(keep, str) else keep)
    rules = resolve_recipe(mode, recipe, weights).then(*kept)
    interface = interface_of(input_type, output_type)
    made_for = resolve_target(target, rules, interface, strict)
    given = ranges or Ranges({})
    request = Request(rules, stats, given, range, interface, strict, effort, ops, target=made_for, measure=measure)
    with trusting(trusted):
        if data is None or stats is not None:
            return run_without_data(source, request)
        return quantize_on(source, request, data, settings, progress)
