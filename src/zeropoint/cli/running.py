"""What all commands have in common: --quiet and --verbose, examples in the help, exit codes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Annotated, Any

import typer

from ..errors import ZeropointError
from ..files import describe_os_error
from .screen import Screen, readers_may_leave

QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print results and errors only: no progress, no summaries, no notes.")
]
VerboseOption = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Print versions, time, memory, what converters print, and tracebacks of errors."
    ),
]


class ExitCode(IntEnum):
    """What scripts can rely on."""

    CHECK_FAILED = 1
    BAD_USE = 2
    INTERNAL = 70  # EX_SOFTWARE of sysexits.h: a bug of ours is no failed check
    INTERRUPTED = 130


class CheckFailed(Exception):
    """All went well, and what was found is not what an option demands."""


def add_command(app: typer.Typer, function: Callable[..., None]) -> None:
    """Make `function` a command. Its docstring ends with "Examples:", one to a line."""
    text, _, examples = inspect.cleandoc(function.__doc__ or "").partition("\n\nExamples:\n")
    paragraphs = "\n\n".join(re.sub(r"\s+", " ", part) for part in text.split("\n\n"))
    app.command(help=paragraphs, epilog=f"Examples:\n{textwrap.dedent(examples)}")(_with_screen(function))


def _with_screen(function: Callable[..., None]) -> Callable[..., None]:
    """`function` with --quiet and --verbose in place of its first parameter, the screen that follows from them.

    Typer reads options from signatures, so this makes one, and no command repeats them. A parameter that is a dataclass
    stands for its fields, which are options that several commands have.
    """
    _, *own = inspect.signature(function, eval_str=True).parameters.values()
    groups: dict[str, Any] = {p.name: p.annotation for p in own if dataclasses.is_dataclass(p.annotation)}

    @functools.wraps(function)
    def run(context: typer.Context, quiet: bool, verbose: bool, **options: Any) -> None:
        common: Screen = context.obj
        for name, group in groups.items():
            options[name] = group(**{f.name: options.pop(f.name) for f in dataclasses.fields(group)})
        with _ended(common.verbose or verbose):
            screen = common.also(quiet, verbose)
            with _told(screen):
                function(screen, **options)

    def shared(context: typer.Context, quiet: QuietOption = False, verbose: VerboseOption = False) -> None: ...

    context, *flags = inspect.signature(shared, eval_str=True).parameters.values()
    spelled = [q for p in own for q in (_fields(groups[p.name]) if p.name in groups else [p])]
    signature = inspect.Signature([context, *spelled, *flags])
    run.__signature__ = signature  # type: ignore[attr-defined]  # a protocol of `inspect`
    run.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    return run


def _fields(group: type) -> list[inspect.Parameter]:
    return list(inspect.signature(group, eval_str=True).parameters.values())


@contextlib.contextmanager
def _ended(verbose: bool) -> Iterator[None]:
    """Turn whatever ends a command early into a line on stderr and an exit code."""
    try:
        with readers_may_leave():
            yield
    except (typer.Exit, typer.Abort):
        raise
    except (Exception, KeyboardInterrupt) as error:
        message, code = _verdict(error)
        shown = error.__cause__ if isinstance(error, ZeropointError) else error
        if verbose and code in (ExitCode.BAD_USE, ExitCode.INTERNAL) and shown is not None:
            traceback.print_exception(shown)
        elif code is ExitCode.INTERNAL:
            message += "; --verbose shows where"
        print(message, file=sys.stderr)
        raise typer.Exit(code) from None


def _verdict(error: BaseException) -> tuple[str, ExitCode]:
    if isinstance(error, CheckFailed):
        return f"check failed: {error}", ExitCode.CHECK_FAILED
    if any(isinstance(e, KeyboardInterrupt) for e in _causes(error)):
        return "interrupted; no file was left half-written", ExitCode.INTERRUPTED
    if isinstance(error, ZeropointError):
        from ..report.terminal import printable

        return "error: " + "\n".join(printable(str(line)) for line in error.args), ExitCode.BAD_USE
    if isinstance(error, MemoryError):
        return "error: not enough memory; try fewer --workers or a smaller --limit", ExitCode.BAD_USE
    if isinstance(error, OSError):  # what the machine refuses is no bug: a full disk, too many open files
        where = "" if error.filename is None else f"{error.filename}: "
        return f"error: {where}{describe_os_error(error)}", ExitCode.BAD_USE
    told = f"{type(error).__name__}: {error}".partition("\n")[0]
    return f"internal error: {told}\nThis is a bug in zeropoint, please report it", ExitCode.INTERNAL


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those behind it: native modules that are interrupted while loading raise an ImportError."""
    while error is not None:
        yield error
        error = error.__cause__


@contextlib.contextmanager
def _told(screen: Screen) -> Iterator[None]:
    """With --verbose: on what it runs before, and what it took afterwards."""
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

    found = [f"zeropoint {__version__}", f"Python {platform.python_version()}"]
    for name in ("ai-edge-litert", "numpy", "tensorflow", "keras"):
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join([*found, f"{platform.system()} {platform.machine()}"])


def _memory() -> str:
    try:
        import resource
    except ImportError:  # Windows
        return ""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return f", at most {peak / (1e6 if sys.platform == 'darwin' else 1e3):.0f} MB of memory"
