"""zeropoint quantize."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InvalidRecipe
from . import shared
from .command import Screen, flag, option

if TYPE_CHECKING:
    from ..plan.request import Request
    from ..recipe import Recipe


@dataclass(frozen=True)
class RecipeOptions:
    """What becomes of each op and of its weights."""

    mode: str | None = option(
        None, "MODE", "int8 (the default), int16x8, dynamic, weights, float16.", autocompletion=shared.modes
    )
    recipe: Path | None = option(None, "FILE", shared.RECIPE_HELP, show_default=False)
    keep_float: list[str] | None = option(None, "PATTERN", "Keep ops of this kind or name in float (repeatable).")
    strict: bool = flag("Refuse if an op would stay float.")
    weight_bits: int = option(8, "BITS", shared.WEIGHT_BITS_HELP)
    block: int | None = option(None, "N", "4-bit dense layers: a scale for each 32, 64, 128 or 256 weights.")
    asymmetric: bool = flag("Mode weights: ranges of weights need not be centred on zero.")
    min_elements: int | None = option(None, "N", "Where only weights are quantized: smaller ones stay float.")

    def resolved(self) -> Recipe:
        from ..plan.request import WeightOptions, resolve_recipe
        from ..recipe import keep_float, load_recipe

        weights = WeightOptions(self.weight_bits, self.block, self.asymmetric, self.min_elements)
        rules = resolve_recipe(self.mode, None if self.recipe is None else load_recipe(self.recipe), weights)
        return rules.then(*map(keep_float, self.keep_float or ()))


@dataclass(frozen=True)
class RangeOptions:
    """Where the ranges of activations come from."""

    data: str | None = option(None, "DATA", shared.DATA_HELP)
    stats: Path | None = option(None, "STATS", "Statistics from `zeropoint calibrate`.")
    ranges: Path | None = option(None, "JSON", "Given ranges: {tensor: {min, max}}.")

    def require(self, samples: shared.CalibrationOptions) -> None:
        if self.data is not None and self.stats is not None:
            raise InvalidRecipe("give --data or --stats, not both")
        if self.data is None and samples != shared.CalibrationOptions():
            raise InvalidRecipe(
                "options about samples were given, but no samples: add --data, or leave these options out"
            )


@dataclass(frozen=True)
class OutputOptions:
    """Where the result goes."""

    output: Path | None = option(None, "OUT", "Where to write the quantized .tflite.", "--output", "-o")
    dry_run: bool = flag("Print the plan and write nothing.")

    def path(self, reports: shared.ReportOptions) -> Path | None:
        """None for --dry-run."""
        if self.output is None and not self.dry_run:
            raise InvalidRecipe("say where to write the result with -o, or ask for the plan alone with --dry-run")
        if self.dry_run and reports.wanted:
            raise InvalidRecipe("--report and --model-explorer show the model that was made; leave out --dry-run")
        return None if self.dry_run else self.output


def quantize(
    screen: Screen,
    model: shared.ModelArgument,
    output: OutputOptions,
    recipe: RecipeOptions,
    ranges: RangeOptions,
    search: shared.SearchOptions,
    interface: shared.InterfaceOptions,
    samples: shared.CalibrationOptions,
    reports: shared.ReportOptions,
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
    from ..improve.pipeline import run_without_data
    from ..plan.planner import require_float_part
    from ..report.quantization import print_result
    from ..sources.models import size_of

    path = output.path(reports)
    reports.require(path, inputs=(model, ranges.data, ranges.stats, ranges.ranges, recipe.recipe))
    if reports.model_explorer is not None and ranges.data is None:
        raise InvalidRecipe("--model-explorer shows how far each op is from the float model; give --data to measure it")
    ranges.require(samples)
    request = _request(recipe, ranges, search, interface)
    source = shared.load_model(model, screen)
    require_float_part(source, request.recipe, request.ops)
    sampled = None if ranges.data is None else samples.sampled(source, ranges.data, samples.signature)
    if sampled is None:
        result = run_without_data(source, request)
    else:
        result = sampled.quantize(request, samples.settings(), screen.remarks)
    if path is None:
        for plan in result.plans:
            print(plan)
        return
    size, before = result.save(path, overwrite=reports.overwrite), size_of(model, source)
    print_result(result, before, size, screen.remarks)
    if reports.wanted:
        comparison = None if sampled is None else sampled.compare_briefly(result.model, screen.remarks, samples.limit)
        known = {"size_before": before, "result": result, "recipe": request.recipe, "data": ranges.data}
        reports.write(screen.remarks, path.name, result.model, size, comparison=comparison, **known)


def _request(
    recipe: RecipeOptions, ranges: RangeOptions, search: shared.SearchOptions, interface: shared.InterfaceOptions
) -> Request:
    from ..calibration import Ranges, Stats, ranges_from_json
    from ..plan.request import Request

    return Request(
        recipe.resolved(),
        None if ranges.stats is None else Stats.load(ranges.stats),
        Ranges({}) if ranges.ranges is None else ranges_from_json(ranges.ranges),
        search.chosen_range(),
        interface.checked(),
        recipe.strict,
        search.chosen_effort(),
    )
