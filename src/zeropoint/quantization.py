"""The public function `quantize`: a float model in, a quantized model out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from .calibration import Ranges, Settings, Stats
from .calibration.collect import Progress
from .calibration.range_methods import PERCENTILE
from .display import notebook_line
from .files import PathLike
from .improve.pipeline import Result, quantize_on, run_without_data
from .ops import OPS, OpSpec
from .plan.request import (
    RangeChoice,
    Request,
    TypeLike,
    WeightOptions,
    interface_of,
    require_one_source,
    resolve_recipe,
    resolve_target,
)
from .recipe import Effort, Recipe
from .runtime import trusting
from .sources.data import DataSource, samples_by_signature
from .sources.models import ModelSource, load
from .sources.samples import Samples
from .sources.sequence import States, sequence_of
from .targets import Target


def quantize(
    model: ModelSource,
    mode: str | None = None,
    data: DataSource | Mapping[str, DataSource] | None = None,
    *,
    stats: Stats | None = None,
    ranges: Ranges | None = None,
    recipe: Recipe | PathLike | None = None,
    range: RangeChoice = "auto",
    percentile: float = PERCENTILE,
    effort: Effort = "standard",
    seed: int = 0,
    weight_bits: int = 8,
    block: int | None = None,
    asymmetric: bool = False,
    min_elements: int | None = None,
    input_type: TypeLike = "float32",
    output_type: TypeLike = "float32",
    strict: bool = False,
    target: Target | str | None = None,
    measure: bool = False,
    record: bool = True,
    keep_float: Sequence[str] | str = (),
    allow_unmatched: bool = False,
    sequence: States = False,
    settings: Settings | None = None,
    progress: Progress | None = None,
    ops: Mapping[str, OpSpec] = OPS,
    trusted: bool = True,
) -> Result:
    """Quantize a float model.

    `mode` is "int8" (the default), "int16x8" or the older "uint8" for integer arithmetic; or, without any data,
    "dynamic" (integer weights, float activations that kernels round as they run), "weights" (integers that are made
    float before use) or "float16". `recipe`, rules or a file of them, says it op by op instead. Ranges come from
    running `data`, or from `stats` of an earlier calibration, or from `ranges` given outright. `data` are samples as
    `calibrate` takes them, or the path of a file or folder that holds them. `range` is the method that picks them;
    "auto" tries several on the data. `percentile` is the share that the method of this name leaves unclipped at each
    end. `effort` is "quick", "standard", "high" (minutes) or "max" (up to an hour: roundings and ranges are learned, in
    Keras; `seed` decides what is random there). `weight_bits` is 2 to 8; with 4 or fewer, layers that need 8 keep them,
    unless a recipe names the bits. `block` is the number of 4-bit weights that share a scale; weights below
    `min_elements` stay float where only weights are quantized. `keep_float` are patterns of op kinds or names that
    stay float, each of which has to match something unless `allow_unmatched`; `strict` refuses if anything has to.
    `target` is what the model is made for (`zeropoint targets` lists them): "cpu" where inputs and outputs stay float,
    or else "integer". With `measure`, ways to place the ops on it are timed on this machine, and the fastest is taken.
    With `record`, an entry in the file's metadata tells how it was made, for `inspect` and `compare`. `ops` is another
    op table, such as `OPS | {"MY_OP": spec}`. With `sequence` the samples are consecutive frames, and inputs that are
    states are filled with what the model returned for the frame before: those that an output fits, or {input: output}.
    A model that is not `trusted` runs in a child process, which it cannot escape from.
    """
    source = load(model)
    weights = WeightOptions(weight_bits, block, asymmetric, min_elements)
    rules = resolve_recipe(mode, recipe, weights).keeping_float(keep_float)
    interface = interface_of(input_type, output_type)
    made_for = resolve_target(target, rules, interface, strict)
    given = (ranges or Ranges({})).resolved(source)
    request = Request(rules, stats, given, range, interface, strict, effort, ops, target=made_for)
    request = replace(
        request, measure=measure, allow_unmatched=allow_unmatched, percentile=percentile, record=record, seed=seed
    )
    require_one_source(data, stats)
    with trusting(trusted):
        if data is None:
            return run_without_data(source, request)
        samples: Samples | Mapping[str, Samples]
        if sequence:
            samples = sequence_of(source, data, sequence)
            request = replace(request, states=samples.keys)
        else:
            samples = samples_by_signature(data, source)
        shown = progress or notebook_line("calibrating, samples:")
        return quantize_on(source, request, samples, settings, shown, _notebook_stage)


def _notebook_stage(title: str, total: int | None) -> Progress:
    """Return a progress line in a notebook for one accuracy step."""
    line = notebook_line(f"{title}, {'' if total is None else f'{total} '}steps:")
    return line or (lambda _: None)
