"""Replacements for characters that a terminal or pipe cannot encode."""

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
    """Handle an encoding error for `codecs`: our own symbols have an equivalent, and characters in names are
    escaped."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    known = (PLAIN.get(c) or c.encode("ascii", "backslashreplace").decode() for c in missing)
    return "".join(known), error.end


def is_plain(environment: Mapping[str, str]) -> bool:
    """Whether the user's locale is explicitly C, for which Python would print UTF-8 anyway (PEP 540)."""
    locale = next((text for name in ("LC_ALL", "LC_CTYPE", "LANG") if (text := environment.get(name))), "")
    return locale in ("C", "POSIX") and not {"PYTHONIOENCODING", "PYTHONUTF8"} & environment.keys()


def print_anywhere(streams: tuple[TextIO, ...]) -> None:
    """Make the streams accept any text, replacing characters that they cannot encode."""
    codecs.register_error(HANDLER, _plain)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            encoding = "ascii" if is_plain(os.environ) and sys.flags.utf8_mode else stream.encoding
            stream.reconfigure(encoding=encoding, errors=HANDLER)
