"""The exception tree. Every error a user can cause is a `ZeropointError`; the CLI prints it as one line, or a list."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_on_command_line = ContextVar("on_command_line", default=False)


@contextmanager
def speaking_of_options() -> Iterator[None]:
    """Inside, messages speak of the options of a command; outside, of the arguments of a function."""
    before = _on_command_line.set(True)
    try:
        yield
    finally:
        _on_command_line.reset(before)


def spelled(python: str, shell: str) -> str:
    """What stands for the same thing in Python and on a command line: the one that the reader of a message uses."""
    return shell if _on_command_line.get() else python


_OPPOSITES = {"keep_state": "--reset-state"}
"""Options that say no to others."""


def argument(name: str, value: str | float | None = None) -> str:
    """How `name` is given: `keep_float=` or `--keep-float`; with a value `effort="high"` or `--effort high`."""
    number = value if isinstance(value, str) or value is None else f"{value:.5g}"
    option = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return spelled(f"{name}={value}", option if value else _OPPOSITES[name])
    if value is None:
        return spelled(f"{name}=", option)
    return spelled(f'{name}="{value}"' if isinstance(value, str) else f"{name}={number}", f"{option} {number}")


def call(command: str, *given: str, **named: str) -> str:
    """How a command is called, or the function of its name, with placeholders such as DATA."""
    python = ", ".join([*given, *(f"{name}={value}" for name, value in named.items())])
    shell = " ".join([*given, *(f"--{name.replace('_', '-')} {value}" for name, value in named.items())])
    return spelled(f"zeropoint.{command}({python})", f"zeropoint {command} {shell}")


_short_names: ContextVar[dict[str, str] | None] = ContextVar("short_names", default=None)

_QUOTED = re.compile(r"(?<!\w)'([^'\n]+)'(?!\w)")


@contextmanager
def shortening_names(names: Mapping[str, str] | None = None) -> Iterator[None]:
    """Inside, texts for people have short names of tensors, these and those that `shorten` adds, not the file's."""
    before = _short_names.set({**(names or {}), **(_short_names.get() or {})})
    try:
        yield
    finally:
        _short_names.reset(before)


def shorten(names: Mapping[str, str]) -> None:
    """Show these names by others. What was told first counts: a float model before what was made of it."""
    if (known := _short_names.get()) is not None:
        known |= {**names, **known}


def shown_name(name: str) -> str:
    """What people are shown of the name of a tensor."""
    return (_short_names.get() or {}).get(name, name)


def printable(text: str) -> str:
    """`text` with characters escaped that a terminal would interpret or could not show: names come from strangers.

    Whatever prints a name of a file, or from a file, goes through here. Names in quotes are shortened.
    """
    if _short_names.get():
        text = _QUOTED.sub(lambda found: f"'{shown_name(found[1])}'", text)
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def names_are_listed() -> str:
    """Where to look for the names of tensors and ops."""
    return f"{spelled('zeropoint.inspect(model)', '`zeropoint inspect --ops`')} lists names"


class ZeropointError(Exception):
    """What went wrong, where, and what to do next, in one message. A list has one argument for each line."""

    def __str__(self) -> str:
        return "\n".join(printable(str(line)) for line in self.args)


class InvalidModel(ZeropointError):
    """The file is not a model we can read, or the graph breaks a rule that LiteRT relies on."""


class InvalidRange(ZeropointError):
    """A range that no scale can represent: NaN, infinity, or a minimum above the maximum."""


class InvalidSample(ZeropointError):
    """Calibration or test data does not fit the model's inputs."""


class InvalidStats(ZeropointError):
    """A statistics or ranges file is damaged, or belongs to another model."""


class InvalidRecipe(ZeropointError):
    """A recipe or an option asks for something that does not exist or contradicts itself."""


class UnsupportedOp(ZeropointError):
    """The model holds ops that the runtime, or the requested mode, has no kernel for."""


class MissingExtra(ZeropointError):
    """An optional dependency is needed for this and is not installed."""


class ConversionFailed(ZeropointError):
    """The converter of the framework that a model comes from refused it."""


class RuntimeFailure(ZeropointError):
    """LiteRT refused to load or to run a model."""


class OutputExists(ZeropointError):
    """The output file exists and overwriting it was not asked for."""


class CannotWrite(ZeropointError):
    """There is no place for the output file: a missing folder, a missing permission, a full disk."""
