"""zeropoint quantize."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ..errors import InvalidRecipe
from .options import (
    KeepStateOption,
    LimitOption,
    MeanOption,
    ModelArgument,
    NonfiniteOption,
    OffsetOption,
    OverwriteOption,
    ScaleOption,
    SignatureOption,
    StdOption,
    VerboseOption,
    WorkersOption,
    console,
    load_model,
    normalization_of,
    samples_of,
)
from .reports import ModelExplorerOption, ReportOption, Reports, command_line, compared


def quantize(
    model: ModelArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="Where to write the quantized .tflite.")
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option("--mode", metavar="MODE", help="int8 (the default), int16x8, dynamic, weights, float16."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="DATA", help="Samples: .npz, .npy, a folder of images, or file.py:function."),
    ] = None,
    stats: Annotated[
        Path | None, typer.Option("--stats", metavar="STATS", help="Statistics from `zeropoint calibrate`.")
    ] = None,
    ranges: Annotated[
        Path | None, typer.Option("--ranges", metavar="JSON", help="Given ranges: {tensor: {min, max}}.")
    ] = None,
    range: Annotated[
        str, typer.Option("--range", metavar="METHOD", help="auto, minmax, average, percentile, mse or entropy.")
    ] = "auto",
    effort: Annotated[
        str, typer.Option("--effort", metavar="EFFORT", help="quick, standard or high (compensated rounding).")
    ] = "standard",
    weight_bits: Annotated[
        int, typer.Option("--weight-bits", metavar="BITS", help="8; or 4 or 2, where LiteRT has a kernel.")
    ] = 8,
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
    input_type: Annotated[str, typer.Option("--input-type", help="float32, int8, uint8 or int16.")] = "float32",
    output_type: Annotated[str, typer.Option("--output-type", help="float32, int8, uint8 or int16.")] = "float32",
    strict: Annotated[bool, typer.Option("--strict", help="Refuse if an op would stay float.")] = False,
    keep_float: Annotated[
        list[str] | None,
        typer.Option("--keep-float", metavar="PATTERN", help="Keep ops of this kind or name in float (repeatable)."),
    ] = None,
    recipe: Annotated[Path | None, typer.Option("--recipe", metavar="FILE", help="Rules in JSON or TOML.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and write nothing.")] = False,
    report: ReportOption = None,
    model_explorer: ModelExplorerOption = None,
    limit: LimitOption = None,
    workers: WorkersOption = None,
    signature: SignatureOption = None,
    keep_state: KeepStateOption = False,
    allow_nonfinite: NonfiniteOption = False,
    scale: ScaleOption = None,
    offset: OffsetOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    overwrite: OverwriteOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Make a quantized model of a float one.

    int8 and int16x8 compute in integers and need representative data, or statistics of it. dynamic, weights and
    float16 quantize the weights alone and need none.

    Examples:

      zeropoint quantize model.tflite -o small.tflite --mode dynamic

      zeropoint quantize model.tflite -o model_int8.tflite --data samples.npz

      zeropoint quantize model.tflite -o out.tflite --mode int16x8 --stats model.stats

      zeropoint quantize model.tflite -o out.tflite --data photos/ --scale 0.00392 --input-type uint8 --strict

      zeropoint quantize model.tflite --data samples.npz --keep-float 'head/*' --dry-run
    """
    from ..calibrate import METHODS, Ranges, Settings, ranges_from_json
    from ..calibrate.stats import Stats
    from ..files import refuse_existing
    from ..quantize.pipeline import (
        Request,
        WeightOptions,
        interface_of,
        require_float_part,
        resolve_recipe,
        run_without_data,
    )
    from ..recipe import EFFORTS, load_recipe
    from ..recipe import keep_float as keep_float_rule
    from ..report.progress import quantize_with_progress
    from ..report.quantization import print_result
    from ..sources.models import size_of

    if output is None and not dry_run:
        raise InvalidRecipe("say where to write the result with -o, or ask for the plan alone with --dry-run")
    if output is not None and not dry_run:
        refuse_existing(output, overwrite)
    reports = Reports(report, model_explorer, overwrite)
    if dry_run and reports.wanted:
        raise InvalidRecipe("--report and --model-explorer show the model that was made; leave out --dry-run")
    reports.require(output)
    if model_explorer is not None and data is None:
        raise InvalidRecipe("--model-explorer shows how far each op is from the float model; give --data to measure it")
    if range not in (*METHODS, "auto"):
        raise InvalidRecipe(f"unknown range method {range!r}; choose from auto, {', '.join(METHODS)}")
    if effort not in EFFORTS:
        raise InvalidRecipe(f"unknown effort {effort!r}; choose from {', '.join(EFFORTS)}")
    if data is not None and stats is not None:
        raise InvalidRecipe("give --data or --stats, not both")
    options = WeightOptions(weight_bits, block, asymmetric, min_elements)
    rules = resolve_recipe(mode, None if recipe is None else load_recipe(recipe), options)
    interface = interface_of(input_type, output_type)
    given = Ranges({}) if ranges is None else ranges_from_json(ranges)
    source = load_model(model, verbose)
    require_float_part(source, rules)
    shown_on = console()
    known = None if stats is None else Stats.load(stats)
    rules = rules.then(*map(keep_float_rule, keep_float or ()))
    request = Request(rules, known, given, range, interface, strict, effort)  # type: ignore[arg-type]  # checked above
    if data is None:
        result = run_without_data(source, request)
    else:
        settings = Settings(limit, workers, keep_state=keep_state, allow_nonfinite=allow_nonfinite)
        sampled = samples_of(source, data, signature, normalization_of(scale, offset, mean, std))
        result = quantize_with_progress(sampled, request, settings, shown_on)
    if dry_run:
        for plan in result.plans:
            print(plan)
        return
    assert output is not None
    size = result.save(output, overwrite=overwrite)
    print_result(result, size_of(model, source), size, shown_on)
    if reports.wanted:
        from ..report.page_build import Evidence

        comparison = None if data is None else compared(sampled, result.model, shown_on, limit)
        before = size_of(model, source)
        evidence = Evidence(output.name, result.model, size, before, result, None, comparison, None, rules)
        reports.write(replace(evidence, command=command_line(), data=data), shown_on)
