"""The command line: parse, call, print. Each command imports what it needs when it runs, so that help is quick."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from ..errors import ZeropointError
from .benchmark import benchmark
from .calibrate import calibrate
from .compare import compare
from .demo import demo
from .doctor import doctor
from .inspect import inspect
from .quantize import quantize
from .train import train

app = typer.Typer(
    name="zeropoint",
    help="Quantize neural networks for LiteRT (TensorFlow Lite), and see why they are as accurate as they are.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for command in (inspect, calibrate, quantize, train, compare, doctor, benchmark, demo):
    app.command()(command)


def _version(show: bool) -> None:
    if show:
        from .. import __version__

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
        from ..report.terminal import printable

        print("error: " + "\n".join(printable(str(line)) for line in error.args), file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output has seen enough (`zeropoint inspect ... | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
