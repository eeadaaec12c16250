"""The exception hierarchy. Every error a user can cause is a `ZeropointError`, which the CLI prints as a line or a
list."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_on_command_line = ContextVar("on_command_line", default=False)


@contextmanager
def speaking_of_options() -> Iterator[None]:
    """Within this context, messages refer to command-line options; elsewhere, to function arguments."""
    before = _on_command_line.set(True)
    try:
        yield
    finally:
        _on_command_line.reset(before)


def spelled(python: str, shell: str) -> str:
    """Return the Python or the command-line spelling, whichever the reader of the message uses."""
    return shell if _on_command_line.get() else python


_OPPOSITES = {"keep_state": "--reset-state"}
"""The option that turns a setting off."""


def argument(name: str, value: str | float | None = None) -> str:
    """Return how `name` is given: `keep_float=` or `--keep-float`; with a value, `effort="high"` or `--effort high`."""
    option = f"--{name.replace('_', '-')}"
    if value is None:
        return spelled(f"{name}=", option)
    if isinstance(value, bool):
        return spelled(f"{name}={value}", option if value else _OPPOSITES[name])
    if isinstance(value, str):
        return spelled(f'{name}="{value}"', f"{option} {value}")
    return spelled(f"{name}={value:.5g}", f"{option} {value:.5g}")


def call(command: str, *given: str, **named: str) -> str:
    """Return how a command, or the function of the same name, is called, with placeholders such as DATA."""
    python = ", ".join([*given, *(f"{name}={value}" for name, value in named.items())])
    shell = " ".join([*given, *(f"--{name.replace('_', '-')} {value}" for name, value in named.items())])
    return spelled(f"zeropoint.{command}({python})", f"zeropoint {command} {shell}")


_short_names: ContextVar[dict[str, str] | None] = ContextVar("short_names", default=None)

_QUOTED = re.compile(r"(?<!\w)'([^'\n]+)'(?!\w)")


@contextmanager
def shortening_names(names: Mapping[str, str] | None = None) -> Iterator[None]:
    """Within this context, messages show short tensor names instead of the file's: these, and those added by
    `shorten`."""
    before = _short_names.set({**(names or {}), **(_short_names.get() or {})})
    try:
        yield
    finally:
        _short_names.reset(before)


def shorten(names: Mapping[str, str]) -> None:
    """Add display names for tensors. Earlier entries win: a float model's over those of a model derived from it."""
    if (known := _short_names.get()) is not None:
        known |= {**names, **known}


def shown_name(name: str) -> str:
    """Return the display name of a tensor."""
    return (_short_names.get() or {}).get(name, name)


def printable(text: str) -> str:
    """Escape characters that a terminal would interpret or cannot show: names come from untrusted files.

    Every file name, and every name read from a file, passes through here before it is printed. Names in quotes are
    shortened.
    """
    if _short_names.get():
        text = _QUOTED.sub(lambda found: f"'{shown_name(found[1])}'", text)
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def names_are_listed() -> str:
    """Return a sentence that says where to find the names of tensors and ops."""
    return f"{spelled('zeropoint.inspect(model)', '`zeropoint inspect --ops`')} lists names"


class ZeropointError(Exception):
    """Says what went wrong, where, and what to do next, in one message. A list has one argument for each line."""

    def __str__(self) -> str:
        return "\n".join(printable(str(line)) for line in self.args)


class InvalidModel(ZeropointError):
    """The file is not a readable model, or its graph violates a rule that LiteRT relies on."""


class InvalidRange(ZeropointError):
    """A range that no scale can represent: NaN, infinity, or a minimum above the maximum."""


class InvalidSample(ZeropointError):
    """Calibration or test data does not fit the model's inputs."""


class InvalidStats(ZeropointError):
    """A statistics or ranges file is damaged, or belongs to another model."""


class InvalidRecipe(ZeropointError):
    """A recipe or an option asks for something that does not exist or contradicts itself."""


class UnsupportedOp(ZeropointError):
    """The model contains ops for which the runtime, or the requested mode, has no kernel."""


class MissingExtra(ZeropointError):
    """An optional dependency is needed but not installed."""


class ConversionFailed(ZeropointError):
    """The framework's converter refused the model."""


class RuntimeFailure(ZeropointError):
    """LiteRT failed to load or to run a model."""


class OutputExists(ZeropointError):
    """The output file exists and overwriting was not requested."""


class CannotWrite(ZeropointError):
    """The output file cannot be written: a missing folder, missing permission, or a full disk."""
