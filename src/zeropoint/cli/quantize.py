"""zeropoint quantize."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import InvalidRecipe
from .options import (
    DATA,
    NO_IMAGE_OPTIONS,
    EffortOption,
    ImageOptions,
    InputTypeOption,
    KeepStateOption,
    LimitOption,
    ModelArgument,
    NonfiniteOption,
    OutputTypeOption,
    OverwriteOption,
    RangeOption,
    RecipeOption,
    SignatureOption,
    WeightBitsOption,
    WorkersOption,
    efforts,
    known,
    load_model,
    range_methods,
    samples_of,
)
from .reports import ModelExplorerOption, ReportOption, Reports, command_line, compared
from .screen import Screen


def quantize(
    screen: Screen,
    model: ModelArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="Where to write the quantized .tflite.")
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode",
            metavar="MODE",
            help="int8 (the default), int16x8, dynamic, weights, float16.",
            autocompletion=lambda: list(_modes()),
        ),
    ] = None,
    data: Annotated[str | None, DATA] = None,
    stats: Annotated[
        Path | None, typer.Option("--stats", metavar="STATS", help="Statistics from `zeropoint calibrate`.")
    ] = None,
    ranges: Annotated[
        Path | None, typer.Option("--ranges", metavar="JSON", help="Given ranges: {tensor: {min, max}}.")
    ] = None,
    range: RangeOption = "auto",
    effort: EffortOption = "standard",
    weight_bits: WeightBitsOption = 8,
    block: Annotated[
        int | None,
        typer.Option("--block", metavar="N", help="4-bit dense layers: a scale for each 32, 64, 128 or 256 weights."),
    ] = None,
    asymmetric: Annotated[
        bool, typer.Option("--asymmetric", help="Mode weights: ranges of weights need not be centred on zero.")
    ] = False,
    min_elements: Annotated[
        int | None,
        typer.Option("--min-elements", metavar="N", help="Where only weights are quantized: smaller ones stay float."),
    ] = None,
    input_type: InputTypeOption = "float32",
    output_type: OutputTypeOption = "float32",
    strict: Annotated[bool, typer.Option("--strict", help="Refuse if an op would stay float.")] = False,
    keep_float: Annotated[
        list[str] | None,
        typer.Option("--keep-float", metavar="PATTERN", help="Keep ops of this kind or name in float (repeatable)."),
    ] = None,
    recipe: RecipeOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and write nothing.")] = False,
    report: ReportOption = None,
    model_explorer: ModelExplorerOption = None,
    limit: LimitOption = None,
    workers: WorkersOption = None,
    signature: SignatureOption = None,
    keep_state: KeepStateOption = False,
    allow_nonfinite: NonfiniteOption = False,
    images: ImageOptions = NO_IMAGE_OPTIONS,
    overwrite: OverwriteOption = False,
) -> None:
    """Make a quantized model of a float one.

    int8 and int16x8 compute in integers and need representative data, or statistics of it. dynamic, weights and
    float16 quantize the weights alone and need none.

    Examples:
      zeropoint quantize model.tflite -o small.tflite --mode dynamic
      zeropoint quantize model.tflite -o model_int8.tflite --data samples.npz
      zeropoint quantize model.tflite -o out.tflite --mode int16x8 --stats m.stats
      zeropoint quantize model.tflite -o out.tflite --data photos/ --scale 0.00392 \\
        --input-type uint8 --strict
      zeropoint quantize model.tflite --data samples.npz --dry-run \\
        --keep-float 'head/*'
    """
    from ..calibration import Ranges, Settings, ranges_from_json
    from ..calibration.stats import Stats
    from ..plan.pipeline import (
        Request,
        WeightOptions,
        interface_of,
        require_float_part,
        resolve_recipe,
        run_without_data,
    )
    from ..recipe import keep_float as keep_float_rule
    from ..recipe import load_recipe
    from ..report.progress import quantize_with_progress
    from ..report.quantization import print_result
    from ..sources.models import size_of

    if output is None and not dry_run:
        raise InvalidRecipe("say where to write the result with -o, or ask for the plan alone with --dry-run")
    reports = Reports(report, model_explorer, overwrite)
    if dry_run and reports.wanted:
        raise InvalidRecipe("--report and --model-explorer show the model that was made; leave out --dry-run")
    reports.require(None if dry_run else output, inputs=(model, data, stats, ranges, recipe))
    if model_explorer is not None and data is None:
        raise InvalidRecipe("--model-explorer shows how far each op is from the float model; give --data to measure it")
    method, chosen = known("range method", range, range_methods()), known("effort", effort, efforts())
    if data is not None and stats is not None:
        raise InvalidRecipe("give --data or --stats, not both")
    about_samples = (limit, workers, signature, keep_state, allow_nonfinite, images)
    if data is None and about_samples != (None, None, None, False, False, NO_IMAGE_OPTIONS):
        raise InvalidRecipe("options about samples were given, but no samples: add --data, or leave these options out")
    options = WeightOptions(weight_bits, block, asymmetric, min_elements)
    rules = resolve_recipe(mode, None if recipe is None else load_recipe(recipe), options)
    interface = interface_of(input_type, output_type)
    given = Ranges({}) if ranges is None else ranges_from_json(ranges)
    source = load_model(model, screen)
    require_float_part(source, rules)
    measured = None if stats is None else Stats.load(stats)
    rules = rules.then(*map(keep_float_rule, keep_float or ()))
    request = Request(rules, measured, given, method, interface, strict, chosen)
    if data is None:
        result = run_without_data(source, request)
    else:
        settings = Settings(limit, workers, keep_state=keep_state, allow_nonfinite=allow_nonfinite)
        sampled = samples_of(source, data, images, signature)
        result = quantize_with_progress(sampled, request, settings, screen.remarks)
    if dry_run:
        for plan in result.plans:
            screen.text(plan)
        return
    assert output is not None
    size, before = result.save(output, overwrite=overwrite), size_of(model, source)
    print_result(result, before, size, screen.remarks)
    if reports.wanted:
        from ..report.page_build import Evidence

        evidence = Evidence(
            output.name,
            result.model,
            size,
            before,
            result,
            comparison=None if data is None else compared(sampled, result.model, screen.remarks, limit),
            recipe=rules,
            command=command_line(),
            data=data,
        )
        reports.write(evidence, screen.remarks)


def _modes() -> tuple[str, ...]:
    from ..recipe import MODES

    return MODES
