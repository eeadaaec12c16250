"""Terminals and pipes that know fewer characters than are printed: what stands for the others there."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Mapping
from typing import TextIO

PLAIN = {
    **dict(zip("▁▂▃▄▅▆▇█", "_.-=+*%#", strict=True)),
    "…": "...",
    "≤": "<=",
    "≥": ">=",
    "±": "+/-",
    "×": "x",
    "µ": "u",
    "−": "-",
    "·": "*",
    "²": "^2",
    "─": "-",
    "━": "-",
    "╺": "-",
    "╸": "-",
    "│": "|",
    "└": "`",
    "→": "->",
    "•": "*",
}

HANDLER = "zeropoint.plain"


def _plain(error: UnicodeError) -> tuple[str, int]:
    """A handler of `codecs`: what we print has an equivalent, and what is in a name is spelled out."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    known = (PLAIN.get(c) or c.encode("ascii", "backslashreplace").decode() for c in missing)
    return "".join(known), error.end


def is_plain(environment: Mapping[str, str]) -> bool:
    """Whether the user's locale is explicitly that of C, for which Python would print UTF-8 all the same (PEP 540)."""
    locale = next((text for name in ("LC_ALL", "LC_CTYPE", "LANG") if (text := environment.get(name))), "")
    return locale in ("C", "POSIX") and not {"PYTHONIOENCODING", "PYTHONUTF8"} & environment.keys()


def print_anywhere(streams: tuple[TextIO, ...]) -> None:
    """Let all of `streams` take any text."""
    codecs.register_error(HANDLER, _plain)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            encoding = "ascii" if is_plain(os.environ) and sys.flags.utf8_mode else stream.encoding
            stream.reconfigure(encoding=encoding, errors=HANDLER)
