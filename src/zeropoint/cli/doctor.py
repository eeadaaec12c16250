"""zeropoint doctor."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .compare import JsonOption, MetricOption
from .options import (
    NO_IMAGE_OPTIONS,
    DataOption,
    EffortOption,
    ImageOptions,
    LimitOption,
    ModelArgument,
    OverwriteOption,
    RangeOption,
    RecipeOption,
    efforts,
    known,
    load_model,
    range_methods,
    samples_of,
)
from .reports import ModelExplorerOption, ReportOption, Reports, command_line
from .running import CheckFailed
from .screen import Screen

if TYPE_CHECKING:
    from ..diagnosis.doctor import Examined


def doctor(
    screen: Screen,
    model: ModelArgument,
    data: DataOption,
    quantized: Annotated[
        Path | None,
        typer.Argument(metavar="QUANTIZED", help="The model in question; by default one is made.", show_default=False),
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option("--calibration", metavar="DATA", help="Samples that QUANTIZED was calibrated on, if others."),
    ] = None,
    mode: Annotated[str | None, typer.Option("--mode", metavar="MODE", help="int8 (the default) or int16x8.")] = None,
    recipe: RecipeOption = None,
    range: RangeOption = "auto",
    effort: EffortOption = "standard",
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
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 if anything is found that costs accuracy.")
    ] = False,
    as_json: JsonOption = False,
    metric: MetricOption = None,
    limit: LimitOption = None,
    images: ImageOptions = NO_IMAGE_OPTIONS,
    report: ReportOption = None,
    model_explorer: ModelExplorerOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Find out why a quantized model lost accuracy: causes with numbers, in order of what mending them gains.

    MODEL is the float model. Every gain of a finding was measured by trying its fix on the samples, unless it says
    "about". A healthy model has nothing to fix.

    Examples:
      zeropoint doctor model.tflite --data samples.npz
      zeropoint doctor model.tflite model_int8.tflite --data eval.npz \\
        --calibration calibration.npz --check
      zeropoint doctor model.tflite --data photos/ --scale 0.00392 \\
        --apply better_int8.tflite
      zeropoint doctor model.tflite --data eval.py:samples \\
        --metric eval.py:accuracy --save-recipe better.json
    """
    from ..comparison.outputs import load_metric
    from ..diagnosis.doctor import Case, examine
    from ..plan.pipeline import WeightOptions, resolve_recipe
    from ..recipe import load_recipe
    from ..report.comparison import print_diagnosis
    from ..report.progress import progress_bar
    from ..sources.models import size_of
    from ..tflite import to_bytes

    reports = Reports(report, model_explorer, overwrite)
    reports.require(apply, save_recipe, inputs=(model, quantized, data, calibration, recipe))
    method, chosen = known("range method", range, range_methods()), known("effort", effort, efforts())
    rules = resolve_recipe(mode, None if recipe is None else load_recipe(recipe), WeightOptions())
    score = None if metric is None else load_metric(metric)
    source = samples_of(load_model(model, screen), data, images)
    given = None if quantized is None else load_model(quantized, screen)
    calibrated = None
    if calibration is not None:
        calibrated = samples_of(source.model, calibration, images).data.samples
    with progress_bar("examining", None, "", screen.remarks) as tell:
        case = Case(
            source.model,
            source.data.samples,
            quantized=given,
            calibration=calibrated,
            recipe=rules,
            range=method,
            effort=chosen,
            limit=limit,
            metric=score,
            seconds=seconds,
            most=most,
            told=lambda what: tell(0, what),
        )
        examined = examine(case)
    diagnosis = examined.diagnosis
    if as_json:
        screen.json(diagnosis.to_json())
    else:
        print_diagnosis(screen.without_notes(diagnosis), screen.results)
    _write(examined, apply, save_recipe, overwrite)
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
        reports.write(evidence, screen.asides if as_json else screen.remarks)
    costly = [finding.cause for finding in diagnosis.findings if finding.gain is not None]
    if check and costly:
        raise CheckFailed(f"accuracy is lost to {', '.join(costly)}; --apply OUT writes a better model")


def _write(examined: Examined, model: Path | None, recipe: Path | None, overwrite: bool) -> None:
    """The mended model and its recipe, where they were asked for, or that there is none."""
    from ..files import write_whole
    from ..recipe import recipe_content

    mended, remedy = examined.mended, examined.diagnosis.remedy
    if model is not None and mended is not None:
        mended.save(model, overwrite=overwrite)
    elif model is not None:
        print("nothing to apply: no file was written", file=sys.stderr)
    if recipe is not None and remedy is not None:
        content = json.dumps(recipe_content(remedy.rules), indent=1) + "\n"
        write_whole(recipe, [content.encode()], overwrite=overwrite)
    elif recipe is not None:
        print("nothing to mend: no recipe was written", file=sys.stderr)
