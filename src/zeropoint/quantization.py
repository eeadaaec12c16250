"""The public function `quantize`: a float model in, a quantized model out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from .bench.judged_outputs import PLAIN, JudgedOutputs
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
from .sources.models import ModelSource, load, size_of_file
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
    keep_float: Sequence[str] | str | None = (),
    allow_unmatched: bool = False,
    sequence: States = False,
    settings: Settings | None = None,
    outputs: JudgedOutputs | None = None,
    progress: Progress | None = None,
    ops: Mapping[str, OpSpec] = OPS,
    trusted: bool = True,
) -> Result:
    """Quantize a float model for LiteRT.

    Integer arithmetic needs the ranges of activations: from `data`, from the `stats` of an earlier calibration, or
    given as `ranges`. The modes "dynamic", "weights" and "float16" need no data.

    Args:
        model: The float model: the path of a file, the bytes of a `.tflite`, or anything else that `load` accepts.
        mode: "int8" (the default), "int16x8" or the older "uint8" for integer arithmetic; "dynamic" (integer weights,
            activations quantized at run time), "weights" (integer weights, dequantized before use) or "float16".
        data: Calibration samples, as for `calibrate`: samples, or the path of a file or folder that holds them.
        recipe: Rules that set the mode for each op, or the path of a recipe file; takes the place of `mode`.
        target: What the model is made for; `zeropoint targets` lists the names. By default "cpu" if inputs and outputs
            stay float, otherwise "integer".
        effort: "quick", "standard", "high" (minutes) or "max" (up to an hour: roundings and ranges are learned, in
            Keras).

        stats: The result of `calibrate`, instead of `data`.
        ranges: Ranges of tensors, which take precedence over measured ones.
        range: How ranges are chosen from the statistics; "auto" tries several methods on the data.
        percentile: The percentage of values that the range method "percentile" keeps unclipped at each end.
        sequence: Whether samples are consecutive frames. Inputs that are states are then filled with the output of the
            frame before: those that match an output, or {input: output}.
        settings: Settings of the calibration.
        outputs: What the outputs are (classes, points, mask ...) if that is not recognized, and how much each counts.

        weight_bits: 2 to 8. With 4 or fewer, layers that need 8 keep them, unless a recipe sets the bits.
        block: The number of consecutive 4-bit weights that share a scale.
        asymmetric: Whether weights have zero points; only in the mode "weights".
        min_elements: Smaller weights stay float in the modes that quantize weights only.
        input_type: The type of the inputs, such as "int8"; float32 by default.
        output_type: The type of the outputs.

        keep_float: Patterns of op kinds or names that stay float.
        allow_unmatched: Accept patterns and rules that match no op, instead of raising.
        strict: Raise if any op has to stay float, instead of listing it in the result.
        measure: Time different placements of the ops on this machine, and use one that is clearly faster than the
            usual one.
        record: Store in the file's metadata how it was made, for `inspect` and `compare`.
        seed: The seed of the random choices at effort "max".
        progress: Called with the number of samples that have been calibrated.
        ops: The op table, such as `OPS | {"MY_OP": spec}`.
        trusted: If false, the model runs in a child process, so that a damaged or hostile file cannot crash or hang
            this one.

    Returns:
        The quantized model, the plan it was made by, the ops that stayed float and why, and how close it is to the
            float model.

    Raises:
        ZeropointError: The model, the data or the options cannot be used; the message says what to do.
    """
    source = load(model)
    weights = WeightOptions(weight_bits, block, asymmetric, min_elements)
    rules = resolve_recipe(mode, recipe, weights).keeping_float(keep_float)
    interface = interface_of(input_type, output_type)
    made_for = resolve_target(target, rules, interface, strict)
    given = (ranges or Ranges({})).resolved(source, ops)
    request = Request(rules, stats, given, range, interface, strict, effort, ops, target=made_for)
    request = replace(
        request,
        outputs=outputs or PLAIN,
        measure=measure,
        allow_unmatched=allow_unmatched,
        percentile=percentile,
        record=record,
        seed=seed,
    )
    require_one_source(data, stats)
    file_bytes = size_of_file(model)
    with trusting(trusted):
        if data is None:
            return run_without_data(source, request).from_file_of(file_bytes)
        samples: Samples | Mapping[str, Samples]
        if sequence:
            samples = sequence_of(source, data, sequence)
            request = replace(request, states=samples.keys)
        else:
            samples = samples_by_signature(data, source)
        shown = progress or notebook_line("calibrating, samples:")
        result = quantize_on(source, request, samples, settings, shown, _notebook_stage)
        return result.from_file_of(file_bytes)


def _notebook_stage(title: str, total: int | None) -> Progress:
    """Return a progress line in a notebook for one accuracy step."""
    line = notebook_line(f"{title}, {'' if total is None else f'{total} '}steps:")
    return line or (lambda _: None)
