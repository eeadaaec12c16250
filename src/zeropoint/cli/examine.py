"""Commands that examine models: inspect, compare, report, benchmark."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ..errors import InvalidModel, InvalidRecipe
from . import shared
from .command import CheckFailed, Screen, argument, flag, option
from .trace import show_kernels

if TYPE_CHECKING:
    from ..comparison.values import Comparison
    from ..graph.model import Model


@dataclass(frozen=True)
class InspectOptions:
    """What to show."""

    ops: bool = flag("List the ops with their fixed-point multipliers.")
    summary: bool = flag("Only the summary.")
    channels: bool = flag("Every channel's parameters.")
    exact: bool = flag("All digits needed to reproduce the numbers exactly.")
    filter: str | None = option(None, "GLOB", "Only tensors and ops whose name or kind matches.")
    as_json: bool = flag("Print JSON (docs/inspect-json.md).", "--json")


def inspect(screen: Screen, model: shared.ModelArgument, options: InspectOptions) -> None:
    """Show a model's quantization: the ranges as in Netron, and the numbers that the kernels use.

    A statistics file of `zeropoint calibrate` is shown as a table of ranges with small histograms.

    Examples:
      zeropoint inspect model.tflite
      zeropoint inspect model.tflite --ops --filter '*conv*'
      zeropoint inspect model.tflite --json | jq .summary
    """
    from ..report.inspection import inspect as describe
    from ..report.terminal import Detail, print_inspection, print_stats
    from ..sources.models import size_of

    if is_stats(model):
        from ..calibration.stats import Stats

        print_stats(Stats.load(model), model.name, screen.results)
        return
    source = shared.load_model(model, screen)
    shown = describe(source, size_of(model, source))
    if options.filter is not None:
        shown = shown.filtered(options.filter)
    if options.as_json:
        screen.json(shown.to_json())
    else:
        detail = Detail(not options.summary, options.ops, options.channels, options.exact)
        print_inspection(shown, model.name, detail, screen.results)


def is_stats(path: Path) -> bool:
    """Whether a file looks like statistics (a zip archive) rather than a model or some other archive."""
    from ..tflite.other_files import ARRAYS, DAMAGED, STATS, other_file

    if not path.is_file():  # opening a pipe would block until it has a writer
        return False
    try:
        with path.open("rb") as file:
            is_archive = file.read(4) == b"PK\x03\x04"
            return is_archive and other_file(b"PK\x03\x04" + file.read()) in (STATS, ARRAYS, DAMAGED)
    except OSError:
        return False


@dataclass(frozen=True)
class CheckOptions:
    """The requirements on the quantized model."""

    min_snr: float | None = option(None, "DB", "Exit with 1 if the SNR of the outputs is lower.")
    min_agreement: float | None = option(None, "SHARE", "Exit with 1 if the same top-1 is less frequent.", min=0, max=1)
    min_metric: float | None = option(None, "SCORE", "Exit with 1 if QUANTIZED scores lower in --metric.")

    def require(self, comparison: Comparison) -> None:
        """Raise if the quantized model does not meet the requirements."""
        score, agreements = comparison.metric, [o.agreement for o in comparison.outputs if o.agreement is not None]
        if self.min_agreement is not None and not agreements:
            raise InvalidRecipe("--min-agreement: no output looks like class scores; use --min-snr or --metric")
        failed = []
        if self.min_snr is not None and comparison.snr < self.min_snr:
            failed.append(f"the SNR of the outputs is {comparison.snr:.2f} dB, --min-snr asks for {self.min_snr:g}")
        if self.min_agreement is not None and (least := min(agreements)) < self.min_agreement:
            failed.append(f"top-1 is the same in {least:.2%}, --min-agreement asks for {self.min_agreement:.2%}")
        if self.min_metric is not None and score is not None and not score.after >= self.min_metric:
            failed.append(f"{score.name} is {score.after:.6g}, --min-metric asks for {self.min_metric:g}")
        if failed:
            raise CheckFailed("; ".join(failed))


@dataclass(frozen=True)
class CompareOptions:
    """What to compare, and how much of it to show."""

    data: str = option(..., "DATA", shared.DATA_HELP)
    top: int = option(10, "N", "Show the N worst ops; 0 for all.", min=0)
    as_json: bool = flag(shared.JSON_HELP, "--json")
    metric: str | None = option(None, "FILE.py:FUNCTION", shared.METRIC_HELP)
    signature: str | None = option(None, "KEY", shared.SIGNATURE_HELP)
    runtime: str = shared.runtime_option()
    kernels: str | None = option(None, "NAME,NAME", "Compare runtimes on MODEL alone: reference, xnnpack, tflm.")


def compare(
    screen: Screen,
    model: shared.ModelArgument,
    options: CompareOptions,
    samples: shared.SampleOptions,
    judged: shared.JudgedOutputOptions,
    checks: CheckOptions,
    reports: shared.ReportOptions,
    quantized: Annotated[Path | None, argument("QUANTIZED", "A quantized .tflite of it, by any tool.")] = None,
) -> None:
    """Compare a quantized model with the float MODEL it was made from, op by op.

    Both run on the same samples. "own" feeds each op with the float model's values, so that only its own rounding and
    clipping remain; "accum." compares the models as they run.

    With --kernels, runtimes are compared on one quantized MODEL: the first op whose integers differ.

    Examples:
      zeropoint compare model.tflite model_int8.tflite --data samples.npz
      zeropoint compare model.tflite other.tflite --data photos/ --scale 1/255 \\
        --limit 100 --top 20
      zeropoint compare model.tflite model_int8.tflite --data eval.py:samples \\
        --metric eval.py:accuracy --json
      zeropoint compare model.tflite model_int8.tflite --data samples.npz \\
        --min-snr 25 --min-agreement 0.98
      zeropoint compare model.tflite model_int8.tflite --data samples.npz \\
        --runtime tflm
      zeropoint compare model_int8.tflite --data samples.npz \\
        --kernels reference,xnnpack
    """
    if options.kernels is not None:
        if quantized is not None:
            raise InvalidRecipe("--kernels compares runtimes on one model; omit the second model")
        source = samples.sampled(shared.load_model(model, screen), options.data, options.signature)
        show_kernels(screen, source, options.kernels, samples.limit, options.as_json)
        return
    if quantized is None:
        raise InvalidRecipe("give two models, MODEL QUANTIZED; or one, and --kernels reference,xnnpack,tflm")
    from ..calibration import Settings
    from ..comparison.metrics import load_metric
    from ..report.comparison import print_comparison
    from ..sources.models import size_of

    if checks.min_metric is not None and options.metric is None:
        raise InvalidRecipe("--min-metric needs a score; give one with --metric FILE.py:FUNCTION")
    reports.require(inputs=(model, quantized, options.data))
    metric = None if options.metric is None else load_metric(options.metric)
    runtime = shared.known_runtime(options.runtime)
    source = samples.sampled(shared.load_model(model, screen), options.data, options.signature)
    made = shared.load_model(quantized, screen)
    shared.require_runtime(runtime, made)
    if _in_integers(source.model) and not _in_integers(made):
        raise InvalidModel(f"{model} computes in integers and {quantized} does not; give the float model first")
    before, size = size_of(model, source.model), size_of(quantized, made)
    settings = Settings(samples.limit, keep_state=samples.state_is_kept)
    comparison = source.compare(made, screen.remarks, settings, metric, runtime, judged.judged())
    comparison = replace(comparison, float_bytes=before, quantized_bytes=size)
    screen.show(comparison, options.as_json, partial(print_comparison, top=options.top or None))
    if reports.wanted:
        known = {"size_before": before, "comparison": comparison, "data": options.data}
        if reports.report is not None:  # the report shows histograms
            known["stats"] = source.calibrate(replace(settings, allow_nonfinite=True), screen.remarks)
        command = shared.trace_command(quantized, options.data, model, options.signature)
        known |= reports.explained(source, made, command, screen.remarks)
        reports.write(screen.beside(options.as_json), quantized.name, made, size, **known)
    checks.require(comparison)


def _in_integers(model: Model) -> bool:
    return any(t.is_quantized for graph in model.graphs for op in graph.ops for t in op.outputs)


@dataclass(frozen=True)
class PageFileOptions:
    """Where the page goes, and what else it shows."""

    output: Path | None = option(None, "OUT.html", "By default MODEL with .html.", "--output", "-o", show_default=False)
    stats: Path | None = option(None, "STATS", "Statistics from `zeropoint calibrate`, for histograms.")
    no_open: bool = flag("Do not open the page in a browser.")
    overwrite: bool = flag(shared.OVERWRITE_HELP)


def report(screen: Screen, model: shared.ModelArgument, options: PageFileOptions) -> None:
    """Write a page that shows a float or quantized model (graph, tensors, parameters), and open it.

    Without a browser, the page is only written. `quantize`, `compare` and `doctor` have --report, which also shows
    errors.

    Examples:
      zeropoint report model_int8.tflite --no-open
      zeropoint report model.tflite --stats model.stats -o model_page.html --no-open
    """
    import webbrowser

    from ..calibration.stats import Stats
    from ..sources.models import size_of

    output = options.output or Path(f"{model.stem}.html")
    pages = shared.PageOptions(output, options.overwrite)
    pages.require(inputs=(model, options.stats))
    stats = None if options.stats is None else Stats.load(options.stats)
    source = shared.load_model(model, screen)
    pages.write(screen.remarks, model.name, source, size_of(model, source), stats=stats)
    if not options.no_open and sys.stdout.isatty():
        webbrowser.open(output.resolve().as_uri())


@dataclass(frozen=True)
class BenchmarkOptions:
    """What to time, and how it is shown."""

    threads: str | None = option(None, "N[,N]", "By default 1, and one for each core.")
    rounds: int = option(30, "N", "How often each model is timed.", min=2)
    quick: bool = flag("Only latencies: no memory, no times by kind of op.")
    target: str | None = shared.target_option()
    runtime: str = shared.runtime_option()
    as_json: bool = flag("Print JSON.", "--json")


def benchmark(
    screen: Screen,
    models: Annotated[list[Path], argument("MODEL...", "One or several models.")],
    options: BenchmarkOptions,
    reports: shared.PageOptions,
) -> None:
    """Time models side by side: interleaved runs, median and quartiles, on one thread and on several.

    Inputs are random. Times by op kind are estimates: LiteRT's Python interpreter does not report them. With
    --runtime tflm, the memory is the size of the arena that TensorFlow Lite Micro needs.

    Examples:
      zeropoint benchmark model.tflite model_int8.tflite
      zeropoint benchmark a.tflite b.tflite c.tflite --threads 1,4 --json
      zeropoint benchmark model.tflite model_int8.tflite --report latency.html
      zeropoint benchmark model_int8.tflite --runtime tflm
    """
    from ..bench.latency import TimingOptions
    from ..bench.latency import benchmark as measure
    from ..parallel import cores
    from ..report.progress import progress_bar
    from ..report.targets import where_text
    from ..report.terminal import print_benchmark
    from ..sources.models import size_of
    from ..targets import check_model, target_named

    reports.require(inputs=models)
    target = None if options.target is None else target_named(options.target)
    runtime = shared.known_runtime(options.runtime)
    if runtime == "tflm" and options.threads not in (None, "1"):
        raise InvalidRecipe(f"--threads {options.threads}: TensorFlow Lite Micro has one thread; omit the option")
    several = (1,) if runtime == "tflm" else (1, cores())
    counts = several if options.threads is None else _counts(options.threads)
    named = {name: shared.load_model(path, screen) for name, path in zip(distinct(models), models, strict=True)}
    for model in named.values():
        shared.require_runtime(runtime, model)
    with progress_bar("timing", options.rounds, "rounds", screen.remarks) as progress:
        wanted = TimingOptions(tuple(dict.fromkeys(counts)), options.rounds, not options.quick, runtime)
        timed = measure(named, wanted, progress)
    sizes = {name: size_of(path, model) for (name, model), path in zip(named.items(), models, strict=True)}
    timed = replace(timed, models=tuple(replace(one, bytes=sizes[one.name]) for one in timed.models))
    if target is not None:
        timed = replace(
            timed, notes=(*timed.notes, *(f"{n} on {where_text(check_model(m, target))}" for n, m in named.items()))
        )
    screen.show(timed, options.as_json, print_benchmark)
    if reports.wanted:
        from ..report.page_build import latency_bars

        first, last = timed.models[0], timed.models[-1]
        known = {"size_before": first.bytes if len(timed.models) > 1 else None, "bars": latency_bars(timed)}
        reports.write(screen.beside(options.as_json), last.name, named[last.name], last.bytes, **known)


def _counts(threads: str) -> tuple[int, ...]:
    counts = tuple(int(part) if part.strip().isdecimal() else 0 for part in threads.split(","))
    if min(counts) < 1:
        raise InvalidRecipe(f"--threads {threads}: give a number, or several separated by commas")
    return counts


def distinct(paths: list[Path]) -> list[str]:
    """Return file names, with their folders if names alone are ambiguous, and numbered if one is given twice."""
    names = [path.name if sum(p.name == path.name for p in paths) == 1 else str(path) for path in paths]
    return [n if names.count(n) == 1 else f"{n} #{names[: k + 1].count(n)}" for k, n in enumerate(names)]
