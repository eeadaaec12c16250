"""The command line: parse, call, print. Each command imports what it needs when it runs, so that help is fast."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from .command import CommandGroup, QuietOption, Screen, VerboseOption, add_command, causes, tolerate_closed_pipe
from .devices import check, targets
from .doctor import doctor
from .edit import edit
from .examine import benchmark, compare, inspect, report
from .export import export
from .make import calibrate, demo, quantize
from .plain_text import print_anywhere
from .signals import orderly_end
from .trace import trace
from .train import train
from .tune import tune

app = typer.Typer(
    name="zeropoint",
    cls=CommandGroup,
    help="Quantize neural networks for LiteRT (TensorFlow Lite), and find out what costs them accuracy.",
    epilog="Exit codes: 0 success, 1 a check failed, 2 bad usage or input, 130 interrupted, 143 terminated.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

MAKING, EXAMINING = (calibrate, quantize, tune, train), (compare, doctor, trace, benchmark, report)
COMMANDS = (inspect, *MAKING, *EXAMINING, check, targets, export, edit, demo)
for command in COMMANDS:
    add_command(app, command, runs_models=command not in (inspect, report, check, targets, demo, tune))


def _version(show: bool) -> None:
    if show:
        from .. import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    version: Annotated[  # noqa: ARG001  # its callback has done it
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    context.obj = Screen(quiet, verbose)


def main() -> None:
    """Entry point: exit code 0 is success, 1 a failed check, 2 bad usage or input. Users' mistakes show no
    traceback."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell: one of our files must not get its descriptor
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115  # for the rest of the process
    print_anywhere((sys.stdout, sys.stderr))
    with orderly_end():
        try:
            with tolerate_closed_pipe():
                app()
        except SystemExit as end:
            if isinstance(end.__context__, BrokenPipeError):  # Rich exits with 1 when help is piped to `head` (Rich 15)
                sys.exit(0)
            if any(isinstance(e, KeyboardInterrupt) for e in causes(end.__context__)):  # while parsing: Typer is silent
                raise KeyboardInterrupt from None
            raise
