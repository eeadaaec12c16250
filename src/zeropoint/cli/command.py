"""What all commands share: --quiet and --verbose, groups of options, examples in the help, exit codes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import os
import re
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer
import typer.core

from ..display import size_text
from ..errors import (
    InvalidRecipe,
    RuntimeFailure,
    ZeropointError,
    printable,
    shortening_names,
    speaking_of_options,
)
from ..files import describe_os_error
from ..streams import unredirected
from .signals import ignore_interrupts, import_numpy

if TYPE_CHECKING:
    from rich.console import Console

    from ..bench.latency import Benchmark
    from ..comparison.values import Comparison, Diagnosis

QuietOption = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Print only results and errors: no progress, no summaries, no notes."),
]
VerboseOption = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Print versions, time, memory, converter output, and tracebacks.",
    ),
]
TrustedOption = Annotated[
    bool,
    typer.Option("--trusted", help="Run the model in this process: slightly faster, but a damaged file can crash it."),
]
TimeLimitOption = Annotated[
    float | None,
    typer.Option(
        "--time-limit", metavar="SECONDS", help="Unless --trusted: time limit for one run (default: 60).", min=0.1
    ),
]
Shown = TypeVar("Shown", "Benchmark", "Comparison", "Diagnosis")


class ExitCode(IntEnum):
    """The exit codes that scripts can rely on."""

    CHECK_FAILED = 1
    BAD_USE = 2
    INTERNAL = 70  # EX_SOFTWARE of sysexits.h: an internal error is not a failed check
    INTERRUPTED = 130


class CheckFailed(Exception):
    """The command succeeded, but its result does not meet the requirement of an option."""


@dataclasses.dataclass(frozen=True)
class Screen:
    """Where a command prints, depending on --quiet and --verbose: results always, everything else unless --quiet."""

    quiet: bool = False
    verbose: bool = False

    def also(self, quiet: bool, verbose: bool) -> Screen:
        """Return the screen with the flags added that were given after the command's name."""
        both = Screen(self.quiet or quiet, self.verbose or verbose)
        if both.quiet and both.verbose:
            raise InvalidRecipe("--quiet and --verbose contradict each other; give one of them")
        return both

    @functools.cached_property
    def results(self) -> Console:
        """The console for the command's results."""
        return _console()

    @functools.cached_property
    def remarks(self) -> Console:
        """The console for progress and summaries: silent with --quiet."""
        return _console(quiet=self.quiet)

    def beside(self, as_json: bool) -> Console:
        """Return the console for remarks, on stderr if stdout carries JSON."""
        return _console(stderr=True, quiet=self.quiet) if as_json else self.remarks

    def show(self, result: Shown, as_json: bool, write: Callable[[Shown, Console], None]) -> None:
        """Print `result` as JSON, or with `write`; without its notes if --quiet is given."""
        if as_json:
            self.json(result.to_json())
        else:
            write(dataclasses.replace(result, notes=()) if self.quiet else result, self.results)

    def json(self, value: Mapping[str, Any]) -> None:
        with tolerate_closed_pipe():
            json.dump(value, sys.stdout, indent=1, allow_nan=False)
            print()


def _console(stderr: bool = False, quiet: bool = False) -> Console:
    from rich.console import Console

    class PipeTolerantConsole(Console):
        def on_broken_pipe(self) -> None:
            _discard_stdout()

    return PipeTolerantConsole(soft_wrap=True, stderr=stderr, quiet=quiet)


@contextlib.contextmanager
def tolerate_closed_pipe() -> Iterator[None]:
    """Accept a reader that closes the pipe early (`zeropoint inspect ... | head`); files are still written."""
    try:
        yield
    except BrokenPipeError:
        _discard_stdout()
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            _discard_stdout()


