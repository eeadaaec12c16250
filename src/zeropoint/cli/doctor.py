"""zeropoint doctor."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .command import CheckFailed, Screen
from .options import (
    DataOption,
    ImageOptions,
    JsonOption,
    LimitOption,
    MetricOption,
    ModelArgument,
    RecipeOption,
    ReportOptions,
    SearchOptions,
    load_model,
)

if TYPE_CHECKING:
    from ..diagnosis.doctor import Examined


@dataclass(frozen=True)
class RemedyOptions:
    """What a remedy may cost, and where it is written."""

    apply: Annotated[Path | None, typer.Option(metavar="OUT", help="Write the model that the findings ask for.")] = None
    save_recipe: Annotated[
        Path | None, typer.Option(metavar="OUT.json", help="Write its recipe, for quantize --recipe.")
    ] = None
    most: Annotated[
        float, typer.Option(min=0, max=1, metavar="SHARE", help="Arithmetic that may be given more bits.")
    ] = 0.1
    seconds: Annotated[
        float, typer.Option(min=1, metavar="S", help="Time for trying things out; building comes after.")
    ] = 100.0

    def write(self, examined: Examined, overwrite: bool) -> None:
        """Write the repaired model and its recipe where they were asked for, or say that there are none."""
        from ..files import write_whole
        from ..recipe import recipe_content

        mended, remedy = examined.mended, examined.diagnosis.remedy
        if self.apply is not None and mended is not None:
            mended.save(self.apply, overwrite=overwrite)
        elif self.apply is not None:
            print("nothing to apply: no file was written", file=sys.stderr)
        if self.save_recipe is not None and remedy is not None:
            content = json.dumps(recipe_content(remedy.rules), indent=1) + "\n"
            write_whole(self.save_recipe, [content.encode()], overwrite=overwrite)
        elif self.save_recipe is not None:
            print("nothing to mend: no recipe was written", file=sys.stderr)


def doctor(
    screen: Screen,
    model: ModelArgument,
    data: DataOption,
    search: SearchOptions,
    remedy: RemedyOptions,
    images: ImageOptions,
    reports: ReportOptions,
    quantized: Annotated[
        Path | None,
        typer.Argument(metavar="QUANTIZED", help="The model in question; by default one is made.", show_default=False),
    ] = None,
    calibration: Annotated[
        str | None, typer.Option(metavar="DATA", help="Samples that QUANTIZED was calibrated on, if others.")
    ] = None,
    mode: Annotated[str | None, typer.Option(metavar="MODE", help="int8 (the default) or int16x8.")] = None,
    recipe: RecipeOption = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 if anything is found that costs accuracy.")
    ] = False,
    as_json: JsonOption = False,
    metric: MetricOption = None,
    limit: LimitOption = None,
) -> None:
    """Find out why a quantized model lost accuracy: causes with numbers, in order of what fixing them gains.

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

    reports.require(remedy.apply, remedy.save_recipe, inputs=(model, quantized, data, calibration, recipe))
    method, effort = search.checked()
    rules = resolve_recipe(mode, None if recipe is None else load_recipe(recipe), WeightOptions())
    score = None if metric is None else load_metric(metric)
    source = images.sampled(load_model(model, screen), data)
    with progress_bar("examining", None, "", screen.remarks) as progress:
        case = Case(
            source.model,
            source.data.samples,
            quantized=None if quantized is None else load_model(quantized, screen),
            calibration=None if calibration is None else images.sampled(source.model, calibration).data.samples,
            recipe=rules,
            range=method,
            effort=effort,
            limit=limit,
            metric=score,
            seconds=remedy.seconds,
            most=remedy.most,
            told=lambda what: progress(0, what),
        )
        examined = examine(case)
    diagnosis = examined.diagnosis
    if as_json:
        screen.json(diagnosis.to_json())
    else:
        print_diagnosis(screen.without_notes(diagnosis), screen.results)
    remedy.write(examined, reports.overwrite)
    if reports.wanted:
        reports.write(
            screen.beside(as_json),
            title=(quantized or model).name,
            model=examined.before,
            size=size_of(quantized, examined.before),
            size_before=size_of(model, source.model),
            stats=examined.stats,
            diagnosis=diagnosis,
            recipe=rules,
            data=data,
        )
    costly = [finding.cause for finding in diagnosis.findings if finding.gain is not None]
    if check and costly:
        raise CheckFailed(f"accuracy is lost to {', '.join(costly)}; --apply OUT writes a better model")
