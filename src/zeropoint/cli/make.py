"""Commands that make quantized models and statistics: calibrate, quantize, demo."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..display import size_text
from ..errors import InvalidRecipe
from . import shared
from .command import CheckFailed, Screen, flag, option

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..calibration import Ranges
    from ..graph.model import Model
    from ..improve.pipeline import Result
    from ..plan.request import Interface, Request
    from ..recipe import Recipe
    from ..report.quantization import SavedAs
    from .sampled import SampledModel

SUMMARY_JSON_HELP = "Print the summary as JSON: docs/quantize-json.md."

DEMO_ROUNDS = 15
"""Number of timing rounds for each model of the demo."""


@dataclass(frozen=True)
class CalibrateOptions:
    """What is measured, and where it goes."""

    data: str = option(..., "DATA", shared.DATA_HELP)
    output: Path = option(..., "STATS", "Where to write the statistics.", "--output", "-o")
    quick: bool = flag("Only minima and maxima, no histograms.")
    on: str | None = option(None, "CLUSTER", "Measure on Ray: ray, or the address of a cluster.")
    overwrite: bool = flag(shared.OVERWRITE_HELP)


def calibrate(
    screen: Screen, model: shared.ModelArgument, options: CalibrateOptions, samples: shared.CalibrationOptions
) -> None:
    """Measure the range of every tensor on representative data.

    DATA is an .npz (arrays named after the inputs, or a single one), an .npy, a folder of images, or file.py:function,
    a function that yields samples.

    Examples:
      zeropoint calibrate model.tflite --data samples.npz -o model.stats
      zeropoint calibrate model.tflite --data photos/ --scale 1/127.5 --offset -1 \\
        -o model.stats
    """
    from ..bench.sample_checks import check_samples
    from ..report.quantization import print_warnings
    from ..report.terminal import print_stats

    shared.PageOptions(overwrite=options.overwrite).require(options.output, inputs=(model, options.data))
    source = samples.sampled(shared.load_model(model, screen), options.data, samples.signature)
    settings = replace(samples.settings(histograms=not options.quick), on=options.on)
    bench = source.measured(settings, screen.remarks)
    bench.stats.save(options.output, overwrite=options.overwrite)
    print_stats(bench.stats, options.output.name, screen.remarks, brief=True)
    print_warnings(map(str, check_samples(bench)), screen.remarks)


@dataclass(frozen=True)
class RecipeOptions:
    """How each op is quantized."""

    mode: str | None = option(
        None, "MODE", "int8 (the default), int16x8, uint8, dynamic, weights, float16.", autocompletion=shared.modes
    )
    recipe: Path | None = option(None, "FILE", shared.RECIPE_HELP, show_default=False)
    keep_float: list[str] | None = option(None, "PATTERN", shared.KEEP_FLOAT_HELP)
    target: str | None = shared.target_option()
    measure: bool = flag("Target cpu: time placements of the ops on this machine, and use a clearly faster one.")
    strict: bool = flag(shared.STRICT_HELP)
    allow_unmatched: bool = flag(shared.ALLOW_UNMATCHED_HELP)
    weight_bits: int = option(8, "BITS", shared.MIXED_BITS_HELP)
    block: int | None = option(None, "N", "4-bit dense layers: a scale for every 32, 64, 128 or 256 weights.")
    asymmetric: bool = flag("Mode weights: give weights zero points.")
    min_elements: int | None = option(None, "N", "dynamic, weights: smaller weights stay float (default: 1024).")

    def resolved(self) -> Recipe:
        from ..plan.request import WeightOptions, resolve_recipe

        weights = WeightOptions(self.weight_bits, self.block, self.asymmetric, self.min_elements)
        return resolve_recipe(self.mode, self.recipe, weights).keeping_float(self.keep_float or ())


@dataclass(frozen=True)
class RangeOptions:
    """Where the ranges of activations come from."""

    data: str | None = option(None, "DATA", shared.DATA_HELP)
    stats: Path | None = option(None, "STATS", "Statistics from `zeropoint calibrate`.")
    ranges: Path | None = option(
        None, "JSON", "Ranges to use: JSON {tensor: {min, max}}, AIMET encodings, a QDQ .onnx, a quantized .tflite."
    )
    percentile: float | None = option(None, "P", "--range percentile: % of values kept at each end (default: 99.99).")
    default_range: str | None = option(None, "LOW,HIGH", "A dummy range for tensors without any other.")

    def given(self) -> Ranges:
        """Return the ranges from the file, and the default range."""
        from ..calibration import Ranges, default_range, ranges_from_json

        found = Ranges({}) if self.ranges is None else ranges_from_json(self.ranges)
        if self.default_range is None:
            return found
        ends = shared.channels(self.default_range)
        if len(ends) != 2:
            raise InvalidRecipe("--default-range takes two numbers, such as -6,6")
        return found.merge(default_range(*ends))

    def split(
        self, samples: shared.CalibrationOptions, ends: Interface
    ) -> tuple[Callable[[Model], Ranges], shared.CalibrationOptions]:
        """Return a function for the ranges that --mean and --std give an integer input, and the options that remain for
        the samples.

        Images are also normalized by them. Other samples are in the float model's input format.
        """
        from ..calibration import Ranges
        from ..dtypes import DType

        if not (ends.input.is_integer and samples.describes_integers):
            return lambda _: Ranges({}), samples
        is_folder = self.data is not None and Path(self.data).is_dir()
        counted = DType.UINT8 if is_folder else ends.input
        rest = samples if is_folder else replace(samples, mean=None, std=None)
        return lambda model: samples.input_ranges(model, counted), rest

    def require(self, samples: shared.CalibrationOptions, method: str) -> None:
        from ..plan.request import require_one_source

        require_one_source(self.data, self.stats)
        if self.percentile is not None and method not in ("auto", "percentile"):
            raise InvalidRecipe(f"--percentile is for --range percentile, not for {method}; omit one of them")
        if self.data is None and samples != shared.CalibrationOptions():
            raise InvalidRecipe("options about samples were given, but no samples: add --data, or omit these options")


@dataclass(frozen=True)
class LearningOptions(shared.SearchOptions):
    """How much is tried, and the seed of random choices."""

    seed: int = option(0, "N", "Random seed of max effort.", min=0)


@dataclass(frozen=True)
class OutputOptions:
    """Where the result goes."""

    output: Path | None = option(None, "OUT", "Where to write the quantized .tflite.", "--output", "-o")
    dry_run: bool = flag("Print the plan and write nothing.")
    write_ranges: bool = flag("Also write the minimum and maximum of each tensor, for viewers.")
    check: bool = flag("Exit with 1 if the result is broken: far from the float model on --data.")
    as_json: bool = flag(SUMMARY_JSON_HELP, "--json")
    no_record: bool = flag("Do not record in the file's metadata how it was made.")

    def path(self, reports: shared.ReportOptions) -> Path | None:
        """Return the output path; None for --dry-run."""
        if self.output is None and not self.dry_run:
            raise InvalidRecipe("name the output file with -o, or print only the plan with --dry-run")
        if self.dry_run and self.as_json:
            raise InvalidRecipe("--dry-run prints the plan as text; omit --json")
        if self.dry_run and reports.wanted:
            raise InvalidRecipe("--report and --model-explorer show the resulting model; omit --dry-run")
        return None if self.dry_run else self.output


def quantize(
    screen: Screen,
    model: shared.ModelArgument,
    output: OutputOptions,
    recipe: RecipeOptions,
    ranges: RangeOptions,
    search: LearningOptions,
    interface: shared.InterfaceOptions,
    samples: shared.CalibrationOptions,
    judged: shared.JudgedOutputOptions,
    reports: shared.ReportOptions,
    graph: shared.FrozenGraphOptions,
) -> None:
    """Quantize a float model.

    int8, int16x8 and uint8 compute in integers and need representative data, or statistics of it. uint8 is the older
    kind, for runtimes and accelerators that support no other: weights have one scale per layer. dynamic, weights and
    float16 quantize only the weights and need no data.

    Examples:
      zeropoint quantize model.tflite -o small.tflite --mode dynamic
      zeropoint quantize model.tflite -o model_int8.tflite --data samples.npz
      zeropoint quantize model.tflite -o out.tflite --mode int16x8 --stats m.stats
      zeropoint quantize model.tflite -o out.tflite --data photos/ --scale 1/255 \\
        --input-type uint8 --strict
      zeropoint quantize model.tflite --data samples.npz --dry-run \\
        --keep-float SOFTMAX
    """
    from ..improve.pipeline import run_without_data
    from ..plan.prepared import require_float_part, with_matched_rules
    from ..report.quantization import SavedAs, print_plans, print_verdict
    from ..sources.models import size_of

    path = output.path(reports)
    reports.require(path, inputs=(model, ranges.data, ranges.stats, ranges.ranges, recipe.recipe))
    if reports.model_explorer is not None and ranges.data is None:
        raise InvalidRecipe("--model-explorer shows the error of each op; give --data to measure it")
    ends = interface.checked()
    described, samples = ranges.split(samples, ends)
    ranges.require(samples, search.range)
    if output.check and ranges.data is None:
        raise InvalidRecipe("--check compares the result with the float model; give --data to run both on")
    request = replace(_request(recipe, ranges, search, ends), record=not output.no_record, outputs=judged.judged())
    source = shared.load_model(model, screen, graph.ends(model))
    request = replace(request, ranges=described(source).merge(request.ranges).resolved(source))
    require_float_part(source, request.recipe, request.ops)
    request = with_matched_rules(source, request)
    remarks = screen.beside(output.as_json)
    sampled = None if ranges.data is None else samples.sampled(source, ranges.data, samples.signature)
    if sampled is None:
        result = run_without_data(source, request)
    else:
        result = sampled.quantize(with_states(request, sampled), samples.settings(), remarks)
    if path is None:
        print_plans(result, screen.results)
        print_verdict(result.verdict, remarks)
    else:
        size = result.save(path, overwrite=reports.overwrite, write_ranges=output.write_ranges)
        before = size_of(model, source)
        result = result.from_file_of(before)
        show(screen, result, SavedAs(path, size, before), output.as_json)
    if path is not None and reports.wanted:
        comparison = None if sampled is None else sampled.compare_briefly(result.model, remarks, samples.settings())
        known = {"size_before": before, "result": result, "recipe": request.recipe, "data": ranges.data}
        if sampled is not None:
            command = shared.trace_command(path, ranges.data, model, samples.signature)
            known |= reports.explained(sampled, result.model, command, remarks)
        reports.write(remarks, path.name, result.model, size, comparison=comparison, **known)
    if output.check and result.verdict.level in ("broken", "unknown"):
        raise CheckFailed(f"the result is {result.verdict.level}: {result.verdict.summary}")


def with_states(request: Request, sampled: SampledModel) -> Request:
    """Return the request with one scale for each state that callers feed back, if the samples are such a sequence."""
    from ..sources.sequence import Frames

    frames = sampled.data.samples
    return replace(request, states=frames.keys) if isinstance(frames, Frames) else request


def show(screen: Screen, result: Result, saved: SavedAs, as_json: bool) -> None:
    from ..report.quantization import print_result, print_verdict, result_json

    if as_json:
        screen.json(result_json(result, saved))
    else:
        print_result(result, saved, screen.remarks)
        print_verdict(result.verdict, screen.remarks)


def _request(recipe: RecipeOptions, ranges: RangeOptions, search: LearningOptions, ends: Interface) -> Request:
    from ..calibration import Stats
    from ..calibration.range_methods import PERCENTILE
    from ..plan.request import Request, resolve_target

    rules = recipe.resolved()
    return Request(
        rules,
        None if ranges.stats is None else Stats.load(ranges.stats),
        ranges.given(),
        search.chosen_range() if ranges.percentile is None else "percentile",
        ends,
        recipe.strict,
        search.chosen_effort(),
        target=resolve_target(recipe.target, rules, ends, recipe.strict),
        measure=recipe.measure,
        allow_unmatched=recipe.allow_unmatched,
        percentile=PERCENTILE if ranges.percentile is None else ranges.percentile,
        seed=search.seed,
    )


def demo(screen: Screen) -> None:
    """Quantize the bundled example in every mode, offline: a network for handwritten digits.

    Examples:
      zeropoint demo
    """
    from ..bench.latency import TimingOptions, benchmark
    from ..calibration import Settings
    from ..demo import accuracy, digits, lenet_model
    from ..quantization import quantize
    from ..recipe import MODES
    from ..report.inspection import inspect
    from ..report.terminal import Printer
    from ..sources.data import Data
    from ..tflite import to_bytes
    from .sampled import SampledModel

    printer = Printer(screen.results)
    model, data = lenet_model(), digits()
    samples = [image[None] for image in data["calibration"]]
    weights = sum(t.size for t in model.main.tensors if t.is_constant and t.dtype.is_float)
    printer.line(f"A network of {weights:,} weights for handwritten digits, calibrated on {len(samples)} of them:")
    stats = SampledModel(model, Data(samples, len(samples))).calibrate(Settings(), screen.results)
    models = {"float32": model, **{mode: quantize(model, mode, stats=stats).model for mode in MODES}}
    timed = benchmark(models, TimingOptions(rounds=DEMO_ROUNDS, inside=False, clock="cpu"))
    seconds = {timing.name: timing.latencies[0].fastest for timing in timed.models}
    printer.line(("  mode       size       correct   speed   integer arithmetic", "bold"))
    for mode, made in models.items():
        size, speed = size_text(len(to_bytes(made))), seconds["float32"] / seconds[mode]
        share = inspect(made).integer_share_text
        printer.line(f"  {mode:9}  {size:>8}  {accuracy(made, data):8.2%}  {speed:5.2f}x  {share:>8}")
    printer.line("Yours: zeropoint quantize MODEL -o OUT --mode int8 --data SAMPLES")
