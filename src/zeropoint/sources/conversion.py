"""What the converters of other frameworks have in common: how they are asked, and how their refusals are told."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..errors import ConversionFailed, ZeropointError
from ..streams import Captured, captured

SHOWN_LINES, LONGEST_LINE = 12, 300
"""Of what a converter printed before it failed, and of what it says."""


@dataclass(frozen=True)
class Conversion:
    """How a framework's model becomes a float `.tflite`.

    `signatures` are those of a SavedModel to keep (none: all). `select_tf_ops` leaves ops that LiteRT lacks to
    TensorFlow's own kernels, `custom_ops` leaves them to whoever runs the model. `verbose` lets the converter print.
    `settings` are further attributes of TensorFlow's converter.
    """

    signatures: tuple[str, ...] = ()
    select_tf_ops: bool = False
    custom_ops: bool = False
    verbose: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)


@contextlib.contextmanager
def converting(converter: str, conversion: Conversion) -> Iterator[None]:
    """Hold back what `converter` prints, and tell its exceptions in our words, with what was printed."""
    printed = Captured()
    try:
        if conversion.verbose:
            yield
        else:
            with captured() as printed:
                yield
    except ZeropointError:
        raise
    except Exception as error:  # whatever a framework raises
        raise ConversionFailed(*_explanation(converter, error, printed)) from error


def _explanation(converter: str, error: Exception, printed: Captured) -> Iterator[str]:
    text = str(error)
    yield f"{converter} refused the model: {first_relevant_line(error)}"
    for what, remedy in ADVICE.items():
        if (found := re.search(rf"^{what} ops: (.+)$", text, re.MULTILINE)) is not None:
            yield f"  {found[1].strip()}: {remedy}"
    if lines := printed.lines():
        yield "  it printed:"
        yield from (f"    {_short(line)}" for line in lines[-SHOWN_LINES:])


ADVICE = {
    "TF Select": "only TensorFlow runs them; allow them with OpsSet.SELECT_TF_OPS or Conversion(select_tf_ops=True)",
    "Custom": "no kernel exists for them; allow them with allow_custom_ops or Conversion(custom_ops=True)",
}
"""TensorFlow's converter lists ops under these headings."""


def first_relevant_line(error: Exception) -> str:
    """The line that names the culprit: the first that is marked as an error, or the first at all."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    marked = (found[1] for line in lines if (found := re.search(r"\berror: (.+)", line)))
    return _short(next(marked, lines[0] if lines else type(error).__name__))


def _short(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]} ..."
