"""zeropoint doctor."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import InvalidRecipe
from .compare import JsonOption, MetricOption
from .options import (
    DataOption,
    LimitOption,
    MeanOption,
    ModelArgument,
    OffsetOption,
    OverwriteOption,
    ScaleOption,
    StdOption,
    VerboseOption,
    console,
    load_model,
    normalization_of,
    samples_of,
)
from .reports import ModelExplorerOption, ReportOption, Reports, command_line


def doctor(
    model: ModelArgument,
    data: DataOption,
    quantized: Annotated[
        Path | None,
        typer.Argument(
            metavar="[QUANTIZED]", help="The model in question; by default one is made.", show_default=False
        ),
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option("--calibration", metavar="DATA", help="Samples that QUANTIZED was calibrated on, if others."),
    ] = None,
    mode: Annotated[str | None, typer.Option("--mode", metavar="MODE", help="int8 (the default) or int16x8.")] = None,
    recipe: Annotated[Path | None, typer.Option("--recipe", metavar="FILE", help="Rules in JSON or TOML.")] = None,
    range: Annotated[
        str, typer.Option("--range", metavar="METHOD", help="auto, minmax, average, percentile, mse or entropy.")
    ] = "auto",
    effort: Annotated[str, typer.Option("--effort", metavar="EFFORT", help="quick, standard or high.")] = "standard",
    apply: Annotated[
        Path | None, typer.Option("--apply", metavar="OUT", help="Write the model that the findings ask for.")
    ] = None,
    save_recipe: Annotated[
        Path | None, typer.Option("--save-recipe", metavar="OUT.json", help="Write its recipe, for quantize --recipe.")
    ] = None,
    most: Annotated[
        float,
        typer.Option("--most", min=0, max=1, metavar="SHARE", help="Arithmetic that may be given more bits."),
    ] = 0.1,
    seconds: Annotated[
        float, typer.Option("--seconds", min=1, metavar="S", help="Time for trying things out; building comes after.")
    ] = 100.0,
    as_json: JsonOption = False,
    metric: MetricOption = None,
    limit: LimitOption = None,
    scale: ScaleOption = None,
    offset: OffsetOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    report: ReportOption = None,
    model_explorer: ModelExplorerOption = None,
    overwrite: OverwriteOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Find out why a quantized model lost accuracy: causes with numbers, in order of what mending them gains.

    MODEL is the float model. Every gain of a finding was measured by trying its fix on the samples, unless it says
    "about". A healthy model has nothing to fix.

    Examples:

      zeropoint doctor model.tflite --data samples.npz

      zeropoint doctor model.tflite model_int8.tflite --data eval.npz --calibration calibration.npz

      zeropoint doctor model.tflite --data photos/ --scale 0.00392 --apply better_int8.tflite

      zeropoint doctor model.tflite --data eval.py:samples --metric eval.py:accuracy --save-recipe better.json
    """
    from ..calibrate import METHODS
    from ..files import refuse_existing, write_whole
    from ..quantize.pipeline import WeightOptions, resolve_recipe
    from ..recipe import EFFORTS, load_recipe
    from ..report.comparison import print_diagnosis
    from ..report.progress import progress_bar
    from ..sources.models import size_of
    from ..tflite import to_bytes
    from ..verify.doctor import Case, examine
    from ..verify.outputs import load_metric

    reports = Reports(report, model_explorer, overwrite)
    reports.require(apply, save_recipe)
    for path in (apply, save_recipe):
        if path is not None:
            refuse_existing(path, overwrite)
    if range not in (*METHODS, "auto"):
        raise InvalidRecipe(f"unknown range method {range!r}; choose from auto, {', '.join(METHODS)}")
    if effort not in EFFORTS:
        raise InvalidRecipe(f"unknown effort {effort!r}; choose from {', '.join(EFFORTS)}")
    rules = resolve_recipe(mode, None if recipe is None else load_recipe(recipe), WeightOptions())
    score = None if metric is None else load_metric(metric)
    normalization = normalization_of(scale, offset, mean, std)
    source = samples_of(load_model(model, verbose), data, None, normalization)
    given = None if quantized is None else load_model(quantized, verbose)
    calibrated = None
    if calibration is not None:
        calibrated = samples_of(source.model, calibration, None, normalization).data.samples
    shown_on = console()
    with progress_bar("examining", None, "", shown_on) as tell:
        case = Case(
            source.model,
            source.data.samples,
            given,
            calibrated,
            rules,
            range,  # type: ignore[arg-type]  # checked above
            effort,
            limit,
            score,
            seconds,
            most,
            lambda what: tell(0, what),
        )
        examined = examine(case)
    diagnosis = examined.diagnosis
    if as_json:
        json.dump(diagnosis.to_json(), sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        print_diagnosis(diagnosis, shown_on)
    if save_recipe is not None and diagnosis.remedy is not None:
        content = json.dumps({"rules": [dict(rule) for rule in diagnosis.remedy.rules]}, indent=1) + "\n"
        write_whole(save_recipe, [content.encode()], overwrite=overwrite)
    if apply is not None:
        if examined.mended is None:
            print("nothing to apply: no file was written", file=sys.stderr)
        else:
            examined.mended.save(apply, overwrite=overwrite)
    if reports.wanted:
        from ..report.page_build import Evidence

        size = len(to_bytes(examined.before)) if quantized is None else size_of(quantized, examined.before)
        evidence = Evidence(
            model.name if quantized is None else quantized.name,
            examined.before,
            size,
            size_of(model, source.model),
            stats=examined.stats,
            diagnosis=diagnosis,
            recipe=rules,
            command=command_line(),
            data=data,
        )
        reports.write(evidence, console(stderr=as_json))
