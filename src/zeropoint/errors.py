"""The exception tree. Every error a user can cause is a `ZeropointError`; the CLI prints it as one line, or a list."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with characters escaped that a terminal would interpret or could not show: names come from strangers.

    Whatever prints a name of a file, or from a file, goes through here.
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


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
