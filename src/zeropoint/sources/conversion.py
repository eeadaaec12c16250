"""What the converters of other frameworks have in common: how they are called, and how their errors are reported."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from ..errors import ConversionFailed, MissingExtra, ZeropointError
from ..streams import captured

SHOWN_LINES, LONGEST_LINE = 12, 300
"""Of what a converter printed before it failed, and of its error message."""


@dataclass(frozen=True)
class GraphEnds:
    """Which tensors of a frozen graph are inputs and outputs, and the shapes of inputs where others are wanted."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Conversion:
    """How a framework's model becomes a float `.tflite`.

    `signatures` are those of a SavedModel to keep (none: all). `select_tf_ops` leaves ops that LiteRT lacks to
    TensorFlow's own kernels, `custom_ops` leaves them to whoever runs the model. `verbose` lets the converter print.
    `settings` are further attributes of TensorFlow's converter. `ends` name the inputs and outputs of a frozen graph.
    """

    signatures: tuple[str, ...] = ()
    select_tf_ops: bool = False
    custom_ops: bool = False
    verbose: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)
    ends: GraphEnds | None = None


def require_library(name: str, what: str, remedy: str) -> Any:
    """The library `name`, imported: `what` needs it, and `remedy` says how to get it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            remedy = f"'{error.name}', which {name} lacks: pip install {error.name}"
        raise MissingExtra(f"{what} needs {remedy}") from None


@contextlib.contextmanager
def converting(converter: str, conversion: Conversion) -> Iterator[None]:
    """Hold back what `converter` prints; turn its exceptions into ConversionFailed, with what it printed."""
    printed: list[str] = []
    try:
        with contextlib.nullcontext(printed) if conversion.verbose else captured() as printed:
            yield
    except ZeropointError:
        raise
    except Exception as error:  # whatever a framework raises
        raise ConversionFailed(*_explanation(converter, error, printed)) from error


def _explanation(converter: str, error: Exception, printed: list[str]) -> Iterator[str]:
    text = str(error)
    yield f"{converter} refused the model: {first_relevant_line(error)}"
    for what, remedy in ADVICE.items():
        if (listed := re.search(rf"^{what} ops: (.+)$", text, re.MULTILINE)) is not None:
            yield f"  {listed[1].strip()}: {remedy}"
    if printed:
        yield "  it printed:"
        yield from (f"    {shortened(line)}" for line in printed[-SHOWN_LINES:])


ADVICE = {
    "TF Select": "only TensorFlow runs them; allow them with OpsSet.SELECT_TF_OPS or Conversion(select_tf_ops=True)",
    "Custom": "no kernel exists for them; allow them with allow_custom_ops or Conversion(custom_ops=True)",
}
"""TensorFlow's converter lists ops under these headings."""


def first_relevant_line(error: Exception) -> str:
    """The first line that is marked as an error, or else the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    marked = (match[1] for line in lines if (match := re.search(r"\berror: (.+)", line)))
    return shortened(next(marked, lines[0] if lines else type(error).__name__))


def shortened(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]} ..."
