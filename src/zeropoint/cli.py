"""The command line: parse, call, print. Each command imports what it needs when it runs, so that help is quick."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from .errors import InvalidRecipe, InvalidSample, ZeropointError

if TYPE_CHECKING:
    from rich.console import Console

    from .graph.model import Model
    from .report.progress import SampledModel
    from .sources.data import Normalization

app = typer.Typer(
    name="zeropoint",
    help="Quantize neural networks for LiteRT (TensorFlow Lite), and see why they are as accurate as they are.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="A .tflite file.", show_default=False)]
DataOption = Annotated[
    str, typer.Option("--data", metavar="DATA", help="Samples: .npz, .npy, a folder of images, or file.py:function.")
]
LimitOption = Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="Use at most N samples.")]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", min=1, metavar="N", help="Threads; by default one for each core.")
]
SignatureOption = Annotated[
    str | None, typer.Option("--signature", metavar="KEY", help="Which signature the samples are for.")
]
KeepStateOption = Annotated[
    bool, typer.Option("--keep-state", help="Recurrent models: do not reset the state before each sample.")
]
NonfiniteOption = Annotated[
    bool, typer.Option("--allow-nonfinite", help="Go on without values that are NaN or infinite.")
]
ScaleOption = Annotated[float | None, typer.Option("--scale", help="Images: multiply pixels (0 to 255) by this.")]
OffsetOption = Annotated[float | None, typer.Option("--offset", help="Images: then add this.")]
MeanOption = Annotated[
    str | None, typer.Option("--mean", metavar="M[,M,M]", help="Images: then subtract this, for each channel.")
]
StdOption = Annotated[str | None, typer.Option("--std", metavar="S[,S,S]", help="Images: then divide by this.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace the output file if it exists.")]


def _console() -> Console:
    from rich.console import Console

    return Console(soft_wrap=True)


def _normalization(
    scale: float | None, offset: float | None, mean: str | None, std: str | None
) -> Normalization | None:
    from .sources.data import Normalization

    if scale is None and offset is None and mean is None and std is None:
        return None

    def channels(text: str | None, default: float) -> tuple[float, ...]:
        try:
            return (default,) if text is None else tuple(float(part) for part in text.split(","))
        except ValueError:
            raise InvalidSample(f"{text!r} is not a number, or numbers with commas between them") from None

    return Normalization(
        1.0 if scale is None else scale, 0.0 if offset is None else offset, channels(mean, 0.0), channels(std, 1.0)
    )


def _samples(model: Model, data: str, signature: str | None, normalization: Normalization | None) -> SampledModel:
    from .report.progress import SampledModel
    from .sources.data import load_data
    from .sources.ports import entry

    return SampledModel(model, load_data(data, entry(model, signature), normalization), signature)


@app.command()
def inspect(
    model: ModelArgument,
    ops: Annotated[bool, typer.Option("--ops", help="List the ops with their fixed-point multipliers.")] = False,
    summary: Annotated[bool, typer.Option("--summary", help="Only the summary.")] = False,
    channels: Annotated[bool, typer.Option("--channels", help="Every channel's parameters.")] = False,
    filter: Annotated[
        str | None,
        typer.Option("--filter", metavar="GLOB", help="Only tensors and ops whose name or kind matches."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON (docs/inspect-json.md).")] = False,
) -> None:
    """Show a model's quantization: the line people know from Netron, and the numbers the kernels use.

    A statistics file of `zeropoint calibrate` is shown as a table of ranges with small histograms.

    Examples:

      zeropoint inspect model.tflite

      zeropoint inspect model.tflite --ops --filter '*conv*'

      zeropoint inspect model.tflite --json | jq .summary
    """
    from .report.inspection import inspect as describe
    from .report.stats import is_stats, print_stats
    from .report.terminal import Detail, print_inspection
    from .tflite import load

    if model.is_file() and is_stats(model):  # opening a pipe would wait for its writer
        from .calibrate.stats import Stats

        print_stats(Stats.load(model), model.name, _console())
        return
    shown = describe(load(model), model.stat().st_size)
    if filter is not None:
        shown = shown.filtered(filter)
    if as_json:
        json.dump(shown.to_json(), sys.stdout, indent=1, allow_nan=False)
        print()
        return
    print_inspection(shown, model.name, Detail(not summary, ops, channels), _console())


@app.command()
def calibrate(
    model: ModelArgument,
    data: DataOption,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="STATS", help="Where to write the statistics.")],
    limit: LimitOption = None,
    workers: WorkersOption = None,
    signature: SignatureOption = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only minima and maxima, no histograms.")] = False,
    keep_state: KeepStateOption = False,
    allow_nonfinite: NonfiniteOption = False,
    scale: ScaleOption = None,
    offset: OffsetOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Record the range of every tensor on representative data.

    DATA is an .npz (arrays named after the inputs, or a single one), an .npy, a folder of images, or file.py:function,
    a function that yields samples.

    Examples:

      zeropoint calibrate model.tflite --data samples.npz -o model.stats

      zeropoint calibrate model.tflite --data photos/ --scale 0.00784 --offset -1 -o model.stats
    """
    from .calibrate import Settings
    from .files import refuse_existing
    from .report.progress import calibrate_with_progress
    from .report.stats import print_stats
    from .tflite import load

    refuse_existing(output, overwrite)
    source = _samples(load(model), data, signature, _normalization(scale, offset, mean, std))
    settings = Settings(limit, workers, not quick, keep_state, allow_nonfinite)
    console = _console()
    stats = calibrate_with_progress(source, settings, console)
    stats.save(output, overwrite=overwrite)
    print_stats(stats, output.name, console, brief=True)


@app.command()
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
    from .calibrate import METHODS, Ranges, Settings, ranges_from_json
    from .calibrate.stats import Stats
    from .files import refuse_existing
    from .quantize.pipeline import Effort, Request, interface_of, require_float_part, resolve_recipe, run
    from .recipe import keep_float as keep_float_rule
    from .recipe import load_recipe
    from .report.progress import quantize_with_progress
    from .report.quantization import print_result
    from .tflite import load

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
    console = _console()
    known = None if stats is None else Stats.load(stats)
    rules = rules.then(*map(keep_float_rule, keep_float or ()))
    request = Request(rules, known, given, range, interface, strict, effort)  # type: ignore[arg-type]  # checked above
    if data is None:
        result = run(source, request)
    else:
        settings = Settings(limit, workers, keep_state=keep_state, allow_nonfinite=allow_nonfinite)
        sampled = _samples(source, data, signature, _normalization(scale, offset, mean, std))
        result = quantize_with_progress(sampled, request, settings, console)
    if dry_run:
        for plan in result.plans:
            print(plan)
        return
    assert output is not None
    size = result.save(output, overwrite=overwrite)
    print_result(result, model.stat().st_size, size, console)


@app.command()
def demo() -> None:
    """Run the main job on the example that comes with the package: handwritten digits, offline."""
    from .report.demo import run_demo

    run_demo(_console())


def _version(show: bool) -> None:
    if show:
        from . import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point: 0 is fine, 1 a failed check, 2 bad use or input. A user's mistake shows no traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a pipe may not know ≤, nor names that are no text
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except ZeropointError as error:
        from .report.terminal import printable

        print("error: " + "\n".join(printable(str(line)) for line in error.args), file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output has seen enough (`zeropoint inspect ... | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
