"""Where a command prints: results always, all else unless --quiet."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import InvalidRecipe

if TYPE_CHECKING:
    from rich.console import Console

Noted = TypeVar("Noted")


@dataclass(frozen=True)
class Screen:
    """What --quiet and --verbose ask for, and the streams that follow from it."""

    quiet: bool = False
    verbose: bool = False

    def also(self, quiet: bool, verbose: bool) -> Screen:
        """With what was said after the command's name, too."""
        both = Screen(self.quiet or quiet, self.verbose or verbose)
        if both.quiet and both.verbose:
            raise InvalidRecipe("--quiet and --verbose contradict each other; give one of them")
        return both

    @cached_property
    def results(self) -> Console:
        """For what the command was asked for."""
        return _console()

    @cached_property
    def remarks(self) -> Console:
        """For summaries of what was written to files, and progress: silent with --quiet."""
        return _console(quiet=self.quiet)

    @cached_property
    def asides(self) -> Console:
        """The same beside JSON on stdout: to stderr."""
        return _console(stderr=True, quiet=self.quiet)

    def without_notes(self, found: Noted) -> Noted:
        """`found`, a dataclass with `notes`, as --quiet wants it printed."""
        from dataclasses import replace

        return replace(found, notes=()) if self.quiet else found  # type: ignore[type-var]  # any dataclass

    def json(self, value: Mapping[str, Any]) -> None:
        with readers_may_leave():
            json.dump(value, sys.stdout, indent=1, allow_nan=False)
            print()

    def text(self, value: object) -> None:
        """Exactly as it is: no colours, no wrapping."""
        with readers_may_leave():
            print(value)


def _console(stderr: bool = False, quiet: bool = False) -> Console:
    from rich.console import Console

    class Patient(Console):
        def on_broken_pipe(self) -> None:
            abandon_stdout()

    return Patient(soft_wrap=True, stderr=stderr, quiet=quiet)


@contextlib.contextmanager
def readers_may_leave() -> Iterator[None]:
    """Whoever reads our output may have seen enough (`zeropoint inspect ... | head`): files are still to be written."""
    try:
        yield
    except BrokenPipeError:
        abandon_stdout()
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            abandon_stdout()


def abandon_stdout() -> None:
    """Print into nothing from here on."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
