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
"""How much is shown of a converter's output before it failed, and of its error message."""


@dataclass(frozen=True)
class GraphEnds:
    """The input and output tensors of a frozen graph, and input shapes to override."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Conversion:
    """How a framework's model is converted to a float `.tflite`.

    Attributes:
        signatures: The signatures of a SavedModel to keep; all if empty.
        select_tf_ops: Leave ops that LiteRT lacks to TensorFlow's own kernels.
        custom_ops: Leave ops that LiteRT lacks to custom kernels of the application.
        verbose: Let the converter print.
        settings: Further attributes of TensorFlow's converter.
        ends: The inputs and outputs of a frozen graph.
    """

    signatures: tuple[str, ...] = ()
    select_tf_ops: bool = False
    custom_ops: bool = False
    verbose: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)
    ends: GraphEnds | None = None


def require_library(name: str, what: str, remedy: str) -> Any:
    """Import the library `name`, which `what` needs; `remedy` says how to install it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            remedy = f"'{error.name}', which {name} needs: pip install {error.name}"
        raise MissingExtra(f"{what} needs {remedy}") from None


@contextlib.contextmanager
def converting(converter: str, conversion: Conversion) -> Iterator[None]:
    """Suppress the output of `converter`; turn its exceptions into ConversionFailed, including that output."""
    printed: list[str] = []
    try:
        with contextlib.nullcontext(printed) if conversion.verbose else captured() as printed:
            yield
    except ZeropointError:
        raise
    except Exception as error:  # frameworks may raise anything
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
"""The headings under which TensorFlow's converter lists unsupported ops."""


def first_relevant_line(error: Exception) -> str:
    """Return the first line that is marked as an error, or else the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    marked = (match[1] for line in lines if (match := re.search(r"\berror: (.+)", line)))
    return shortened(next(marked, lines[0] if lines else type(error).__name__))


def shortened(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]} ..."
