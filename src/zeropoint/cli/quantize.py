"""zeropoint quantize."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

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
    WorkersOption,
    console,
    normalization_of,
    samples_of,
)


def quantize(
    model: ModelArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="Where to write the quantized .tflite.")
    ] = None,
    mode: Annotated[str | None, typer.Option("--mode", metavar="MODE", help="int8 (the default) or int16x8.")] = None,
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
    weight_bits: Annotated[int, typer.Option("--weight-bits", help="8, or 4 where LiteRT has a kernel.")] = 8,
    input_type: Annotated[str, typer.Option("--input-type", help="float32, int8, uint8 or int16.")] = "float32",
    output_type: Annotated[str, typer.Option("--output-type", help="float32, int8, uint8 or int16.")] = "float32",
    strict: Annotated[bool, typer.Option("--strict", help="Refuse if an op would stay float.")] = False,
    keep_float: Annotated[
        list[str] | None,
        typer.Option("--keep-float", metavar="PATTERN", help="Keep ops of this kind or name in float (repeatable)."),
    ] = None,
    recipe: Annotated[Path | None, typer.Option("--recipe", metavar="FILE", help="Rules in JSON or TOML.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and write nothing.")] = False,
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
) -> None:
    """Make an integer model of a float one.

    Examples:

      zeropoint quantize model.tflite -o model_int8.tflite --data samples.npz

      zeropoint quantize model.tflite -o out.tflite --mode int16x8 --stats model.stats

      zeropoint quantize model.tflite -o out.tflite --data photos/ --scale 0.00392 --input-type uint8 --strict

      zeropoint quantize model.tflite --data samples.npz --keep-float 'head/*' --dry-run
    """
    from ..calibrate import METHODS, Ranges, Settings, ranges_from_json
    from ..calibrate.stats import Stats
    from ..files import refuse_existing
    from ..quantize.pipeline import Effort, Request, interface_of, require_float_part, resolve_recipe, run
    from ..recipe import keep_float as keep_float_rule
    from ..recipe import load_recipe
    from ..report.progress import quantize_with_progress
    from ..report.quantization import print_result
    from ..tflite import load

    if output is None and not dry_run:
        raise InvalidRecipe("say where to write the result with -o, or ask for the plan alone with --dry-run")
    if output is not None and not dry_run:
        refuse_existing(output, overwrite)
    if range not in (*METHODS, "auto"):
        raise InvalidRecipe(f"unknown range method {range!r}; choose from auto, {', '.join(METHODS)}")
    if effort not in get_args(Effort):
        raise InvalidRecipe(f"unknown effort {effort!r}; choose from {', '.join(get_args(Effort))}")
    if data is not None and stats is not None:
        raise InvalidRecipe("give --data or --stats, not both")
    rules = resolve_recipe(mode, None if recipe is None else load_recipe(recipe), weight_bits)
    interface = interface_of(input_type, output_type)
    given = Ranges({}) if ranges is None else ranges_from_json(ranges)
    source = load(model)
    require_float_part(source)
    shown_on = console()
    known = None if stats is None else Stats.load(stats)
    rules = rules.then(*map(keep_float_rule, keep_float or ()))
    request = Request(rules, known, given, range, interface, strict, effort)  # type: ignore[arg-type]  # checked above
    if data is None:
        result = run(source, request)
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
    print_result(result, model.stat().st_size, size, shown_on)
