"""The command `doctor`, which finds out why a quantized model lost accuracy."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ..errors import InvalidRecipe
from . import shared
from .command import CheckFailed, Screen, argument, flag, option

if TYPE_CHECKING:
    from ..comparison.values import Diagnosis
    from ..diagnosis.doctor import DiagnosisResult


@dataclass(frozen=True)
class RemedyOptions:
    """What a remedy may cost, and where it is written."""

    apply: Path | None = option(None, "OUT", "Write the model with all fixes applied.")
    save_recipe: Path | None = option(None, "OUT.json", "Write the recipe of that model, for quantize --recipe.")
    most: float | None = option(
        None, "SHARE", "Share of arithmetic that may get more bits (default: 0.1, or 0.25 in one piece).", min=0, max=1
    )
    seconds: float = option(100.0, "S", "Time limit for trying fixes; building the model is extra.", min=1)

    def write(self, result: DiagnosisResult, overwrite: bool) -> None:
        """Write the repaired model and its recipe as requested, or report that there are none."""
        from ..files import write_whole
        from ..recipe_files import recipe_content

        repaired, remedy = result.repaired, result.diagnosis.remedy
        if self.apply is not None and repaired is not None:
            repaired.save(self.apply, overwrite=overwrite)
        elif self.apply is not None:
            print("nothing to apply: no file was written", file=sys.stderr)
        if self.save_recipe is not None and remedy is not None:
            target = None if repaired is None else repaired.target.name
            content = json.dumps(recipe_content(remedy.rules, target), indent=1) + "\n"
            write_whole(self.save_recipe, [content.encode()], overwrite=overwrite)
        elif self.save_recipe is not None:
            print("nothing to repair: no recipe was written", file=sys.stderr)


@dataclass(frozen=True)
class DoctorOptions:
    """What to examine."""

    data: str = option(..., "DATA", shared.DATA_HELP)
    calibration: str | None = option(None, "DATA", "Samples that QUANTIZED was calibrated on, if not --data.")
    mode: str | None = option(None, "MODE", "int8 (the default) or int16x8.")
    recipe: Path | None = option(None, "FILE", shared.RECIPE_HELP, show_default=False)
    target: str | None = shared.target_option()
    metric: str | None = option(None, "FILE.py:FUNCTION", shared.METRIC_HELP)
    signature: str | None = option(None, "KEY", shared.SIGNATURE_HELP)
    as_json: bool = flag(shared.JSON_HELP, "--json")
    check: bool = flag("Exit with 1 if something costs accuracy.")


def doctor(
    screen: Screen,
    model: shared.ModelArgument,
    options: DoctorOptions,
    search: shared.SearchOptions,
    remedy: RemedyOptions,
    samples: shared.SampleOptions,
    judged: shared.JudgedOutputOptions,
    reports: shared.ReportOptions,
    quantized: Annotated[Path | None, argument("QUANTIZED", "The model to examine; by default, one is made.")] = None,
) -> None:
    """Find out why a quantized model lost accuracy: causes with evidence, largest gain first.

    MODEL is the float model. The gain of each finding was measured by trying its fix on the samples, unless it says
    "about". A healthy model has nothing to fix.

    Examples:
      zeropoint doctor model.tflite --data samples.npz
      zeropoint doctor model.tflite model_int8.tflite --data eval.npz \\
        --calibration calibration.npz --check
      zeropoint doctor model.tflite --data photos/ --scale 1/255 \\
        --apply better_int8.tflite
      zeropoint doctor model.tflite --data eval.py:samples \\
        --metric eval.py:accuracy --save-recipe better.json
    """
    from ..comparison.metrics import load_metric
    from ..diagnosis.doctor import diagnose, one_entry, target_of
    from ..diagnosis.evidence import DiagnosisRequest
    from ..plan.request import WeightOptions, resolve_recipe
    from ..report.comparison import print_diagnosis
    from ..report.progress import progress_bar
    from ..sources.models import size_of

    inputs = (model, quantized, options.data, options.calibration, options.recipe)
    reports.require(remedy.apply, remedy.save_recipe, inputs=inputs)
    method, effort = search.chosen_range(), search.chosen_effort()
    rules = resolve_recipe(options.mode, options.recipe, WeightOptions())
    metric = None if options.metric is None else load_metric(options.metric)
    if options.signature is not None and remedy.apply is not None:
        raise InvalidRecipe("--apply would write only one signature; with --signature, use --save-recipe")
    source = samples.sampled(one_entry(shared.load_model(model, screen), options.signature), options.data)
    given = None if quantized is None else one_entry(shared.load_model(quantized, screen), options.signature)
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
            target=target_of(options.target, rules, given),
            progress=lambda what: progress(0, what),
            keep_state=samples.state_is_kept,
            outputs=judged.judged(),
        )
        result = diagnose(request)
    screen.show(result.diagnosis, options.as_json, print_diagnosis)
    remedy.write(result, reports.overwrite)
    if reports.wanted:
        title, size = (quantized or model).name, size_of(quantized, result.before)
        known = {"diagnosis": result.diagnosis, "stats": result.stats, "recipe": rules, "data": options.data}
        known["size_before"] = size_of(model, source.model)
        command = None if quantized is None else shared.trace_command(quantized, options.data, model, options.signature)
        known |= reports.explained(source, result.before, command, screen.remarks)
        reports.write(screen.beside(options.as_json), title, result.before, size, **known)
    if options.check:
        _require_healthy(result.diagnosis)


def _require_healthy(diagnosis: Diagnosis) -> None:
    from ..bench.sample_checks import SAMPLE_CAUSES

    costly = [f.cause for f in diagnosis.findings if f.gain is not None or f.cause in SAMPLE_CAUSES]
    if costly or not diagnosis.is_close:
        repair = "" if diagnosis.remedy is None else "; --apply OUT writes a better model"
        why = f"accuracy is lost to {', '.join(costly)}" if costly else f"no cause was found for: {diagnosis.verdict}"
        raise CheckFailed(f"{why}{repair}")
