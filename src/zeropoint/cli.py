"""The command line: parse, call, print. Each command imports what it needs when it runs, so that help is quick."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .errors import ZeropointError

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    name="zeropoint",
    help="Quantize neural networks for LiteRT (TensorFlow Lite), and see why they are as accurate as they are.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="A .tflite file.", show_default=False)]


def _console() -> Console:
    from rich.console import Console

    return Console(soft_wrap=True)


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

    Examples:

      zeropoint inspect model.tflite

      zeropoint inspect model.tflite --ops --filter '*conv*'

      zeropoint inspect model.tflite --json | jq .summary
    """
    from .report.inspection import inspect as describe
    from .report.terminal import Detail, print_inspection
    from .tflite import load

    shown = describe(load(model), model.stat().st_size)
    if filter is not None:
        shown = shown.filtered(filter)
    if as_json:
        json.dump(shown.to_json(), sys.stdout, indent=1, allow_nan=True)
        print()
        return
    print_inspection(shown, model.name, Detail(not summary, ops, channels), _console())


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
    try:
        app()
    except ZeropointError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output has seen enough (`zeropoint inspect ... | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