def _discard_stdout() -> None:
    """Send all further output to the null device."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)


class _PlainHelp:
    """Removes the <bool> that Typer 0.27 writes next to flags, as if they took a value."""

    def get_params(self, context: Any) -> list[Any]:
        found: list[Any] = super().get_params(context)  # type: ignore[misc]  # of the class it is mixed into
        for parameter in found:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = " "
        return found


class Command(_PlainHelp, typer.core.TyperCommand):
    """A command with plain help."""


class CommandGroup(_PlainHelp, typer.core.TyperGroup):
    """The group of all commands, with plain help."""


def add_command(app: typer.Typer, function: Callable[..., None], *, runs_models: bool = False) -> None:
    """Make `function` a command. Its docstring ends with "Examples:", one per line.

    With `runs_models`, models given by the user run in child processes, unless they are --trusted.
    """
    text, _, examples = inspect.cleandoc(function.__doc__ or "").partition("\n\nExamples:\n")
    paragraphs = "\n\n".join(re.sub(r"\s+", " ", part) for part in text.split("\n\n"))
    epilog = f"Examples:\n{textwrap.dedent(examples)}"
    app.command(cls=Command, help=paragraphs, epilog=epilog)(_with_screen(function, runs_models))


def argument(metavar: str, help: str) -> Any:
    """Return an argument of a command, for Annotated."""
    return typer.Argument(metavar=metavar, help=help, show_default=False)


def option(default: Any, metavar: str | None, help: str, *names: str, **settings: Any) -> Any:
    """Return a field of an option group: --field-name, unless other `names` are given; a default of ... makes it
    required."""
    metadata = {"names": names, "metavar": metavar, "help": help, **settings}
    return dataclasses.field(default=dataclasses.MISSING if default is ... else default, metadata=metadata)


def flag(help: str, *names: str) -> Any:
    """Return a field that is False unless the option is given."""
    return option(False, None, help, *names)


def _with_screen(function: Callable[..., None], runs_models: bool) -> Callable[..., None]:
    """Replace the first parameter of `function`, the screen, by the options --quiet and --verbose.

    Typer reads options from signatures, so this builds one, and no command has to repeat them. A parameter whose type
    is a dataclass stands for the fields of that class: options that belong together, most of them shared by commands.
    """
    _, *own = inspect.signature(function, eval_str=True).parameters.values()
    groups: dict[str, Any] = {p.name: p.annotation for p in own if dataclasses.is_dataclass(p.annotation)}

    @functools.wraps(function)
    def run(
        context: typer.Context,
        quiet: bool,
        verbose: bool,
        trusted: bool = True,
        time_limit: float | None = None,
        **options: Any,
    ) -> None:
        common: Screen = context.obj
        for name, group in groups.items():
            options[name] = group(**{f.name: options.pop(f.name) for f in dataclasses.fields(group)})
        with speaking_of_options(), shortening_names(), _exit_codes(common.verbose or verbose):
            screen = common.also(quiet, verbose)
            with _versions_and_time(screen), _isolation(trusted, time_limit):
                function(screen, **options)

    def shared(context: typer.Context, quiet: QuietOption = False, verbose: VerboseOption = False) -> None: ...

    def running(
        context: typer.Context,
        trusted: TrustedOption = False,
        time_limit: TimeLimitOption = None,
        quiet: QuietOption = False,
        verbose: VerboseOption = False,
    ) -> None: ...

    kind = running if runs_models else shared
    context, *flags = inspect.signature(kind, eval_str=True).parameters.values()
    options = [q for p in own for q in (_fields(p.annotation) if p.name in groups else [p])]
    # Keyword-only, so that parameters without a default may follow others.
    keywords = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*options, *flags)]
    signature = inspect.Signature([context, *keywords])
    run.__signature__ = signature  # type: ignore[attr-defined]  # a protocol of `inspect`
    run.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    return run


def _fields(group: type) -> Iterator[inspect.Parameter]:
    """Yield the options of a group. Given a name, Typer does not add --no-name to a flag."""
    types = get_type_hints(group)
    for parameter, field in zip(inspect.signature(group).parameters.values(), dataclasses.fields(group), strict=True):
        names = field.metadata["names"] or (f"--{field.name.replace('_', '-')}",)
        settings = {name: value for name, value in field.metadata.items() if name != "names"}
        yield parameter.replace(annotation=Annotated[types[field.name], typer.Option(*names, **settings)])


def _isolation(trusted: bool, seconds: float | None) -> contextlib.AbstractContextManager[None]:
    if trusted:
        return contextlib.nullcontext()
    from ..runtime import isolated

    return isolated(seconds)


@contextlib.contextmanager
def _exit_codes(verbose: bool) -> Iterator[None]:
    """Turn whatever ends a command early into a line on stderr and an exit code."""
    try:
        import_numpy()
        with tolerate_closed_pipe():
            yield
    except (typer.Exit, typer.Abort):
        raise
    except (Exception, KeyboardInterrupt) as error:
        message, code = _verdict(error)
        if code is ExitCode.INTERRUPTED:
            ignore_interrupts()
        shown = error.__cause__ if isinstance(error, ZeropointError) else error
        if verbose and code in (ExitCode.BAD_USE, ExitCode.INTERNAL) and shown is not None:
            for line in "".join(traceback.format_exception(shown)).splitlines():
                print(printable(line), file=sys.stderr)
        elif code is ExitCode.INTERNAL:
            message += "; --verbose shows where"
        with unredirected():
            print("\n".join(map(printable, message.split("\n"))), file=sys.stderr, flush=True)
        raise typer.Exit(code) from None


def _verdict(error: BaseException) -> tuple[str, ExitCode]:
    if isinstance(error, CheckFailed):
        return f"check failed: {error}", ExitCode.CHECK_FAILED
    if any(isinstance(e, KeyboardInterrupt) for e in causes(error)):
        return "interrupted; no file was left half-written", ExitCode.INTERRUPTED
    limit = memory_limit()
    no_thread = isinstance(error, RuntimeError) and "can't start new thread" in str(error)
    if isinstance(error, MemoryError) or no_thread or (limit and isinstance(error, ImportError | SystemError)):
        most = "" if limit is None else f": this process may use {size_text(limit)} (ulimit -v)"
        return f"error: not enough memory{most}; try fewer --workers or a smaller --limit", ExitCode.BAD_USE
    if isinstance(error, ZeropointError):
        hint = ""
        if limit and isinstance(error, RuntimeFailure):  # LiteRT does not say what was missing
            hint = f"\n  perhaps out of memory: this process may use {size_text(limit)} (ulimit -v)"
        return f"error: {error}{hint}", ExitCode.BAD_USE
    if isinstance(error, OSError):  # a full disk or too many open files are not bugs
        where = "" if error.filename is None else f"{printable(str(error.filename))}: "
        return f"error: {where}{describe_os_error(error)}", ExitCode.BAD_USE
    first_line = f"{type(error).__name__}: {error}".partition("\n")[0]
    return f"internal error: {first_line}\nThis is a bug in zeropoint, please report it", ExitCode.INTERNAL


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes: native modules that are interrupted while loading raise an ImportError."""
    while error is not None:
        yield error
        error = error.__cause__


@contextlib.contextmanager
def _versions_and_time(screen: Screen) -> Iterator[None]:
    """With --verbose, print the versions in use before, and time and memory afterwards."""
    if not screen.verbose:
        yield
        return
    print(_versions(), file=sys.stderr, flush=True)
    start = time.perf_counter()
    try:
        yield
    finally:
        print(f"took {time.perf_counter() - start:.2f} s{_memory()}", file=sys.stderr)


def _versions() -> str:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from .. import __version__

    versions = [f"zeropoint {__version__}", f"Python {platform.python_version()}"]
    for name in ("ai-edge-litert", "numpy", "tensorflow", "keras"):
        with contextlib.suppress(PackageNotFoundError):
            versions.append(f"{name} {version(name)}")
    return ", ".join([*versions, f"{platform.system()} {platform.machine()}"])


def memory_limit() -> int | None:
    """Return the number of bytes that this process may allocate, if a limit is set."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if most == resource.RLIM_INFINITY else most


def _memory() -> str:
    try:
        import resource
    except ImportError:  # Windows
        return ""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return f", at most {size_text(peak if sys.platform == 'darwin' else 1024 * peak)} of memory"
