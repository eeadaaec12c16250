"""zeropoint doctor."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from . import shared
from .command import CheckFailed, Screen, argument, flag, option

if TYPE_CHECKING:
    from ..diagnosis.doctor import DiagnosisResult


@dataclass(frozen=True)
class RemedyOptions:
    """What a remedy may cost, and where it is written."""

    apply: Path | None = option(None, "OUT", "Write the model that the findings ask for.")
    save_recipe: Path | None = option(None, "OUT.json", "Write its recipe, for quantize --recipe.")
    most: float = option(0.1, "SHARE", "Arithmetic that may be given more bits.", min=0, max=1)
    seconds: float = option(100.0, "S", "Time for trying things out; building comes after.", min=1)

    def write(self, result: DiagnosisResult, overwrite: bool) -> None:
        """Write the repaired model and its recipe where they were asked for, or say that there are none."""
        from ..files import write_whole
        from ..recipe import recipe_content

        repaired, remedy = result.repaired, result.diagnosis.remedy
        if self.apply is not None and repaired is not None:
            repaired.save(self.apply, overwrite=overwrite)
        elif self.apply is not None:
            print("nothing to apply: no file was written", file=sys.stderr)
        if self.save_recipe is not None and remedy is not None:
            content = json.dumps(recipe_content(remedy.rules), indent=1) + "\n"
            write_whole(self.save_recipe, [content.encode()], overwrite=overwrite)
        elif self.save_recipe is not None:
            print("nothing to mend: no recipe was written", file=sys.stderr)


@dataclass(frozen=True)
class DoctorOptions:
    """What to examine."""

    data: str = option(..., "DATA", shared.DATA_HELP)
    calibration: str | None = option(None, "DATA", "Samples that QUANTIZED was calibrated on, if others.")
    mode: str | None = option(None, "MODE", "int8 (the default) or int16x8.")
    recipe: Path | None = option(None, "FILE", shared.RECIPE_HELP, show_default=False)
    metric: str | None = option(None, "FILE.py:FUNCTION", shared.METRIC_HELP)
    as_json: bool = flag(shared.JSON_HELP, "--json")
    check: bool = flag("Exit with 1 if anything is found that costs accuracy.")


def doctor(
    screen: Screen,
    model: shared.ModelArgument,
    options: DoctorOptions,
    search: shared.SearchOptions,
    remedy: RemedyOptions,
    samples: shared.SampleOptions,
    reports: shared.ReportOptions,
    quantized: Annotated[Path | None, argument("QUANTIZED", "The model in question; by default one is made.")] = None,
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
    from ..diagnosis.doctor import diagnose
    from ..diagnosis.evidence import DiagnosisRequest
    from ..plan.request import WeightOptions, resolve_recipe
    from ..recipe import load_recipe
    from ..report.comparison import print_diagnosis
    from ..report.progress import progress_bar
    from ..sources.models import size_of

    inputs = (model, quantized, options.data, options.calibration, options.recipe)
    reports.require(remedy.apply, remedy.save_recipe, inputs=inputs)
    method, effort = search.chosen_range(), search.chosen_effort()
    recipe = None if options.recipe is None else load_recipe(options.recipe)
    rules = resolve_recipe(options.mode, recipe, WeightOptions())
    metric = None if options.metric is None else load_metric(options.metric)
    source = samples.sampled(shared.load_model(model, screen), options.data)
    given = None if quantized is None else shared.load_model(quantized, screen)
    other = None if options.calibration is None else samples.sampled(source.model, options.calibration)
    with progress_bar("examining", None, "", screen.remarks) as progress:
        request = DiagnosisRequest(
            source.model,
            source.data.samples,
            quantized=given,
            calibration=None if other is None else other.data.samples,
            recipe=rules,
            range=method,
            effort=effort,
            limit=samples.limit,
            metric=metric,
            seconds=remedy.seconds,
            most=remedy.most,
            progress=lambda what: progress(0, what),
        )
        result = diagnose(request)
    diagnosis = result.diagnosis
    screen.show(diagnosis, options.as_json, print_diagnosis)
    remedy.write(result, reports.overwrite)
    if reports.wanted:
        title, size = (quantized or model).name, size_of(quantized, result.before)
        known = {"diagnosis": diagnosis, "stats": result.stats, "recipe": rules, "data": options.data}
        known["size_before"] = size_of(model, source.model)
        reports.write(screen.beside(options.as_json), title, result.before, size, **known)
    costly = [finding.cause for finding in diagnosis.findings if finding.gain is not None]
    if options.check and costly:
        raise CheckFailed(f"accuracy is lost to {', '.join(costly)}; --apply OUT writes a better model")
